"""Find where the time went that a data-parallel step took longer than it should: in four parts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from labkit.base.formats import MeasuredTable, fact
from labkit.simulate.measures import check_events

PARTS = ("compute", "waiting", "communication", "host")
COMPUTED = ("forward", "backward", "optimizer")
_WAIT = "wait"  # a span around what a rank waits for: no work of its own

Step = tuple[int, int]  # a rank, and the number of its step


def explain_step(predicted: pd.DataFrame, measured: pd.DataFrame, steps: Iterable[int] | None = None) -> pd.DataFrame:
    """Return why a data-parallel step took longer than predicted: parts that add up.

    Every instant of a rank's step is in one part, the first of these that holds:

    =============  =================================================================================
    host           a span of the lane host is open: a call, a gradient copied into its bucket
    compute        a span of the lane compute is open, such as forward, backward and optimizer
    communication  a collective is on its way that the last rank has joined, and nobody computes
    waiting        one is on its way that another rank has not joined yet, and nobody computes
    host           none of these, between two spans: Python, threads that wake up
    =============  =================================================================================

    So communication that hides behind compute is in no part of its own. The k-th collective of a
    name in a step is the same one on all ranks, and all have joined when the last rank's span of it
    begins. A span named ``wait`` is not compute: what happens in it counts.

    Both are event tables. ``measured`` may hold several ranks, and several steps by number, of which
    ``steps`` chooses some; what has no number, such as a bucket on its way, belongs to the step in
    whose time it begins. Numbers are means over ranks and steps, seconds. The order of the parts
    matters only where two hold at once: there time is compute before it is communication.

    Columns: part, predicted_s, measured_s, difference_s; the differences add up to that of the
    steps' durations, from the first span's start to the last one's end. It prints as measured where
    ``measured`` does, and carries its ``.attrs``.

    Raises TypeError for what is no table, and ValueError for an empty one, for steps that are not
    there, for ranks whose steps or collectives differ, where forward, backward or optimizer is in
    one table alone, and where ``predicted`` communicates and ``measured`` does not say so: torch's
    DDP sends inside backward and records nothing.
    """
    ideal, happened = _steps(predicted, "predicted"), _steps(measured, "measured", steps)
    _check_same_names(ideal, happened)
    was, became = (np.mean(_parts(found), axis=0) for found in (ideal, happened))
    columns = {"predicted_s": was, "measured_s": became, "difference_s": became - was}
    table = pd.DataFrame({"part": list(PARTS)} | columns)
    result = MeasuredTable(table) if isinstance(measured, MeasuredTable) else table
    result.attrs = dict(measured.attrs)
    return result


def largest_difference(table: pd.DataFrame) -> str:
    """Return which part of :func:`explain_step`'s table explains most: ``4.2 of 9.1 ms: waiting``.

    It is a fact of the run, so it prints as one, in ``[~ ]``.
    """
    total = table["difference_s"].sum()
    signed = table["difference_s"] * (1 if total >= 0 else -1)
    largest = signed.idxmax()
    change = "longer" if total >= 0 else "shorter"
    part, ms, all_ms = table["part"][largest], 1000 * signed[largest], 1000 * abs(total)
    return fact(f"{all_ms:.1f} ms {change} than predicted, {ms:.1f} ms of it {part}", width=55)


# --- an event table as steps ----------------------------------------------------------------------


def _steps(events: pd.DataFrame, what: str, chosen: Iterable[int] | None = None) -> dict[Step, pd.DataFrame]:
    """Return each rank's steps, their spans cut at the step's end. Raises as explain_step does."""
    columns = ["rank", "lane", "name", "step", "start_s", "end_s"]
    events = pd.DataFrame(check_events(events, what, columns))[columns]
    numbers = events["step"].dropna().unique()
    wanted = sorted(numbers) if chosen is None else sorted(set(chosen))
    if not wanted:
        if chosen is not None:
            raise ValueError(f"steps is empty, expected numbers of steps of {what}")
        events, wanted = events.assign(step=0), [0]
    if missing := set(wanted) - {0, *numbers}:
        raise ValueError(f"{what} has no step {min(missing)}, expected one of {', '.join(map(str, sorted(numbers)))}")
    found: dict[Step, pd.DataFrame] = {}
    for rank, of_rank in events.groupby("rank"):
        for number in wanted:
            own = of_rank[(of_rank["step"] == number).fillna(False).to_numpy(dtype=bool)]
            if own.empty:
                raise ValueError(f"{what} has no step {number} on rank {rank}, expected the same steps on all ranks")
            begin_s, end_s = own["start_s"].min(), own["end_s"].max()
            without = of_rank[of_rank["step"].isna().to_numpy() & of_rank["start_s"].between(begin_s, end_s).to_numpy()]
            found[rank, number] = pd.concat([own, without.assign(end_s=without["end_s"].clip(upper=end_s))])
    return found


def _check_same_names(predicted: dict[Step, pd.DataFrame], measured: dict[Step, pd.DataFrame]) -> None:
    names = {name for name in COMPUTED for step in predicted.values() if (step["name"] == name).any()}
    if not names:
        raise ValueError(f"predicted has no span named {', '.join(COMPUTED)}, expected a step, such as ddp_step gives it")
    communicates = any((step["lane"] == "comm").any() for step in predicted.values())
    for (rank, number), step in measured.items():
        where = f"in step {number} of rank {rank}"
        if differing := names ^ ({*COMPUTED} & {*step["name"]}):
            name = min(differing)
            one, other = ("measured", "predicted") if name in names else ("predicted", "measured")
            raise ValueError(f"{one} has no span named {name}, which {other} has {where}: expected it in both or in none")
        if communicates and not (step["lane"] == "comm").any():
            raise ValueError(
                f"measured has no span in the lane comm {where}, and predicted has. torch's DDP sends inside backward and "
                "tells nobody: train with BucketedDataParallel, or put a span around what you send"
            )


# --- a step as parts ------------------------------------------------------------------------------


def _parts(steps: dict[Step, pd.DataFrame]) -> list[list[float]]:
    """Return the seconds of each of PARTS, of each rank's steps."""
    joined_s = _all_joined_s(steps)
    return [_parts_of_step(events, joined_s[number]) for (_, number), events in steps.items()]


class _Spans(NamedTuple):
    start_s: np.ndarray
    end_s: np.ndarray

    def cover(self, times_s: np.ndarray) -> np.ndarray:
        """Tell of each stretch from one of ``times_s`` to the next whether a span is open in it."""
        inside = (self.start_s[:, None] <= times_s[:-1]) & (times_s[1:] <= self.end_s[:, None])
        return inside.any(axis=0)


def _spans(events: pd.DataFrame) -> _Spans:
    return _Spans(*(events[name].to_numpy(dtype=float) for name in ("start_s", "end_s")))


def _collectives(events: pd.DataFrame) -> pd.DataFrame:
    """Return the spans of the lane comm, numbered by name: the k-th is the same one on all ranks."""
    sent = events[(events["lane"] == "comm").to_numpy()].sort_values("start_s", kind="stable")
    return sent.assign(number=sent.groupby("name").cumcount())


def _all_joined_s(steps: dict[Step, pd.DataFrame]) -> dict[int, pd.Series]:
    """Return for each step when the last rank joined each of its collectives, by name and number."""
    joined_s: dict[int, pd.Series] = {}
    for (rank, number), events in steps.items():
        own = _collectives(events).set_index(["name", "number"])["start_s"]
        others = joined_s.setdefault(number, own)
        if differing := set(own.index) ^ set(others.index):
            name = min(differing)[0]
            counts = [int((each.index.get_level_values("name") == name).sum()) for each in (own, others)]
            raise ValueError(
                f"step {number} has {counts[0]} spans named {name} on rank {rank} and {counts[1]} on another, expected as "
                "many on all ranks: each joins every collective"
            )
        joined_s[number] = np.maximum(own, others.reindex(own.index))
    return joined_s


def _parts_of_step(events: pd.DataFrame, joined_s: pd.Series) -> list[float]:
    sent = _collectives(events)
    on_the_way = sent.assign(start_s=joined_s.reindex(sent.set_index(["name", "number"]).index).to_numpy(dtype=float))
    computing = events[(events["lane"] == "compute").to_numpy() & (events["name"] != _WAIT).to_numpy()]
    spans = {
        "host": _spans(events[(events["lane"] == "host").to_numpy()]),
        "compute": _spans(computing),
        "communication": _spans(on_the_way),
        "waiting": _spans(sent),
    }
    # Stretches between which nothing begins or ends; a rank that joins too late ends no span earlier.
    begin_s, end_s = events["start_s"].min(), events["end_s"].max()
    times = np.unique(np.concatenate([times for each in spans.values() for times in each] + [[begin_s, end_s]]))
    times = times[(begin_s <= times) & (times <= end_s)]
    part = np.full(len(times) - 1, "host", dtype=object)
    for name in reversed(spans):
        part[spans[name].cover(times)] = name
    seconds: dict[Any, float] = dict(pd.Series(np.diff(times)).groupby(part).sum())
    return [seconds.get(name, 0.0) for name in PARTS]
