"""Find where the time went that a data-parallel step took longer than it should: in four parts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import pandas as pd

from labkit.base.formats import fact
from labkit.simulate.measures import check_events, measured_like

PARTS = ("compute", "waiting", "communication", "host")
COMPUTED = ("forward", "backward", "optimizer")
_WAIT = "wait"  # a span around what a rank waits for: no work of its own

Collective = tuple[str, int]  # its name, and how many of that name came before it in the step


def explain_step(predicted: pd.DataFrame, measured: pd.DataFrame, steps: Iterable[int] | None = None) -> pd.DataFrame:
    """Return why a data-parallel step took longer than predicted: parts that add up.

    Every instant of a rank's step is in one part, the first of these that holds:

    =============  =================================================================================
    host           a span of the lane host is open: a call, a gradient copied into its bucket
    compute        a span of the lane compute is open, such as forward, backward and optimizer
    communication  a collective is on its way that the last rank has joined, and nobody computes
    waiting        one is on its way that another rank has not joined yet, and nobody computes
    host           none of these: between two spans
    =============  =================================================================================

    So communication that hides behind compute is in no part of its own. The k-th collective of a
    name in a step is the same one on all ranks, and all have joined when the last rank's span of it
    begins. A span named ``wait`` is not compute: what happens in it counts.

    Both are event tables. ``measured`` may hold several ranks, and several steps by number, of
    which ``steps`` chooses some; what has no number, such as a bucket on its way, belongs to the
    step in whose time it begins. Numbers are means over ranks and steps, seconds. The order of the
    parts matters only where two hold at once: there time is compute before it is communication.

    Columns: part, predicted_s, measured_s, difference_s; the differences add up to that of the
    steps' durations, from the first span's start to the last one's end. It prints as measured where
    ``measured`` does, and carries its ``.attrs``.

    Raises TypeError for anything but a table, and ValueError for an empty one, for steps that are
    not there, for ranks whose steps or collectives differ, where forward, backward or optimizer is
    in one table alone, and where ``predicted`` communicates and ``measured`` does not say so:
    torch's DDP sends inside backward and records nothing.
    """
    ideal, happened = _steps(predicted, "predicted"), _steps(measured, "measured", steps)
    _check_same_names(ideal, happened)
    was, became = (np.mean(_parts(found), axis=0) for found in (ideal, happened))
    columns = {"predicted_s": was, "measured_s": became, "difference_s": became - was}
    table = pd.DataFrame({"part": list(PARTS)} | columns)
    return measured_like(measured, table)


def explain_turns(explained: Iterable[pd.DataFrame]) -> pd.DataFrame:
    """Return the mean of several turns' :func:`explain_step`, and the ends of their differences.

    Columns: those of explain_step, and low and high, the least and the greatest difference_s.
    """
    tables = list(explained)
    of_part = pd.concat(tables).groupby("part", sort=False)
    table = of_part[["predicted_s", "measured_s", "difference_s"]].mean()
    ends = {"low": of_part["difference_s"].min(), "high": of_part["difference_s"].max()}
    return measured_like(tables[0], table.assign(**ends).reset_index())


def largest_difference(table: pd.DataFrame) -> str:
    """Say which part of :func:`explain_step`'s table explains most of the difference, as a fact.

    Such as ``9.1 ms longer than predicted; most by waiting, 4.2 ms longer``. Where the table has
    low and high, as :func:`explain_turns` makes it, a part is named only if it has the same sign in
    all turns.
    """
    total = table["difference_s"].sum()
    signed = table["difference_s"] * (1 if total >= 0 else -1)
    if "low" in table:
        signed = signed.where(table["low"] * table["high"] > 0, -math.inf)
    largest = int(signed.to_numpy().argmax())
    change = "longer" if total >= 0 else "shorter"
    part, ms, all_ms = table["part"].iloc[largest], 1000 * signed.iloc[largest], 1000 * abs(total)
    most = f"most by {part}, {ms:.1f} ms {change}" if ms > 0 else "no part alike in all turns"
    return fact(f"{all_ms:.1f} ms {change} than predicted; {most}", width=65)


# --- an event table as steps ----------------------------------------------------------------------


class _Spans(NamedTuple):
    """Spans of a rank: each has a lane, a name, a start and an end."""

    lane: np.ndarray
    name: np.ndarray
    start_s: np.ndarray
    end_s: np.ndarray

    @classmethod
    def of(cls, events: pd.DataFrame) -> _Spans:
        times = (events[name].to_numpy(dtype=float) for name in ("start_s", "end_s"))
        return cls(events["lane"].to_numpy(), events["name"].to_numpy(), *times)

    def where(self, chosen: np.ndarray) -> _Spans:
        return _Spans(*(values[chosen] for values in self))

    def cover(self, times_s: np.ndarray) -> np.ndarray:
        """Return for each stretch from one of ``times_s`` to the next whether a span is open."""
        inside = (self.start_s[:, None] <= times_s[:-1]) & (times_s[1:] <= self.end_s[:, None])
        return np.asarray(inside.any(axis=0))


class _RankStep(NamedTuple):
    """A step of a rank, with all its spans in order of their start."""

    rank: int
    number: int
    spans: _Spans

    def __str__(self) -> str:
        return f"in step {self.number} of rank {self.rank}"


def _steps(events: pd.DataFrame, what: str, chosen: Iterable[int] | None = None) -> list[_RankStep]:
    """Return each rank's steps. Raises as explain_step does; ``what`` names the table."""
    events = check_events(events, what, ["rank", "lane", "name", "step", "start_s", "end_s"])
    events = events.iloc[np.argsort(events["start_s"].to_numpy(dtype=float), kind="stable")]
    rank, number = (events[name].to_numpy(dtype=float, na_value=np.nan) for name in ("rank", "step"))
    if np.isnan(number).all() and chosen is None:
        number = np.zeros(len(events))  # all of it is one step
    there = {int(each) for each in number if not np.isnan(each)}
    wanted = sorted(there if chosen is None else set(chosen))
    if not wanted or (missing := set(wanted) - there):
        which = f"no step {min(missing)}" if wanted else "no step: steps is empty"
        raise ValueError(f"{what} has {which}, expected some of its steps, {', '.join(map(str, sorted(there)))}")
    spans = _Spans.of(events)
    ranks = sorted({int(each) for each in rank})
    return [
        _RankStep(each, step, _in_step(spans, rank == each, number, step, what)) for step in wanted for each in ranks
    ]


def _in_step(spans: _Spans, of_rank: np.ndarray, number: np.ndarray, step: int, what: str) -> _Spans:
    """Return a rank's spans of that number, and those without one that begin meanwhile.

    These are cut where the step ends.
    """
    own = of_rank & (number == step)
    if not own.any():
        raise ValueError(f"{what} has step {step} on some ranks only, expected the same steps on all")
    begin_s, end_s = spans.start_s[own].min(), spans.end_s[own].max()
    meanwhile = of_rank & np.isnan(number) & (begin_s <= spans.start_s) & (spans.start_s <= end_s)
    found = spans.where(own | meanwhile)
    return found._replace(end_s=np.minimum(found.end_s, end_s))


def _check_same_names(predicted: list[_RankStep], measured: list[_RankStep]) -> None:
    names = {*COMPUTED} & {name for step in predicted for name in step.spans.name}
    if not names:
        raise ValueError(
            f"predicted has no span named {', '.join(COMPUTED)}, expected a step, such as ddp_step returns"
        )
    communicates = any("comm" in step.spans.lane for step in predicted)
    for step in measured:
        if differing := names ^ ({*COMPUTED} & {*step.spans.name}):
            name = min(differing)
            lacks, has = ("measured", "predicted") if name in names else ("predicted", "measured")
            raise ValueError(
                f"{lacks} has no span named {name}, which {has} has {step}: expected it in both or in none"
            )
        if communicates and "comm" not in step.spans.lane:
            raise ValueError(
                f"measured has no span in the lane comm {step}, and predicted has. torch's DDP sends inside backward and "
                "tells nobody: train with BucketedDataParallel, or put a span around what you send"
            )


# --- a step as parts ------------------------------------------------------------------------------


def _parts(steps: list[_RankStep]) -> list[list[float]]:
    """Return the seconds of each of PARTS, of each rank's steps."""
    joined_s = _all_joined_s(steps)
    return [_parts_of_step(step.spans, joined_s[step.number]) for step in steps]


def _collectives(sent: _Spans) -> list[Collective]:
    """Number spans of the lane comm by name: the k-th of a name is the same one on all ranks."""
    seen: Counter[str] = Counter()
    numbered = []
    for name in sent.name:
        numbered.append((name, seen[name]))
        seen[name] += 1
    return numbered


def _all_joined_s(steps: list[_RankStep]) -> dict[int, dict[Collective, float]]:
    """Return for each step's number when the last rank joined each of its collectives."""
    joined_s: dict[int, dict[Collective, float]] = {}
    for step in steps:
        sent = step.spans.where(step.spans.lane == "comm")
        own = dict(zip(_collectives(sent), sent.start_s.tolist(), strict=True))
        others = joined_s.setdefault(step.number, own)
        if differing := own.keys() ^ others.keys():
            name = min(differing)[0]
            counts = [sum(each == name for each, _ in found) for found in (own, others)]
            raise ValueError(
                f"{counts[0]} spans named {name} {step} and {counts[1]} on another rank, expected as many on all: each rank "
                "joins every collective"
            )
        joined_s[step.number] = {each: max(start_s, others[each]) for each, start_s in own.items()}
    return joined_s


def _parts_of_step(spans: _Spans, joined_s: dict[Collective, float]) -> list[float]:
    sent = spans.where(spans.lane == "comm")
    open_spans = {
        "host": spans.where(spans.lane == "host"),
        "compute": spans.where((spans.lane == "compute") & (spans.name != _WAIT)),
        "communication": sent._replace(start_s=np.array([joined_s[each] for each in _collectives(sent)])),
        "waiting": sent,
    }
    # Between two of these times nothing begins or ends. The last rank may join after the step.
    begin_s, end_s = spans.start_s.min(), spans.end_s.max()
    times = np.unique(np.concatenate([spans.start_s, spans.end_s, open_spans["communication"].start_s]))
    times = times[(begin_s <= times) & (times <= end_s)]
    part = np.full(len(times) - 1, "host", dtype=object)
    for name in reversed(open_spans):
        part[open_spans[name].cover(times)] = name
    return [float(np.diff(times)[part == name].sum()) for name in PARTS]
