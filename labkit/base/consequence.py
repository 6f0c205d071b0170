"""Tell the error of one rank from those that the other ranks raise because of it."""

from __future__ import annotations

from typing import TypeVar

E = TypeVar("E", bound=BaseException)


def as_consequence(error: E) -> E:
    """Mark ``error`` as a consequence of another rank's, which is the one to report; return it."""
    error._labkit_consequence = True  # type: ignore[attr-defined]
    return error


def is_consequence(error: BaseException) -> bool:
    """Return whether ``error`` was marked as a consequence of another rank's."""
    return getattr(error, "_labkit_consequence", False)
