"""Say what the bars of an event table are: what each needs, who waits for it, why it is late."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from labkit.base.texts import listed
from labkit.draw.layout import RANK, TimeAxis, row_word
from labkit.schedule import EVENT_KINDS, Op, Schedule
from labkit.simulate.idle import IdleReasons, critical_ops
from labkit.simulate.replay import Replay, replay_events, schedule_from_events

_MOST_NAMED = 6  # ops and ranks in one line of narration
_PASSES = {"F": "forward pass", "B": "backward pass", "I": "input gradient", "W": "weight gradient"}


@dataclass(frozen=True)
class ReplayedRun:
    """One run of a pipeline: op i of the replay is row ``row[i]`` of its table."""

    replay: Replay
    reasons: IdleReasons

    @classmethod
    def of(cls, replay: Replay, time: TimeAxis) -> ReplayedRun:
        """Return the run of ``replay``, whose sentences write times as the axis does."""
        return cls(replay, IdleReasons.of(replay, time))

    @cached_property
    def op_of_row(self) -> dict[int, int]:
        return {int(row): op for op, row in enumerate(self.replay.row)}

    @cached_property
    def takers(self) -> dict[int, list[int]]:
        """By op: the ops that take its output."""
        takers: dict[int, list[int]] = {}
        for op, needed in enumerate(self.replay.dependencies.input_op):
            if needed is not None:
                takers.setdefault(needed, []).append(op)
        return takers


def replayed_run(events: pd.DataFrame, schedule: Schedule | None, what: str, time: TimeAxis) -> ReplayedRun | None:
    """Return the run that the table is one step of; None where it is none, unless asked for."""
    what = what or "events"
    try:
        replay = replay_events(schedule or schedule_from_events(events, what), events, what)
    except ValueError:
        if schedule is not None:
            raise
        return None
    return ReplayedRun.of(replay, time)


class EventExplainer:
    """Says what the bars of a panel are; bars are numbered table after table."""

    def __init__(self, tables: Mapping[str, pd.DataFrame], runs: Sequence[ReplayedRun | None], time: TimeAxis):
        self.names, self.tables, self.time = list(tables), list(tables.values()), time
        self.row = row_word(*self.tables)
        self.firsts = np.cumsum([0, *map(len, self.tables)])
        self.runs = runs

    @property
    def needs(self) -> np.ndarray:
        """For each bar the one whose output it takes, -1 without one."""
        needs = np.full(self.firsts[-1], -1, dtype="int32")
        for run, first in zip(self.runs, self.firsts, strict=False):
            if run:
                row = run.replay.row
                for op, needed in enumerate(run.replay.dependencies.input_op):
                    if needed is not None:
                        needs[first + row[op]] = first + row[needed]
        return needs

    @property
    def critical(self) -> np.ndarray:
        """The bars on the critical path: of what was measured, where both are there."""
        run, first = self.runs[-1], self.firsts[-2]
        if not run:
            return np.zeros(0, dtype="int32")
        return (first + run.replay.row[critical_ops(run.replay, run.reasons.waited_for)]).astype("int32")

    def explain(self, bar: int) -> str:
        table = int(np.searchsorted(self.firsts, bar, side="right")) - 1
        row = bar - int(self.firsts[table])
        run = self.runs[table]
        if run and row in run.op_of_row:
            lines = self._op_lines(run, run.op_of_row[row])
        else:
            lines = _span_lines(self.tables[table].iloc[row], self.time)
        if self.names[table]:
            lines[0] += f", {self.names[table]}"
        if self.names[table] == "measured" and run and self.runs[0] and row in run.op_of_row:
            lines.append(self._against_ideal(self.runs[0].replay, run.replay, run.op_of_row[row]))
        return self._with_rows_named("\n".join(lines))

    def narrate(self, x: float) -> str:
        """Return one line on the time x: what begins and what goes on, and why ranks are idle."""
        said, near = [], 1e-9 * max(1.0, abs(x))
        for table, name in zip(self.tables, self.names, strict=True):
            start, end = table["start_s"].to_numpy(), table["end_s"].to_numpy()
            for verb, chosen in (("begin", abs(start - x) <= near), ("go on", (start < x - near) & (end > x + near))):
                if who := [f"{_short(row)} on rank {row.rank}" for row in table[chosen].itertuples()]:
                    said.append(f"{name}: " * bool(name) + f"{_listed(who)} {_agree(verb, len(who))}")
        return self._with_rows_named(f"{self.time(x)}: {'; '.join([*said, *self._idle_ranks(x)]) or 'all has ended'}.")

    def _with_rows_named(self, text: str) -> str:
        """Return a text on ranks with what they are here: stages, where those are threads."""
        if self.row == RANK:
            return text
        text = re.sub(rf", {self.row} \d+$", "", text, flags=re.MULTILINE)  # its row says it
        return re.sub(r"\brank", self.row, re.sub(r"\bRank", self.row.capitalize(), text))

    def _idle_ranks(self, x: float) -> list[str]:
        run = self.runs[-1]
        replay = run.replay if run else None
        if not run or not replay or not replay.origin_s <= x <= replay.origin_s + replay.makespan_s:
            return []
        idle: dict[str, list[str]] = {}
        for rank in range(1 + replay.dependencies.rank[-1]):
            why = run.reasons.at(rank, x)
            if why.code == "busy":
                continue
            reason = {"done": "idle: done", "overhead": f"idle, could begin {why.op}"}
            idle.setdefault(reason.get(why.code, f"idle, waiting for {why.waits_for}"), []).append(str(rank))
        return [f"{'rank' if len(who) == 1 else 'ranks'} {_listed(who)} {why}" for why, who in idle.items()]

    def _op_lines(self, run: ReplayedRun, number: int) -> list[str]:
        replay, dependencies = run.replay, run.replay.dependencies
        op, rank = dependencies.ops[number], dependencies.rank[number]
        start, end = (float(times[number]) + replay.origin_s for times in (replay.start_s, replay.end_s))
        lines = [
            f"{op}: {_PASSES[op.kind]} of micro-batch {op.micro_batch}, stage {op.stage}",
            f"Rank {rank}, {self.time(start)} to {self.time(end)}: {self.time(end - start)}.",
            self._needs_line(run, number),
        ]
        takers = [self._named(replay, taker, rank) for taker in run.takers.get(number, [])]
        lines.append(
            f"{_listed(takers)} {'waits' if len(takers) == 1 else 'wait'} for it."
            if takers
            else "Nothing waits for it."
        )
        lines.append(self._lateness(run, number))
        return lines

    def _needs_line(self, run: ReplayedRun, number: int) -> str:
        replay = run.replay
        needed = replay.dependencies.input_op[number]
        if needed is None:
            return "It needs nothing but the batch."
        op, other = replay.dependencies.ops[number], replay.dependencies.ops[needed]
        there = self.time(float(replay.end_s[needed]) + replay.origin_s)
        what = {"FF": "the activation of", "FB": "the loss of", "FI": "the loss of", "IW": "what is left over from"}
        of = what.get(other.kind + op.kind, "the gradient of")
        return f"It needs {of} {self._named(replay, needed, replay.dependencies.rank[number])}, which ended at {there}."

    def _named(self, replay: Replay, number: int, rank: int) -> str:
        op, home = replay.dependencies.ops[number], replay.dependencies.rank[number]
        return str(op) if home == rank else f"{op} on rank {home}"

    def _lateness(self, run: ReplayedRun, number: int) -> str:
        replay = run.replay
        previous = replay.dependencies.previous_op[number]
        free = float(replay.end_s[previous]) if previous is not None else 0.0
        idle = float(replay.start_s[number]) - free
        rank = replay.dependencies.rank[number]
        if idle <= 1e-9 * replay.makespan_s:
            return f"It began as soon as rank {rank} was free."
        why = run.reasons.at(rank, replay.origin_s + free + idle / 2)
        return f"Rank {rank} was idle for {self.time(idle)} before it: {why.sentence}."

    def _against_ideal(self, ideal: Replay, measured: Replay, number: int) -> str:
        began = float(measured.start_s[number] - ideal.start_s[number])
        took = float(measured.duration_s[number] - ideal.duration_s[number])
        return (
            f"It began {self.time(abs(began))} {'later' if began >= 0 else 'earlier'} than predicted and took "
            f"{self.time(abs(took))} {'longer' if took >= 0 else 'less'}."
        )


def _span_lines(span: pd.Series, time: TimeAxis) -> list[str]:
    """Return what a span is that is no op of a pipeline: a collective, a send, the optimizer."""
    labels = [
        f"{name.replace('_', '-')} {span[name]}" for name in ("stage", "micro_batch", "bucket") if pd.notna(span[name])
    ]
    size = [f"{span['bytes'] / 2**20:.3g} MiB"] if pd.notna(span["bytes"]) else []
    start, end = float(span["start_s"]), float(span["end_s"])
    where = f"Rank {span['rank']}, lane {span['lane']}, {time(start)} to {time(end)}: {time(end - start)}."
    return [", ".join([str(span["name"]).replace("_", " "), *labels, *size]), where]


def _short(row: Any) -> str:
    """Return how a row of an event table is named in a line: its op, or its name and number."""
    if row.name in EVENT_KINDS and pd.notna(row.stage) and pd.notna(row.micro_batch):
        return str(Op(EVENT_KINDS[row.name], int(row.stage), int(row.micro_batch)))
    number = next((f" {int(value)}" for value in (row.bucket, row.micro_batch) if pd.notna(value)), "")
    return f"{row.name.replace('_', ' ')}{number}"


def _agree(verb: str, count: int) -> str:
    return verb if count > 1 else {"begin": "begins", "go on": "goes on"}[verb]


def _listed(words: Sequence[str]) -> str:
    """Return "a", "a and b", "a, b and c", or the first of many and how many more."""
    if len(words) > _MOST_NAMED:
        return f"{', '.join(words[: _MOST_NAMED - 1])} and {len(words) - _MOST_NAMED + 1} more"
    return listed(words)
