"""Shorten texts that others have made, so that none is longer than somebody can read."""

from __future__ import annotations


def shorten(text: str, most: int) -> str:
    """Return text of at most ``most`` characters as it is, else its head, its length, its tail."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]} … [{len(text):,} characters] … {text[-half:]}"
