"""Panels in print: every bar is drawn, panels on one axis share its scale, data can be saved."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pandas as pd
import pytest

from labkit.draw.layout import time_axis
from labkit.draw.painter import panel_figure
from labkit.draw.panel import BAR_COLUMNS, Label, Mark, Panel
from labkit.draw.picture import drawn_data

AXIS = time_axis(5.0)


def panel(*ends: float, title: str = "") -> Panel:
    rows = [
        (end - 1, end, row, 0.86, "forward" if row else "backward", 0, f"bar {row}") for row, end in enumerate(ends)
    ]
    marks = [Mark(ends[0], "the first ends", True)]
    bars = pd.DataFrame(rows, columns=list(BAR_COLUMNS))
    return Panel(
        bars, height=len(ends), rows=[Label(0.5, "a group"), Label(0.5, "a row", small=True)], title=title, marks=marks
    )


@pytest.fixture(autouse=True)
def close():
    yield
    plt.close("all")


def test_rows_labels_marks_and_titles_are_drawn():
    (ax,) = panel_figure([(panel(1.0, 3.0, title="Two bars"), AXIS)], note="as measured").axes
    assert {text.get_text() for text in ax.texts} == {"bar 0", "bar 1"}
    assert [label.get_text() for label in ax.get_yticklabels()] == ["a group"]
    assert [label.get_text() for label in ax.get_yticklabels(minor=True)] == ["a row"]
    assert ax.get_title(loc="left") == "Two bars"
    assert {text.get_text() for text in ax.get_legend().get_texts()} == {"forward", "backward", "the first ends"}
    assert ax.get_xlabel() == "time (s)"


def test_panels_on_one_axis_have_one_scale_and_another_axis_has_its_own():
    other = time_axis(0.01)
    axes = panel_figure([(panel(1.0), AXIS), (panel(5.0), AXIS), (panel(0.01), other)]).axes
    ends = [ax.get_xlim()[1] for ax in axes]
    assert ends[0] == ends[1] == pytest.approx(5.05)
    assert ends[2] == pytest.approx(10.1)


def test_what_is_named_above_is_not_named_again():
    first, second = panel_figure([(panel(1.0, 2.0), AXIS), (panel(1.0, 2.0), AXIS)]).axes
    assert len(first.get_legend().get_texts()) == 3
    assert [text.get_text() for text in second.get_legend().get_texts()] == ["the first ends"]


def test_the_bars_of_all_panels_can_be_saved_as_data():
    data = drawn_data(panel_figure([(panel(1.0, title="one"), AXIS), (panel(2.0, 3.0, title="two"), AXIS)]))
    assert data["title"].tolist() == ["one", "two", "two"]
    assert data["panel"].tolist() == [0, 1, 1]
    assert data["right"].tolist() == [1.0, 2.0, 3.0]
