"""Play a terminal in a cell: start a command, and read what it prints while it runs."""

from __future__ import annotations

import shlex
import subprocess
import sys

from labkit.base.rendezvous import free_port

__all__ = ["Terminal", "free_port"]


class Terminal:
    """A command that runs beside the notebook, as in a terminal of its own.

        first = Terminal("python -m labkit.dp -w 2 -nr 0")
        first.line()   # the next line that it prints; waits for it
        first.rest()   # what it prints from then on; waits for its end

    ``python`` is the one that the notebook runs on.
    """

    def __init__(self, command: str):
        python, *arguments = shlex.split(command)
        program = sys.executable if python == "python" else python
        self._process = subprocess.Popen([program, *arguments], stdout=subprocess.PIPE, text=True)

    def line(self) -> str:
        """Return the next line, without its end."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().rstrip("\n")

    def rest(self) -> str:
        """Return all further lines, once the command has ended."""
        return self._process.communicate()[0].rstrip("\n")
