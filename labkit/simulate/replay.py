"""What held each op of a pipeline up: a schedule and an event table of it, laid side by side, op by op.

An op starts when its rank is free and its input has arrived, or a little later. With the end of the op before it on its
rank and the end of its source, the op on another rank whose output it takes,

    start = max(end of the op before + overhead, end of the source + communication)

An event table tells only which start came of it. So of the two the one that the op waited for gets the time between, and
the other is taken to be what it is elsewhere in that stage: :func:`held_up`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from labkit.schedule import EVENT_NAMES, Flow, Op, Schedule, flow
from labkit.simulate.measures import op_rows

KIND_OF = {name: kind for kind, name in EVENT_NAMES.items()}  # an event's name -> the kind of its op
_KEY = ["name", "stage", "micro_batch"]
_ROUNDING = 1e-9  # of the makespan


@dataclass(frozen=True)
class Played:
    """Each op of a schedule with its times, in seconds since the first op began. Ops are numbered as in ``waits``.

    ``row[i]`` is the row of op i in the event table, counted from 0. ``origin_s`` is when the first op began there.
    """

    waits: Flow
    row: np.ndarray
    start: np.ndarray
    end: np.ndarray
    origin_s: float

    @property
    def seconds(self) -> np.ndarray:
        return self.end - self.start


def schedule_of(events: pd.DataFrame, what: str) -> Schedule:
    """The schedule that an event table is of: on each rank its ops in the order in which they started.

    Raises ValueError for a table that is not one step of a pipeline; ``what`` names it.
    """
    ops = _one_step(events, what).sort_values("start_s", kind="stable")
    there = set(ops["rank"])
    if missing := set(range(len(there))) - there:
        raise ValueError(f"{what} has no op on rank {min(missing)}, but on {max(there)}: expected ranks 0, 1, 2, …")
    ranks: list[list[Op]] = [[] for _ in there]
    for rank, op in zip(ops["rank"].tolist(), _ops_of(ops), strict=True):
        ranks[rank].append(op)
    return Schedule(ranks)


def played(schedule: Schedule, events: pd.DataFrame, what: str = "events", of: str = "the schedule") -> Played:
    """``schedule`` with the times of ``events``, whose other rows do not matter. ``what`` and ``of`` name the two.

    Raises ValueError naming the op where ``events`` is not one step of this schedule: an op too few or too many, on
    another rank, out of order, or begun before its rank was free; ScheduleError for a schedule that cannot run.
    """
    waits = flow(schedule)
    ops = _one_step(events, what)
    number = {op: i for i, op in enumerate(waits.ops)}
    row = np.full(len(number), -1)
    for at, rank, op in zip(ops.index.tolist(), ops["rank"].tolist(), _ops_of(ops), strict=True):
        if (i := number.get(op)) is None:
            raise ValueError(f"{what} has {op}, which is not in {of}: the two do not belong together")
        if rank != waits.rank[i]:
            hint = "; if its stages are threads of one process, use by_stage(...)" if ops["rank"].nunique() == 1 else ""
            raise ValueError(f"{what} has {op} on rank {rank}, and {of} has it on rank {waits.rank[i]}{hint}")
        row[i] = at
    if (missing := row < 0).any():
        raise ValueError(f"{what} lacks {waits.ops[int(missing.argmax())]}, which is in {of}: give all ops of one step")
    times = ops.loc[row, ["start_s", "end_s"]].to_numpy(dtype=float)
    origin = float(times[:, 0].min())
    run = Played(waits, row, times[:, 0] - origin, times[:, 1] - origin, origin)
    _check_order(run, what, of)
    return run


def _one_step(events: pd.DataFrame, what: str) -> pd.DataFrame:
    """The op rows of ``events``, numbered by their place in it. Raises ValueError if an op is there twice."""
    ops = op_rows(events.reset_index(drop=True) if isinstance(events, pd.DataFrame) else events, what)
    if (twice := ops.duplicated(_KEY)).any():
        op = _ops_of(ops[twice])[0]
        numbered = "step" in ops and ops["step"].notna().all()
        choose = "choose one, events[events.step == 0]" if numbered else "record each step by itself"
        raise ValueError(f"{what} has {op} twice, expected one step of a pipeline: {choose}")
    return ops


def _ops_of(ops: pd.DataFrame) -> list[Op]:
    columns = (ops[name].tolist() for name in _KEY)
    return [Op(KIND_OF[name], int(stage), int(micro_batch)) for name, stage, micro_batch in zip(*columns, strict=True)]


def _check_order(run: Played, what: str, of: str) -> None:
    """Raises ValueError unless every rank ran its ops one after the other, in the order of its list."""
    ops, before = run.waits.ops, np.array(run.waits.before)
    behind = np.flatnonzero(before >= 0)
    for i in behind[run.start[behind] < run.start[before[behind]]]:
        first, rank = ops[before[i]], run.waits.rank[i]
        turned = first.kind == ops[i].kind == "B" and first.micro_batch < ops[i].micro_batch
        hint = "; a Pipe runs the backward passes of a stage from the last micro-batch to the first" if turned else ""
        raise ValueError(f"{what} has {ops[i]} before {first} on rank {rank}, and {of} has {first} first{hint}")
    overlap = run.end[before[behind]] - run.start[behind]
    for i in behind[overlap > _ROUNDING * run.end.max()]:
        first, rank = ops[before[i]], run.waits.rank[i]
        raise ValueError(
            f"{what} has {ops[i]} on rank {rank} begin before {first} has ended, expected one op of a rank at a time"
        )


# --- what each op waited for, and for how long -----------------------------------------------------------------------


@dataclass(frozen=True)
class HeldUp:
    """For each op ``overhead`` and ``communication`` in seconds, and the number of the op it waited for, or -1."""

    overhead: np.ndarray
    communication: np.ndarray
    waited_for: np.ndarray


def remote_sources(waits: Flow) -> np.ndarray:
    """For each op the number of its source if that is on another rank, else -1: then its rank's order says it all."""
    rank, source = np.array(waits.rank), np.array(waits.source)
    return np.where((source >= 0) & (rank[source] != rank), source, -1)


def held_up(run: Played) -> HeldUp:
    """What each op waited for, how long it then took to start, and how long it would have taken on the other side.

    An op waited for whichever should have let it start later, by what is typical: of communication per stage and kind of
    op, of overhead per stage. That one gets all the time up to its start, and the other what is typical, but no more than
    there was, so the formula above gives every start again. Typical communication is the median over the ops whose source
    ended after the op before, typical overhead over those whose input must have been there by the end of the op before.
    Where a stage shows none of the first, it is that of all stages, and where it shows none of the second, it is nothing.
    """
    source, before = remote_sources(run.waits), np.array(run.waits.before)
    free = np.append(run.end, 0.0)[before]  # before its first op a rank is free from the beginning
    left = np.append(run.end, -np.inf)[source]
    since_free, since_left = run.start - free, run.start - left
    stage = np.array([op.stage for op in run.waits.ops])
    kind = [list(EVENT_NAMES).index(op.kind) for op in run.waits.ops]
    rounding = _ROUNDING * float(run.end.max())
    last = left > free + rounding
    communication = _typical(since_left, last, len(EVENT_NAMES) * stage + kind, _median(since_left[last]))
    overhead = _typical(since_free, (before >= 0) & (free > left + communication + rounding), stage, 0.0)
    for_input = (left + communication > free + overhead + rounding) | ((before < 0) & (source >= 0))
    on_the_other_side = np.where(source < 0, 0.0, np.minimum(communication, since_left))
    return HeldUp(
        overhead=np.where(for_input, np.minimum(overhead, since_free), since_free),
        communication=np.where(for_input, since_left, on_the_other_side),
        waited_for=np.where(for_input, source, before),
    )


def _typical(seconds: np.ndarray, seen: np.ndarray, group: np.ndarray, unseen: float) -> np.ndarray:
    """For each op the median of what is seen in its group, or ``unseen`` where that is nothing."""
    typical = np.full(len(seconds), unseen)
    for of_group in (group == number for number in np.unique(group)):
        if (of_group & seen).any():
            typical[of_group] = _median(seconds[of_group & seen])
    return typical


def _median(seconds: np.ndarray) -> float:
    return float(np.median(seconds)) if len(seconds) else 0.0
