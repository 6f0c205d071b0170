### INSTRUCTORS ONLY: this file holds answers, so it is not in the student edition
"""Wrong and right answers to pipe.2; test_answers.py says how they are written."""

from __future__ import annotations

from labkit.check import pipe_2 as claims

RANGE, PAIRS = "range(num_batches + num_partitions - 1)", "(clock - j, j) for j in range(num_partitions)"
WHERE = "if 0 <= clock - j < num_batches"
CLOCK = f"[{PAIRS} {WHERE}]"
LOOP = f"for clock in {RANGE}:\n        yield {CLOCK}"
ALL = "[(i, j) for i in range(num_batches) for j in range(num_partitions)]"
ONE_LIST_FOR_ALL = f"""clock_list = []
    for clock in {RANGE}:
        clock_list[:] = {CLOCK}
        yield clock_list"""
FILLED_AS_THEY_COME = f"""clocks = [[] for _ in {RANGE}]
    for partition in range(num_partitions):
        for micro_batch in range(num_batches):
            clocks[micro_batch + partition].append([micro_batch, partition])
    return clocks"""
PUSHED_ON = """running = []
    while len(running) < num_batches or running[-1] < num_partitions - 1:
        running = [partition + 1 for partition in running] + ([0] if len(running) < num_batches else [])
        yield tuple((i, j) for i, j in reversed(list(enumerate(running))) if j < num_partitions)"""

WRONG = {
    "nothing": (
        claims.clocks_are_lists_of_pairs,
        "clock_cycles(3, 3): it gave None, expected an iterator of clocks",
        (LOOP, f"clocks = [{CLOCK} for clock in {RANGE}]"),
    ),
    "pairs, not lists of pairs": (
        claims.clocks_are_lists_of_pairs,
        "it gave [0, 0] as a clock, expected a list of (micro_batch, partition) pairs",
        (LOOP, f"yield from {ALL}"),
    ),
    "a generator for each clock": (
        claims.clocks_are_lists_of_pairs,
        "it gave a generator as a clock, expected a list of (micro_batch, partition) pairs, also where it is only one. Round",
        (CLOCK, f"({CLOCK[1:-1]})"),
    ),
    "clocks without an end": (
        claims.clocks_are_lists_of_pairs,
        "it gave more than 18 clocks, and no end. Count them in the table",
        (RANGE, "__import__('itertools').count()"),
    ),
    "a loop without an end": (
        None,
        "it did not end in time. It was at labkit/pipe.py, line ",
        (LOOP, f"clock = 0\n    while clock < 3: {CLOCK}\n    return []"),
    ),
    "an empty schedule": (
        claims.each_pair_is_there_once,
        "clock_cycles(3, 3): it gave []: (0, 0), micro-batch 0 in partition 0, is in no clock",
        (LOOP, "return iter([])"),
    ),
    "micro-batch and partition swapped": (
        claims.each_pair_is_there_once,
        "(0, 2) is no task. A pair is (micro_batch, partition), in this order",
        ("(clock - j, j)", "(j, clock - j)"),
    ),
    "counts from 1": (
        claims.each_pair_is_there_once,
        "is no task: there are micro-batches 0 to 2 and partitions 0 to 2",
        ("(clock - j, j)", "(clock - j + 1, j + 1)"),
    ),
    "clocks from 1 on": (
        claims.each_pair_is_there_once,
        "(0, 0), micro-batch 0 in partition 0, is in no clock",
        (RANGE, "range(1, num_batches + num_partitions)"),
    ),
    "forgets that the pipeline empties": (
        claims.each_pair_is_there_once,
        "(1, 2), micro-batch 1 in partition 2, is in no clock",
        (RANGE, "range(num_batches)"),
    ),
    "knows only more micro-batches than partitions": (
        claims.each_pair_is_there_once,
        "clock_cycles(2, 4): it gave",
        (RANGE, "range(num_batches + min(num_batches, num_partitions) - 1)"),
    ),
    "the last one twice": (
        claims.each_pair_is_there_once,
        "is there 2 times",
        (
            CLOCK,
            "[(min(clock - j, num_batches - 1), j) for j in range(num_partitions) if 0 <= clock - j <= num_batches]",
        ),
    ),
    "everything at once": (
        claims.each_pair_is_in_its_clock,
        "Micro-batch 0 has not been in partition 0 before, so its input would not be there",
        (LOOP, f"yield {ALL}"),
    ),
    "from the last partition to the first": (
        claims.each_pair_is_in_its_clock,
        "clock 0 is [(0, 2)], expected [(0, 0)]. Micro-batch 0 has not been in partition 1 before",
        ("(clock - j, j)", "(clock - j, num_partitions - 1 - j)"),
    ),
    "partition by partition": (
        claims.each_pair_is_in_its_clock,
        "clock 0 is [(0, 0), (1, 0), (2, 0)], expected [(0, 0)]. A partition is one device",
        (LOOP, "for j in range(num_partitions): yield [(i, j) for i in range(num_batches)]"),
    ),
    "from the last micro-batch to the first": (
        claims.each_pair_is_in_its_clock,
        "clock 0 is [(2, 0)], expected [(0, 0)]. A partition takes the micro-batches in their order",
        ("(clock - j, j)", "(num_batches - 1 - clock + j, j)"),
    ),
    "one task a clock": (
        claims.each_pair_is_in_its_clock,
        "clock 1 is [(0, 1)], expected [(1, 0), (0, 1)]. In clock k every partition j has micro-batch k - j",
        (LOOP, f"for task in {ALL}: yield [task]"),
    ),
    "drains before it goes on": (
        claims.each_pair_is_in_its_clock,
        "clock 3 is [(1, 2)], expected [(2, 1), (1, 2)]. In clock k",
        (
            LOOP,
            "for first in range(0, num_batches, 2):\n"
            "        for k in range(num_partitions + 1):\n"
            "            yield [(first + k - j, j) for j in range(num_partitions)\n"
            "                   if 0 <= k - j < min(2, num_batches - first)]",
        ),
    ),
    "an empty clock at the end": (
        claims.each_pair_is_in_its_clock,
        "clock 5 is empty",
        (RANGE, "range(num_batches + num_partitions)"),
    ),
    "from the last partition to the first within a clock": (
        claims.pairs_are_in_the_order_of_partitions,
        "clock 1 is [(0, 1), (1, 0)], which begins with partition 1. Go through the partitions from 0 on",
        ("range(num_partitions) if", "reversed(range(num_partitions)) if"),
    ),
    "one list that changes": (
        claims.a_clock_stays_as_it_was,
        "Make a new list for each clock",
        (LOOP, ONE_LIST_FOR_ALL),
    ),
}
FOLLOWS = ["nothing", "an empty schedule", "clocks without an end", "one list that changes", "everything at once"]
OTHER_CAUSE = {
    "one task a clock": ("its input would not be there",),
    "clocks without an end": ("is empty",),
}
RIGHT = {
    "a list of lists, filled by partition": [(LOOP, FILLED_AS_THEY_COME)],
    "every micro-batch pushed on": [(LOOP, PUSHED_ON)],
}
