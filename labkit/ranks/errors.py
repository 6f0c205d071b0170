"""What launch raises once ranks have started: one has failed, or they did not finish in time."""

from __future__ import annotations

import signal
import sys
import textwrap
from collections.abc import Sequence


class RankError(RuntimeError):
    """A rank raised, or died.

    ``.rank``, ``.error_type`` (the exception's name, or such as ``"SIGKILL"``), ``.traceback``.

    The message is one line; the rank's traceback, with source lines, is shown below it. For a rank
    that died, so are the last lines that it printed (``.last_lines``), since C++ code gives its
    reason there.
    """

    def __init__(self, rank: int, error_type: str, message: str, traceback: str = "", last_lines: Sequence[str] = ()):
        super().__init__(f"rank {rank} {message}")
        self.rank, self.error_type, self.traceback, self.last_lines = rank, error_type, traceback, list(last_lines)
        if traceback:
            self.add_note(f"\n{traceback}")
        if last_lines:
            self.add_note("\n".join([f"\nThe last that rank {rank} printed:", *last_lines]))

    def _render_traceback_(self) -> list[str]:
        """Return what IPython shows: the rank's traceback, not the path through this file."""
        return [f"{type(self).__name__}: {self}", *getattr(self, "__notes__", [])]


class LaunchTimeout(RuntimeError):
    """The ranks did not finish in time.

    ``.stacks`` is ``{rank: text}``: where each one was when the time was up. ``began`` says whether
    any of them had begun by then.
    """

    def __init__(self, timeout_s: float, stacks: dict[int, str], began: bool = True):
        super().__init__(
            f"the ranks did not finish within timeout_s={timeout_s:g} s and were ended. "
            "A collective that not every rank joins waits for ever; below is where each rank was."
            if began
            else f"no rank had begun within timeout_s={timeout_s:g} s, which counts from the call"
        )
        self.stacks = stacks
        for stack in dict.fromkeys(stacks.values()):
            ranks = ", ".join(str(rank) for rank, other in stacks.items() if other == stack)
            self.add_note(f"\nrank{'s' * (',' in ranks)} {textwrap.shorten(ranks, 60, placeholder=' …')}:\n{stack}")

    _render_traceback_ = RankError._render_traceback_


def how_it_ended(status: int) -> tuple[str, str]:
    """Return (error type, sentence) for an exit status as waitpid gives it."""
    if status < 0:
        name = signal.Signals(-status).name
        hint = " (out of memory?)" if name == "SIGKILL" and sys.platform == "linux" else ""
        return name, f"was killed by {name}{hint}"
    return f"exit status {status}", f"ended with exit status {status} before its function returned"
