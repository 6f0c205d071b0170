"""Whether what ranks have begun in their groups is settled, of sets of states written by hand."""

from __future__ import annotations

import pytest

from labkit.ranks.faults.group_state import is_in_step, is_settled
from labkit.ranks.messages.message import ANY, GroupState

SEND, RECEIVE = True, False


def state(*messages: tuple[bool, int, int, int], collectives: int = 3, **others: int) -> GroupState:
    """Return a state: messages are (sent, from, to, tag), ``others`` collectives by group."""
    totals: dict[tuple[str, bool, int, int], tuple[int, int]] = {}
    for is_send, source, to, tag in messages:
        number, tags = totals.get(("0", is_send, source, to), (0, 0))
        totals["0", is_send, source, to] = number + 1, tags + tag
    return GroupState((collectives,), others, [(*kind, *each) for kind, each in totals.items()])


SETTLED = {
    "nothing but collectives": [state(), state()],
    "each message has its receive": [
        state((SEND, 0, 1, 7), (SEND, 0, 1, 0)),
        state((RECEIVE, 0, 1, 0), (RECEIVE, 0, 1, 7)),
    ],
    "a receive from any rank": [state((SEND, 0, 2, 0)), state((SEND, 1, 2, 0)), state(*[(RECEIVE, ANY, 2, 0)] * 2)],
    "from any rank, and from a certain one": [
        state((SEND, 0, 2, 0)),
        state((SEND, 1, 2, 0)),
        state((RECEIVE, ANY, 2, 0), (RECEIVE, 1, 2, 0)),
    ],
    "a group of some ranks": [state(pair=4), state(pair=4), state()],
}
OPEN = {
    "a message too many": [state((SEND, 0, 1, 0), (SEND, 0, 1, 0)), state((RECEIVE, 0, 1, 0))],
    "a receive too many": [state(), state((RECEIVE, 0, 1, 0))],
    "a message to another rank": [state((SEND, 0, 1, 0)), state(), state((RECEIVE, 0, 2, 0))],
    "another tag": [state((SEND, 0, 1, 1)), state((RECEIVE, 0, 1, 2))],
    "one of two to a rank that takes from any": [
        state((SEND, 0, 2, 0)),
        state((SEND, 1, 2, 0)),
        state((RECEIVE, ANY, 2, 0)),
    ],
    "a collective of a group of some": [state(pair=4), state(pair=5), state()],
    "a collective of the default group": [state(), state(collectives=4)],
    "a rank without a group": [state(), None],
}


@pytest.mark.parametrize("name", SETTLED)
def test_states_that_leave_nothing_open_are_settled(name):
    assert is_settled(SETTLED[name])


@pytest.mark.parametrize("name", OPEN)
def test_states_that_leave_something_open_are_not_settled(name):
    assert not is_settled(OPEN[name])


def test_in_step_is_said_of_the_default_groups_collectives_alone():
    assert is_in_step([state((SEND, 0, 1, 0), pair=1), state(pair=2)])
    assert not is_in_step([state(), state(collectives=4)])
    assert not is_in_step([state(), None])
