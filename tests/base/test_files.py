"""A file is there whole or not at all, and a failure leaves none."""

import pytest

from labkit.base.files import write_atomically


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
