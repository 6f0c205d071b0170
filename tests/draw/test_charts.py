"""labkit.draw.charts: bars and curves show the numbers of their table."""

from itertools import pairwise

import matplotlib.pyplot as plt
import pandas as pd
import pytest
from drawn_tables import RESULTS, SWEEP

from labkit.draw.charts import bars, by_source, curve, curves, one_legend, panels


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


def test_bars_stand_as_high_as_their_values_and_each_series_has_a_legend_entry():
    ax = bars(RESULTS, group="setting", series="source", value="time_s", error="spread_s", label="time (s)")
    assert [[bar.get_height() for bar in container] for container in ax.containers if len(container) == 2] == [
        [12.0, 15.0],
        [3.5, 2.25],
    ]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["measured", "published"]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["1 device", "2 devices"]
    assert ax.get_ylabel() == "time (s)"
    sides = sorted((bar.get_x(), bar.get_x() + bar.get_width()) for bar in ax.patches)
    assert all(right <= left for (_, right), (left, _) in pairwise(sides))
    segments = ax.collections[0].get_segments()
    assert [tuple(segment[:, 1]) for segment in segments] == [(11.5, 12.5), (14.0, 16.0)]


def test_bars_of_a_series_without_one_of_the_groups_leave_a_gap():
    ax = bars(RESULTS[:3], group="setting", series="source", value="time_s")
    assert [len(container) for container in ax.containers] == [2, 1]


def test_a_curve_has_measured_points_in_order_and_a_dashed_prediction():
    ax = curve(SWEEP, x="batch", y="time_s", predicted="model_s", log="xy")
    measured, predicted = ax.lines
    assert list(measured.get_xdata()) == list(predicted.get_xdata()) == [1, 2, 4]
    assert list(measured.get_ydata()) == [0.1, 0.2, 0.4] and list(predicted.get_ydata()) == [0.11, 0.21, 0.41]
    assert (measured.get_linestyle(), predicted.get_linestyle()) == ("-", "--")
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["measured", "predicted"]
    assert ax.get_xscale() == ax.get_yscale() == "log"


def test_a_fitted_line_says_that_it_is_fitted():
    ax = curve(SWEEP.rename(columns={"model_s": "fitted"}), x="batch", y="time_s", predicted="fitted")
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["measured", "fitted"]


def test_what_was_emulated_stands_under_bars_and_curves_and_only_there():
    results, sweep = RESULTS.copy(), SWEEP.copy()
    for say, slow in ((False, (results, sweep)), (True, (results, sweep))):
        for table in slow:
            table.attrs = {"emulated": "emulated link: SLOW"} if say else {}
        axes = bars(results, group="setting", series="source", value="time_s", note="By hand.")
        drawn = axes.get_xlabel(), curve(sweep, x="batch", y="time_s").get_xlabel()
        assert ["emulated link: SLOW" in label for label in drawn] == [say, say]
        assert "By hand" in drawn[0]


def test_charts_refuse_tables_that_they_cannot_draw():
    with pytest.raises(ValueError, match=r"no column seconds; the table has setting, source, time_s, spread_s"):
        bars(RESULTS, group="setting", series="source", value="seconds")
    with pytest.raises(ValueError, match="two rows for one bar"):
        bars(pd.concat([RESULTS, RESULTS]), group="setting", series="source", value="time_s")
    with pytest.raises(ValueError, match="column time_s has entries that are no finite numbers"):
        curve(SWEEP.assign(time_s=[1.0, None, 2.0]), x="batch", y="time_s")
    with pytest.raises(ValueError, match="the table is empty"):
        curve(SWEEP[:0], x="batch", y="time_s")
    with pytest.raises(ValueError, match="not positive"):
        bars(RESULTS.assign(time_s=[1.0, 2.0, 0.0, 1.0]), group="setting", series="source", value="time_s", log=True)


# --- intervals, sources, ticks --------------------------------------------------------------------

ENDS = RESULTS.assign(low=RESULTS.time_s - 0.5, high=[13.0, 17.0, 3.5, 5.25])


def test_two_columns_are_the_ends_of_an_interval_in_bars_and_curves():
    ax = bars(ENDS, group="setting", series="source", value="time_s", error=("low", "high"))
    segments = [tuple(segment[:, 1]) for lines in ax.collections for segment in lines.get_segments()]
    assert segments == [(11.5, 13.0), (14.5, 17.0), (3.0, 3.5), (1.75, 5.25)]
    sweep = SWEEP.assign(low=[0.3, 0.1, 0.1], high=[0.6, 0.1, 0.3])
    (lines,) = curve(sweep, x="batch", y="time_s", error=("low", "high")).collections
    segments = [tuple(segment[:, 1]) for segment in lines.get_segments() if len(segment)]
    assert [segment for segment in segments if segment == segment] == [(0.1, 0.3), (0.3, 0.6)]
    exact = curve(SWEEP.assign(low=SWEEP.time_s, high=SWEEP.time_s), x="batch", y="time_s", error=("low", "high"))
    assert not exact.collections, "without spread there is no error bar, in the legend neither"


@pytest.mark.parametrize("ends", [("high", "low"), ("high", "high"), ("low", "low")])
def test_a_value_outside_of_its_interval_is_refused(ends):
    table = ENDS.assign(high=ENDS.time_s + 1)
    with pytest.raises(ValueError, match=f"time_s lies outside of {ends[0]} to {ends[1]}"):
        bars(table, group="setting", series="source", value="time_s", error=ends)
    with pytest.raises(ValueError, match="no column least"):
        bars(table, group="setting", series="source", value="time_s", error=("least", "high"))


def test_bars_without_series_are_one_per_group_and_have_no_legend():
    ax = bars(RESULTS[:2], group="setting", value="time_s")
    assert [bar.get_height() for bar in ax.patches] == [12.0, 15.0] and ax.get_legend() is None
    with pytest.raises(ValueError, match="two rows for one bar"):
        bars(RESULTS, group="setting", value="time_s")


def test_bars_by_source_are_those_of_the_numbers_that_are_there():
    numbers = {
        "your guess": {"strong": None},
        "predicted": {"weak": 1.7, "strong": 1.5},
        "measured": {"weak": (1.4, 1.3, 1.6)},
    }
    ax = by_source(numbers | {"published": {"weak": 1.74}}, label="times as fast")
    drawn = [container for container in ax.containers if not container.get_label().startswith("_")]
    heights = {each.get_label(): [bar.get_height() for bar in each] for each in drawn}
    assert heights == {"predicted": [1.7, 1.5], "measured": [1.4], "published": [1.74]}
    assert [label.get_text() for label in ax.get_xticklabels()] == ["weak", "strong"]
    assert ax.get_ylabel() == "times as fast"
    with pytest.raises(ValueError, match="the table is empty"):
        by_source({"your guess": {"weak": None}}, label="times")


def test_curves_have_a_line_for_each_name_and_an_interval_where_a_number_has_one():
    ax = curves({"measured": {4: (3.0, 2.0, 5.0), 2: 1.0}, "formula": {2: 1.5, 4: None}}, x="ranks", y="ms", log="x")
    lines = {each.get_label(): each.lines[0].get_xydata().tolist() for each in ax.containers}
    assert lines == {"measured": [[2, 1], [4, 3]], "formula": [[2, 1.5]]}
    (bars_of_measured,) = ax.containers[0].lines[2]
    assert [segment.tolist() for segment in bars_of_measured.get_segments() if len(segment)][-1] == [[4, 2], [4, 5]]
    assert (ax.get_xlabel(), ax.get_ylabel(), ax.get_xscale()) == ("ranks", "ms", "log")
    with pytest.raises(ValueError, match="ms lies outside of low to high"):
        curves({"measured": {2: (1.0, 2.0, 3.0)}}, x="ranks", y="ms")


def test_ticks_stand_where_they_are_asked_for_with_their_names():
    assert [
        label.get_text() for label in curve(SWEEP, x="batch", y="time_s", log="x", ticks=[1, 4]).get_xticklabels()
    ] == ["1", "4"]
    ax = curve(SWEEP, x="batch", y="time_s", log="x", ticks={1: "1 of 4\nparameters", 4: "4 of 1"})
    assert [label.get_text() for label in ax.get_xticklabels()] == ["1 of 4\nparameters", "4 of 1"]
    assert list(ax.get_xticks()) == [1, 4]


def test_of_panels_with_the_same_lines_the_last_one_has_the_legend():
    axes = panels(1, 1)
    for ax in axes:
        curve(SWEEP.assign(ways="one"), x="batch", y="time_s", series="ways", predicted="time_s", ax=ax)
    one_legend(axes)
    assert [ax.get_legend() is not None for ax in axes] == [False, True]


def test_only_a_series_with_a_spread_has_error_bars():
    rows = [("measured", 1, 5.0, 4.0, 6.0), ("measured", 2, 3.0, 2.0, 4.0)]
    rows += [("predicted", m, 4.0, 4.0, 4.0) for m in (1, 2)]
    table = pd.DataFrame(rows, columns=["run", "m", "ms", "low", "high"])
    ax = curve(table, x="m", y="ms", series="run", error=("low", "high"))
    assert {line.get_label(): line.has_yerr for line in ax.containers} == {"measured": True, "predicted": False}


@pytest.mark.parametrize("widths", [(1,), (3, 2)])
def test_panels_are_as_many_axes_of_one_figure_as_there_are_widths(widths):
    axes = panels(*widths)
    assert len(axes) == len(widths) and {ax.figure for ax in axes} == {axes[0].figure}
