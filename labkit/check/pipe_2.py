"""pipe.2: which (micro_batch, partition) pairs clock_cycles puts into which clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import chain, islice, product
from typing import Any, NamedTuple

from labkit.check.harness import Task

Clock = list[tuple[int, int]]
MOST = 40  # clocks that are asked for: more than there are pairs in any case


class Case(NamedTuple):
    """What clock_cycles is called with: small numbers, so that a finding can be followed by
    hand."""

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
        one_by_one = [clock[:] if isinstance(clock, list) else clock for clock in islice(clocks, MOST + 1)]
        return one_by_one, list(islice(clock_cycles(*self), MOST + 1))

    def expected(self) -> list[Clock]:
        """Return what starts at the same time in a simulated pipeline of tasks that take as
        long."""
        from labkit.schedule import forward_only
        from labkit.simulate import simulate

        events = simulate(forward_only(self.num_partitions, self.num_batches)).sort_values("stage")
        starting = events.groupby("start_s")[["micro_batch", "stage"]]
        return [[(int(i), int(j)) for i, j in clock.to_numpy()] for _, clock in starting]


CASES = [Case(*sizes) for sizes in ((4, 3), (4, 2), (2, 4), (1, 1), (1, 3), (5, 1), (8, 4), (3, 7))]
TASK = Task()


@TASK.claim(CASES)
def clocks_are_lists_of_pairs(case: Case, seen: Any) -> str | bool:
    """It gives its clocks one after the other, each a list of (micro_batch, partition) pairs."""
    clocks, _ = seen
    if not isinstance(clocks, list):
        return f"it gave {clocks}, expected an iterator of clocks: yield one list for each clock"
    for clock in clocks:
        if not isinstance(clock, list) or not all(isinstance(x, list) and [*map(type, x)] == [int, int] for x in clock):
            advice = "Square brackets around an expression with for make a list, round ones a generator"
            return f"it gave {clock} as a clock, expected a list of (micro_batch, partition) pairs. {advice}"
    why = "What do they have to do, in the table, with the numbers of micro-batches and partitions?"
    return len(clocks) > MOST and f"it gave more than {MOST} clocks, and no end. {why}"


@TASK.claim(CASES, after=[clocks_are_lists_of_pairs])
def a_clock_stays_as_it_was(case: Case, seen: Any) -> str | bool:
    """A clock stays as it is while the next ones are made."""
    first, later = map(_shown, seen)
    advice = "Make a new list for each clock, rather than change the one that you have given away"
    return seen[0] != seen[1] and f"list({case}) is {later}, and one by one they were {first}. {advice}"


@TASK.claim(CASES, after=[a_clock_stays_as_it_was])
def each_pair_is_in_its_clock(case: Case, seen: Any) -> str | None:
    """Each clock has its pairs, as in the table: partition by partition, and not a clock later."""
    clocks, right = [[(i, j) for i, j in clock] for clock in seen[0]], case.expected()
    if clocks == right:
        return None
    (m, n), times, gave = case, Counter(chain(*clocks)), f"it gave {_shown(clocks)}"
    if strange := set(times).difference(*right):
        swapped = {(j, i) for i, j in strange}.issubset(chain(*right))
        ranges = f"there are micro-batches 0 to {m - 1} and partitions 0 to {n - 1}"
        why = "a pair is (micro_batch, partition), in this order" if swapped else ranges
        return f"{gave}: {min(strange)} is no task: {why}"
    for i, j in product(range(m), range(n)):
        if times[i, j] != 1:
            return f"{gave}: {(i, j)}, micro-batch {i} in partition {j}, is there {times[i, j]} times, expected once"
    k, clock = next((k, clock) for k, clock in enumerate(clocks) if [clock] != right[k : k + 1])
    if not clock:
        return f"{gave}: clock {k} is empty, so everybody would wait for nothing"
    return f"{gave}: clock {k} is {clock}, expected {right[k]}. {_reason(clock, right[k])}"


def _reason(clock: Clock, expected: Clock) -> str:
    """Return what is wrong with a clock, where those before it are right."""
    early = [pair for pair in clock if pair not in expected]
    for i, j in early:
        if j:
            return f"Micro-batch {i} is in no earlier clock in partition {j - 1}, so its input would not be there"
    if not early and len(clock) == len(expected):
        return f"It begins with partition {clock[0][1]}. Go through the partitions from 0 on"
    if not early:
        return "In clock k every partition j has micro-batch k - j, where there is one: they work at the same time"
    if len({j for _, j in clock}) < len(clock):
        return "A partition is one device, and takes one micro-batch after the other"
    return "A partition takes the micro-batches in their order, from 0 on"


def _shown(clocks: Any) -> str:
    """Return the first clocks, which is enough to see what is wrong."""
    shown = ", ".join(str([(i, j) for i, j in clock]) for clock in clocks[:4])
    return f"[{shown}{f', … {len(clocks) - 4} more' * (len(clocks) > 4)}]"
