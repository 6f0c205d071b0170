"""Draw a backward pass with buckets as panels: parameters as blocks, and a time line below."""

from __future__ import annotations

import bisect

import numpy as np
import pandas as pd

from labkit.draw.layout import TimeAxis, stack
from labkit.draw.panel import BAR_COLUMNS, Label, Mark, Panel
from labkit.explore.buckets.reducer import MIB, Reduction

SIZE_AXIS = TimeAxis("MiB of gradients, in the order of sending", "MiB", 1 / MIB)
# One colour for every fourth bucket: neighbours always differ.
BUCKET_NAMES = tuple(f"buckets {k}, {k + 4}, {k + 8} …" for k in range(4))
_HEIGHT, _TOP = 0.86, 0.07
_LEAST_ROW, _MOST_WAITING = 0.5, 3.0  # of a bucket that waits, and of all of them, in rows


def blocks_panel(reduction: Reduction) -> Panel:
    """Return the parameters as blocks as long as their bytes, and under them their buckets."""
    order = [i for bucket in reduction.buckets for i in bucket]
    names, sizes = reduction.gradients.names, reduction.gradients.sizes_bytes
    ends = np.cumsum([sizes[i] for i in order], dtype=float).tolist()
    bars = [
        _bar(end - sizes[i], end, 0, reduction.bucket_of[i], _short(names[i]))
        for i, end in zip(order, ends, strict=True)
    ]
    bucket_ends = np.cumsum(reduction.bucket_bytes, dtype=float).tolist()
    spans = enumerate(zip(reduction.bucket_bytes, bucket_ends, strict=True))
    bars += [_bar(end - n_bytes, end, 1, k) for k, (n_bytes, end) in spans]

    def explain(bar: int) -> str:
        return told_block(reduction, bar)

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
    drawn = _Drawn(reduction, time)
    return Panel(
        drawn.bars(),
        height=2.0 + drawn.waiting_height,
        rows=[
            Label(0.5, "backward"),
            Label(1.0 + drawn.waiting_height / 2, "bucket waits"),
            Label(1.5 + drawn.waiting_height, "all_reduce"),
        ],
        title=title,
        facts=summary(reduction, time),
        marks=[Mark(reduction.backward_s, f"{title}: backward is over", not reduction.measured)],
        needs=drawn.needs(),
        critical=drawn.critical(),
        clocks=np.unique([*reduction.full_s, *(span.end_s for span in reduction.all_reduces)]),
        moments=np.array(drawn.moments),
        explain=drawn.explain,
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


def told_block(reduction: Reduction, bar: int, time: TimeAxis | None = None) -> str:
    """Return what a bar of blocks_panel is; with a ``time`` also when it was ready or sent."""
    order = [i for bucket in reduction.buckets for i in bucket]
    if bar < len(order):
        return _told_parameter(reduction, order[bar], time)
    return _told_bucket(reduction, bar - len(order), time)


# --- bars -----------------------------------------------------------------------------------------


def _bar(left: float, right: float, row: float, bucket: int, label: str = "", name: str = "") -> tuple[object, ...]:
    """Return a bar coloured by its bucket or ``name``, with the bucket's number or ``label``."""
    return left, right, row + _TOP, _HEIGHT, name or BUCKET_NAMES[bucket % len(BUCKET_NAMES)], 0, label or str(bucket)


def _table(bars: list[tuple[object, ...]]) -> pd.DataFrame:
    return pd.DataFrame(dict(zip(BAR_COLUMNS, map(list, zip(*bars, strict=True)), strict=True)))


class _Drawn:
    """The bars of a pass, and what each is.

    First come the gradients, as they are ready, then the wait if there is one, then buckets that
    wait, and in the end the all_reduces.
    """

    def __init__(self, reduction: Reduction, time: TimeAxis):
        self.reduction, self.time = reduction, time
        self.position = {i: bar for bar, i in enumerate(reduction.order)}
        starts = [span.start_s for span in reduction.all_reduces]
        self.waiting = [k for k, full in enumerate(reduction.full_s) if starts[k] > full]
        self.first_waiting = len(reduction.order) + (reduction.exposed_s > 0)
        self.first_sent = self.first_waiting + len(self.waiting)
        waits = [(reduction.full_s[k], starts[k]) for k in self.waiting]
        self.waiting_rows, n_rows = stack(*np.array(waits).T) if waits else (np.zeros(0, dtype=int), 1)
        self.waiting_height = min(max(1.0, _LEAST_ROW * n_rows), _MOST_WAITING)
        self.waiting_row = self.waiting_height / n_rows
        self.moments = sorted({0.0, *(moment.time_s for moment in reduction.moments())})

    def bars(self) -> pd.DataFrame:
        one, below = self.reduction, 1 + self.waiting_height
        computing = one.computing()
        bars = [_bar(*computing[i], 0, one.bucket_of[i]) for i in one.order]
        if one.exposed_s:
            bars.append(_bar(one.backward_s, one.end_s, 0, 0, "exposed", "wait"))
        for k, row in zip(self.waiting, self.waiting_rows.tolist(), strict=True):
            left, right, _, _, *look = _bar(one.full_s[k], one.all_reduces[k].start_s, 1, k, name="queued")
            bars.append((left, right, 1 + self.waiting_row * (row + _TOP), self.waiting_row * _HEIGHT, *look))
        bars += [_bar(*span, below, k) for k, span in enumerate(one.all_reduces)]
        return _table(bars)

    def _needed(self, k: int) -> int:
        """Return the bar that all_reduce k starts after: its last gradient, or the one before."""
        one = self.reduction
        if k and one.all_reduces[k - 1].end_s >= one.full_s[k]:
            return self.first_sent + k - 1
        return max(self.position[i] for i in one.buckets[k])

    def needs(self) -> np.ndarray:
        """Return for each bar the one that it starts after, -1 for the first."""
        one = self.reduction
        needs = np.arange(-1, self.first_sent + len(one.buckets) - 1, dtype="int32")
        if one.exposed_s:
            needs[len(one.order)] = self.first_sent + len(one.buckets) - 1
        for bar, k in enumerate(self.waiting, start=self.first_waiting):
            needs[bar] = max(self.position[i] for i in one.buckets[k])
        for k in range(len(one.buckets)):
            needs[self.first_sent + k] = self._needed(k)
        return needs

    def critical(self) -> np.ndarray:
        """Return the bars that decide when all gradients are means, from the first to the last."""
        one, needs = self.reduction, self.needs()
        bar = self.first_sent + len(one.buckets) - 1 if one.exposed_s else len(one.order) - 1
        path = [bar]
        while (bar := int(needs[bar])) >= 0:
            path.append(bar)
        return np.array(path[::-1], dtype="int32")

    # --- in words ---

    def explain(self, bar: int) -> str:
        one, time = self.reduction, self.time
        if bar < len(one.order):
            return _told_parameter(one, one.order[bar], time)
        if bar < self.first_waiting:
            return (
                f"Exposed communication: {time(one.exposed_s)}, from the end of backward at {time(one.backward_s)} until all "
                "gradients are means. What leaves last has nothing left to hide behind."
            )
        if bar < self.first_sent:
            k = self.waiting[bar - self.first_waiting]
            waited = one.all_reduces[k].start_s - one.full_s[k]
            return f"Bucket {k} is full at {time(one.full_s[k])} and waits {time(waited)} for the link, or its turn."
        return _told_bucket(one, bar - self.first_sent, time)

    def narrate(self, x: float) -> str:
        """Return what the Reducer does at ``x``, or did last, and how far it is."""
        moments = self.reduction.moments()
        times = [moment.time_s for moment in moments]
        until = bisect.bisect_right(times, x + 1e-12)
        if not until:
            return f"{self.time(x)}: backward begins at the last layer. No gradient is ready."
        since = bisect.bisect_left(times, times[until - 1])
        said = " ".join(moment.text for moment in moments[since:until])
        return f"{self.time(x)}: {said} {self._progress(x + 1e-12)}"

    def _progress(self, x: float) -> str:
        one, now = self.reduction, self.reduction.at(x)
        flying = f"in flight: bucket {now.in_flight[0]}" if now.in_flight else "nothing in flight"
        waiting = f", waiting: {', '.join(map(str, now.waiting))}" if now.waiting else ""
        ready = f"{now.ready_bytes / MIB:.4g} of {one.gradients.n_bytes / MIB:.4g} MiB ready"
        return f"({ready}; {flying}{waiting}; {len(now.done)} of {_buckets(len(one.buckets))} done)"


# --- in words -------------------------------------------------------------------------------------


def _told_parameter(one: Reduction, i: int, time: TimeAxis | None = None) -> str:
    gradients, k = one.gradients, one.bucket_of[i]
    text = f"{gradients.names[i]}: {_size(gradients.sizes_bytes[i])}, parameter {i} of {len(gradients.names)}.\n"
    since = one.computing()[i]
    ready = f" at {time(since.end_s)}, {time(since.end_s - since.start_s)} after the one before," if time else ""
    last = gradients.ready_s[i] == one.full_s[k]
    fills = "fills" if last else "goes into"
    return f"{text}Its gradient is ready{ready} as number {one.order.index(i) + 1}, and {fills} bucket {k}."


def _told_bucket(one: Reduction, k: int, time: TimeAxis | None = None) -> str:
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
