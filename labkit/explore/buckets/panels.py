"""Draw a backward pass with buckets as panels: parameters as blocks, and a time line below."""

from __future__ import annotations

import bisect

import numpy as np
import pandas as pd

from labkit.draw.layout import TimeAxis, stack
from labkit.draw.panel import BAR_COLUMNS, Label, Mark, Panel
from labkit.explore.buckets.gradients import MIB
from labkit.explore.buckets.reducer import Reduction

SIZE_AXIS = TimeAxis("MiB of gradients, in the order of sending", "MiB", 1 / MIB)
# One colour for every fourth bucket: neighbours always differ.
BUCKET_NAMES = tuple(f"buckets {k}, {k + 4}, {k + 8} …" for k in range(4))
_HEIGHT, _TOP = 0.86, 0.07
_LEAST_ROW, _MOST_WAITING = 0.5, 3.0  # of a bucket that waits, and of all of them, in rows


def blocks_panel(reduction: Reduction) -> Panel:
    """Return the parameters as blocks as long as their bytes, and under them their buckets."""
    order = _order_of_sending(reduction)
    names, sizes = reduction.gradients.names, reduction.gradients.sizes_bytes
    ends = np.cumsum([sizes[i] for i in order], dtype=float).tolist()
    bucket_ends = np.cumsum(reduction.bucket_bytes, dtype=float).tolist()
    bars = [
        _bar(end - sizes[i], end, _TOP, reduction.bucket_of[i], label=_short(names[i]))
        for i, end in zip(order, ends, strict=True)
    ]
    spans = enumerate(zip(reduction.bucket_bytes, bucket_ends, strict=True))
    bars += [_bar(end - n_bytes, end, 1 + _TOP, k) for k, (n_bytes, end) in spans]

    def explain(bar: int) -> str:
        return block_sentence(reduction, bar)

    return Panel(
        _table(bars),
        height=2.0,
        rows=[Label(0.5, "parameters"), Label(1.5, "buckets")],
        title=reduction.gradients.model,
        facts=f"{len(names)} parameters, {reduction.gradients.n_bytes / MIB:.4g} MiB, {_buckets(len(reduction.buckets))}",
        clocks=np.array([0.0, *bucket_ends]),
        moments=np.array([0.0, *ends]),
        explain=explain,
        narrate=lambda x: explain(min(bisect.bisect_right(ends, x), len(order) - 1)),
    )


def pass_panel(reduction: Reduction, time: TimeAxis, title: str) -> Panel:
    """Return backward, full buckets that wait, and all_reduces, as rows over time.

    Steps by event are the Reducer's; by clock they go from bucket to bucket.
    """
    drawn = _PassBars(reduction, time)
    waiting = drawn.waiting_height
    return Panel(
        _table([drawn.bar(*key) for key in drawn.keys]),
        height=2.0 + waiting,
        rows=[Label(0.5, "backward"), Label(1.0 + waiting / 2, "bucket waits"), Label(1.5 + waiting, "all_reduce")],
        title=title,
        facts=summary(reduction, time),
        marks=[Mark(reduction.backward_s, f"{title}: backward is over", not reduction.measured)],
        needs=np.array([drawn.needed(bar) for bar in range(len(drawn.keys))], dtype="int32"),
        critical=drawn.critical(),
        clocks=np.unique([*reduction.full_s, *(span.end_s for span in reduction.all_reduces)]),
        moments=np.unique([0.0, *(moment.time_s for moment in reduction.moments)]),
        explain=lambda bar: drawn.sentence(*drawn.keys[bar]),
        narrate=drawn.narrate,
    )


def summary(reduction: Reduction, time: TimeAxis) -> str:
    """Return how long the parts of a pass take, in a line."""
    hidden = reduction.hidden_share
    share = "" if hidden is None else f", {100 * hidden:.0f} % hidden"
    return (
        f"backward {time(reduction.backward_s)}, communication {time(reduction.communication_s)}, of it exposed "
        f"{time(reduction.exposed_s)}{share}"
    )


def block_sentence(reduction: Reduction, bar: int, time: TimeAxis | None = None) -> str:
    """Return what a bar of blocks_panel is; with a ``time`` also when it was ready or sent."""
    order = _order_of_sending(reduction)
    if bar < len(order):
        return _gradient_sentence(reduction, order[bar], time)
    return _bucket_sentence(reduction, bar - len(order), time)


def _order_of_sending(reduction: Reduction) -> list[int]:
    return [i for bucket in reduction.buckets for i in bucket]


# --- bars -----------------------------------------------------------------------------------------


def _bar(
    left: float, right: float, top: float, bucket: int, height: float = _HEIGHT, name: str = "", label: str = ""
) -> tuple[object, ...]:
    """Return a bar coloured by its bucket or ``name``, with the bucket's number or ``label``."""
    return left, right, top, height, name or BUCKET_NAMES[bucket % len(BUCKET_NAMES)], 0, label or str(bucket)


def _table(bars: list[tuple[object, ...]]) -> pd.DataFrame:
    return pd.DataFrame(dict(zip(BAR_COLUMNS, map(list, zip(*bars, strict=True)), strict=True)))


class _PassBars:
    """The bars of a pass: each has a key, its kind and the number of its parameter or bucket.

    First come the gradients, as they are ready, then the wait if there is one, then buckets that
    wait, and in the end the all_reduces.
    """

    def __init__(self, reduction: Reduction, time: TimeAxis):
        self.reduction, self.time = reduction, time
        waits = {
            k: (full_s, span.start_s)
            for k, (full_s, span) in enumerate(zip(reduction.full_s, reduction.all_reduces, strict=True))
            if span.start_s > full_s
        }
        self.keys = [("gradient", i) for i in reduction.order]
        self.keys += [("exposed", 0)] if reduction.exposed_s else []
        self.keys += [("queued", k) for k in waits]
        self.keys += [("all_reduce", k) for k in range(len(reduction.buckets))]
        self.number = {key: bar for bar, key in enumerate(self.keys)}
        rows, n_rows = stack(*np.array(list(waits.values())).T) if waits else (np.zeros(0, dtype=int), 1)
        self.row_of = dict(zip(waits, rows.tolist(), strict=True))
        self.waiting_height = min(max(1.0, _LEAST_ROW * n_rows), _MOST_WAITING)
        self.row_height = self.waiting_height / n_rows

    def bar(self, kind: str, number: int) -> tuple[object, ...]:
        one = self.reduction
        if kind == "gradient":
            return _bar(*one.computing[number], _TOP, one.bucket_of[number])
        if kind == "exposed":
            return _bar(one.backward_s, one.end_s, _TOP, 0, name="wait", label="exposed")
        span = one.all_reduces[number]
        if kind == "all_reduce":
            return _bar(*span, 1 + self.waiting_height + _TOP, number)
        top, height = 1 + self.row_height * (self.row_of[number] + _TOP), self.row_height * _HEIGHT
        return _bar(one.full_s[number], span.start_s, top, number, height, name="queued")

    def needed(self, bar: int) -> int:
        """Return the bar that a bar starts after, -1 for the first."""
        (kind, k), one = self.keys[bar], self.reduction
        if kind == "gradient":
            return bar - 1
        if kind == "exposed":
            return len(self.keys) - 1
        if kind == "all_reduce" and k and one.all_reduces[k - 1].end_s >= one.full_s[k]:
            return bar - 1
        return max(self.number["gradient", i] for i in one.buckets[k])

    def critical(self) -> np.ndarray:
        """Return the bars that decide when all gradients are means, from the first to the last."""
        one = self.reduction
        path = [len(self.keys) - 1 if one.exposed_s else len(one.order) - 1]
        while (bar := self.needed(path[-1])) >= 0:
            path.append(bar)
        return np.array(path[::-1], dtype="int32")

    # --- in words ---

    def sentence(self, kind: str, number: int) -> str:
        one, time = self.reduction, self.time
        if kind == "gradient":
            return _gradient_sentence(one, number, time)
        if kind == "exposed":
            return (
                f"Exposed communication: {time(one.exposed_s)}, from the end of backward at {time(one.backward_s)} until all "
                "gradients are means. What leaves last has nothing left to hide behind."
            )
        if kind == "queued":
            full_s, start_s = one.full_s[number], one.all_reduces[number].start_s
            return f"Bucket {number} is full at {time(full_s)} and waits {time(start_s - full_s)} for the link, or its turn."
        return _bucket_sentence(one, number, time)

    def narrate(self, x: float) -> str:
        """Return what the Reducer does at ``x``, or did last, and how far it is."""
        one = self.reduction
        moments, now = one.until(x + 1e-12)
        if not moments:
            return f"{self.time(x)}: backward begins at the last layer. No gradient is ready."
        texts = " ".join(moment.text for moment in moments)
        flying = f"in flight: bucket {now.in_flight[0]}" if now.in_flight else "nothing in flight"
        waiting = f", waiting: {', '.join(map(str, now.waiting))}" if now.waiting else ""
        ready = f"{now.ready_bytes / MIB:.4g} of {one.gradients.n_bytes / MIB:.4g} MiB ready"
        done = f"{len(now.done)} of {_buckets(len(one.buckets))} done"
        return f"{self.time(x)}: {texts} ({ready}; {flying}{waiting}; {done})"


# --- in words -------------------------------------------------------------------------------------


def _gradient_sentence(one: Reduction, i: int, time: TimeAxis | None = None) -> str:
    gradients, k = one.gradients, one.bucket_of[i]
    text = f"{gradients.names[i]}: {_size(gradients.sizes_bytes[i])}, parameter {i} of {len(gradients.names)}.\n"
    since = one.computing[i]
    ready = f" at {time(since.end_s)}, {time(since.end_s - since.start_s)} after the one before," if time else ""
    fills = "fills" if gradients.ready_s[i] == one.full_s[k] else "goes into"
    return f"{text}Its gradient is ready{ready} as number {one.order.index(i) + 1}, and {fills} bucket {k}."


def _bucket_sentence(one: Reduction, k: int, time: TimeAxis | None = None) -> str:
    n = len(one.buckets[k])
    gradients = "1 gradient" if n == 1 else f"{n} gradients"
    text = f"Bucket {k}: {gradients}, {_size(one.bucket_bytes[k])}."
    if time is None:
        return text
    start, end = one.all_reduces[k]
    why = "as soon as it was full" if start <= one.full_s[k] else f"{time(start - one.full_s[k])} after it was full"
    late = max(0.0, end - max(start, one.backward_s))
    exposed = f" {time(late)} of it after backward: exposed." if late else " All of it while backward runs: hidden."
    return f"{text}\nIts all_reduce starts at {time(start)}, {why}, and takes {time(end - start)}.{exposed}"


def _size(n_bytes: float) -> str:
    return f"{n_bytes / MIB:.4g} MiB" if n_bytes >= MIB / 100 else f"{n_bytes / 1024:.4g} KiB"


def _buckets(n: int) -> str:
    return "1 bucket" if n == 1 else f"{n} buckets"


def _short(name: str) -> str:
    """Return the end of a parameter's name, such as ``c_attn.weight``."""
    return ".".join(name.split(".")[-2:])
