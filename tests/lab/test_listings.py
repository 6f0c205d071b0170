"""What a notebook shows of the student files: clean code, or where it is to be written."""

from __future__ import annotations

import importlib
import sys

import pytest

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
    assert found._repr_mimebundle_()["text/markdown"] == as_html(repr(found))  # a link that opens the file
    assert repr(listing(module.to_do, module.given)) == f"{found!r}\n{listing(module.given)!r}"
