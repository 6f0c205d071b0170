"""What the ranks of a pipeline send each other: every message of a schedule, in one order that all ranks keep to."""

from __future__ import annotations

from typing import NamedTuple

from labkit.schedule import Op, Schedule, flow
from labkit.schedule.dependencies import times_of

_SECONDS = {"F": 1.0, "B": 2.0, "I": 1.0, "W": 1.0}  # what an op takes, as long as nobody knows better


class Message(NamedTuple):
    """What the op ``producer`` on rank ``source`` computes and the op ``consumer`` on rank ``target`` waits for.

    Between two F it is an activation, otherwise a gradient.
    """

    producer: Op
    consumer: Op
    source: int
    target: int


def messages_of(schedule: Schedule) -> list[Message]:
    """All messages between ranks, in the order in which their producers would end if every F took 1 and every B 2.

    **Why one order for all.** NCCL queues what two ranks send each other on one stream, in the order in which they ask for
    it. If rank 0 asks to send first, and rank 1 asks to send first as well, both wait for ever. In one order for all
    ranks there is always a message that comes first of those not through yet. Everything that its two ranks need before it
    comes earlier in the order, so it gets through, and then the next is the first.

    **Why this one.** It has what an op needs before what it computes, and what a rank computes in the order of its list. And
    it is close to the order in which things happen, so hardly a message has to wait for another one.

    Raises ScheduleError for a schedule that cannot run.
    """
    waits = flow(schedule)
    nothing = [0.0] * len(waits.ops)
    _, end = times_of(waits, [_SECONDS[op.kind] for op in waits.ops], under_way=nothing, pause=nothing)
    between_ranks = [
        (end[there], there, here)
        for here, there in enumerate(waits.source)
        if there >= 0 and waits.rank[there] != waits.rank[here]
    ]
    return [
        Message(waits.ops[there], waits.ops[here], waits.rank[there], waits.rank[here])
        for _, there, here in sorted(between_ranks)
    ]
