"""pipe.2: which (micro_batch, partition) pairs clock_cycles puts into which clock."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable
from itertools import chain, islice, zip_longest
from operator import itemgetter
from typing import Any, NamedTuple

from labkit.check import plain
from labkit.check.harness import Task

Clock = list[tuple[int, int]]


class Case(NamedTuple):
    """What clock_cycles is called with. Numbers are small, so that a finding can be followed by hand."""

    num_batches: int
    num_partitions: int

    def __str__(self) -> str:
        return f"clock_cycles({self.num_batches}, {self.num_partitions})"

    @property
    def most(self) -> int:
        """Return after how many clocks no more are asked for: one for each pair, and as many empty ones."""
        return 2 * self.num_batches * self.num_partitions

    def observe(self) -> Any:
        """Return the clocks as they were when each was asked for, and as they were when all had been."""
        from labkit import pipe

        clocks = pipe.clock_cycles(*self)
        if not isinstance(clocks, Iterable):
            return clocks, None
        one_by_one = [_copied(clock) for clock in islice(clocks, self.most + 1)]
        return one_by_one, [_copied(clock) for clock in list(islice(pipe.clock_cycles(*self), self.most + 1))]

    @functools.cache  # noqa: B019  (there are as many as there are cases)
    def expected(self) -> list[Clock]:
        """Return what starts at the same time in a simulated pipeline, each task of which takes as long."""
        from labkit.schedule import forward_only
        from labkit.simulate import simulate

        events = simulate(forward_only(self.num_partitions, self.num_batches)).sort_values("stage")
        starting = events.groupby("start_s")[["micro_batch", "stage"]]
        return [[(int(i), int(j)) for i, j in clock.to_numpy()] for _, clock in starting]


def _copied(clock: Any) -> Any:
    return list(clock) if isinstance(clock, list | tuple) else str(plain.Other(type(clock).__name__))


CASES = [Case(*sizes) for sizes in ((3, 3), (4, 2), (2, 4), (1, 1), (1, 3), (5, 1), (8, 4), (3, 7))]
TASK = Task()


@TASK.claim(CASES)
def clocks_are_lists_of_pairs(case: Case, seen: Any) -> str | None:
    """It gives its clocks one after the other, each a list of (micro_batch, partition) pairs."""
    clocks, _ = seen
    if not isinstance(clocks, list):
        return f"it gave {clocks}, expected an iterator of clocks: yield one list for each clock"
    for clock in clocks:
        if not isinstance(clock, list) or not all(map(_is_pair, clock)):
            brackets = ". Round brackets around an expression with for make a generator, square ones a list"
            return (
                f"it gave {clock} as a clock, expected a list of (micro_batch, partition) pairs, also where it is "
                f"only one{brackets * (clock == 'a generator')}"
            )
    if len(clocks) > case.most:
        return (
            f"it gave more than {case.most} clocks, and no end. Count them in the table: what do they have to do with "
            "the numbers of micro-batches and partitions?"
        )
    return None


def _is_pair(pair: Any) -> bool:
    return isinstance(pair, list) and len(pair) == 2 and all(type(number) is int for number in pair)


def _clocks(clocks: Any) -> list[Clock]:
    return [[(i, j) for i, j in clock] for clock in clocks]


@TASK.claim(CASES, after=[clocks_are_lists_of_pairs])
def a_clock_stays_as_it_was(case: Case, seen: Any) -> str | None:
    """A clock stays as it is while the next ones are made."""
    one_by_one, at_the_end = seen
    if one_by_one == at_the_end:
        return None
    return (
        f"list({case}) is {_shown(_clocks(at_the_end))}, and one by one they were {_shown(_clocks(one_by_one))}. Make a new "
        "list for each clock, rather than change the one that you have given away"
    )


@TASK.claim(CASES, after=[clocks_are_lists_of_pairs])
def each_pair_is_there_once(case: Case, seen: Any) -> str | None:
    """Every micro-batch goes through every partition exactly once."""
    clocks = _clocks(seen[0])
    times, wanted = Counter(chain(*clocks)), set(chain(*case.expected()))
    gave = f"it gave {_shown(clocks)}"
    if strange := sorted(set(times) - wanted):
        if set(strange) <= {(j, i) for i, j in wanted}:
            return f"{gave}: {strange[0]} is no task. A pair is (micro_batch, partition), in this order"
        m, n = case
        return f"{gave}: {strange[0]} is no task: there are micro-batches 0 to {m - 1} and partitions 0 to {n - 1}"
    if lost := sorted(wanted - set(times)):
        return f"{gave}: {lost[0]}, micro-batch {lost[0][0]} in partition {lost[0][1]}, is in no clock"
    if twice := sorted(pair for pair in wanted if times[pair] > 1):
        return f"{gave}: {twice[0]}, micro-batch {twice[0][0]} in partition {twice[0][1]}, is there {times[twice[0]]} times"
    return None


@TASK.claim(CASES, after=[each_pair_is_there_once, a_clock_stays_as_it_was])
def each_pair_is_in_its_clock(case: Case, seen: Any) -> str | None:
    """A micro-batch is in partition j one clock after partition j - 1, and there are no more clocks than that takes."""
    clocks = _clocks(seen[0])
    for number, (clock, expected) in enumerate(zip_longest(clocks, case.expected())):
        if expected is None or not clock:
            return f"it gave {_shown(clocks)}: clock {number} is empty, so everybody would wait for nothing"
        if sorted(clock) != sorted(expected):
            return (
                f"it gave {_shown(clocks)}: clock {number} is {clock}, expected {expected}. {_reason(clock, expected)}"
            )
    return None


def _reason(clock: Clock, expected: Clock) -> str:
    """Return what is wrong with a clock, where those before it are right."""
    early = [pair for pair in clock if pair not in expected]
    for i, j in early:
        if j:
            return f"Micro-batch {i} is in no earlier clock in partition {j - 1}, so its input would not be there"
    if not early:
        return "In clock k every partition j has micro-batch k - j, where there is one: they work at the same time"
    if len(dict.fromkeys(j for _, j in clock)) < len(clock):
        return "A partition is one device, and takes one micro-batch after the other"
    return "A partition takes the micro-batches in their order, from 0 on"


@TASK.claim(CASES, after=[each_pair_is_in_its_clock])
def pairs_are_in_the_order_of_partitions(case: Case, seen: Any) -> str | None:
    """Within a clock, the pairs are in the order of their partitions."""
    for number, clock in enumerate(_clocks(seen[0])):
        if clock != sorted(clock, key=itemgetter(1)):
            return f"clock {number} is {clock}, which begins with partition {clock[0][1]}. Go through the partitions from 0 on"
    return None


def _shown(clocks: Any) -> str:
    """Return the first clocks, which is enough to see what is wrong."""
    more = f", … {len(clocks) - 4} more" if len(clocks) > 4 else ""
    return f"[{', '.join(map(str, clocks[:4]))}{more}]"
