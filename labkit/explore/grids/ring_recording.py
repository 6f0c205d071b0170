"""Record the reader's own ring_all_reduce (dp.5) in real ranks, and trace it step by step.

The numbers in a rank's tensor say whose they are (:mod:`labkit.explore.grids.tagged_tensor`). So
whatever passes by, and whatever a rank holds, tells which parts have been added up in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.explore.grids.rings import RingTrace, check_ranks, messages_of, moved_before
from labkit.explore.grids.tagged_tensor import parts_in
from labkit.explore.rank_run import run_on_ranks

if TYPE_CHECKING:
    from labkit.explore.grids.ring_rank import Call, RankLog

TIMEOUT_S = 20.0
YOURS = "yours"


class RingError(RuntimeError):
    """The reader's ring cannot be shown, for the reason that the message gives."""


def record_ring(world_size: int = 4, ring: Callable[[Any], object] | None = None) -> RingTrace:
    """Return what ``labkit.dp.ring_all_reduce`` does, or ``ring``, as real ranks saw it.

    Raises RingError where that raises or does not end; TodoError while dp.5 is to do; TypeError or
    ValueError for a number of ranks that cannot be shown.
    """
    check_ranks(world_size)
    from labkit.check.failure import WAITS_FOR_RANKS, Source, stopped_by
    from labkit.explore.grids.ring_rank import log_ring
    from labkit.launch import LaunchTimeout, RankError
    from labkit.todo import task_file

    options: dict[str, Any] = {"world_size": world_size, "backend": "gloo", "timeout_s": TIMEOUT_S}
    try:
        return trace_from_logs(run_on_ranks(log_ring, ring, tasks=[] if ring else ["dp.5"], **options).values)
    except (RankError, LaunchTimeout) as error:
        source = Source(task_file("dp.5"), ["_exchange"])
        raise RingError(f"ring_all_reduce: {stopped_by(error, source, WAITS_FOR_RANKS)}") from None


# --- from what the ranks saw to steps -------------------------------------------------------------

_End = tuple[int, int]  # of a message: a rank, and the number of its call
_Message = tuple[_End, _End]  # sent, received


def trace_from_logs(logs: Sequence[RankLog]) -> RingTrace:
    """Return what the ranks saw, in steps.

    A message is in the first step in which it can be: after all whose end its sender or its
    receiver has waited for before.

    Raises RingError where there is nothing to tell: no message went from rank to rank.
    """
    n, messages = len(logs), _messages(logs)
    if not messages:
        names = sorted({call.name for log in logs for call in log.calls})
        what = f"it called {' and '.join(names)}" if names else "it called nothing of torch.distributed"
        raise RingError(f"ring_all_reduce sent no message from rank to rank: {what}. There are no steps to show")
    steps = _steps(messages, logs)
    step_of = {end: step for message, step in zip(messages, steps, strict=True) for end in message}
    states = np.zeros((max(steps) + 2, n, n), dtype=object)
    for step, rank in np.ndindex(len(states), n):
        calls = enumerate(logs[rank].calls)
        held = next((call.held for i, call in calls if step_of.get((rank, i), -1) >= step), logs[rank].final)
        states[step, rank] = [parts_in(chunk, held[chunk]) for chunk in range(n)]
    sends = [logs[rank].calls[i] for (rank, i), _ in messages]
    sources, targets = ([end[side][0] for end in messages] for side in (0, 1))
    rows = [
        (step, source, target, chunk)
        for step, source, target, send in zip(steps, sources, targets, sends, strict=True)
        for chunk in _chunks(send, n)
    ]
    tensors = [send.n_bytes / (4 * n**3) for send in sends]
    out, into = (moved_before(steps, ranks, tensors, states.shape[:2]) for ranks in (sources, targets))
    return RingTrace(YOURS, n, states, messages_of(rows), out, into)


def _messages(logs: Sequence[RankLog]) -> list[_Message]:
    """Return the messages: the k-th from a rank to another is the k-th that this one takes."""

    def calls(rank: int, name: str, peer: int) -> list[_End]:
        return [(rank, i) for i, call in enumerate(logs[rank].calls) if (call.name, call.peer) == (name, peer)]

    return [
        message
        for source, target in np.ndindex(len(logs), len(logs))
        for message in zip(calls(source, "send", target), calls(target, "recv", source), strict=False)
    ]


def _steps(messages: Sequence[_Message], logs: Sequence[RankLog]) -> list[int]:
    """Return the step of each message, from 0 on."""
    number = {end: i for i, message in enumerate(messages) for end in message}
    causes = [
        {number[rank, ended] for rank, i in message for ended in logs[rank].calls[i].after if (rank, ended) in number}
        for message in messages
    ]
    steps = [0] * len(messages)
    for i in TopologicalSorter(dict(enumerate(causes))).static_order():
        steps[i] = max((steps[cause] + 1 for cause in causes[i]), default=0)
    return steps


def _chunks(call: Call, n: int) -> list[int]:
    """Return which chunks a call sends, found by what is in them; none for other sizes."""
    if call.message is None or call.message.size % n**2:
        return []
    found = [np.flatnonzero(part.any(axis=0)) for part in call.message.reshape(-1, n, n)]
    return [int(of[0]) if len(of) == 1 else number for number, of in enumerate(found)]
