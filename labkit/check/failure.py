"""Say what stopped an answer and at which line, in words that are the same on every machine."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from labkit.base.texts import shorten
from labkit.check.plain import NotPlain
from labkit.todo import read_source

MAX_MESSAGE_LENGTH = 600  # characters of what was raised
SYNTAX_ERRORS = ("SyntaxError", "IndentationError", "TabError")
WAITS_FOR_RANKS = "a rank that waits for the others while they do something else"
OTHER_SIZE = re.compile(r"op\.preamble\.length <= op\.nbytes\. (\d+) vs (\d+)")  # what gloo says last


@dataclass(frozen=True)
class Source:
    """A student's file, and what is ``given`` there: functions, classes, and lines as they read."""

    path: Path
    given: Sequence[str] = ()

    @property
    def file(self) -> str:
        return f"labkit/{self.path.name}"

    def place(self, text: str) -> str:
        """Return ``labkit/dp.py, line 42``: the student's innermost line in a traceback, if any."""
        line = self.line(text)
        return f"{self.file}, line {line}" if line else ""

    def line(self, text: str) -> int:
        """Return the number of that line, or 0."""
        given = self._given_lines()
        lines = map(int, re.findall(rf'File "[^"\n]*{re.escape(self.file)}", line (\d+)', text))
        own = [line for line in lines if line not in given]
        return own[-1] if own else 0

    def _given_lines(self) -> set[int]:
        code = read_source(self.path)
        lines = {number for number, line in enumerate(code.splitlines(), 1) if line.strip() in self.given}
        with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
            for node in ast.walk(ast.parse(code)):
                if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in self.given:
                    lines.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        return lines

    def fails_on_import(self, error: Exception) -> bool:
        """Return whether the file is not Python, or a rank raised while it was imported."""
        error_type, traceback = getattr(error, "error_type", ""), getattr(error, "traceback", "")
        at_its_top = re.search(rf'{re.escape(self.file)}", line \d+, in <module>', traceback)
        return error_type in SYNTAX_ERRORS or bool(at_its_top)


def raised(error_type: str, message: str, text: str, source: Source) -> str:
    """Return ``it raised ValueError: … (labkit/dp.py, line 42)`` for an exception's traceback.

    An exception that only passes on another process's traceback stands for the one in there. For
    a TodoError, return ``dp.6 has to be done first (labkit/dp.py, line 42)``.
    """
    if "Traceback (most recent call last)" in message:
        inner_type, _, message = message.strip().splitlines()[-1].partition(": ")
        error_type = inner_type.rpartition(".")[2]
    # torch's messages go over several lines, and some end in C++.
    message = shorten(" ".join(message.split()).removesuffix("."), MAX_MESSAGE_LENGTH)
    if error_type == "TodoError":
        task, _, place = message.removeprefix("TODO ").partition(": ")
        return f"{task} has to be done first ({place})"
    place = source.place(text)
    if place and error_type in SYNTAX_ERRORS:  # whose message names the place too
        message = re.sub(r" \([^()]*, line \d+\)$", "", message)
    return f"it raised {error_type}{message and ': ' + message}{place and f' ({place})'}"


def stopped_by(error: Exception, source: Source, waits: str) -> str:
    """Return why ranks gave no answer: one raised, died, or never ended.

    ``waits`` says what one that never ends may be waiting for.
    """
    from labkit.launch import LaunchTimeout, RankError

    if isinstance(error, NotPlain) or (isinstance(error, RankError) and error.error_type == NotPlain.__name__):
        return f"its process did not send what was observed: {str(error).rpartition('NotPlain: ')[2]}"
    if isinstance(error, LaunchTimeout) and error.hang:
        more = f". Look for {waits}" if waits not in ("", WAITS_FOR_RANKS) else ""
        return f"it waits for ever: {error.hang.cause}{more}"
    if isinstance(error, LaunchTimeout):
        places = sorted({source.place(stack) for stack in error.stacks.values()} - {""})
        at = " and at ".join(places) or "something that it had called"
        look = f"Look for a loop without an end{waits and f', or for {waits}'}"
        return f"it did not end in time. It was at {at}. {look}"
    assert isinstance(error, RankError)
    if str(error).startswith(f"rank {error.rank} raised "):
        message = str(error).partition(": ")[2].partition(" (and so did rank")[0]
        return raised(error.error_type, message, error.traceback, source)
    place = source.place(error.traceback)
    what = str(error).partition("\n")[0] + (place and f" ({place})")
    why = "Look for what ends a process: os._exit, a signal, too much memory"
    if sizes := OTHER_SIZE.search("\n".join(error.last_lines)):
        what += f": a message of {sizes[1]} bytes came for a tensor of {sizes[2]}"
        why = "What a rank sends must have the size and dtype of what the other one receives it in"
    return f"{what}. {why}"
