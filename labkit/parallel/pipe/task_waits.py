"""Given code under Pipe: how long tasks wait, as spans, while somebody watches."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from labkit.trace import span

_watched = 0  # blocks of watch_queues() that are running


@contextlib.contextmanager
def watch_queues() -> Iterator[None]:
    """Record each task of the block, in any thread, also while it waits.

    Two spans on the lane ``"host"``: ``queued``, from put until a worker calls its stage, and
    ``result waits``, from when it is done until its result is fetched. Labels are those of
    run_stage, wherever the task calls it. Without this block, recordings have no such spans.
    """
    global _watched
    _watched += 1
    try:
        yield
    finally:
        _watched -= 1


class TaskWaits:
    """The waits of one task, one after the other."""

    def __init__(self) -> None:
        self._labels: dict[str, int] = {}  # once the task has called run_stage
        self._waiting: span | None = None

    def begin(self, what: str) -> None:
        """Begin a wait, which ends the one before it."""
        self.end()
        if _watched:
            self._waiting = span(what, lane="host").begin()

    def end_at_stage(self, stage: int, micro_batch: int) -> None:
        """End a wait where the task comes to a stage: its waits have these numbers."""
        self._labels = {"stage": stage, "micro_batch": micro_batch}
        self.end()

    def end(self) -> None:
        """End the wait, if there is one."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.label(**self._labels)
            waiting.end()
