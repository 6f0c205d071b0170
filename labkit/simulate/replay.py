"""Replay a run: give each op of a schedule its times from an event table, and say what delayed it.

An op starts when its rank is free and its input has arrived, or a little later. With the end of the
op before it on its rank, and the end of the op on another rank whose output it takes,

    start = max(end of the op before + overhead, end of the input + transfer)

An event table shows only the start. So the one of the two that the op waited for gets the time in
between, and the other is taken to be what it is elsewhere in that stage: :func:`attribute_delays`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from labkit.schedule import EVENT_KINDS, EVENT_NAMES, Dependencies, Op, Schedule, find_dependencies
from labkit.simulate.measures import NUMBER_STEPS, op_rows

_KEY = ["name", "stage", "micro_batch"]
ROUNDING = 1e-9  # of the makespan


@dataclass(frozen=True)
class Replay:
    """Each op of a schedule with its times, in seconds since the first op began.

    Ops are numbered as in ``dependencies``. ``row[i]`` is the row of op i in the event table,
    counted from 0. ``origin_s`` is when the first op began there.
    """

    dependencies: Dependencies
    row: np.ndarray
    start_s: np.ndarray
    end_s: np.ndarray
    origin_s: float

    @property
    def duration_s(self) -> np.ndarray:
        return self.end_s - self.start_s

    @property
    def makespan_s(self) -> float:
        return float(self.end_s.max())


def schedule_from_events(events: pd.DataFrame, what: str) -> Schedule:
    """Return the schedule of an event table: on each rank its ops in order of their start.

    Raises ValueError for a table that is not one step of a pipeline; ``what`` names it.
    """
    ops = _one_step(events, what).sort_values("start_s", kind="stable")
    there = set(ops["rank"])
    if missing := set(range(len(there))) - there:
        raise ValueError(f"{what} has no op on rank {min(missing)}, but on {max(there)}: expected ranks 0, 1, 2, …")
    ranks: list[list[Op]] = [[] for _ in there]
    for rank, op in zip(ops["rank"].tolist(), _ops_of_rows(ops), strict=True):
        ranks[rank].append(op)
    return Schedule(ranks)


def replay_events(schedule: Schedule, events: pd.DataFrame, what: str = "events", of: str = "the schedule") -> Replay:
    """Return ``schedule`` with the times of ``events``, whose other rows do not matter.

    ``what`` and ``of`` name the two. Raises ValueError naming the op where ``events`` is not one
    step of this schedule: an op too few or too many, on another rank, out of order, or begun before
    its rank was free; ScheduleError for a schedule that cannot run.
    """
    dependencies = find_dependencies(schedule)
    ops = _one_step(events, what)
    number = {op: i for i, op in enumerate(dependencies.ops)}
    rows: list[int | None] = [None] * len(number)
    for row, rank, op in zip(ops.index.tolist(), ops["rank"].tolist(), _ops_of_rows(ops), strict=True):
        if (i := number.get(op)) is None:
            raise ValueError(f"{what} has {op}, which is not in {of}: the two do not belong together")
        if rank != (home := dependencies.rank[i]):
            hint = "; if its stages are threads of one process, use by_stage(...)" if ops["rank"].nunique() == 1 else ""
            raise ValueError(f"{what} has {op} on rank {rank}, and {of} has it on rank {home}{hint}")
        rows[i] = row
    if None in rows:
        op = dependencies.ops[rows.index(None)]
        raise ValueError(f"{what} lacks {op}, which is in {of}: give all ops of one step")
    times = ops.loc[np.array(rows), ["start_s", "end_s"]].to_numpy(dtype=float)
    origin = float(times[:, 0].min())
    replay = Replay(dependencies, np.array(rows), times[:, 0] - origin, times[:, 1] - origin, origin)
    _check_order(replay, what, of)
    return replay


def _one_step(events: pd.DataFrame, what: str) -> pd.DataFrame:
    """Return the op rows of ``events``, numbered by their place in it.

    Raises ValueError if an op is there twice.
    """
    ops = op_rows(events.reset_index(drop=True) if isinstance(events, pd.DataFrame) else events, what)
    if (twice := ops.duplicated(_KEY)).any():
        op = _ops_of_rows(ops[twice])[0]
        numbered = "step" in ops and ops["step"].notna().all()
        choose = "choose one, events[events.step == 0]" if numbered else f"{NUMBER_STEPS}, and choose one"
        raise ValueError(f"{what} has {op} twice, expected one step of a pipeline: {choose}")
    return ops


def _ops_of_rows(rows: pd.DataFrame) -> list[Op]:
    columns = (rows[name].tolist() for name in _KEY)
    return [
        Op(EVENT_KINDS[name], int(stage), int(micro_batch)) for name, stage, micro_batch in zip(*columns, strict=True)
    ]


def _check_order(replay: Replay, what: str, of: str) -> None:
    """Raise ValueError unless every rank ran its ops one after the other, in order of its list."""
    ops, rank, previous_op = replay.dependencies.ops, replay.dependencies.rank, replay.dependencies.previous_op
    first = np.array([op for op in previous_op if op is not None], dtype=int)
    then = np.array([i for i, op in enumerate(previous_op) if op is not None], dtype=int)
    for i in np.flatnonzero(replay.start_s[then] < replay.start_s[first]):
        one, other = ops[first[i]], ops[then[i]]
        turned = one.kind == other.kind == "B" and one.micro_batch < other.micro_batch
        hint = "; a Pipe runs the backward passes of a stage from the last micro-batch to the first" if turned else ""
        raise ValueError(f"{what} has {other} before {one} on rank {rank[then[i]]}, and {of} has {one} first{hint}")
    for i in np.flatnonzero(replay.end_s[first] - replay.start_s[then] > ROUNDING * replay.makespan_s):
        one, other = ops[first[i]], ops[then[i]]
        raise ValueError(
            f"{what} has {other} on rank {rank[then[i]]} begin before {one} has ended, expected one op of a rank at a time"
        )


def _end_times(replay: Replay, ops: list[int | None]) -> np.ndarray:
    """Return when each of ``ops`` ended, long ago where there is no op."""
    end_s = replay.end_s.tolist()
    return np.array([-math.inf if op is None else end_s[op] for op in ops])


# --- what each op waited for, and for how long ----------------------------------------------------


@dataclass(frozen=True)
class Delays:
    """For each op its overhead and transfer in seconds, and which op it waited for, if any."""

    overhead_s: np.ndarray
    transfer_s: np.ndarray
    waited_for: list[int | None]


def attribute_delays(replay: Replay) -> Delays:
    """Return what each op waited for, how long it took to start then, and what the other side took.

    An op waited for whichever of the two should have let it start later, judging by typical times:
    transfers per stage and kind of op, overhead per stage. That one gets all the time up to its
    start. The other gets what is typical, but no more than there was, so the formula above gives
    every start again.

    A typical transfer is the median over the ops whose input ended after the op before. Typical
    overhead is the median over those whose input must have been there by the end of the op before.
    If a stage shows no transfer, it is the median over all stages. If it shows no
    overhead, it is 0.
    """
    ops, previous, remote = replay.dependencies.ops, replay.dependencies.previous_op, replay.dependencies.remote_input
    free_s, sent_s = _end_times(replay, previous), _end_times(replay, remote)
    has_previous, has_input = np.isfinite(free_s), np.isfinite(sent_s)
    free_s = np.where(has_previous, free_s, 0.0)  # before its first op a rank is free from the beginning
    since_free, since_sent = replay.start_s - free_s, replay.start_s - sent_s
    stage = np.array([op.stage for op in ops])
    kind = [list(EVENT_NAMES).index(op.kind) for op in ops]
    rounding = ROUNDING * replay.makespan_s
    last = sent_s > free_s + rounding
    transfer = _typical(since_sent, last, len(EVENT_NAMES) * stage + kind, _median(since_sent[last]))
    overhead = _typical(since_free, has_previous & (free_s > sent_s + transfer + rounding), stage, 0.0)
    for_input = (sent_s + transfer > free_s + overhead + rounding) | (~has_previous & has_input)
    of_the_other = np.where(has_input, np.minimum(transfer, since_sent), 0.0)
    return Delays(
        overhead_s=np.where(for_input, np.minimum(overhead, since_free), since_free),
        transfer_s=np.where(for_input, since_sent, of_the_other),
        waited_for=[remote[i] if waited else previous[i] for i, waited in enumerate(for_input.tolist())],
    )


def _typical(seconds: np.ndarray, seen: np.ndarray, group: np.ndarray, unseen: float) -> np.ndarray:
    """Return for each op the median of what is seen in its group, ``unseen`` where that is none."""
    typical = np.full(len(seconds), unseen)
    for of_group in (group == number for number in np.unique(group)):
        if (of_group & seen).any():
            typical[of_group] = _median(seconds[of_group & seen])
    return typical


def _median(seconds: np.ndarray) -> float:
    return float(np.median(seconds)) if len(seconds) else 0.0
