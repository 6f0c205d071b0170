"""Play a terminal in a cell: start a command, and read what it prints while it runs."""

from __future__ import annotations

import shlex
import subprocess
import sys
import weakref
from collections.abc import Callable
from typing import IO

from labkit.base.rendezvous import free_port

__all__ = ["Terminal", "free_port"]


class Terminal:
    """A command that runs beside the notebook, as in a terminal of its own.

        first = Terminal("python -m labkit.dp -w 2 -nr 0")
        first.line()   # the next line that it prints; waits for it
        first.rest()   # what it prints from then on; waits for its end

    ``python`` is the one that the notebook runs on. The command ends with its Terminal: when a cell
    that waits for it is interrupted, and when another Terminal takes its name.
    """

    def __init__(self, command: str):
        python, *arguments = shlex.split(command)
        program = sys.executable if python == "python" else python
        self._process = subprocess.Popen([program, *arguments], stdout=subprocess.PIPE, text=True)
        self._end = weakref.finalize(self, _end, self._process)

    def line(self) -> str:
        """Return the next line, without its end. Raises RuntimeError after :meth:`rest`."""
        return self._read(lambda output: output.readline())

    def rest(self) -> str:
        """Return all further lines, once the command has ended. Raises RuntimeError after that."""
        text = self._read(lambda output: output.read())
        self._end()
        return text

    def _read(self, read: Callable[[IO[str]], str]) -> str:
        output = self._process.stdout
        if output is None or output.closed:
            raise RuntimeError("this command has ended, and its lines were read: run the cell that starts it again")
        try:
            return read(output).rstrip("\n")
        except BaseException:  # the cell was interrupted
            self._end()
            raise


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()
