"""How each task is tried: what gathers the evidence, and which claims are held against it. The table that check reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from labkit.judging import (
    clock_claims,
    gpt2_claims,
    pipe_claims,
    processes_claims,
    reducer_claims,
    scheduled_claims,
    split_claims,
)

Claim = Callable[[Any], str | None]


class Trial(NamedTuple):
    """``gather()`` tries the answer in ranks and gives the evidence; each of ``claims`` is held against it."""

    gather: Callable[[], Any]
    claims: tuple[Claim, ...]


TRIALS = {
    "dp.2": Trial(processes_claims.gather, processes_claims.CLAIMS),
    "dp.7": Trial(reducer_claims.gather, reducer_claims.CLAIMS),
    "pipe.1": Trial(split_claims.gather, split_claims.CLAIMS),
    "pipe.2": Trial(clock_claims.gather, clock_claims.CLAIMS),
    "pipe.3": Trial(pipe_claims.gather, pipe_claims.CLAIMS),
    "pipe.4": Trial(gpt2_claims.gather, gpt2_claims.CLAIMS),
    "pipe.5": Trial(scheduled_claims.gather, scheduled_claims.CLAIMS),
}
