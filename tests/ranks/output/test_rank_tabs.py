"""What ranks display stands once where it is equal, in lines where it is text, else in tabs."""

from __future__ import annotations

import base64
import re

import pytest

from labkit.ranks.output import rank_tabs
from labkit.ranks.output.rank_tabs import cell_outputs

PNG = base64.b64encode(b"\x89PNG").decode()


def output(data: dict, kind: str = "display", metadata: dict | None = None) -> dict:
    return {"kind": kind, "data": data, "metadata": metadata or {}}


def text(*values: str) -> list[dict]:
    return [output({"text/plain": value}) for value in values]


def result(value: str) -> dict:
    return output({"text/plain": value}, "result")


def table(value: str) -> dict:
    return output({"text/html": f"<table>{value}</table>", "text/plain": f"   a\n0  {value}"})


@pytest.fixture(autouse=True)
def fresh_names(monkeypatch):
    monkeypatch.setattr(rank_tabs, "_names", rank_tabs.Counter())


def texts(shown: dict, world_size: int) -> list[str]:
    return [repr(output) for output in cell_outputs(shown, world_size)]


ONCE = {
    "on all ranks": ({rank: text("tensor([6.])") for rank in range(4)}, "all 4 ranks: tensor([6.])"),
    "on those that showed something": ({0: text("6"), 1: [], 2: text("6")}, "ranks 0 and 2: 6"),
    "on one rank": ({2: text("6")}, "rank 2: 6"),
}


@pytest.mark.parametrize("name", ONCE)
def test_an_equal_output_stands_once_and_says_on_which_ranks(name):
    shown, expected = ONCE[name]
    assert texts(shown, 4) == [expected]


def test_text_that_differs_has_a_line_per_rank_in_rank_order_and_keeps_its_columns():
    shown = {1: text("tensor([[1., 2.],\n        [3., 4.]])"), 0: text("7")}
    assert texts(shown, 2) == ["rank 0: 7\nrank 1: tensor([[1., 2.],\n                [3., 4.]])"]


def test_outputs_are_compared_one_by_one_so_only_what_differs_is_shown_per_rank():
    shown = {0: text("same", "0"), 1: text("same", "1")}
    assert texts(shown, 2) == ["both ranks: same", "rank 0: 0\nrank 1: 1"]


def test_where_ranks_showed_different_numbers_of_outputs_those_of_a_rank_stay_together():
    shown = {0: text("figure", "x"), 1: text("x")}
    assert texts(shown, 2) == ["rank 0: figure\nrank 0: x\nrank 1: x"]


def test_last_expressions_are_compared_with_each_other_whatever_was_displayed_before():
    shown = {0: [table("5"), result("6")], 1: [result("6")]}
    assert texts(shown, 2) == ["rank 0:    a\n        0  5", "both ranks: 6"]


# --- tabs -----------------------------------------------------------------------------------------


def tabs_of(shown: dict, world_size: int) -> tuple[dict[str, str], list[str]]:
    """Return the table of each panel by its heading, and the radio buttons."""
    (outputs,) = cell_outputs(shown, world_size)
    page = outputs._repr_html_()
    panels = re.findall(r"<strong>([^<]*)</strong>.*?<table>([^<]*)</table>", page, re.DOTALL)
    return dict(panels), re.findall(r"<input[^>]*>", page)


def test_tables_that_differ_are_in_a_tab_per_rank_under_its_number_and_the_first_is_open():
    panels, radios = tabs_of({0: [table("5")], 1: [table("7")]}, 2)
    assert panels == {"rank 0": "5", "rank 1": "7"}
    assert ["checked" in radio for radio in radios] == [True, False]
    assert len({re.search(r'name="(.*?)"', radio)[1] for radio in radios}) == 1
    assert texts({0: [table("5")], 1: [table("7")]}, 2) == ["rank 0:    a\n        0  5\nrank 1:    a\n        0  7"]


def test_equal_tables_stand_once_without_tabs():
    (outputs,) = cell_outputs({0: [table("5")], 1: [table("5")]}, 2)
    page = outputs._repr_html_()
    assert "<input" not in page and "both ranks:" in page and page.count("<table>5</table>") == 1


def test_radio_buttons_have_another_name_in_each_cell_and_the_same_in_each_run_of_a_notebook():
    def run_all() -> list[str]:
        rank_tabs._names.clear()
        cells = [table("5"), table("5"), table("6")]
        radios = [tabs_of({0: [first], 1: [table("7")]}, 2)[1][0] for first in cells]
        return [re.search(r'name="(.*?)"', radio)[1] for radio in radios]

    first = run_all()
    assert len(set(first)) == 3 and run_all() == first


PICTURES = {
    "png": (output({"image/png": PNG, "text/plain": "<Figure>"}), f'data:image/png;base64,{PNG}" alt="&lt;Figure&gt;"'),
    "with its alt text": (
        output({"image/png": PNG, "text/plain": "x"}, metadata={"image/png": {"alt": 'a "line"', "width": 300}}),
        'alt="a &quot;line&quot;" width="300"',
    ),
    "svg, whose names stay apart": (output({"image/svg+xml": "<svg/>"}), base64.b64encode(b"<svg/>").decode()),
}


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_needs_no_file_and_has_alt_text(name):
    picture, expected = PICTURES[name]
    (shown,) = cell_outputs({0: [picture]}, 1)
    assert expected in shown._repr_html_()


def test_measurements_are_numbers_in_a_style_in_html_and_keep_their_brackets_in_text():
    (outputs,) = cell_outputs({0: text("[~ 0.3 s]"), 1: text("[~ 0.4 s]")}, 2)
    assert repr(outputs) == "rank 0: [~ 0.3 s]\nrank 1: [~ 0.4 s]"
    assert re.findall(r">([\d.]+ s)<", outputs._repr_html_()) == ["0.3 s", "0.4 s"]
