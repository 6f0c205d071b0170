"""What did happen: spans timed in any thread of any rank, as rows of the one event table.

    with span("all_reduce", lane="comm", bucket=2, bytes=tensor.nbytes):
        dist.all_reduce(tensor)

The simulator (what *should* happen) makes rows of the same table, so everything that reads or draws one reads the other.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # a rank times spans and makes no tables, so it need not wait for these imports
    import pandas as pd

EVENT_COLUMNS = ("rank", "lane", "name", "step", "stage", "micro_batch", "bucket", "bytes", "start_s", "end_s")
LANES = ("compute", "comm", "host")
_LABELS = ("step", "stage", "micro_batch", "bucket", "bytes")
_TYPES: dict[str, Any] = {"rank": "int64", "lane": "str", "name": "str", "start_s": "float64", "end_s": "float64"}
_TYPES |= dict.fromkeys(_LABELS, "Int64")

# A finished span: (lane, name, step, stage, micro_batch, bucket, bytes, start, end). The two times are perf_counter_ns
# readings, or CUDA events that are turned into such readings once the recording is over.
Row = tuple[Any, ...]

_sinks: tuple[list[Row], ...] = ()  # every recording in progress; replaced, never mutated, so threads need no lock
_paused = 0  # blocks of pause() that are running
_notes: tuple[list[str], ...] = ()  # of the same recordings: what was not real while they ran
_clock = time.perf_counter_ns  # on Linux and macOS one clock for all processes of a machine


class span:  # noqa: N801  (a context manager that reads as a verb)
    """Time the block under it. Usable in a rank, in a thread of it, nested, and in the notebook under :func:`record`.

    ``lane`` is one of ``"compute"``, ``"comm"``, ``"host"``. Labels are integers: ``step``, ``stage``, ``micro_batch``,
    ``bucket``, ``bytes``. Outside a recording it does nothing. A block that raises is recorded and raises on.

    On a rank whose device is a GPU, spans of ``"compute"`` and ``"comm"`` are timed by CUDA events on the current
    stream, and read after the rank's function is done: a span never synchronises. ``"host"`` is always the CPU's clock.

    Raises ValueError for an unknown lane and TypeError for an unknown label.
    """

    __slots__ = ("_key", "_start")

    def __init__(
        self,
        name: str,
        lane: str = "compute",
        *,
        step: int | None = None,
        stage: int | None = None,
        micro_batch: int | None = None,
        bucket: int | None = None,
        bytes: int | None = None,
    ):
        if lane not in LANES:
            raise ValueError(f"span({name!r}): lane is {lane!r}, expected one of {', '.join(LANES)}")
        self._key = (lane, name, step, stage, micro_batch, bucket, bytes)

    def __enter__(self) -> span:
        if _sinks:
            self._start = _cuda_mark() if _cuda and self._key[0] != "host" else _clock()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """End what ``__enter__`` began. To be called where the work ends elsewhere, such as in a thread that waits for it."""
        if _sinks and not _paused and hasattr(self, "_start"):
            end = _clock() if isinstance(self._start, int) else _cuda_mark()
            row = (*self._key, self._start, end)
            for sink in _sinks:
                sink.append(row)


@contextlib.contextmanager
def pause() -> Iterator[None]:
    """Record nothing of the block, in any thread: for what is not part of what is measured, such as a validation loss."""
    global _paused
    _paused += 1
    try:
        yield
    finally:
        _paused -= 1


def note_emulated(what: str) -> None:
    """Say of every recording in progress that ``what`` was not real, such as ``"emulated compute: …"``. Once is enough.

    It stands under the tables and pictures that come of them, as an emulated link does.
    """
    for notes in _notes:
        if what not in notes:
            notes.append(what)


# --- CUDA: events on the stream instead of the CPU's clock -----------------------------------------------------------

_cuda: Any = None  # torch.cuda while spans are timed on the device's stream


def _cuda_mark() -> tuple[int, Any]:
    """The current device and an event on its current stream. Events of two devices cannot be compared with each other."""
    event = _cuda.Event(enable_timing=True)
    event.record()
    return _cuda.current_device(), event


class Recorder:
    """Collects the spans that end while it is running. ``rows`` are as :data:`Row`; ``finish`` makes both times readings.

    ``notes`` say what was emulated meanwhile.
    """

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.notes: list[str] = []
        self._anchors: dict[int, tuple[Any, int]] = {}  # of each device an event, and the CPU's clock when it was done

    def start(self, device_type: str = "cpu") -> None:
        """Begin. With ``device_type="cuda"`` the device's clock is tied to the CPU's by one synchronisation, here."""
        global _sinks, _notes, _cuda
        if device_type == "cuda":
            import torch

            _cuda = torch.cuda
            self._anchor(torch.cuda.current_device())
        _sinks, _notes = (*_sinks, self.rows), (*_notes, self.notes)

    def finish(self) -> list[Row]:
        """End, wait for the events still on their way, and give the rows with both times in perf_counter nanoseconds."""
        global _sinks, _notes, _cuda
        _sinks = tuple(sink for sink in _sinks if sink is not self.rows)
        _notes = tuple(notes for notes in _notes if notes is not self.notes)
        try:
            return [(*row[:7], self._read(row[7]), self._read(row[8])) for row in self.rows]
        finally:
            if not _sinks:
                _cuda = None

    def _anchor(self, device: int) -> None:
        """Tie the clock of ``device`` to the CPU's."""
        with _cuda.device(device):
            _cuda.synchronize()
            _, event = _cuda_mark()
            event.synchronize()
            self._anchors[device] = event, _clock()

    def _read(self, mark: Any) -> int:
        if isinstance(mark, int):
            return mark
        device, event = mark
        event.synchronize()
        if device not in self._anchors:  # not the one on which the recording began: then the anchor comes last
            self._anchor(device)
        anchor, anchor_ns = self._anchors[device]
        return anchor_ns + round(anchor.elapsed_time(event) * 1e6)  # in milliseconds, negative before the anchor


# --- the table -------------------------------------------------------------------------------------------------------


def event_table(
    rows: Iterable[Iterable[Any]] | Mapping[str, Any], measured: bool = False, emulated: str = ""
) -> pd.DataFrame:
    """A DataFrame with EVENT_COLUMNS and their types from rows in that order. Labels are nullable integers.

    Where rows are many, columns by their names are quicker: one that is not there stays empty, and a single value stands
    in every row. ``start_s`` has to be among them.

    ``measured`` says that the times were measured, so they print as measurements do (see :mod:`labkit.show`).
    ``emulated`` says what was not real when they were; it is kept in ``.attrs`` and shown with the table and its picture.
    """
    import pandas as pd

    from labkit.show import MeasuredTable

    kind = MeasuredTable if measured else pd.DataFrame
    if isinstance(rows, Mapping):
        index = range(len(rows["start_s"]))
        table = kind({name: pd.Series(rows.get(name), index, _TYPES[name]) for name in EVENT_COLUMNS})
    else:
        table = kind(list(rows), columns=list(EVENT_COLUMNS)).astype(_TYPES)
    if emulated:
        table.attrs["emulated"] = emulated
    return table


def rank_events(rows: Iterable[Row], rank: int, origin_ns: int) -> list[tuple[Any, ...]]:
    """Rows of one rank as rows of the event table: seconds since ``origin_ns``, in order of their start."""
    events = [(rank, *row[:7], (row[7] - origin_ns) * 1e-9, (row[8] - origin_ns) * 1e-9) for row in rows]
    return sorted(events, key=lambda event: event[-2:])


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
    """Record the spans of code that runs right here, in the notebook: ``with record() as recording: …; recording.events``.

    Times are seconds since the block began. Spans are timed on the GPU's stream if this process uses one already.
    """
    torch = sys.modules.get("torch")
    on_gpu = torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized()
    recording, recorder = Recording(), Recorder()
    recorder.start("cuda" if on_gpu else "cpu")
    origin = _clock()
    try:
        yield recording
    finally:
        rank = int(os.environ.get("RANK", 0))
        rows, emulated = rank_events(recorder.finish(), rank, origin), ". ".join(recorder.notes)
        recording._events = event_table(rows, measured=True, emulated=emulated)


TIMING_COLUMNS = ("rank", "name", "count", "total_s", "mean_s", "median_s", "min_s", "max_s")


def timings(events: pd.DataFrame) -> pd.DataFrame:
    """One row per rank and event name: how often, and seconds in total, mean, median, least, most.

    Rows stand in the order in which the names first started on each rank.
    """
    spans = events.assign(duration=events["end_s"] - events["start_s"]).sort_values("start_s", kind="stable")
    groups = spans.groupby(["rank", "name"], sort=False)["duration"]
    table = groups.agg(["count", "sum", "mean", "median", "min", "max"]).reset_index()
    table.columns = list(TIMING_COLUMNS)
    table = type(events)(table.sort_values("rank", kind="stable", ignore_index=True))
    table.attrs = dict(events.attrs)
    return table


def to_chrome_trace(events: pd.DataFrame, path: str | os.PathLike[str]) -> None:
    """Write the events in Chrome's trace format (JSON), which ui.perfetto.dev and chrome://tracing open.

    A process per rank, a thread per lane; labels are the arguments of an event. Times in the file are microseconds.
    The format wants the spans of a thread nested, so where some of a lane overlap otherwise, it gets further threads.
    """
    import pandas as pd

    out: list[dict[str, Any]] = []
    lanes: Iterator[Any] = iter(events.groupby(["rank", "lane"]))
    for (rank, lane), spans in lanes:
        rows = spans.assign(dur=spans["end_s"] - spans["start_s"]).sort_values(
            ["start_s", "dur"], ascending=[True, False]
        )
        tracks: list[list[float]] = []  # of each thread, the ends of the spans that are open
        for event in rows.to_dict("records"):
            thread = _thread_for(tracks, event["start_s"], event["end_s"])
            ids = {"pid": int(rank), "tid": LANES.index(lane) + len(LANES) * thread}
            times = {"ts": event["start_s"] * 1e6, "dur": event["dur"] * 1e6}
            labels = {label: int(event[label]) for label in _LABELS if not pd.isna(event[label])}
            out.append({"name": event["name"], "cat": lane, "ph": "X", **ids, **times, "args": labels})
        for thread in range(len(tracks)):
            ids = {"pid": int(rank), "tid": LANES.index(lane) + len(LANES) * thread}
            out += _thread_names(ids, f"rank {rank}", f"{lane} {thread + 1}" if thread else lane)
    with open(path, "w") as file:
        json.dump({"traceEvents": out, "displayTimeUnit": "ms", "otherData": dict(events.attrs)}, file)


def _thread_for(tracks: list[list[float]], start: float, end: float) -> int:
    """The first thread on which the span lies beside or inside the others; spans come in the order of their start."""
    for thread, open_ends in enumerate(tracks):
        while open_ends and open_ends[-1] <= start:
            open_ends.pop()
        if not open_ends or end <= open_ends[-1]:
            open_ends.append(end)
            return thread
    tracks.append([end])
    return len(tracks) - 1


def _thread_names(ids: dict[str, int], process: str, thread: str) -> list[dict[str, Any]]:
    named = {"process_name": {"name": process}, "thread_name": {"name": thread}}
    order = {"process_sort_index": {"sort_index": ids["pid"]}, "thread_sort_index": {"sort_index": ids["tid"]}}
    return [{"name": name, "ph": "M", **ids, "args": value} for name, value in (named | order).items()]
