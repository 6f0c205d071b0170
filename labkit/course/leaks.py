"""Compare code line by line, whatever its names are: does one text show the solution of another?"""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Iterator, Sequence

MIN_LETTERS = 30  # of what is long enough to be a solution's, and nobody else's
OBJECTS = "x:list[x]=[None]*x.get_world_size()"  # what all_gather_object fills
IDIOMS = {("x,x=x.get_rank(),x.get_world_size()",), (OBJECTS,), (OBJECTS, "x.all_gather_object(x,x)")}
_KNOWN = {*keyword.kwlist, *dir(builtins)}


def normalised(lines: Sequence[str]) -> list[str]:
    """Return lines without comments and spaces, without the marks of a diff, a quotation or a
    comment before them, and with ``x`` for each name."""
    code = [re.sub(r"\s#.*$", "", re.sub(r'^[\s+>#`"-]+', "", line)) for line in lines]
    code = [
        re.sub(r"(?<![.\w])[A-Za-z_]\w*", lambda name: name[0] if name[0] in _KNOWN else "x", line) for line in code
    ]
    return [line for line in (re.sub(r"\s", "", line) for line in code) if line]


def pieces(lines: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield what tells code: long lines, and pairs of lines with at most one between them."""
    for i, line in enumerate(lines):
        for piece in [(line,), *((line, after) for after in lines[i + 1 : i + 3])]:
            if sum(map(len, piece)) >= MIN_LETTERS and piece not in IDIOMS:
                yield piece


def alike(solution: Sequence[str], other: Sequence[str]) -> bool:
    """Return whether a solution shows a piece of another."""
    return not {*pieces(normalised(solution))}.isdisjoint(pieces(normalised(other)))
