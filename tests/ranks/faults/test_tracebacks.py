"""What is shown of a rank's exception can be read, however long its message is."""

from __future__ import annotations

import linecache

import pytest

from labkit.launch import RankError
from labkit.ranks.faults.stacks import readable_stacks
from labkit.ranks.faults.tracebacks import MAX_MESSAGE_CHARACTERS, format_error

LONG = "head" + "x" * 50_000_000 + "tail"


def raise_a_long_message():
    try:
        raise KeyError(LONG)
    except KeyError as error:
        raise ValueError(LONG) from error


def test_of_a_long_message_a_rank_error_shows_head_tail_and_length(ranks):
    with pytest.raises(RankError) as caught:
        ranks(1, init=False).run(raise_a_long_message)
    message = str(caught.value)
    assert message.startswith("rank 0 raised ValueError: head") and message.endswith("xtail")
    assert "[50,000,008 characters]" in message
    assert len(message) + len(caught.value.traceback) < 4 * MAX_MESSAGE_CHARACTERS


def test_beside_a_long_message_every_frame_stays_in_the_traceback():
    with pytest.raises(ValueError) as caught:
        raise_a_long_message()
    shown = format_error(caught.value)
    assert shown.count("in raise_a_long_message") == 2
    assert "The above exception was the direct cause" in shown
    assert "KeyError: 'head" in shown and "ValueError: head" in shown


def test_a_frame_between_two_lines_stands_in_the_stack_without_its_source():
    dump = f'Thread 0x00007f0000000000 (most recent call first):\n  File "{__file__}", line ??? in step\n'
    assert readable_stacks(dump + f'  File "{__file__}", line 1 in train').splitlines() == [
        f'  File "{__file__}", line 1 in train',
        f"    {linecache.getline(__file__, 1).strip()}",
        f'  File "{__file__}", line ??? in step',
    ]
