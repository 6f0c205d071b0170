"""The order of messages: it is complete, and no rank waits for ever, however little the network
does by itself."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipelines import feeder, ops_of, random_schedules, rank_of, schedules

from labkit.schedule import Op, Schedule, ScheduleError, one_f_one_b
from labkit.schedule.p2p_order import Message, p2p_order

any_schedule = st.one_of(schedules(), random_schedules())


# --- ranks that shake hands -----------------------------------------------------------------------
#
# The strictest network there is: a message gets through only while both of its ranks stand at it,
# and until then neither goes on. NCCL does no worse: it lets the rank go on, and keeps what it
# asked for in the order in which it asked.


def program(ops, messages):
    """What a rank does, one after the other, ops and messages: what comes before its next message
    in ``messages`` first."""
    taken = {message.consumer: number for number, message in enumerate(messages)}
    given = {message.producer: number for number, message in enumerate(messages)}
    steps, sent = [], 0

    def go_through(number):
        nonlocal sent
        steps.extend(messages[sent : number + 1])
        sent = max(sent, number + 1)

    for op in ops:
        go_through(taken.get(op, -1))
        steps.append(op)
        go_through(given.get(op, -1))
    return steps


def stuck(programs):
    """Where the ranks stand when none can go on any more: for each one what it waits for; nothing
    if all came to their end."""
    at, done = [0] * len(programs), set()
    now = [None] * len(programs)
    going = True
    while going:
        going = False
        for rank, steps in enumerate(programs):
            now[rank] = steps[at[rank]] if at[rank] < len(steps) else None
            step = now[rank]
            if isinstance(step, Op):
                done.add(step)
            elif step is None or not all(now[end] == step for end in (step.source, step.target)):
                continue
            else:
                assert step.producer in done, f"{step} is to be sent before it is computed"
                assert step.consumer not in done, f"{step} comes after it was needed"
                at[step.source if rank == step.target else step.target] += 1
            at[rank] += 1
            going = True
    return [step for step in now if step is not None]


@settings(deadline=None)
@given(any_schedule)
def test_ranks_that_keep_to_the_order_never_wait_for_ever_even_if_every_message_is_a_handshake(schedule):
    messages = p2p_order(schedule)
    mine = [[m for m in messages if rank in (m.source, m.target)] for rank in range(schedule.n_ranks)]
    assert stuck([program(ops, mine[rank]) for rank, ops in enumerate(schedule.ops)]) == []


def test_ranks_that_send_what_they_have_and_receive_what_they_need_would_wait_for_each_other():
    schedule = one_f_one_b(2, 2)
    waits = stuck([as_it_comes(schedule, rank) for rank in range(2)])
    assert waits == [Message(Op("F", 0, 1), Op("F", 1, 1), 0, 1), Message(Op("B", 1, 0), Op("B", 0, 0), 1, 0)]


def as_it_comes(schedule, rank):
    steps = []
    for op in schedule.ops[rank]:
        steps += [m for m in p2p_order(schedule) if m.consumer == op and m.target == rank]
        steps.append(op)
        steps += [m for m in p2p_order(schedule) if m.producer == op and m.source == rank]
    return steps


# --- what is in it --------------------------------------------------------------------------------


@settings(deadline=None)
@given(any_schedule)
def test_what_an_op_takes_from_another_rank_is_one_message_and_nothing_else_is(schedule):
    home = rank_of(schedule)
    takes = [
        Message(source, op, home[source.stage], home[op.stage])
        for op in ops_of(schedule)
        if (source := feeder(schedule, op)) and home[source.stage] != home[op.stage]
    ]
    assert sorted(p2p_order(schedule)) == sorted(takes)


def test_a_schedule_that_would_wait_for_ever_has_no_order():
    ranks = ["0F0 0B0 0F1 0B1", "1F1 1B1 1F0 1B0"]
    with pytest.raises(ScheduleError, match="a deadlock: 0B0 on rank 0 waits for 1B0"):
        p2p_order(Schedule([list(map(Op.parse, ops.split())) for ops in ranks]))
