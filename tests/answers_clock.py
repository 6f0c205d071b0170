### INSTRUCTORS ONLY: this file holds answers, so it is not in the student edition
"""Wrong answers to pipe.2, each with the claim that rejects it and a phrase of the finding; and right ones."""

from __future__ import annotations

from labkit.judging import clock_claims as claims


def cycles(body: str) -> str:
    """What gives clock_cycles for m micro-batches and n partitions, once these are known to be numbers."""
    return f"""
def _clock_cycles(num_batches, num_partitions):
    m, n = num_batches, num_partitions
    {body.strip()}
"""


def generated(clock: str, clocks: str = "range(m + n - 1)") -> str:
    """The same, where an expression gives clock k."""
    return cycles(f"for k in {clocks}: yield {clock}")


ALL = "[(i, j) for i in range(m) for j in range(n)]"
DIAGONAL = "[(k - j, j) for j in range(n) if 0 <= k - j < m]"
SEQUENTIAL = cycles(f"for task in {ALL}: yield [task]")
ONE_LIST_FOR_ALL = f"""
    clock = []
    for k in range(m + n - 1):
        clock.clear()
        clock.extend({DIAGONAL})
        yield clock
"""
FILLED_AS_THEY_COME = """
    clocks = [[] for _ in range(m + n - 1)]
    for partition in range(n):
        for micro_batch in range(m):
            clocks[micro_batch + partition].append([micro_batch, partition])
    return clocks
"""
PUSHED_ON = """
    running = []
    while len(running) < m or running[-1] < n - 1:
        running = [partition + 1 for partition in running] + ([0] if len(running) < m else [])
        yield tuple((i, j) for i, j in reversed(list(enumerate(running))) if j < n)
"""

WRONG = {
    "an empty schedule": (
        claims.each_task_is_there_once,
        cycles("return iter([])"),
        "clock_cycles(3, 3) gave []: (0, 0), micro-batch 0 in partition 0, is in no clock",
    ),
    "pairs, not lists of pairs": (
        claims.each_task_is_there_once,
        cycles(f"yield from {ALL}"),
        "gave (0, 0) as a clock, expected a list of (micro_batch, partition) pairs",
    ),
    "a generator for each clock": (
        claims.each_task_is_there_once,
        generated(f"({DIAGONAL[1:-1]})"),
        "clock_cycles(3, 3) gave a generator as a clock, expected a list of (micro_batch, partition) pairs",
    ),
    "nothing": (
        claims.each_task_is_there_once,
        cycles(f"clocks = [{DIAGONAL} for k in range(m + n - 1)]"),
        "gave None, expected an iterator of clocks",
    ),
    "micro-batch and partition swapped": (
        claims.each_task_is_there_once,
        generated("[(j, k - j) for j in range(n) if 0 <= k - j < m]"),
        "(0, 2) is no task. A pair is (micro_batch, partition), in this order",
    ),
    "counts from 1": (
        claims.each_task_is_there_once,
        generated("[(k - j + 1, j + 1) for j in range(n) if 0 <= k - j < m]"),
        "is no task: there are micro-batches 0 to 2 and partitions 0 to 2",
    ),
    "m + n clocks from clock 1 on": (
        claims.each_task_is_there_once,
        generated(DIAGONAL, "range(1, m + n)"),
        "(0, 0), micro-batch 0 in partition 0, is in no clock",
    ),
    "forgets that the pipeline empties": (
        claims.each_task_is_there_once,
        generated(DIAGONAL, "range(m)"),
        "(1, 2), micro-batch 1 in partition 2, is in no clock",
    ),
    "knows only more micro-batches than partitions": (
        claims.each_task_is_there_once,
        generated("[(k - j, j) for j in range(max(0, k - m + 1), min(k, n - 1) + 1)]", "range(m + min(m, n) - 1)"),
        "clock_cycles(2, 4) gave",
    ),
    "the last one twice": (
        claims.each_task_is_there_once,
        generated("[(min(k - j, m - 1), j) for j in range(n) if 0 <= k - j <= m]"),
        "is there 2 times",
    ),
    "everything at once": (
        claims.one_partition_after_the_other,
        cycles(f"yield {ALL}"),
        "micro-batch 0 is in partition 1 in clock 0, and in partition 0 only in clock 0, so its input would not be there",
    ),
    "from the last partition to the first": (
        claims.one_partition_after_the_other,
        generated("[(k - j, n - 1 - j) for j in range(n) if 0 <= k - j < m]"),
        "so its input would not be there",
    ),
    "partition by partition": (
        claims.a_partition_does_one_thing_at_a_time,
        cycles("for j in range(n): yield [(i, j) for i in range(m)]"),
        "in clock 0, partition 0 has 3 micro-batches",
    ),
    "from the last micro-batch to the first": (
        claims.micro_batches_stay_in_order,
        generated("[(m - 1 - k + j, j) for j in range(n) if 0 <= k - j < m]"),
        "partition 0 takes micro-batch 2 before 1",
    ),
    "one task a clock": (
        claims.there_are_no_more_clocks_than_it_takes,
        SEQUENTIAL,
        "gave 9 clocks: [[(0, 0)], [(0, 1)], [(0, 2)], [(1, 0)], … 5 more]. It takes 5: in clock k",
    ),
    "an empty clock at the end": (
        claims.there_are_no_more_clocks_than_it_takes,
        generated(DIAGONAL, "range(m + n)"),
        "clock 5 is empty",
    ),
    "clocks without an end": (
        claims.there_are_no_more_clocks_than_it_takes,
        generated(DIAGONAL, "__import__('itertools').count()"),
        "clock 5 is empty",
    ),
    "from the last partition to the first within a clock": (
        claims.pairs_are_in_the_order_of_partitions,
        generated("[(k - j, j) for j in reversed(range(n)) if 0 <= k - j < m]"),
        "in clock 1, partition 1 comes first. Go through the partitions from 0 on",
    ),
    "one list that changes": (
        claims.clocks_stay_as_they_were,
        cycles(ONE_LIST_FOR_ALL),
        "Make a new list for each clock",
    ),
}
RIGHT = {
    "a list of lists, filled by partition": cycles(FILLED_AS_THEY_COME),
    "every micro-batch pushed on": cycles(PUSHED_ON),
}
