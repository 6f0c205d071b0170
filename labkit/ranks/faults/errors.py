"""Tell a reader that a rank failed, or that ranks did not finish in time."""

from __future__ import annotations

import copyreg
import textwrap
from collections.abc import Sequence
from typing import Any

from labkit.ranks.faults.hang import Hang

NCCL_ADVICE = (
    "Has every rank joined it? Then NCCL may not get from one GPU to the other: try os.environ['NCCL_P2P_DISABLE'] = '1' "
    "before the launch; with os.environ['NCCL_DEBUG'] = 'INFO' NCCL says what it does."
)


class RankError(RuntimeError):
    """A rank raised, or died.

    ``.rank``, ``.error_type`` (the exception's name, or such as ``"SIGKILL"``), ``.traceback``.
    Where a rank only returned what cannot be sent, ``.values`` is ``{rank: value}`` of the others.

    The message is one line. The rank's traceback, with source lines, is shown below it, and for a
    rank that died also the last lines that it printed (``.last_lines``): C++ code gives its reason
    there.
    """

    def __init__(self, rank: int, error_type: str, message: str, traceback: str = "", last_lines: Sequence[str] = ()):
        super().__init__(f"rank {rank} {message}")
        self.rank, self.error_type, self.traceback, self.last_lines = rank, error_type, traceback, list(last_lines)
        self.values: dict[int, Any] = {}
        if traceback:
            self.add_note(f"\n{traceback}")
        if last_lines:
            self.add_note("\n".join([f"\nThe last that rank {rank} printed:", *last_lines]))

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how to pickle it: as it is, without a call of ``__init__``."""
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]

    def _render_traceback_(self) -> list[str]:
        """Return what IPython shows: the rank's traceback, not the path through this file."""
        return [f"{type(self).__name__}: {self}", *getattr(self, "__notes__", [])]


class LaunchTimeout(RuntimeError):
    """The ranks did not finish in time, or wait for what cannot come.

    ``.stacks`` is ``{rank: text}``: where each one was when the time was up. They are shown, except
    where a cell hangs: there a line for each rank is enough. ``began`` says whether any of them had
    begun by then; ``advice`` is one more line for the reader. Of a ``hang`` the message says who
    waits for what, and why; ``.hang`` is None where only the time was up. ``ended`` says whether
    the ranks were; otherwise only what they ran was.
    """

    def __init__(
        self,
        timeout_s: float,
        stacks: dict[int, str],
        began: bool = True,
        advice: str = "",
        hang: Hang | None = None,
        ended: bool = True,
    ):
        were_ended = "were ended" if ended else "were taken out of the cell"
        late = f"the ranks did not finish within timeout_s={timeout_s:g} s and {were_ended}. " + (
            "A collective never ends unless every rank joins it. Below is where each rank was."
        )
        never = f"no rank had begun within timeout_s={timeout_s:g} s, which counts from the call"
        super().__init__(
            f"deadlock: no rank can go on; all {were_ended}. {hang.cause}" if hang else late if began else never
        )
        self.stacks, self.hang = stacks, hang
        if hang:
            self.add_note("\n".join(["", *(f"rank {rank} {line}" for rank, line in hang.lines.items())]))
        if advice and began:
            self.add_note(advice)
        if hang and not ended:  # of a cell, which is short: its line says enough
            return
        for stack in dict.fromkeys(stacks.values()):
            ranks = ", ".join(str(rank) for rank, other in stacks.items() if other == stack)
            self.add_note(f"\nrank{'s' * (',' in ranks)} {textwrap.shorten(ranks, 60, placeholder=' …')}:\n{stack}")

    __reduce__ = RankError.__reduce__
    _render_traceback_ = RankError._render_traceback_
