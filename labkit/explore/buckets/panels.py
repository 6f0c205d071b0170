"""Draw a backward pass with buckets as panels: parameters as blocks, and a time line below."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pandas as pd

from labkit.base.units import MIB, bytes_in_words
from labkit.draw.layout import stack
from labkit.draw.panel import BAR_COLUMNS, Label, Mark, TimeAxis
from labkit.explore.buckets.reducer import Reduction
from labkit.explore.panel import Panel

# One colour for every fourth bucket: neighbours always differ.
BUCKET_NAMES = tuple(f"buckets {k}, {k + 4}, {k + 8} …" for k in range(4))
_HEIGHT, _TOP = 0.86, 0.07
_MIN_ROW, _MAX_WAITING = 0.5, 3.0  # of a bucket that waits, and of all of them, in rows
_SEEN = 1 / 500  # of a pass: a shorter wait is not drawn


def blocks_panel(reduction: Reduction) -> Panel:
    """Return the parameters as blocks as long as their bytes, and under them their buckets.

    All bytes together are as long as the pass below, in the order of sending.
    """
    order = [i for bucket in reduction.buckets for i in bucket]
    names, per_byte = reduction.gradients.names, reduction.end_s / reduction.gradients.n_bytes
    sizes = [per_byte * n_bytes for n_bytes in reduction.gradients.sizes_bytes]
    ends = np.cumsum([sizes[i] for i in order]).tolist()
    bucket_ends = (per_byte * np.cumsum(reduction.bucket_bytes, dtype=float)).tolist()
    bars = [
        _bar(end - sizes[i], end, _TOP, reduction.bucket_of[i], label=".".join(names[i].split(".")[-2:]))
        for i, end in zip(order, ends, strict=True)
    ]
    starts = [0.0, *bucket_ends]
    bars += [_bar(start, end, 1 + _TOP, k) for k, (start, end) in enumerate(itertools.pairwise(starts))]
    sentences = [functools.partial(_gradient_sentence, reduction, i) for i in order]
    sentences += [functools.partial(_bucket_sentence, reduction, k) for k in range(len(reduction.buckets))]
    return Panel(
        pd.DataFrame(bars, columns=[*BAR_COLUMNS, "same"]),
        height=2.0,
        rows=[Label(0.5, "parameters"), Label(1.5, "buckets")],
        title=f"{reduction.gradients.model}: bytes, in the order of sending",
        facts=f"{len(names)} parameters, {reduction.gradients.n_bytes / MIB:.4g} MiB, {_buckets(len(reduction.buckets))}",
        explain=lambda bar: sentences[bar](),
    )


def pass_panel(reduction: Reduction, time: TimeAxis) -> Panel:
    """Return backward, full buckets that wait, and all_reduces, as rows over time.

    Steps go from bucket to bucket: to where one is full, and to where its all_reduce is done.
    """
    one, (bars, waiting) = reduction, _pass_bars(reduction, time)
    between = [Label(1.0 + waiting / 2, "queued")] if waiting else []
    critical = [len(bars) - 1 if one.exposed_s else len(one.order) - 1]
    while (needed := bars[critical[-1]].needs) >= 0:
        critical.append(needed)
    return Panel(
        pd.DataFrame([each.bar for each in bars], columns=[*BAR_COLUMNS, "same"]),
        height=2.0 + waiting,
        rows=[Label(0.5, "backward"), *between, Label(1.5 + waiting, "all_reduce")],
        title="predicted",
        facts=summary(one, time),
        marks=[Mark(one.backward_s, "backward is over", True)],
        needs=np.array([each.needs for each in bars], dtype="int32"),
        critical=np.array(critical[::-1], dtype="int32"),
        stops=_stops(one),
        explain=lambda bar: bars[bar].sentence(),
        narrate=lambda x: _narrate(one, x, time),
    )


def _stops(one: Reduction) -> np.ndarray:
    """Return when buckets are full or done, times that differ by rounding alone once."""
    times = np.sort([*one.full_s, *(span.end_s for span in one.all_reduces)])
    return times[np.diff(times, prepend=-np.inf) > _near(one)]


def _near(one: Reduction) -> float:
    return 1e-9 * one.end_s


def summary(reduction: Reduction, time: TimeAxis) -> str:
    """Return how long the parts of a pass take, in a line."""
    hidden = reduction.hidden_share
    share = "" if hidden is None else f", {100 * hidden:.0f} % hidden"
    backward, sent, exposed = map(time, (reduction.backward_s, reduction.communication_s, reduction.exposed_s))
    return f"backward {backward}, communication {sent}{share}, {exposed} not hidden"


# --- bars -----------------------------------------------------------------------------------------


def _bar(
    left: float,
    right: float,
    top: float,
    bucket: int,
    height: float = _HEIGHT,
    name: str = "",
    label: str | None = None,
) -> tuple[object, ...]:
    """Return a bar coloured by its bucket or ``name``, with the bucket's number or ``label``."""
    colour = name or BUCKET_NAMES[bucket % len(BUCKET_NAMES)]
    return left, right, top, height, colour, 0, str(bucket) if label is None else label, bucket


class _PassBar(NamedTuple):
    """A bar of a pass: the bar that it starts after, -1 for the first, and what it is in words."""

    bar: tuple[object, ...]
    needs: int
    sentence: Callable[[], str]


def _pass_bars(one: Reduction, time: TimeAxis) -> tuple[list[_PassBar], float]:
    """Return the bars of a pass, and how high the row is in which full buckets wait.

    First come the gradients, as they are ready, then the wait if there is one, then buckets that
    wait, and in the end the all_reduces.
    """

    def later(sentence: Callable[..., str], *about: int) -> Callable[[], str]:
        return functools.partial(sentence, one, *about, time)

    labelled = one.buckets if len(one.buckets) <= 10 else []  # two digits have no room in a gradient
    longest = {max(bucket, key=lambda i: one.computing[i].end_s - one.computing[i].start_s) for bucket in labelled}
    bars = [  # a bucket's number stands once, in its longest gradient
        _PassBar(
            _bar(*one.computing[i], _TOP, one.bucket_of[i], label=None if i in longest else ""),
            number - 1,
            later(_gradient_sentence, i),
        )
        for number, i in enumerate(one.order)
    ]
    waits = {k: (full_s, span.start_s) for k, full_s, span in one.sent() if span.start_s - full_s > _SEEN * one.end_s}
    if one.exposed_s:
        wait = _bar(one.backward_s, one.end_s, _TOP, -1, name="wait", label="exposed")
        bars.append(_PassBar(wait, len(bars) + len(waits) + len(one.buckets), later(_exposed_sentence)))
    filled_by = [max(map(one.order.index, bucket)) for bucket in one.buckets]  # by which bar
    rows, n_rows = stack(*np.array([*waits.values()]).T) if waits else (np.zeros(0, dtype=int), 0)
    waiting = min(max(1.0, _MIN_ROW * n_rows), _MAX_WAITING) if waits else 0.0
    for row, (k, span) in zip(rows, waits.items(), strict=True):
        top, height = 1 + waiting / n_rows * (row + _TOP), waiting / n_rows * _HEIGHT
        bars.append(_PassBar(_bar(*span, top, k, height, name="queued"), filled_by[k], later(_waiting_sentence, k)))
    free_s = -1.0
    for k, full_s, span in one.sent():
        needs = len(bars) - 1 if free_s >= full_s else filled_by[k]
        bars.append(_PassBar(_bar(*span, 1 + waiting + _TOP, k), needs, later(_bucket_sentence, k)))
        free_s = span.end_s
    return bars, waiting


# --- in words -------------------------------------------------------------------------------------


def _gradient_sentence(one: Reduction, i: int, time: TimeAxis | None = None) -> str:
    gradients, k = one.gradients, one.bucket_of[i]
    text = (
        f"{gradients.names[i]}: {bytes_in_words(gradients.sizes_bytes[i])}, parameter {i} of {len(gradients.names)}.\n"
    )
    since = one.computing[i]
    ready = f" at {time(since.end_s)}, {time(since.end_s - since.start_s)} after the one before," if time else ""
    fills = "fills" if gradients.ready_s[i] == one.full_s[k] else "goes into"
    return f"{text}Its gradient is ready{ready} as number {one.order.index(i) + 1}, and {fills} bucket {k}."


def _bucket_sentence(one: Reduction, k: int, time: TimeAxis | None = None) -> str:
    n = len(one.buckets[k])
    gradients = "1 gradient" if n == 1 else f"{n} gradients"
    text = f"Bucket {k}: {gradients}, {bytes_in_words(one.bucket_bytes[k])}."
    if time is None:
        return text
    start, end = one.all_reduces[k]
    why = "as soon as it was full" if start <= one.full_s[k] else f"{time(start - one.full_s[k])} after it was full"
    late = max(0.0, end - max(start, one.backward_s))
    exposed = f" {time(late)} of it after backward: exposed." if late else " All of it while backward runs: hidden."
    return f"{text}\nIts all_reduce starts at {time(start)}, {why}, and takes {time(end - start)}.{exposed}"


def _exposed_sentence(one: Reduction, time: TimeAxis) -> str:
    return (
        f"Exposed communication: {time(one.exposed_s)}, from the end of backward at {time(one.backward_s)} until all "
        "gradients are averaged. What leaves last has nothing left to hide behind."
    )


def _waiting_sentence(one: Reduction, k: int, time: TimeAxis) -> str:
    full_s, start_s = one.full_s[k], one.all_reduces[k].start_s
    return f"Bucket {k} is full at {time(full_s)} and waits {time(start_s - full_s)} for the link, or its turn."


def _narrate(one: Reduction, x: float, time: TimeAxis) -> str:
    """Return which buckets are done or full at ``x``, and how far the Reducer is."""
    near = _near(one)
    until = x + near
    done = [one.done(k) for k, _, span in one.sent() if abs(span.end_s - x) <= near]
    full = [one.filled(k) for k, full_s, _ in one.sent() if abs(full_s - x) <= near]
    over = ["Backward is over."] if abs(one.backward_s - x) <= near else []
    texts = " ".join([*done, *full, *over])
    ready = zip(one.gradients.ready_s, one.gradients.sizes_bytes, strict=True)
    ready_bytes = sum(n_bytes for ready_s, n_bytes in ready if ready_s <= until)
    in_flight = [k for k, (start_s, end_s) in enumerate(one.all_reduces) if start_s <= until < end_s]
    waiting = [str(k) for k, full_s, span in one.sent() if full_s <= until < span.start_s]
    n_done = sum(span.end_s <= until for span in one.all_reduces)
    flying = f"in flight: bucket {in_flight[0]}" if in_flight else "nothing in flight"
    flying += f", waiting: {', '.join(waiting)}" if waiting else ""
    bytes_ready = f"{ready_bytes / MIB:.4g} of {one.gradients.n_bytes / MIB:.4g} MiB ready"
    return f"{time(x)}: {texts} ({bytes_ready}; {flying}; {n_done} of {_buckets(len(one.buckets))} done)"


def _buckets(n: int) -> str:
    return "1 bucket" if n == 1 else f"{n} buckets"
