"""Cells that live on ranks: run one after another, and keep their variables there.

    ranks = Ranks(decide(world_size=4, ...))
    ranks.run_cell("x = dist.get_rank()", "cell 1")
    ranks["x"]                                       # [0, 1, 2, 3]

A fault costs the cell, not the state: the ranks leave the cell, form a new process group, and keep
their variables.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from labkit.ranks.plan import LaunchPlan
from labkit.ranks.run import Run

if TYPE_CHECKING:
    import pandas as pd


class CellRun(NamedTuple):
    """What a cell did: its ``run``, and what each rank has shown, by rank and in order.

    ``run.values`` are the texts of each rank's last expression, ``""`` where there is none. What is
    ``shown`` are dicts: ``{"kind": "display" | "result", "data": {mime type: text}, "metadata":
    {mime type: dict}}``. The last expression is the one of kind ``"result"``. Pictures are base64,
    as in a notebook file. Widgets' live views are left out.
    """

    run: Run
    shown: dict[int, list[dict[str, Any]]]


class Ranks:
    """Ranks that cells run on, one after the other. Variables stay on them.

    ``plan`` is theirs (its ``timeout_s`` that of each cell), ``last`` the :class:`Run` of the last
    cell, and ``cells`` the source of each that ran to its end without an error, and the ranks that
    it ran on.
    """

    def __init__(self, plan: LaunchPlan):
        """Start the ranks, and wait until they have their process group."""
        self.plan = plan
        self.last: Run | None = None
        self.cells: list[tuple[str, list[int]]] = []

    @property
    def world_size(self) -> int:
        return self.plan.world_size

    def run_cell(self, source: str, file: str, on: Sequence[int] | None = None) -> CellRun:
        """Run a cell on all ranks, or ``on`` some, and wait for them.

        ``source`` is the cell's whole text, ``file`` the name under which tracebacks have it. A
        ``%%ranks`` in its first line is skipped, so that line numbers are those of the notebook's
        cell. What ranks print appears as they print it.

        Raises SyntaxError and ValueError (ranks that are not there) before any rank begins;
        RankError, LaunchTimeout and KeyboardInterrupt when the ranks have left the cell. Their
        variables are kept then, and the error has an attribute ``shown``: what ranks had shown
        until then, as in a CellRun. What became of the ranks and their process group is printed.
        """
        raise NotImplementedError

    def __getitem__(self, name: str) -> list[Any]:
        """Return a variable's value of each rank. KeyError names the ranks that lack it."""
        raise NotImplementedError

    def push(self, **values: Any) -> None:
        """Set variables on all ranks. TypeError names what cannot be sent."""
        raise NotImplementedError

    def status(self) -> pd.DataFrame:
        """Return a row for each rank: ``rank, pid, device, memory_mb, names, doing``."""
        raise NotImplementedError

    def restart(self, *ranks: int) -> None:
        """Start some ranks anew, or all, with no variables. The others keep theirs."""
        raise NotImplementedError

    def complete(self, code: str, cursor: int, timeout_s: float = 0.5) -> list[str]:
        """Return what may stand for the word before ``cursor``, as rank 0's shell completes it.

        None are returned if it does not say so in time.
        """
        raise NotImplementedError

    def stop(self) -> None:
        """End the ranks. They cannot be used after that."""
        raise NotImplementedError
