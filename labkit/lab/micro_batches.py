"""Run pipelines of one model with several numbers of micro-batches, in turns, for notebook 10."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import NamedTuple

import pandas as pd
import torch

from labkit.launch import launch
from labkit.pipe import ScheduledPipeline
from labkit.simulate import makespan, steps_of
from labkit.stats.repeated_times import RepeatedTimes
from labkit.trace import barrier

TOKENS = 256  # drawn from this many


class Case(NamedTuple):
    """A number of micro-batches, and the batch: rows, and tokens of a row."""

    n_micro: int
    rows: int
    length: int


def in_turns(
    make_pipeline: Callable[[int], ScheduledPipeline], cases: Mapping[Hashable, tuple[int, int, int]], rounds: int = 7
) -> RepeatedTimes:
    """Return the seconds of a step of two ranks: a row per round, a column per case.

    A case is as :class:`Case`; ``make_pipeline(m)`` returns its pipeline on this rank. The first
    round warms up.
    """
    events = launch(_take_turns, make_pipeline, [Case(*case) for case in cases.values()], rounds, threads=1).events
    steps, n = steps_of(events), len(cases)
    seconds = [[makespan(step) for step in steps[place + n :: n]] for place in range(n)]
    columns = pd.Index([*cases], tupleize_cols=False)  # a tuple is a name like any other
    return RepeatedTimes(pd.DataFrame(seconds, index=columns).T)


def _take_turns(make_pipeline: Callable[[int], ScheduledPipeline], cases: Sequence[Case], rounds: int) -> None:
    torch.manual_seed(0)  # the first rank has the tokens, the last the same ones as targets
    trained = [(make_pipeline(case.n_micro), torch.randint(TOKENS, (case.rows, case.length))) for case in cases]
    for number, (pipeline, batch) in enumerate(trained * rounds):
        pipeline.next_step = number  # of its spans
        barrier()
        pipeline.step(batch, batch)
