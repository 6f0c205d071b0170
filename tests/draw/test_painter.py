"""Panels in print: every bar is drawn, panels on one axis share its scale, data can be saved."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from labkit.draw.layout import time_axis
from labkit.draw.painter import panel_figure
from labkit.draw.panel import BAR_COLUMNS, Label, Mark, TimedPanel
from labkit.draw.picture import drawn_data

AXIS = time_axis(5.0)


def panel(*ends: float, title: str = "", **more: Any) -> TimedPanel:
    """Return a panel of bars that are a second long, one below the other."""
    names = ["backward", "forward"]
    rows = [(end - 1, end, row, 0.86, names[row > 0], 0, f"bar {row}") for row, end in enumerate(ends)]
    beside = [Label(0.5, "a group"), Label(0.5, "a row", small=True)]
    marks = [Mark(ends[0], "the first ends", True)]
    return TimedPanel(pd.DataFrame(rows, columns=list(BAR_COLUMNS)), len(ends), beside, title, marks=marks, **more)


def test_panels_on_one_axis_have_one_scale_and_another_axis_has_its_own():
    axes = panel_figure([panel(1.0), panel(5.0), panel(0.01, axis=time_axis(0.01))], AXIS).axes
    assert [ax.get_xlim()[1] for ax in axes] == pytest.approx([5.05, 5.05, 20])


def test_a_figure_has_one_legend_and_the_bars_of_all_panels_are_its_data():
    figure = panel_figure([panel(1.0, title="one"), panel(2.0, 3.0, title="two")], AXIS)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["forward", "backward", "the first ends"]
    data = drawn_data(figure)
    assert data["title"].tolist() == ["one", "two", "two"] and data["panel"].tolist() == [0, 1, 1]
    assert data["right"].tolist() == [1.0, 2.0, 3.0]
