"""Put names into a sentence, and keep texts that others have made to a length that can be read."""

from __future__ import annotations

from collections.abc import Iterable


def listed(names: Iterable[object], word: str = "and") -> str:
    """Return names as a sentence lists them: ``a``, ``a and b``, ``a, b and c``, or nothing."""
    *others, last = [*map(str, names)] or [""]
    return f"{', '.join(others)} {word} {last}" if others else last


def shorten(text: str, max_length: int) -> str:
    """Return a text of up to ``max_length`` characters, else its head, its length and its tail."""
    if len(text) <= max_length:
        return text
    half = max_length // 2
    return f"{text[:half]} … [{len(text):,} characters] … {text[-half:]}"
