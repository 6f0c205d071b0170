"""Where guesses and hints asked for are kept."""

from pathlib import Path

from labkit.base.answers import answers_folder


def test_answers_are_kept_in_the_lab_that_the_notebook_is_in(tmp_path: Path, monkeypatch):
    monkeypatch.delenv("LABKIT_ANSWERS", raising=False)
    (tmp_path / "notebooks" / "mine").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "notebooks" / "mine")

    assert answers_folder() == tmp_path / ".labkit"
    assert not answers_folder().exists()  # asking writes nothing


def test_outside_a_lab_they_are_kept_in_the_working_directory(tmp_path: Path, monkeypatch):
    monkeypatch.delenv("LABKIT_ANSWERS", raising=False)
    monkeypatch.chdir(tmp_path)

    assert answers_folder() == tmp_path / ".labkit"


def test_an_environment_variable_says_where_else(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("LABKIT_ANSWERS", str(tmp_path / "here"))

    assert answers_folder() == tmp_path / "here"
