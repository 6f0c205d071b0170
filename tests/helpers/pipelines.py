"""Pipelines to test with: schedules of all kinds, and when their ops run, in the plainest way."""

from random import Random

from hypothesis import strategies as st

from labkit.schedule import (
    Op,
    Schedule,
    forward_only,
    gpipe,
    interleaved,
    one_f_one_b,
    zero_bubble_h1,
    zero_bubble_h2,
    zero_bubble_v,
)
from labkit.trace import event_table

EVENT_NAMES = {"F": "forward", "B": "backward", "I": "input_grad", "W": "weight_grad"}
MAKERS = (forward_only, gpipe, one_f_one_b, zero_bubble_h1, zero_bubble_h2, zero_bubble_v)

eighths = st.integers(1, 32).map(lambda n: n / 8)  # seconds that add up without rounding


@st.composite
def schedules(draw, max_ranks=4, max_micro_batches=6):
    n_ranks = draw(st.integers(1, max_ranks))
    n_micro = draw(st.integers(1, max_micro_batches))
    if draw(st.integers(0, 6)) == 0:
        return interleaved(n_ranks, n_ranks * draw(st.integers(1, 2)), draw(st.integers(1, 3)))
    return draw(st.sampled_from(MAKERS))(n_ranks, n_micro)


@st.composite
def random_schedules(draw, ranks=None, max_stages=6, max_micro_batches=4):
    """Draw any schedule of so many ``ranks``, or 1 to 4, that can run, however odd.

    Stages are on any ranks, backward passes whole or split, in any order.

    All ops are put in one random order, in which each comes after what it needs, and dealt out to
    the ranks.
    """
    chance = Random(draw(st.integers(0, 2**32 - 1)))
    n_ranks = ranks or draw(st.integers(1, 4))
    n_stages, n_micro = draw(st.integers(n_ranks, max_stages)), draw(st.integers(1, max_micro_batches))
    home = [*range(n_ranks), *(chance.randrange(n_ranks) for _ in range(n_stages - n_ranks))]
    chance.shuffle(home)
    needs = {Op("F", s, i): {Op("F", s - 1, i)} if s else set() for s in range(n_stages) for i in range(n_micro)}
    if draw(st.integers(0, 3)) > 0:
        for i in range(n_micro):
            gradient = Op("F", n_stages - 1, i)  # through the loss
            for s in reversed(range(n_stages)):
                whole = chance.random() < 0.5
                needs[op := Op("B" if whole else "I", s, i)] = {gradient, Op("F", s, i)}
                if not whole:
                    needs[Op("W", s, i)] = {op}
                gradient = op
    ranks = [[] for _ in range(n_ranks)]
    done = set()
    while needs:
        op = chance.choice([op for op, needed in needs.items() if needed <= done])
        done.add(op)
        del needs[op]
        ranks[home[op.stage]].append(op)
    return Schedule(ranks, "random")


@st.composite
def stage_times(draw, schedule, seconds=eighths):
    """Draw forward, backward, input_grad and weight_grad: each a number, or one a stage."""
    per_stage = st.lists(seconds, min_size=schedule.n_stages, max_size=schedule.n_stages)
    return {name: draw(st.one_of(seconds, per_stage)) for name in EVENT_NAMES.values()}


def ops_of(schedule):
    return [op for ops in schedule.ops for op in ops]


def rank_of(schedule):
    return {op.stage: rank for rank, ops in enumerate(schedule.ops) for op in ops}


def feeder(schedule, op):
    """The op whose output ``op`` takes, or None."""
    kind, stage, micro_batch = op
    if kind == "F":
        return Op("F", stage - 1, micro_batch) if stage else None
    if kind == "W":
        return Op("I", stage, micro_batch)
    if stage == schedule.n_stages - 1:
        return Op("F", stage, micro_batch)
    return next(o for k in "BI" if (o := Op(k, stage + 1, micro_batch)) in ops_of(schedule))


def at_stage(times, op):
    value = times[EVENT_NAMES[op.kind]]
    return value[op.stage] if isinstance(value, list) else value


def play(schedule, seconds, transfer=lambda op: 0.0, overhead=lambda op: 0.0):
    """When each op starts and ends: ``{op: (start, end)}``, all in seconds.

    ``seconds(op)`` is how long it takes, ``transfer(op)`` how long what it gets from another rank
    is under way, and ``overhead(op)`` what its rank needs between the op before and this one.
    """
    home, times = rank_of(schedule), {}
    left = [list(ops) for ops in schedule.ops]
    before = [None] * len(left)
    while any(left):
        for rank, ops in enumerate(left):
            if not ops or ((source := feeder(schedule, ops[0])) and source not in times):
                continue
            op = ops.pop(0)
            start = times[before[rank]][1] + overhead(op) if before[rank] else 0.0
            if source:
                remote = home[source.stage] != rank
                start = max(start, times[source][1] + (transfer(op) if remote else 0.0))
            times[op] = (start, start + seconds(op))
            before[rank] = op
    return times


def table_of(schedule, times, measured=True, origin=0.0):
    """The event table of ops that ran at ``times``, as :func:`play` gives them."""
    home = rank_of(schedule)
    rows = [
        (home[s], "compute", EVENT_NAMES[kind], None, s, i, None, None, a + origin, b + origin)
        for (kind, s, i), (a, b) in times.items()
    ]
    return event_table(sorted(rows, key=lambda row: row[-2:]), measured=measured)


def op_of_row(row):
    kind = next(kind for kind, name in EVENT_NAMES.items() if name == row.name)
    return Op(kind, int(row.stage), int(row.micro_batch))
