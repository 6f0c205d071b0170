### INSTRUCTORS ONLY: this file holds answers, so it is not in the student edition
"""Wrong and right answers to pipe.2; test_answers.py says how they are written."""

from labkit.check import pipe_2 as claims

RANGE, PAIR = "range(num_batches + num_partitions - 1)", "(clock - j, j)"
CLOCK = f"[{PAIR} for j in range(num_partitions) if 0 <= clock - j < num_batches]"
LOOP = f"for clock in {RANGE}:\n        yield {CLOCK}"
TASKS = "[(i, j) for i in range(num_batches) for j in range(num_partitions)]"
ONE_LIST = f"clocks = []\n    for clock in {RANGE}:\n        clocks[:] = {CLOCK}\n        yield clocks"
FILLED_AS_THEY_COME = f"""clocks = [[] for _ in {RANGE}]
    for partition in range(num_partitions):
        for micro_batch in range(num_batches):
            clocks[micro_batch + partition].append([micro_batch, partition])
    return clocks"""

WRONG = {
    claims.clocks_are_lists_of_pairs: {
        "nothing": ("clock_cycles(4, 3): it gave None, expected", (LOOP, "pass")),
        "pairs, not lists of pairs": ("it gave [0, 0] as a clock, expected a list of", (LOOP, f"yield from {TASKS}")),
        "clocks without an end": ("it gave more than 40 clocks", (RANGE, "__import__('itertools').count()")),
    },
    claims.a_clock_stays_as_it_was: {"one list that changes": ("Make a new list for each clock", (LOOP, ONE_LIST))},
    claims.each_pair_is_in_its_clock: {
        "micro-batch and partition swapped": ("(0, 3) is not a task: a pair is (micro_", (PAIR, "(j, clock - j)")),
        "knows only three partitions": ("(2, 4): it gave", (RANGE, "range(num_batches + 2)")),
        "the last one twice": ("2 times", (LOOP, f"{LOOP}\n    yield [(num_batches - 1, num_partitions - 1)]")),
        "an empty clock at the end": ("clock 6 is empty", ("num_partitions - 1", "num_partitions")),
        "everything at once": ("Micro-batch 0 is in no earlier clock in partition 0", (LOOP, f"yield {TASKS}")),
        "eleven clocks at most": ("(drawn with seed=", (RANGE, "range(min(11, num_batches + num_partitions - 1))")),
        "knows five partitions": (
            "(drawn with seed=",
            ("in range(num_partitions)", "in range(min(num_partitions, 5))"),
        ),
    },
}
BY_MICRO_BATCH = "[(i, clock - i) for i in range(num_batches) if 0 <= clock - i < num_partitions]"
RIGHT = {
    "a list of lists, filled by partition": [(LOOP, FILLED_AS_THEY_COME)],
    "from the last partition in a clock": [(CLOCK, f"{CLOCK}[::-1]")],
    "by micro-batch": [(CLOCK, BY_MICRO_BATCH)],
}
