"""Order the messages between the ranks of a pipeline: one order that all ranks keep to."""

from __future__ import annotations

from typing import NamedTuple

from labkit.schedule import Op, Schedule, find_dependencies
from labkit.schedule.dependencies import earliest_times

_SECONDS = {"F": 1.0, "B": 2.0, "I": 1.0, "W": 1.0}  # of an op, before any is measured


class Message(NamedTuple):
    """A tensor that ``producer`` on rank ``source`` computes and ``consumer`` on ``target`` needs.

    Between two F it is an activation, otherwise a gradient.
    """

    producer: Op
    consumer: Op
    source: int
    target: int


def p2p_order(schedule: Schedule) -> list[Message]:
    """Return all messages between ranks, in the order in which their producers end.

    Here F takes 1 and B 2.

    **Why one order for all.** NCCL queues what two ranks send each other on one stream, in the
    order in which they ask for it. If rank 0 asks to send first, and rank 1 asks to send first as
    well, neither ever goes on. In one order for all ranks there is always a message that comes
    first of those that have not arrived. Everything that its two ranks need before it comes earlier
    in the order, so it arrives, and then the next is the first.

    **Why this one.** It has what an op needs before what it computes, and what a rank computes in
    the order of its list. It is also close to the order of events, so hardly any message waits for
    another.

    Raises ScheduleError for a schedule that cannot run.
    """
    dependencies = find_dependencies(schedule)
    ops, rank = dependencies.ops, dependencies.rank
    end_s = earliest_times(dependencies, [_SECONDS[op.kind] for op in ops]).end_s
    inputs = enumerate(dependencies.remote_input)
    between_ranks = [(end_s[there], there, here) for here, there in inputs if there is not None]
    return [Message(ops[there], ops[here], rank[there], rank[here]) for _, there, here in sorted(between_ranks)]
