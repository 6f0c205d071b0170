"""Record the reader's own ring_all_reduce (dp.5) in real ranks, and retell it step by step.

The numbers in a rank's tensor say whose they are (:mod:`labkit.explore.grids.marked`). So whatever
passes by, and whatever a rank holds, tells which parts have been added up in it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from labkit.explore.grids.marked import bits_of, marked_tensor
from labkit.explore.grids.rings import SENT_COLUMNS, Row, Story, check_ranks, follow, least_tensors, moved_before
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


def record_ring(world_size: int = 4, ring: Callable[[Any], object] | None = None) -> Story:
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
    return retell(run.values)


def _observe(ring: Callable[[Any], object] | None) -> _Log:
    """Run the ring in this rank on a tensor that says whose its parts are, and log its calls."""
    import torch.distributed as dist

    from labkit.check.calls import recorded

    if ring is None:
        from labkit import dp

        ring = dp.ring_all_reduce
    held = marked_tensor(dist.get_rank(), dist.get_world_size())
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
    source: int
    target: int
    sent: int  # number of the call on either side
    received: int


def retell(logs: Sequence[_Log]) -> Story:
    """Return what the ranks saw as a story in steps.

    A message is in the first step in which it can be: after all whose end its sender or its
    receiver has waited for before.

    Raises RingError where there is nothing to tell: no message went from rank to rank.
    """
    n = len(logs)
    messages = _messages(logs)
    if not messages:
        names = sorted({call.name for log in logs for call in log.calls})
        what = f"it called {' and '.join(names)}" if names else "it called nothing of torch.distributed"
        raise RingError(f"ring_all_reduce sent no message from rank to rank: {what}. There are no steps to show")
    steps = _steps(messages, logs)
    n_steps = 1 + max(steps)
    strange: list[str] = []
    states = np.zeros((n_steps + 1, n, n), dtype=np.int64)
    for rank, log in enumerate(logs):
        for step, held in enumerate(_held(rank, log, messages, steps, n_steps)):
            states[step, rank] = [bits_of(chunk, held[chunk], strange) for chunk in range(n)]
    sent = [row for message, step in zip(messages, steps, strict=True) for row in _rows(message, step, logs, strange)]
    whole = n**3 * 4
    tensors = np.array([logs[message.source].calls[message.sent].n_bytes / whole for message in messages])
    ends = ([message.source for message in messages], [message.target for message in messages])
    out, into = (moved_before(np.array(steps), np.array(rank), tensors, (n_steps + 1, n)) for rank in ends)
    table = pd.DataFrame(sent, columns=list(SENT_COLUMNS)).astype(int)
    return Story(YOURS, n, states, table, out, into, tuple(strange))


def _messages(logs: Sequence[_Log]) -> list[_Message]:
    """Return the messages: the k-th from a rank to another is the k-th that this one takes."""
    ends: dict[tuple[int, int, str], list[int]] = defaultdict(list)
    for rank, log in enumerate(logs):
        for number, call in enumerate(log.calls):
            if call.name == "send" and call.peer is not None:
                ends[rank, call.peer, "send"].append(number)
            elif call.name == "recv" and call.peer is not None:
                ends[call.peer, rank, "recv"].append(number)
    pairs = sorted({(source, target) for source, target, _ in ends})
    return [
        _Message(source, target, sent, received)
        for source, target in pairs
        for sent, received in zip(ends[source, target, "send"], ends[source, target, "recv"], strict=False)
    ]


def _steps(messages: Sequence[_Message], logs: Sequence[_Log]) -> list[int]:
    """Return the step of each message, from 0 on."""
    at = {}
    for number, message in enumerate(messages):
        at[message.source, message.sent] = at[message.target, message.received] = number
    earlier = [
        [
            at[end]
            for rank, call in ((message.source, message.sent), (message.target, message.received))
            for end in ((rank, ended) for ended in logs[rank].calls[call].after)
            if end in at
        ]
        for message in messages
    ]
    steps = [0] * len(messages)
    for _ in messages:  # a longer chain of messages there cannot be
        later = [max((steps[cause] + 1 for cause in causes), default=0) for causes in earlier]
        if later == steps:
            break
        steps = later
    return steps


def _held(rank: int, log: _Log, messages: Sequence[_Message], steps: Sequence[int], n_steps: int) -> list[np.ndarray]:
    """Return what a rank holds before each step, and in the end: as it was at its next call."""
    step_of = {}
    for message, step in zip(messages, steps, strict=True):
        for end, call in ((message.source, message.sent), (message.target, message.received)):
            if end == rank:
                step_of[call] = step
    first = [(step_of[number], call.held) for number, call in enumerate(log.calls) if number in step_of]
    return [next((held for at, held in first if at >= step), log.final) for step in range(n_steps)] + [log.final]


def _rows(message: _Message, step: int, logs: Sequence[_Log], strange: list[str]) -> list[Row]:
    """Return a row for each chunk in a message, found by what is in it; none for other sizes."""
    n = len(logs)
    content = logs[message.source].calls[message.sent].message
    if content is None or content.size % n**2:
        return []
    rows = []
    for number, part in enumerate(content.reshape(-1, n, n)):
        chunks = np.flatnonzero(part.any(axis=0))
        chunk = int(chunks[0]) if len(chunks) == 1 else number
        rows.append((step, message.source, message.target, chunk, bits_of(chunk, part, strange)))
    return rows


# --- what to say about it -------------------------------------------------------------------------


def verdict(story: Story) -> str:
    """Return in a few sentences what a recorded ring did, compared with the ring of the picture."""
    whole, busiest, least = (1 << story.n) - 1, story.bytes_sent[-1].max(), least_tensors(story.n)
    ideal = follow("ring", story.n)
    done = int((story.states[-1] == whole).sum())
    if done == story.n**2:
        said = ["Every rank ends up with the whole sum."]
    else:
        count = f"Only {done}" if done else "None"
        said = [f"{count} of {story.n**2} cells end up as the whole sum; point at one to see what is in it."]
    if story.states.shape == ideal.states.shape and (story.states == ideal.states).all():
        said.append("Step by step it is the ring of the picture.")
    else:
        said.append(f"It takes {story.n_steps} steps, the ring of the picture {ideal.n_steps}.")
    compared = f"{busiest / least:.3g} times the least that an all_reduce needs"
    if abs(busiest - least) < 0.01:
        compared = "the least there can be"
    elif busiest < least:
        compared = f"less than the {least:.3g} that an all_reduce needs"
    said.append(f"The busiest rank sends {busiest:.3g} times the tensor, {compared}.")
    return " ".join(said)
