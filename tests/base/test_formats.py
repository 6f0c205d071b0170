"""labkit.base.formats: how a measurement, a machine's fact and a loss look in a notebook."""

import re

import pandas as pd
import pytest

from labkit.base.formats import MeasuredTable, as_html, emulated, fact, loss, measured

pytestmark = pytest.mark.usefixtures("static")

BARE_NUMBER = re.compile(r"\d+\.\d+")


def outside_brackets(text: str) -> str:
    """Return what is left when each [~ …] is cut out, without the sanitizer's own expressions."""
    kept, inside = "", False
    for i, letter in enumerate(text):
        inside = inside or text[i : i + 2] == "[~"
        kept += "" if inside else letter
        inside = inside and letter != "]"
    return kept


@pytest.mark.parametrize("value", [0.0, 1.234e-5, 17, 1234.5, 12345.6, 999999999.0])
def test_a_measured_number_has_the_same_width_whatever_its_size_and_at_most_four_digits(value):
    assert len(measured(value, "s")) == len("[~ 123456789 s]")
    assert float(measured(value, "s").strip("[]~s ")) == pytest.approx(value, rel=5e-4)
    assert measured(12340.0) == "[~     12340]"  # and not 1.234e+04


@pytest.mark.parametrize("text", ["cuda:0 [NVIDIA H200]", "two\nlines", ""])
def test_a_fact_stays_inside_its_brackets_at_fixed_width_and_is_text_in_html(text):
    shown = fact(text)
    assert len(shown) == len(fact("x"))
    assert outside_brackets(shown) == ""
    assert shown.count("[") == shown.count("]") == 1 and "\n" not in shown
    assert as_html(fact("<b>&")).endswith(">&lt;b&gt;&amp;</span>")


SAID = "emulated link: SLOW (10 MB/s, 1 ms)"
TABLE = MeasuredTable({"rank": [0, 1], "name": ["a", "b"], "mean_s": [0.5, 0.000123456], "total_s": [1.5, 2e3]})
VIEWS = {
    "the table": lambda table: table,
    "some columns": lambda table: table[["rank", "mean_s"]],
    "one column": lambda table: table["mean_s"],
    "one row": lambda table: table.iloc[0],
    "chosen rows": lambda table: table[table["rank"] == 1],
    "sorted": lambda table: table.sort_values("mean_s"),
    "turned": lambda table: table.T,
    "summed by rank": lambda table: table.groupby("rank")[["mean_s", "total_s"]].sum(),
    "with a computed column": lambda table: table.assign(share=table["mean_s"] / table["total_s"]),
}


def outside_styles(html: str) -> str:
    """Return what is left when each styled measurement is cut out with its tags."""
    first, *others = html.split('<span class="labkit-')
    return first + "".join(other.partition("</span>")[2] for other in others)


def on_a_link(text: str = SAID) -> MeasuredTable:
    table = TABLE.copy()
    table.attrs["emulated"] = text
    return table


@pytest.mark.parametrize("name", VIEWS)
def test_no_view_of_a_table_shows_a_bare_measurement_as_text_or_in_html_and_a_table_says_what_was_emulated(name):
    view = VIEWS[name](on_a_link())
    text, html = repr(view), view._repr_html_()
    assert "[~" in text and not BARE_NUMBER.search(outside_brackets(text))
    assert "labkit-measured" in html and "[~" not in html and not BARE_NUMBER.search(outside_styles(html))
    if name not in ("one column", "one row", "summed by rank"):
        assert text.splitlines()[-1] == SAID and html.endswith(f"<p>{SAID}</p>")


def test_counts_labels_and_a_long_fact_stand_whole_and_in_the_open():
    events = MeasuredTable({"rank": [3], "micro_batch": pd.array([7], dtype="Int64"), "start_s": [0.25]})
    assert {"3", "7"} <= set(outside_brackets(repr(events)).split())
    table = MeasuredTable({"device": [fact("x" * 200)]})
    assert ">" + "x" * 200 + "</span>" in table._repr_html_() and "x" * 200 + "]" in repr(table)


def test_the_note_under_a_picture_has_the_given_words_first_and_names_each_emulation_once():
    plain, slow, other = TABLE, on_a_link(), on_a_link("emulated link: OTHER")
    assert emulated(plain) == "" and emulated(slow) == SAID and emulated(plain, note="Two ranks") == "Two ranks"
    assert emulated(plain, slow, slow, other, note="Two ranks.") == f"Two ranks. {SAID}. emulated link: OTHER"
    assert emulated(slow, note=SAID) == SAID  # the caller has said it already


def test_a_live_cell_and_a_terminal_show_plain_numbers(monkeypatch):
    monkeypatch.delenv("LABKIT_STATIC")
    assert (measured(0.034, "s"), fact("gloo"), loss(0.76274)) == ("0.034 s", "gloo", "0.7627")
    table = MeasuredTable({"rank": [0], "seconds": [0.034]})
    assert repr(table).split() == ["rank", "seconds", "0", "0", "0.034"]
    assert "labkit-measured" not in table._repr_html_() and "0.034" in table._repr_html_()
