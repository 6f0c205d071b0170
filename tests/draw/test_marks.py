"""labkit.draw.marks: a guess stands where it was guessed, in the legend, and in the saved data."""

from types import SimpleNamespace

import pytest
from drawn_tables import RESULTS, SWEEPS
from matplotlib.colors import same_color

from labkit.draw.charts import bars, curves
from labkit.draw.marks import mark_guess
from labkit.draw.palette import SOURCES
from labkit.draw.picture import drawn_data


def results():
    return bars(RESULTS, group="setting", series="source", value="time_s", error=("low_s", "high_s"))


def sweep(**options):
    return curves(SWEEPS, x="batch", y="time_s", **options)


def marks(ax):
    return [line for line in ax.lines if line.get_label() == "your guess"]


def legend(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


PLACES = {"x": (3, [(3, 50)]), "y": (0.3, [(50, 0.3)]), "axis": ("x", [(50, 0), (50, 1)])}


@pytest.mark.parametrize("place", PLACES)
def test_a_guess_stands_where_it_was_guessed_in_the_style_of_guesses(place):
    at, points = PLACES[place]
    ax = mark_guess(sweep(), SimpleNamespace(value=50), **{place: at})
    (mark,) = marks(ax)
    assert list(zip(*mark.get_data(), strict=True)) == points
    assert same_color(mark.get_color(), SOURCES["your guess"].edge)
    assert (mark.get_marker(), mark.get_linestyle()) == (("None", ":") if place == "axis" else ("*", "None"))
    assert legend(ax) == ["measured", "predicted", "your guess"]


def test_a_guess_of_a_group_lies_across_its_bars_and_no_others():
    ax = mark_guess(results(), 9, group="2 devices")
    (mark,) = marks(ax)
    xs, ys = mark.get_data()
    sides = sorted(edge for bar in ax.patches for edge in (bar.get_x(), bar.get_x() + bar.get_width()))
    assert set(ys) == {9} and sides[3] < xs[0] <= sides[4] and xs[-1] >= sides[-1] and len(mark.get_markevery()) == 1


@pytest.mark.parametrize(
    ("guess", "place", "error", "message"),
    [
        ("GPipe", {"x": 1}, TypeError, "the guess is 'GPipe', expected a number: a choice has no place"),
        (True, {"x": 1}, TypeError, "the guess is True"),
        (float("nan"), {"x": 1}, ValueError, "expected a finite number"),
        (1, {}, TypeError, "got no place, expected one of x, y, group and axis"),
        (1, {"x": 1, "y": 2}, TypeError, "got x and y, expected one of"),
        (1, {"axis": "z"}, ValueError, "axis is 'z', expected 'x' or 'y'"),
        (1, {"group": "3 devices"}, ValueError, "no group '3 devices'; the groups are 1 device, 2 devices"),
    ],
)
def test_what_has_no_place_in_the_picture_is_refused_and_nothing_drawn(guess, place, error, message):
    ax = results()
    with pytest.raises(error, match=message):
        mark_guess(ax, guess, **place)
    assert not marks(ax)


def test_an_axis_grows_to_show_a_guess_far_off_and_zero_stands_at_the_lower_end_of_a_log_one():
    ax = mark_guess(mark_guess(sweep(), 1e9, x=2), -5.0, x=2)
    assert ax.get_ylim()[0] <= -5 and ax.get_ylim()[1] >= 1e9
    ax = bars(RESULTS, group="setting", series="source", value="time_s", log=True)
    low = ax.get_ylim()[0]
    mark_guess(mark_guess(ax, 1e6, group="1 device"), 0, group="2 devices")
    assert ax.get_ylim()[1] >= 1e6 and ax.get_ylim()[0] == low
    assert [mark.get_ydata()[0] for mark in marks(ax)] == [1e6, low]


def test_the_data_hold_the_guess_after_what_was_drawn():
    of_bars, of_a_curve = (
        drawn_data(ax.figure) for ax in (mark_guess(results(), 9, group="2 devices"), mark_guess(sweep(), 3, axis="x"))
    )
    guess = {"setting": "2 devices", "source": "your guess", "time_s": 9}
    assert len(of_bars) == 5 and of_bars.iloc[-1].dropna().to_dict() == guess
    assert of_a_curve.iloc[-1].dropna().to_dict() == {"batch": 3, "series": "your guess"}
