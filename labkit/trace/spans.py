"""Time spans in any thread of any rank, and record them.

Where something is to be timed:

    with span("all_reduce", lane="comm", bucket=2, bytes=tensor.nbytes):
        dist.all_reduce(tensor)
"""

from __future__ import annotations

import contextlib
import numbers
import operator
import os
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from labkit.trace import gpu_time
from labkit.trace.gpu_time import GpuClock, GpuMark
from labkit.trace.table import LABELS, LANES, Row, event_table, rank_events, timings

if TYPE_CHECKING:
    import pandas as pd
    import torch

_recorders: tuple[Recorder, ...] = ()  # those that are running; replaced, never mutated, so threads need no lock

_MAX_LABEL = 2**63 - 1  # a column of the table has 64 bits

_paused = 0  # blocks of pause() that are running

_step: int | None = None  # of spans that do not say their own

_gpu: torch.device | None = None  # of the process, while spans are timed on it

_clock = time.perf_counter_ns  # on Linux and macOS one clock for all processes of a machine


class span:  # noqa: N801  (a context manager that reads as a verb)
    """Time the block under it. Usable in a rank, in its threads, nested, and under :func:`record`.

    ``lane`` is one of ``"compute"``, ``"comm"``, ``"host"``. Labels are integers: ``step``,
    ``stage``, ``micro_batch``, ``bucket``, ``bytes``. Outside a recording it does nothing. A block
    that raises is recorded and raises on.

    On a rank whose device is a GPU, spans of ``"compute"`` and ``"comm"`` are timed by CUDA events
    on this thread's stream of that GPU, and read after the rank's function is done: a span never
    synchronises. ``device`` names another one that does the work, such as a stage's; on a CPU, and
    in the lane ``"host"``, it is the CPU's clock.

    Raises ValueError for an unknown lane, TypeError for an unknown label or one that is not a whole
    number. A whole number of another kind, such as 4000.0 or a numpy integer, is taken.
    """

    __slots__ = ("_device", "_labels", "_lane", "_start")

    def __init__(
        self,
        name: str,
        lane: str = "compute",
        *,
        device: str | torch.device | None = None,
        step: int | None = None,
        stage: int | None = None,
        micro_batch: int | None = None,
        bucket: int | None = None,
        bytes: int | None = None,
    ):
        if lane not in LANES:
            raise ValueError(f"span({name!r}): lane is {lane!r}, expected one of {', '.join(LANES)}")
        self._lane, self._device = lane, device
        labels = [_step if step is None else step, stage, micro_batch, bucket, bytes]
        if not all(label is None or (type(label) is int and abs(label) <= _MAX_LABEL) for label in labels):
            labels = [_whole(name, *each) for each in zip(LABELS, labels, strict=True)]
        self._labels = (str(name), *labels)

    def __enter__(self) -> span:
        return self.begin()

    def __exit__(self, *_: object) -> None:
        self.end()

    def begin(self) -> span:
        """Begin, and return the span, where the work ends elsewhere: in a thread that waits."""
        if _recorders:
            self._start = _clock() if _gpu is None or self._lane == "host" else self._mark(_gpu)
        return self

    def label(self, stage: int | None = None, micro_batch: int | None = None) -> None:
        """Give a span that has begun these labels, where they are known only when it ends."""
        name, step, _, _, *others = self._labels
        self._labels = (name, step, stage, micro_batch, *others)

    def end(self) -> None:
        """End what :meth:`begin` began."""
        if _recorders and not _paused and hasattr(self, "_start"):
            end = _clock() if isinstance(self._start, int) else gpu_time.mark(self._start.device)
            row = (self._lane, *self._labels, self._start, end)
            for recorder in _recorders:
                recorder.rows.append(row)

    def _mark(self, of_process: torch.device) -> int | GpuMark:
        device = of_process if self._device is None else self._device
        return gpu_time.mark(device) if str(device).startswith("cuda") else _clock()


def _whole(name: str, label: str, value: Any) -> int | None:
    """Return a label as an int, None as it is. TypeError if it is not a whole number."""
    if value is None:
        return None
    try:
        is_whole = isinstance(value, numbers.Real) and float(value).is_integer()
        if abs(label_number := int(value) if is_whole else operator.index(value)) <= _MAX_LABEL:
            return label_number
    except (TypeError, OverflowError):
        pass
    raise TypeError(f"span({name!r}): {label} is {value!r:.60}, expected a whole number of 64 bits, or None")


def set_step(number: int | None) -> None:
    """Give the spans that begin from now on this step number, in all threads of this process.

    A span with a ``step`` of its own keeps that. A loop calls it once a step:

        for number in range(steps):
            set_step(number)
            loss = train(...)

    None ends it, as the start of the next recording does.
    """
    global _step
    _step = _whole("set_step", "the number", number)


@contextlib.contextmanager
def pause() -> Iterator[None]:
    """Record nothing of the block, in any thread: for what is not to be measured."""
    global _paused
    _paused += 1
    try:
        yield
    finally:
        _paused -= 1


def note_emulated(what: str) -> None:
    """Note in every recording in progress that ``what`` was not real.

    Say it as in ``"emulated link: …"``; once is enough. It stands under the tables and pictures
    that come of them, as an emulated link does.
    """
    for recorder in _recorders:
        if what not in recorder.notes:
            recorder.notes.append(what)


# --- recordings -----------------------------------------------------------------------------------


class Recorder:
    """Collects the spans that end while it is running.

    ``rows`` are as :data:`Row`; ``finish`` makes both times readings. ``notes`` say what was
    emulated meanwhile.
    """

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.notes: list[str] = []
        self._clocks: dict[torch.device, GpuClock] = {}

    def start(self, device_type: str = "cpu") -> None:
        """Begin. With ``device_type="cuda"``, time spans on this thread's current GPU.

        Its clock, and those of others in use, are tied to the CPU's: that waits for an event.
        """
        global _recorders, _gpu, _step
        if not _recorders:
            _step = None
        if device_type == "cuda":
            import torch

            _gpu = torch.device("cuda", torch.cuda.current_device())
            self._tick({_gpu, *gpu_time.gpus_in_use()})
        _recorders = (*_recorders, self)

    def discard(self) -> None:
        """End without the rows, and wait for no event: it may be behind one that never comes."""
        global _recorders, _gpu
        _recorders = tuple(recorder for recorder in _recorders if recorder is not self)
        if not _recorders:
            _gpu = None

    def finish(self) -> list[Row]:
        """End, wait for events still on their way, and return the rows, timed in nanoseconds.

        The times are readings of time.perf_counter_ns.
        """
        self.discard()
        marks = [moment for row in self.rows for moment in row[-2:] if isinstance(moment, GpuMark)]
        for mark in marks:
            mark.event.synchronize()
        self._tick({mark.device for mark in marks})
        return [(*labels, self._read(start), self._read(end)) for *labels, start, end in self.rows]

    def _tick(self, devices: set[torch.device]) -> None:
        for device in devices:
            self._clocks.setdefault(device, GpuClock(device)).tick()

    def _read(self, moment: int | GpuMark) -> int:
        return moment if isinstance(moment, int) else self._clocks[moment.device].read(moment.event)


class Recording:
    """What :func:`record` gives: ``.events`` is the event table once the block is over."""

    def __init__(self) -> None:
        self._events: pd.DataFrame | None = None

    @property
    def events(self) -> pd.DataFrame:
        if self._events is None:
            raise RuntimeError("record(): .events is there once the with block is over")
        return self._events

    @property
    def timings(self) -> pd.DataFrame:
        return timings(self.events)


@contextlib.contextmanager
def record() -> Iterator[Recording]:
    """Record the spans of code that runs right here, in the notebook.

    ``with record() as recording: …``, and then ``recording.events``.

    Times are seconds since the block began. Spans are timed on the GPU's stream if this process
    uses one already.
    """
    torch = sys.modules.get("torch")
    on_gpu = torch is not None and torch.cuda.is_initialized()
    recording, recorder = Recording(), Recorder()
    recorder.start("cuda" if on_gpu else "cpu")
    origin = _clock()
    try:
        yield recording
    finally:
        rank = int(os.environ.get("RANK", 0))
        rows, emulated = rank_events(recorder.finish(), rank, origin), ". ".join(recorder.notes)
        recording._events = event_table(rows, measured=True, emulated=emulated)
