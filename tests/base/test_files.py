"""Answers are kept in the lab; a file is there whole or not at all, and a failure leaves none."""

import pytest

from labkit.base.files import answers_folder, write_atomically


def test_a_file_is_replaced_and_others_may_read_it(tmp_path):
    path = tmp_path / "figure.csv"
    for content in (b"before", b"after"):
        write_atomically(path, content)
        assert path.read_bytes() == content
    assert path.stat().st_mode & 0o777 == 0o644
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_fails_leaves_the_file_as_it_was_and_nothing_else(tmp_path):
    path = tmp_path / "figure.csv"
    path.write_bytes(b"before")
    with pytest.raises(TypeError):
        write_atomically(path, "text")  # type: ignore[arg-type]
    assert path.read_bytes() == b"before" and list(tmp_path.iterdir()) == [path]


def test_answers_are_kept_in_the_lab_or_the_working_directory_unless_a_variable_says_where(tmp_path, monkeypatch):
    monkeypatch.delenv("LABKIT_ANSWERS", raising=False)
    monkeypatch.chdir(tmp_path)
    assert answers_folder() == tmp_path / ".labkit"
    (tmp_path / "notebooks" / "mine").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "notebooks" / "mine")
    assert answers_folder() == tmp_path / ".labkit" and not answers_folder().exists()  # asking writes nothing
    monkeypatch.setenv("LABKIT_ANSWERS", str(tmp_path / "here"))
    assert answers_folder() == tmp_path / "here"
