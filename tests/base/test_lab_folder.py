"""The lab is one folder, wherever you work in it; outside, it is the imported one, and says so."""

from __future__ import annotations

import functools
import re
import subprocess
import sys
from pathlib import Path

import pytest

import labkit
from labkit import launch as launching
from labkit import todo
from labkit.base import lab as base_lab
from labkit.base.lab import check_own, lab, outside
from labkit.check import check
from labkit.course import doctor


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A lab whose path has a space and an umlaut; labkit is imported from nowhere near."""
    for name in ("LABKIT_ANSWERS", "LABKIT_FIGURES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(base_lab, "PACKAGE", tmp_path / "site-packages" / "labkit")
    found = tmp_path / "my lab ü"
    (found / "notebooks" / "mine").mkdir(parents=True)
    return found


@pytest.mark.parametrize("place", ["", "notebooks", "notebooks/mine"])
def test_anywhere_in_a_lab_its_folders_are_the_same_and_asking_makes_none(place, folder, monkeypatch):
    monkeypatch.chdir(folder / place)
    found = lab()
    folders = [found.notebooks, found.runs, found.figures, found.answers]
    assert folders == [folder / name for name in ("notebooks", "runs", "figures", ".labkit")]
    assert not found.runs.exists() and outside() == ""
    assert found.place("runs/mine") == str(folder / "runs/mine")
    assert [found.place(path) for path in ("here", "/tmp/x", "runs", "")] == ["here", "/tmp/x", "runs", ""]


def test_outside_it_is_the_lab_that_labkit_is_imported_from_and_a_sentence_says_so(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(base_lab, "PACKAGE", folder / "labkit")
    monkeypatch.chdir(tmp_path)
    assert lab().folder == folder
    assert outside() == f"{tmp_path} is in no lab: this is about {folder}, which labkit is imported from"


def test_without_any_the_working_directory_stands_for_it_and_a_sentence_says_so(folder, tmp_path, monkeypatch):
    (tmp_path / "alone").mkdir()
    monkeypatch.chdir(tmp_path / "alone")
    assert lab().folder == tmp_path / "alone"
    assert outside().startswith(f"{tmp_path / 'alone'} is in no lab, and labkit is not imported from one")


def test_variables_say_where_figures_and_answers_are_kept(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(folder)
    for name in ("figures", "answers"):
        monkeypatch.setenv(f"LABKIT_{name.upper()}", str(tmp_path / name))
    assert (lab().figures, lab().answers) == (tmp_path / "figures", tmp_path / "answers")


@pytest.fixture
def own(folder, monkeypatch):
    """The labkit of a lab from whose notebooks another one is imported."""
    (folder / "labkit").mkdir()
    (folder / "labkit/__init__.py").touch()
    monkeypatch.chdir(folder / "notebooks")
    return folder / "labkit"


def test_where_the_labs_own_labkit_is_not_the_imported_one_all_that_would_use_it_refuses_with_both_paths(own):
    extensions = [functools.partial(module.load_ipython_extension, None) for module in (labkit, launching, todo)]
    for use in (check_own, lambda: launching.launch(int), lambda: check("dp.1"), *extensions):
        with pytest.raises(ImportError, match=re.escape(str(own))) as refused:
            use()
        assert str(base_lab.PACKAGE) in str(refused.value) and f"sys.path.insert(0, {str(own.parent)!r})" in str(
            refused.value
        )
    fault = doctor._other_labkit()[0]
    assert fault.status == doctor.FAULT and str(own) in fault.found and "PYTHONPATH" in fault.advice


def test_a_lab_that_is_reached_by_a_link_has_its_own_labkit(own, tmp_path, monkeypatch):
    (tmp_path / "link").symlink_to(own)
    monkeypatch.setattr(base_lab, "PACKAGE", tmp_path / "link")
    check_own()


COMMANDS = [[str(Path(sys.executable).with_name("labkit")), "check", "dp.1"]]
COMMANDS += [[sys.executable, "-m", f"labkit.{name}", "a word"] for name in ("train", "dp")]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: " ".join(words[-2:]))
def test_a_command_starts_again_with_the_labs_own_labkit_and_says_so(command, own):
    for name in ("__init__", "cli", "train", "dp"):
        (own / f"{name}.py").write_text("import sys\ndef main(): print('own', __name__, sys.argv[1:])\n")
        if name in ("train", "dp"):
            (own / f"{name}.py").open("a").write("main()\n")
    done = subprocess.run(command, capture_output=True, text=True, cwd=own.parent / "notebooks")
    module = "labkit.cli" if command[-1] == "dp.1" else "__main__"
    assert done.stdout.splitlines()[-1] == f"own {module} {command[-1:] if module == '__main__' else command[1:]}"
    (printed,) = done.stderr.splitlines()
    assert f"using {own}, which is this lab's own, not {Path(labkit.__path__[0])}" in printed
