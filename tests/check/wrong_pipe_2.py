### INSTRUCTORS ONLY: this file holds answers, so it is not in the student edition
"""Wrong and right answers to pipe.2; test_answers.py says how they are written."""

from labkit.check import pipe_2 as claims

RANGE, PAIRS = "range(num_batches + num_partitions - 1)", "(clock - j, j) for j in range(num_partitions)"
WHERE = "if 0 <= clock - j < num_batches"
CLOCK = f"[{PAIRS} {WHERE}]"
LOOP = f"for clock in {RANGE}:\n        yield {CLOCK}"
ALL = "[(i, j) for i in range(num_batches) for j in range(num_partitions)]"
BY_PARTITION = "for j in range(num_partitions): yield [(i, j) for i in range(num_batches)]"
BACKWARDS = "reversed(range(num_partitions)) if"
ONE_LIST_FOR_ALL = f"""clock_list = []
    for clock in {RANGE}:
        clock_list[:] = {CLOCK}
        yield clock_list"""
TWO_AT_A_TIME = """for first in range(0, num_batches, 2):
        for k in range(num_partitions + min(2, num_batches - first) - 1):
            yield [(first + k - j, j) for j in range(num_partitions) if 0 <= k - j < min(2, num_batches - first)]"""
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
    claims.clocks_are_lists_of_pairs: {
        "nothing": ("clock_cycles(4, 3): it gave None, expected", (LOOP, f"clocks = [{CLOCK} for clock in {RANGE}]")),
        "pairs, not lists of pairs": ("it gave [0, 0] as a clock, expected a list of", (LOOP, f"yield from {ALL}")),
        "a generator for each clock": ("it gave a generator as a clock, expected a list", (CLOCK, f"({CLOCK[1:-1]})")),
        "clocks without an end": ("it gave more than 40 clocks, and no", (RANGE, "__import__('itertools').count()")),
    },
    None: {
        "a loop without an end": (
            "it did not end in time. It was at labkit/pipe.py, line ",
            (LOOP, f"clock = 0\n    while clock < 3: {CLOCK}\n    return []"),
        )
    },
    claims.each_pair_is_in_its_clock: {
        "an empty schedule": ("clock_cycles(4, 3): it gave []: (0, 0), micro-batch 0 in", (LOOP, "return iter([])")),
        "micro-batch and partition swapped": ("(0, 3) is no task: a pair is", ("(clock - j, j)", "(j, clock - j)")),
        "counts from 1": ("is no task: there are micro-batches 0 to 3", ("(clock - j, j)", "(clock - j + 1, j + 1)")),
        "clocks from 1 on": ("(0, 0), micro-batch 0 in partition", (RANGE, "range(1, num_batches + num_partitions)")),
        "forgets that the pipeline empties": ("(2, 2), micro-batch 2 in partition 2,", (RANGE, "range(num_batches)")),
        "knows only more micro-batches than partitions": (
            "clock_cycles(2, 4): it gave",
            (RANGE, "range(num_batches + min(num_batches, num_partitions) - 1)"),
        ),
        "the last one twice": (
            "partition 2, is there 2 times",
            (LOOP, f"{LOOP}\n    yield [(num_batches - 1, num_partitions - 1)]"),
        ),
        "everything at once": ("Micro-batch 0 is in no earlier clock in partition 0", (LOOP, f"yield {ALL}")),
        "from the last partition to the first": (
            "in no earlier clock in partition 1",
            ("- j, j)", "- j, num_partitions - 1 - j)"),
        ),
        "partition by partition": ("A partition is one device", (LOOP, BY_PARTITION)),
        "from the last micro-batch": ("in their order", ("(clock - j, j)", "(num_batches - 1 - clock + j, j)")),
        "one task a clock": ("clock 1 is [(0, 1)], expected [(1, 0), (0,", (LOOP, f"for task in {ALL}: yield [task]")),
        "drains before it goes on": ("clock 2 is [(1, 1), (0, 2)], expected [(2, 0), (1, 1),", (LOOP, TWO_AT_A_TIME)),
        "from the last partition in a clock": (
            "It begins with partition 1. Go",
            ("range(num_partitions) if", BACKWARDS),
        ),
        "an empty clock at the end": ("clock 6 is empty", (RANGE, "range(num_batches + num_partitions)")),
    },
    claims.a_clock_stays_as_it_was: {
        "one list that changes": ("Make a new list for each clock", (LOOP, ONE_LIST_FOR_ALL))
    },
}
RIGHT = {
    "a list of lists, filled by partition": [(LOOP, FILLED_AS_THEY_COME)],
    "every micro-batch pushed on": [(LOOP, PUSHED_ON)],
}
