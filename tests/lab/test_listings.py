"""What a notebook shows of the student files: clean code, or where it is to be written."""

from __future__ import annotations

import importlib
import sys

import pytest
from bs4 import BeautifulSoup

from labkit.base.measurement_html import as_html
from labkit.lab.listings import listing

SOURCE = '''
import functools

class Pipe:
    @functools.cache
    def forward(self):
        """Say nothing."""
        return 1

    def only_a_docstring(self):
        """There is nothing else."""

def given():
    return "given"

def to_do():
    """Do it."""
    # TODO dp.3 (about 2 lines, 3 minutes): Do it.
    raise TodoError("dp.3")

def also_to_do():
    raise TodoError("dp.3")

def filled():
    # TODO dp.4 (about 2 lines, 3 minutes): Do it. And once you have done it,
    # check whether it is done.
    total = len("for")  # mine: is it < 4?
    # in the end
    return total
'''


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "student_file_to_list.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("student_file_to_list")
    del sys.modules["student_file_to_list"]


@pytest.fixture
def open_tasks(monkeypatch):
    place = "labkit.lab.listings.missing"
    monkeypatch.setattr(place, lambda task: f"TODO {task}: labkit/dp.py, line 42" if task == "dp.3" else None)


def test_code_is_shown_as_it_is_in_the_file_now_wherever_it_has_moved(module, tmp_path):
    (tmp_path / "student_file_to_list.py").write_text('"""A file."""\n' * 7 + SOURCE.replace("return 1", "return 2"))
    assert repr(listing(module.Pipe.forward)) == "@functools.cache\ndef forward(self):\n    return 2"


def test_of_tasks_that_are_to_do_only_the_place_is_shown_and_once_above_what_is_given(module, open_tasks):
    found = listing(module.to_do, module.also_to_do)
    assert repr(found) == "TODO dp.3: labkit/dp.py, line 42"
    assert found._repr_html_() == f"<p>{as_html(repr(found))}</p>"  # a link that opens the file
    assert repr(listing(module.to_do, module.given)) == f"{found!r}\n{listing(module.given)!r}"


def test_a_filled_task_is_shown_without_what_it_asked_for(module):
    lines = ["def filled():", '    total = len("for")  # mine: is it < 4?', "    # in the end", "    return total"]
    assert repr(listing(module.filled)) == "\n".join(lines)


def test_on_a_page_code_keeps_its_lines_whole_and_a_keyword_is_one_only_where_it_is_code(module):
    """JupyterLab cuts lines of a Markdown listing in the middle of a word: con / tiguous."""
    page = BeautifulSoup(listing(module.filled)._repr_html_(), "html.parser")
    assert page.pre.get_text() == repr(listing(module.filled))
    assert {"white-space: pre", "word-break: normal", "overflow-x: auto"} <= set(page.pre["style"].split("; "))
    colours = {word.get_text(): word["style"] for word in page.find_all("span")}
    assert "keyword" in colours["return"] and "string" in colours["for"] and "comment" in colours["# in the end"]
