"""How each task is tried: what gathers the evidence, and which claims are held against it. The table that check reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from labkit.judging import (
    scheduled_claims,
)

Claim = Callable[[Any], str | None]


class Trial(NamedTuple):
    """``gather()`` tries the answer in ranks and gives the evidence; each of ``claims`` is held against it."""

    gather: Callable[[], Any]
    claims: tuple[Claim, ...]


TRIALS = {
    "pipe.5": Trial(scheduled_claims.gather, scheduled_claims.CLAIMS),
}
