"""show draws the figure of a name with its words, in its unit, and saves it, or prints a number."""

import pandas as pd
import pytest

from labkit.draw import figures as module
from labkit.draw.figures import TOGETHER, show
from labkit.draw.picture import figure_of, save
from labkit.stats import Interval
from labkit.stats.repeated_times import RepeatedTimes

FIGURES = """
[step]
kind = "bars"
y = "ms a step"
y_unit = "ms"
guess = {group = "flat"}
note = "Two ranks."
alt = "Step times."

[parts]
kind = "parts"
y = "ms"
y_unit = "ms"
alt = "Parts of a step."

[sizes]
kind = "curve"
x = "KiB"
x_unit = "KiB"
y = "ms"
y_unit = "ms"
lines_across = "x"
guess = {axis = "x"}
alt = "Time against size."

[sizes.series]
free_calls = "predicted, if a call cost nothing"

[mine]
kind = "drawn"
alt = "Drawn elsewhere."
"""


@pytest.fixture(autouse=True)
def lab(figures, tmp_path, monkeypatch):
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks" / "figures.toml").write_text(FIGURES)
    monkeypatch.chdir(tmp_path / "notebooks")
    return figures


@pytest.fixture
def drawn(monkeypatch):
    kept = []
    monkeypatch.setattr(
        module, "save", lambda figure, *name, alt: kept.append(figure_of(figure, "")) or save(figure, *name, alt=alt)
    )
    return kept


def saved(figures, name: str) -> pd.DataFrame:
    return pd.read_csv(figures / f"{name}.csv")


def test_repeats_become_a_median_with_its_interval_in_the_figures_unit_and_words_and_guess_are_with_them(
    figures, drawn
):
    times = RepeatedTimes({"flat": [0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.007], "late": [0.002] * 7})
    times.attrs["emulated"] = "emulated link: slow"
    show("step", measured=times, predicted={"flat": 0.004}, guess=0.0035)
    rows = saved(figures, "step").set_index(["group", "source"])
    assert rows.loc[("flat", "measured"), ["ms a step", "low", "high"]].tolist() == pytest.approx([4, 1, 7])
    assert rows.loc[("flat", "predicted"), "ms a step"] == pytest.approx(4)
    assert rows.loc[("flat", "your guess"), "ms a step"] == pytest.approx(3.5)
    assert (figures / "step.alt.txt").read_text() == "Step times.\n"
    assert drawn[0].axes[0].get_xlabel() == "Two ranks. emulated link: slow"
    assert drawn[0].axes[0].get_ylabel() == "ms a step"


def test_beside_parts_stands_their_sum(figures):
    show("parts", measured={"compute": Interval(0.003, 0.002, 0.004), "waiting": -0.001})
    rows = saved(figures, "parts").set_index("group")
    assert rows.ms.to_dict() == pytest.approx({"compute": 3, "waiting": -1, TOGETHER: 2})


def test_a_curve_has_both_axes_in_their_units_and_a_keyword_of_its_own_by_its_words(figures, drawn):
    show("sizes", measured={1024: 0.001}, free_calls={1024: 0.0005, 4096: 0.002}, guess=2048, at={"alike": 3072})
    rows = saved(figures, "sizes")
    assert rows.KiB.tolist() == [1, 1, 4, 2]
    assert rows.series.tolist() == ["measured", *2 * ["predicted, if a call cost nothing"], "your guess"]
    assert [(text.get_text(), text.xy[0]) for text in drawn[0].axes[0].texts] == [("alike", 3)]


REFUSED = {
    "a name that is not there": ("stp", {"measured": {"flat": 1.0}}, ValueError, "expected one of step, parts"),
    "a keyword without words": ("sizes", {"fre_calls": {1: 1.0}}, TypeError, "predicted, published or free_calls"),
    "no numbers": ("step", {}, TypeError, "got no numbers"),
    "numbers for what is drawn elsewhere": ("mine", {"measured": {"flat": 1.0}}, TypeError, "expected drawn"),
}


@pytest.mark.parametrize(("name", "numbers", "error", "says"), REFUSED.values(), ids=REFUSED)
def test_what_has_no_words_or_no_numbers_is_refused_and_nothing_saved(figures, name, numbers, error, says):
    with pytest.raises(error, match=says):
        show(name, **numbers)
    assert not figures.exists()


def test_without_a_name_a_number_an_interval_and_a_table_are_shown_as_measured(capsys, monkeypatch):
    monkeypatch.setenv("LABKIT_STATIC", "1")
    show({"host cost, µs": 12.5, "saved": Interval(0.25, 0.2, 0.3), "fastest": "flat"})
    show(pd.DataFrame({"ms": [1.5]}))
    first, second, third, *table = capsys.readouterr().out.splitlines()
    assert first.startswith("host cost, µs  [~") and "12.5" in first
    assert "[~ 0.25" in second and "(0.20" in second and "[~ flat" in third
    assert "[~       1.5]" in table[1]
