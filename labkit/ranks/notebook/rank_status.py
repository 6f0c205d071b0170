"""Tell who is there among ranks that stay: a table with a row for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import psutil

from labkit.base.notebook import static
from labkit.ranks.processes.pool import RankPool
from labkit.ranks.processes.rank_handle import RankHandle, how_it_ended

if TYPE_CHECKING:
    import pandas as pd

    from labkit.base.formats import MeasuredTable


def status(pool: RankPool, devices: Sequence[str], names: Mapping[int, list[str]]) -> pd.DataFrame:
    """Return a row for each rank: ``rank, pid, device, memory_mb, names, doing``."""
    import pandas as pd

    columns = ("rank", "pid", "device", "memory_mb", "names", "doing")
    rows = [
        (h.rank, h.pid, devices[h.rank], _memory_mb(h), ", ".join(names.get(h.rank, [])), _doing(h, pool))
        for h in pool.handles
    ]
    return pd.DataFrame(rows, columns=columns).astype({"pid": "Int64"})


def marked(table: pd.DataFrame) -> MeasuredTable:
    """Return the table to show: in kept outputs, what is this machine's own is marked as such."""
    from labkit.base.formats import MeasuredTable, fact  # here, because it loads pandas

    if static():
        table = table.assign(pid=[fact(pid, 7) for pid in table["pid"]], device=[fact(d, 7) for d in table["device"]])
    return MeasuredTable(table)


def _memory_mb(handle: RankHandle) -> float:
    try:
        return psutil.Process(handle.pid).memory_info().rss / 2**20 if handle.exit_status is None else 0.0
    except psutil.Error:
        return 0.0


def _doing(handle: RankHandle, pool: RankPool) -> str:
    """Return what a rank is doing, in a few words."""
    if (exit_status := handle.poll()) is not None:
        return how_it_ended(exit_status)[1]
    return "is in a cell" if handle in pool.called and handle.answer is None else "waits for a cell"
