"""A file is edited while a kernel runs: what runs is the file as it is now, with its lines."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from pathlib import Path

import pytest
from IPython.core.interactiveshell import InteractiveShell

from labkit.base.autoreload import complete_reloads
from labkit.lab.listings import listing

SOURCE = '''
import contextlib
import torch

# above what is edited

@torch.no_grad()
def ring(x, start=1):
    """Add."""

    return x + start  # ring


class Optimizer:
    def __init__(self):
        self.at = 0

    @property
    def twice(self):
        return 2 * self.at  # twice

    @twice.setter
    def twice(self, value):
        self.at = value / 2

    @torch.no_grad()
    def step(self, closure=None):
        return 1  # step

    @contextlib.contextmanager
    def no_sync(self):
        yield 1  # no_sync

    def plain(self):
        return self.at  # plain


adders = [lambda x: x + 1, lambda y: y + 2]


def below(x):
    return x / 0  # below
'''


class Edited:
    """A module that IPython's autoreload watches, and the same names held from before any edit."""

    def __init__(self, file: Path):
        self.file, self.time_s = file, 1
        self.shell = InteractiveShell.instance(colors="nocolor")
        self.write(SOURCE)
        self.module = importlib.import_module(file.stem)
        self.ring, self.below, self.adder = self.module.ring, self.module.below, self.module.adders[0]
        self.optimizer = self.module.Optimizer()
        self.shell.run_cell("%load_ext autoreload\n%autoreload 2")
        complete_reloads()

    def write(self, text: str) -> None:
        self.file.write_text(text)
        self.time_s += 10  # autoreload goes by the file's time, which a quick edit leaves as it was
        os.utime(self.file, (self.time_s, self.time_s))

    def edit(self, old: str, new: str) -> None:
        """Change the file as a student does in the editor, and run the next cell."""
        text = self.file.read_text()
        assert text.count(old) == 1
        self.write(text.replace(old, new))
        self.shell.run_cell("0")

    def use(self, name: str) -> object:
        """Run what ends in the line that is marked with this name, by what was held before."""
        match name:
            case "ring":
                return self.ring(1)
            case "below":
                return self.below(1)
            case "twice":
                return self.optimizer.twice
            case "no_sync":
                return self.optimizer.no_sync().__enter__()
        return getattr(self.optimizer, name)()


@pytest.fixture
def edited(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])  # a shell puts its own there
    monkeypatch.syspath_prepend(tmp_path)
    yield Edited(tmp_path / "file_that_is_edited.py")
    del sys.modules["file_that_is_edited"]
    InteractiveShell.clear_instance()


def last_line(edited: Edited, name: str) -> tuple[str, str]:
    """Return the file and the line that the traceback ends with, once a function has raised."""
    with pytest.raises((ValueError, ZeroDivisionError)) as caught:
        edited.use(name)
    last = traceback.extract_tb(caught.value.__traceback__)[-1]
    return last.filename, last.line or ""


ANEW = "# above what is edited", "print('once more')  # at top level: IPython executes the whole file"


@pytest.mark.parametrize("how", ["alone", "with a line at top level"])
@pytest.mark.parametrize("name", ["ring", "twice", "step", "no_sync", "plain"])
def test_an_edited_function_runs_as_it_is_now_and_its_traceback_shows_its_own_line(edited, name, how):
    (place,) = [line.strip() for line in SOURCE.splitlines() if line.endswith(f"# {name}")]
    for cause in ("first", "second"):
        if how != "alone":
            edited.write(edited.file.read_text().replace(*ANEW) + f"print({cause!r})\n")
        edited.edit(place, f"raise ValueError('{cause}')  # {name}")
        place = f"raise ValueError('{cause}')  # {name}"
        assert last_line(edited, name) == (str(edited.file), place)


def test_what_stands_below_an_edit_has_its_line_in_the_new_file(edited):
    edited.edit("# above what is edited", "# one line\n# and another")
    assert last_line(edited, "below") == (str(edited.file), "return x / 0  # below")


@pytest.mark.parametrize("how", ["alone", "with a line at top level"])
def test_a_new_default_and_a_new_parameter_below_a_decorator_hold(edited, how):
    if how != "alone":
        edited.write(edited.file.read_text().replace(*ANEW))
    edited.edit("closure=None):\n        return 1", "closure=3, more=4):\n        return closure + more")
    edited.edit("start=1", "start=10")
    assert (edited.optimizer.step(), edited.ring(1)) == (7, 11)


def test_a_lambda_is_not_taken_for_another_one(edited):
    edited.edit("[lambda x: x + 1, lambda y: y + 2]", "[lambda y: y + 2]")
    assert edited.adder(1) == 2


@pytest.mark.parametrize("name", ["ring", "step"])
def test_an_edited_function_below_a_decorator_can_be_listed(edited, name):
    function = {"ring": edited.ring, "step": edited.module.Optimizer.step}[name]
    edited.edit(f"  # {name}", f" + 7  # {name}")
    assert repr(listing(function)).endswith(f" + 7  # {name}")
    assert repr(listing(function)).startswith("@torch.no_grad()\ndef ")
