"""labkit.draw.charts: bars and curves show the numbers of their table."""

from itertools import pairwise

import pandas as pd
import pytest
from drawn_tables import RESULTS, SWEEP, SWEEPS

from labkit.draw.charts import bars, by_source, curve, curves


def test_bars_stand_as_high_as_their_values_and_each_series_has_a_legend_entry():
    ax = bars(RESULTS, group="setting", series="source", value="time_s", error=("low_s", "high_s"), label="time (s)")
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


def test_a_curve_has_measured_points_in_order_and_a_dashed_prediction():
    ax = curves(SWEEPS, x="batch", y="time_s", log="xy")
    measured, predicted = ax.lines
    assert list(measured.get_xdata()) == list(predicted.get_xdata()) == [1, 2, 4]
    assert list(measured.get_ydata()) == [0.1, 0.2, 0.4] and list(predicted.get_ydata()) == [0.11, 0.21, 0.41]
    assert (measured.get_linestyle(), predicted.get_linestyle()) == ("-", "--")
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["measured", "predicted"]
    assert ax.get_xscale() == ax.get_yscale() == "log"


def test_what_was_emulated_stands_under_bars_and_curves_and_only_there():
    for emulated in ("", "emulated link: SLOW"):
        results, sweep = RESULTS.assign(), SWEEP.assign()
        results.attrs = sweep.attrs = {"emulated": emulated} if emulated else {}
        ax = bars(results[:2], group="setting", value="time_s", note="By hand.")
        labels = ax.get_xlabel(), curve(sweep, x="batch", y="time_s").get_xlabel()
        assert "By hand" in labels[0] and ["emulated link: SLOW" in label for label in labels] == 2 * [bool(emulated)]
        assert [bar.get_height() for bar in ax.patches] == [12.0, 15.0] and ax.get_legend() is None  # without series


ENDS = RESULTS.assign(low=RESULTS.time_s - 0.5, high=[13.0, 17.0, 3.5, 5.25])
BAD = [
    (RESULTS, {"value": "seconds"}, "no column seconds; the table has setting, source, time_s, low_s, high_s"),
    (pd.concat([RESULTS, RESULTS]), {}, "two rows for one bar; expected one row per setting and source"),
    (RESULTS, {"series": None}, "two rows for one bar"),
    (RESULTS.assign(time_s=[1.0, None, 2.0, 1.0]), {}, "column time_s has entries that are not finite numbers"),
    (RESULTS[:0], {}, "the table is empty"),
    (RESULTS.assign(time_s=[1.0, 2.0, 0.0, 1.0]), {"log": True}, "not positive"),
    (ENDS, {"error": ("least", "high")}, "no column least"),
    (ENDS, {"error": ("high", "low")}, "time_s lies outside of high to low"),
    (ENDS.assign(low=ENDS.time_s + 1), {"error": ("low", "high")}, "time_s lies outside of low to high"),
]


@pytest.mark.parametrize(("table", "options", "message"), BAD)
def test_a_table_that_cannot_be_drawn_is_refused(table, options, message):
    with pytest.raises(ValueError, match=message):
        bars(table, **{"group": "setting", "series": "source", "value": "time_s"} | options)


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


def test_on_a_logarithmic_axis_both_ends_of_an_interval_are_seen():
    ax = by_source({"measured": {"a": (11, 5, 20), "b": (80, 70, 150)}}, label="x", log=True)
    low, high = ax.get_ylim()
    assert low <= 5 and high >= 150
