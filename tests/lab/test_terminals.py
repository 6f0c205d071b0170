"""A command in a cell ends with its Terminal, and what it printed is read once."""

import psutil
import pytest

from labkit.lab.terminals import Terminal

WAITS = "python -uc \"print('here'); input()\""


def test_what_it_prints_is_read_once_and_then_a_sentence_says_what_to_do():
    terminal = Terminal("python -c \"print('one'); print('two'); print('three')\"")
    assert (terminal.line(), terminal.rest()) == ("one", "two\nthree")
    for read in (terminal.line, terminal.rest):
        with pytest.raises(RuntimeError, match="run the cell that starts it again"):
            read()


def interrupted(output):
    raise KeyboardInterrupt


@pytest.mark.parametrize("how", ["the cell is interrupted", "the cell runs again"])
def test_a_command_that_waits_does_not_outlive_its_terminal(how):
    terminal = Terminal(WAITS)
    process = terminal._process
    assert terminal.line() == "here" and psutil.pid_exists(process.pid)
    if how == "the cell is interrupted":
        with pytest.raises(KeyboardInterrupt):
            terminal._read(interrupted)
    else:
        terminal = None
    assert process.returncode is not None
