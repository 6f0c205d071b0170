"""What runs in a rank to judge pipe.2: the student's clock_cycles for pipelines of several sizes."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from itertools import islice
from operator import index
from typing import Any, NamedTuple

from labkit.judging.evidence import PIPE, Stopped, attempt


class Case(NamedTuple):
    """What clock_cycles is called with. Numbers are small, so that a finding can be followed by hand."""

    num_batches: int
    num_partitions: int

    def __str__(self) -> str:
        return f"clock_cycles({self.num_batches}, {self.num_partitions})"


CASES = [Case(3, 3), Case(4, 2), Case(2, 4), Case(1, 1), Case(1, 3), Case(5, 1), Case(8, 4), Case(3, 7)]
Clocks = list[list[tuple[int, int]]]


def probe_clocks() -> list[Any]:
    """For each case the clocks as they were when each was asked for, and as they were once all had been asked for; the
    Failure of the call; or, if it gave no clocks, what it gave, in words."""
    from labkit import pipe

    def given(case: Case) -> Any:
        # of a schedule without an end
        limit = case.num_batches * case.num_partitions + case.num_batches + case.num_partitions
        try:
            one_by_one = [_pairs(clock, case) for clock in islice(_iterable(pipe.clock_cycles(*case), case), limit)]
            at_the_end = [_pairs(clock, case) for clock in list(islice(pipe.clock_cycles(*case), limit))]
        except Stopped as stopped:
            return str(stopped)
        return one_by_one, at_the_end

    return [attempt(functools.partial(given, case), PIPE) for case in CASES]


def _iterable(schedule: Any, case: Case) -> Iterable[Any]:
    if isinstance(schedule, Iterable):
        return schedule
    raise Stopped(f"{case} gave {_shown(schedule)}, expected an iterator of clocks: yield one list for each clock")


def _pairs(clock: Any, case: Case) -> list[tuple[int, int]]:
    if isinstance(clock, Iterator):
        raise Stopped(
            f"{case} gave {_shown(clock)} as a clock, expected a list of (micro_batch, partition) pairs, which can be gone "
            "through more than once: square brackets around an expression with for make a list, round ones a generator"
        )
    try:
        return [(index(micro_batch), index(partition)) for micro_batch, partition in clock]
    except (TypeError, ValueError):
        raise Stopped(
            f"{case} gave {_shown(clock)} as a clock, expected a list of (micro_batch, partition) pairs, one for each task of "
            "that clock, even if it is only one"
        ) from None


def _shown(value: Any) -> str:
    """The value where it reads the same each time, else its type."""
    return repr(value) if isinstance(value, list | tuple | set | int | str | None) else f"a {type(value).__name__}"
