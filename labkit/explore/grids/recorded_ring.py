"""Record the reader's own ring_all_reduce (dp.5) in real ranks, and trace it step by step.

The numbers in a rank's tensor say whose they are (:mod:`labkit.explore.grids.tagged_tensor`). So
whatever passes by, and whatever a rank holds, tells which parts have been added up in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from labkit.explore.grids.rings import RingTrace, check_ranks, messages_of, moved_before
from labkit.explore.grids.tagged_tensor import parts_in, tagged_tensor
from labkit.explore.rank_run import run_on_ranks

TIMEOUT_S = 20.0
YOURS = "yours"


class RingError(RuntimeError):
    """The reader's ring cannot be shown, for the reason that the message gives."""


class _Call(NamedTuple):
    """A call as a rank saw it: of which kind, with which peer, after the end of which earlier ones.

    ``held`` is the rank's tensor before it, and ``message`` what it sends, if it sends.
    """

    name: str
    n_bytes: int
    peer: int | None
    after: list[int]
    held: np.ndarray
    message: np.ndarray | None


class _Log(NamedTuple):
    """What one rank did: its calls, and its tensor in the end."""

    calls: list[_Call]
    final: np.ndarray


def record_ring(world_size: int = 4, ring: Callable[[Any], object] | None = None) -> RingTrace:
    """Return what ``labkit.dp.ring_all_reduce`` does, or ``ring``, as seen in so many real ranks.

    Raises RingError where dp.5 is still to do, raises or does not end; TypeError or ValueError for
    a number of ranks that cannot be shown.
    """
    check_ranks(world_size)
    from labkit.check.failure import WAITS_FOR_RANKS, Source, stopped_by
    from labkit.launch import LaunchTimeout, RankError
    from labkit.todo import TodoError, task_file

    tasks = ["dp.5"] if ring is None else []
    try:
        run = run_on_ranks(_observe, ring, world_size=world_size, tasks=tasks, backend="gloo", timeout_s=TIMEOUT_S)
    except TodoError as error:
        raise RingError(f"{error}. Once it is written, its steps can be recorded here") from None
    except (RankError, LaunchTimeout) as error:
        source = Source(task_file("dp.5"), ["_exchange"])
        raise RingError(f"ring_all_reduce: {stopped_by(error, source, WAITS_FOR_RANKS)}") from None
    return trace_from_logs(run.values)


def _observe(ring: Callable[[Any], object] | None) -> _Log:
    """Run the ring in this rank on a tensor that says whose its parts are, and log its calls."""
    import torch.distributed as dist

    from labkit.check.calls import recorded

    if ring is None:
        from labkit import dp

        ring = dp.ring_all_reduce
    held = tagged_tensor(dist.get_rank(), dist.get_world_size())
    begun: list[Any] = []
    calls: list[_Call] = []

    def look(call: Any, tensors: Any) -> None:
        message = tensors[0].detach().flatten().float().numpy().copy() if call.name == "send" else None
        ended = [number for number, earlier in enumerate(begun) if earlier.waits]
        calls.append(_Call(call.name, call.bytes, call.peer, ended, held.numpy().copy(), message))
        begun.append(call)

    with recorded(look):
        ring(held.view(-1))
    return _Log(calls, held.numpy().copy())


# --- from what the ranks saw to steps -------------------------------------------------------------


class _Message(NamedTuple):
    """A message: the call that sent it and the call that received it, each as (rank, number)."""

    sent: tuple[int, int]
    received: tuple[int, int]


def trace_from_logs(logs: Sequence[_Log]) -> RingTrace:
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
    n_steps = 1 + max(steps)
    step_of = {call: step for message, step in zip(messages, steps, strict=True) for call in message}
    states = np.zeros((n_steps + 1, n, n), dtype=object)
    for step, rank in np.ndindex(n_steps + 1, n):
        calls = enumerate(logs[rank].calls)
        held = next((call.held for i, call in calls if step_of.get((rank, i), -1) >= step), logs[rank].final)
        states[step, rank] = [parts_in(chunk, held[chunk]) for chunk in range(n)]
    rows, tensors = [], []
    for ((source, number), (target, _)), step in zip(messages, steps, strict=True):
        call = logs[source].calls[number]
        rows += [(step, source, target, chunk) for chunk in _chunks(call, n)]
        tensors.append(call.n_bytes / (4 * n**3))
    sources, targets = zip(*[(message.sent[0], message.received[0]) for message in messages], strict=True)
    out, into = (moved_before(steps, ranks, tensors, (n_steps + 1, n)) for ranks in (sources, targets))
    return RingTrace(YOURS, n, states, messages_of(rows), out, into)


def _messages(logs: Sequence[_Log]) -> list[_Message]:
    """Return the messages: the k-th from a rank to another is the k-th that this one takes."""

    def calls(rank: int, name: str, peer: int) -> list[tuple[int, int]]:
        return [(rank, i) for i, call in enumerate(logs[rank].calls) if (call.name, call.peer) == (name, peer)]

    return [
        _Message(*ends)
        for source, target in np.ndindex(len(logs), len(logs))
        for ends in zip(calls(source, "send", target), calls(target, "recv", source), strict=False)
    ]


def _steps(messages: Sequence[_Message], logs: Sequence[_Log]) -> list[int]:
    """Return the step of each message, from 0 on."""
    number = {call: i for i, message in enumerate(messages) for call in message}
    causes = [
        {number[rank, ended] for rank, i in message for ended in logs[rank].calls[i].after if (rank, ended) in number}
        for message in messages
    ]
    steps = [0] * len(messages)
    for _ in messages:  # a longer chain of messages there cannot be
        before, steps = steps, [max((steps[cause] + 1 for cause in earlier), default=0) for earlier in causes]
        if steps == before:
            break
    return steps


def _chunks(call: _Call, n: int) -> list[int]:
    """Return which chunks a call sends, found by what is in them; none for other sizes."""
    if call.message is None or call.message.size % n**2:
        return []
    found = [np.flatnonzero(part.any(axis=0)) for part in call.message.reshape(-1, n, n)]
    return [int(of[0]) if len(of) == 1 else number for number, of in enumerate(found)]
