"""pipe.2: which (micro_batch, partition) pairs clock_cycles puts into which clock."""

from __future__ import annotations

import random
from collections.abc import Iterable
from itertools import chain, groupby, islice
from operator import itemgetter
from reprlib import repr as shortened
from typing import Any, NamedTuple

from labkit.check.harness import Finding, Task

MAX_CLOCKS = 40  # clocks that are asked for: more than there are in any case


class Case(NamedTuple):
    """What clock_cycles is called with: small numbers, to be followed by hand."""

    num_batches: int
    num_partitions: int

    def __str__(self) -> str:
        return f"clock_cycles({self.num_batches}, {self.num_partitions})"

    def observe(self) -> Any:
        """Return the clocks as they were when each was asked for, and when all had been."""
        from labkit.pipe import clock_cycles

        clocks = clock_cycles(*self)
        if not isinstance(clocks, Iterable):
            return clocks, None
        one_by_one = [clock[:] if isinstance(clock, list) else clock for clock in islice(clocks, MAX_CLOCKS + 1)]
        return one_by_one, list(islice(clock_cycles(*self), MAX_CLOCKS + 1))

    def expected(self) -> list[list[tuple[int, int]]]:
        """Return what starts at the same time in a simulated pipeline of equally long tasks."""
        from labkit.schedule import find_dependencies, forward_only
        from labkit.schedule.dependencies import earliest_times

        found = find_dependencies(forward_only(self.num_partitions, self.num_batches))
        start_s = earliest_times(found, [1.0] * len(found.ops), [0.0] * len(found.ops)).start_s
        starts = sorted((start, op.stage, op.micro_batch) for start, op in zip(start_s, found.ops, strict=True))
        return [[(i, j) for _, j, i in clock] for _, clock in groupby(starts, key=itemgetter(0))]


def drawn(draw: random.Random) -> list[Case]:
    return [Case(draw.randint(6, 12), draw.randint(6, 9)), Case(draw.randint(2, 4), draw.randint(7, 12))]


CASES: list[Any] = [Case(*sizes) for sizes in ((4, 3), (2, 4), (1, 1), (1, 3), (5, 1), (8, 4))]
CASES.append(drawn)
TASK = Task(
    writes="clock_cycles",
    minutes=10,
    points=10,
    notebooks="08 to 10",
    hints=(
        """Look at one column of the table. What do micro-batch and partition add up to in each of its pairs?""",
        """They add up to the number of the clock. So within a clock the partition decides which micro-batch it
would be: go through the partitions in order.""",
        """Not every partition has something to do: at first the late ones are idle, at the end the early ones.
Leave out a pair whose micro-batch would be below 0, or would not exist any more. The last
micro-batch has to get through all partitions, so there are more clocks than micro-batches.""",
    ),
)


@TASK.claim(CASES)
def clocks_are_lists_of_pairs(case: Case, seen: Any) -> Finding:
    """It gives its clocks one after the other, each a list of (micro_batch, partition) pairs."""
    clocks, _ = seen
    if not isinstance(clocks, list):
        return f"it gave {clocks}, expected an iterator of clocks: yield one list for each clock"
    for clock in clocks:
        pairs = clock if isinstance(clock, list) else [None]
        if not all(isinstance(pair, list) and [*map(type, pair)] == [int, int] for pair in pairs):
            expected = "a list of (micro_batch, partition) pairs, such as [(1, 0), (0, 1)]"
            return f"it gave {clock} as a clock, expected {expected}"
    endless = f"it gave more than {MAX_CLOCKS} clocks, and no end"
    return len(clocks) > MAX_CLOCKS and f"{endless}. The table has {len(case.expected())}"


@TASK.claim(CASES)
def a_clock_stays_as_it_was(case: Case, seen: Any) -> Finding:
    """A clock stays as it is while the next ones are made."""
    first, later = map(shortened, seen)
    differ = f"list({case}) is {later}, one by one it was {first}"
    return seen[0] != seen[1] and f"{differ}. Make a new list for each clock"


@TASK.claim(CASES, core=True)
def each_pair_is_in_its_clock(case: Case, seen: Any) -> Finding:
    """Each clock has its pairs, as in the table: in any order, and not a clock later."""
    clocks, expected = [[(i, j) for i, j in clock] for clock in seen[0]], case.expected()
    pairs, tasks, gave = list(chain(*clocks)), sorted(chain(*expected)), f"it gave {shortened(clocks)}"
    for pair in pairs:
        if pair not in tasks:
            why = f"a pair is (micro_batch, partition), from (0, 0) to {tasks[-1]}"
            return f"{gave}: {pair} is not a task: {why}"
    for i, j in tasks:
        if (times := pairs.count((i, j))) != 1:
            what = f"{(i, j)}, micro-batch {i} in partition {j}"
            return f"{gave}: {what}, is there {times} times, expected once"
    if [] in clocks:
        return f"{gave}: clock {clocks.index([])} is empty, so everybody would wait for nothing"
    for k, clock in enumerate(clocks):
        found = f"{gave}: clock {k} is {clock}, expected {expected[k]}"
        for i, j in clock:
            if j and (i, j) not in expected[k]:
                why = f"Micro-batch {i} is in no earlier clock in partition {j - 1}"
                return f"{found}. {why}, so its input would not be there"
        if sorted(clock) != sorted(expected[k]):
            return f"{found}. In the table of clock_cycles a column is a clock"
