"""The mark of a test that needs a task's answer."""

from __future__ import annotations

import functools

import pytest

from labkit.todo import missing

missing = functools.cache(missing)  # many tests ask for the same tasks


def task(*names: str) -> pytest.MarkDecorator:
    """A test of these tasks' answers: skipped in an edition in which one of them is still to do."""
    to_do = [place for name in names if (place := missing(name))]
    return pytest.mark.skipif(bool(to_do), reason="; ".join(to_do))
