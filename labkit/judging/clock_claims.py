"""What must hold of pipe.2, the clock cycles. Each claim is a function: its docstring says what must hold, and it gives None
where that holds, else what is wrong and what to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from labkit.judging import clock_probes as probes
from labkit.judging.clock_probes import Case, Clocks
from labkit.judging.evidence import EvidenceMissing, Failure, NotTried, holds
from labkit.judging.in_ranks import try_in_ranks


def gather() -> list[Any]:
    """For each case the clocks that the answer gave."""
    (found,) = try_in_ranks(probes.probe_clocks, world_size=1, init=False)
    return found


def each_task_is_there_once(found: list[Any]) -> str | None:
    """Every micro-batch goes through every partition exactly once."""
    if no_clocks := next((got for got in found if isinstance(got, str)), None):
        return no_clocks
    for case, clocks in _tried(found):
        if wrong := _not_each_once(case, clocks):
            return f"{case} gave {_shown(clocks)}: {wrong}"
    return None


def one_partition_after_the_other(found: list[Any]) -> str | None:
    """A micro-batch is in partition j in a later clock than in partition j - 1."""
    for case, clocks in _complete(found):
        clock_of = _clock_of(clocks)
        for (micro_batch, partition), clock in clock_of.items():
            if partition and clock <= (before := clock_of[micro_batch, partition - 1]):
                return (
                    f"{case} gave {_shown(clocks)}: micro-batch {micro_batch} is in partition {partition} in clock {clock}, and "
                    f"in partition {partition - 1} only in clock {before}, so its input would not be there. All tasks of a "
                    "clock run at the same time"
                )
    return None


def a_partition_does_one_thing_at_a_time(found: list[Any]) -> str | None:
    """In a clock, a partition has at most one micro-batch."""
    for case, clocks in _complete(found):
        for number, clock in enumerate(clocks):
            partition, times = Counter(partition for _, partition in clock).most_common(1)[0] if clock else (0, 0)
            if times > 1:
                return (
                    f"{case} gave {_shown(clocks)}: in clock {number}, partition {partition} has {times} micro-batches. It is "
                    "one device, and takes one after the other"
                )
    return None


def micro_batches_stay_in_order(found: list[Any]) -> str | None:
    """A partition takes the micro-batches in their order, from 0 on."""
    for case, clocks in _complete(found):
        clock_of = _clock_of(clocks)
        for (micro_batch, partition), clock in clock_of.items():
            if micro_batch and clock < clock_of[micro_batch - 1, partition]:
                return (
                    f"{case} gave {_shown(clocks)}: partition {partition} takes micro-batch {micro_batch} before "
                    f"{micro_batch - 1}"
                )
    return None


def pairs_are_in_the_order_of_partitions(found: list[Any]) -> str | None:
    """Within a clock, the pairs are in the order of their partitions."""
    if not holds(one_partition_after_the_other, found):
        raise NotTried("not tried, because micro-batches do not go from partition to partition yet")
    for case, clocks in _complete(found):
        for number, clock in enumerate(clocks):
            partitions = [partition for _, partition in clock]
            if partitions != sorted(partitions):
                return (
                    f"{case} gave {_shown(clocks)}: in clock {number}, partition {partitions[0]} comes first. Go through the "
                    "partitions from 0 on"
                )
    return None


def there_are_no_more_clocks_than_it_takes(found: list[Any]) -> str | None:
    """There are micro-batches + partitions - 1 clocks, none of them empty."""
    for case, clocks in _complete(found):
        needed = case.num_batches + case.num_partitions - 1
        if [] in clocks:
            return (
                f"{case} gave {_shown(clocks)}: clock {clocks.index([])} is empty, so everybody would wait for nothing"
            )
        if len(clocks) > needed:
            return (
                f"{case} gave {len(clocks)} clocks: {_shown(clocks)}. It takes {needed}: in clock k, every partition j has "
                "micro-batch k - j, where there is one, so that partitions work at the same time"
            )
    return None


def clocks_stay_as_they_were(found: list[Any]) -> str | None:
    """A clock stays as it is while the next ones are made."""
    list(_tried(found))
    for case, (one_by_one, at_the_end) in zip(probes.CASES, found, strict=True):
        if one_by_one != at_the_end:
            return (
                f"list({case}) is {_shown(at_the_end)}, and one by one they were {_shown(one_by_one)}. Make a new list for each "
                "clock, rather than change the one that you have given away"
            )
    return None


def _not_each_once(case: Case, clocks: Clocks) -> str | None:
    """How the clocks miss doing each task once, or None."""
    tasks = Counter(task for clock in clocks for task in clock)
    wanted = [(i, j) for i in range(case.num_batches) for j in range(case.num_partitions)]
    strange = sorted(set(tasks) - set(wanted))
    if strange and set(strange) <= {(j, i) for i, j in wanted}:
        return f"{strange[0]} is no task. A pair is (micro_batch, partition), in this order"
    if strange:
        return (
            f"{strange[0]} is no task: there are micro-batches 0 to {case.num_batches - 1} and partitions 0 to "
            f"{case.num_partitions - 1}"
        )
    if lost := next((task for task in wanted if not tasks[task]), None):
        return f"{lost}, micro-batch {lost[0]} in partition {lost[1]}, is in no clock"
    if twice := next((task for task in wanted if tasks[task] > 1), None):
        return f"{twice}, micro-batch {twice[0]} in partition {twice[1]}, is there {tasks[twice]} times"
    return None


def _tried(found: list[Any]) -> Iterator[tuple[Case, Clocks]]:
    for case, got in zip(probes.CASES, found, strict=True):
        if isinstance(got, Failure):
            raise EvidenceMissing(got.what)
        if isinstance(got, str):
            raise NotTried("not tried, because clock_cycles does not give lists of pairs yet")
        yield case, got[0]


def _complete(found: list[Any]) -> Iterator[tuple[Case, Clocks]]:
    """The same, as long as every task is there in all cases."""
    if any(_not_each_once(case, clocks) for case, clocks in _tried(found)):
        raise NotTried("not tried, because not every task is there once yet")
    yield from _tried(found)


def _clock_of(clocks: Clocks) -> dict[tuple[int, int], int]:
    return {task: number for number, clock in enumerate(clocks) for task in clock}


def _shown(clocks: Clocks) -> str:
    """The first clocks, which is enough to see what is wrong."""
    shown = ", ".join(map(str, clocks[:4]))
    return f"[{shown}, … {len(clocks) - 4} more]" if len(clocks) > 4 else f"[{shown}]"


CLAIMS = (
    each_task_is_there_once,
    one_partition_after_the_other,
    a_partition_does_one_thing_at_a_time,
    micro_batches_stay_in_order,
    there_are_no_more_clocks_than_it_takes,
    pairs_are_in_the_order_of_partitions,
    clocks_stay_as_they_were,
)
