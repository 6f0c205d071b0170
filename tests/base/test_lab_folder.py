"""The lab is one folder wherever in it one works; outside it is the imported one, as is said."""

from __future__ import annotations

import pytest

from labkit.base import lab as base_lab
from labkit.base.lab import lab, outside


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
