"""Explain the bars of event tables: what each needs, who waits for it, why it is late."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from labkit.base.texts import listed
from labkit.draw.layout import RANK, TimeAxis
from labkit.draw.palette import words_of
from labkit.schedule import EVENT_KINDS, Op, Schedule
from labkit.simulate.idle import IdleReasons, critical_ops
from labkit.simulate.replay import Replay, replay_events, schedule_from_events

_MAX_NAMED = 6  # ops and ranks in one line of narration
_PASSES = {"F": "forward pass", "B": "backward pass", "I": "input gradient", "W": "weight gradient"}
# what an op of the second kind takes from one of the first
_OUTPUTS = {"FF": "the activation of", "FB": "the loss of", "FI": "the loss of", "IW": "what is left over from"}


@dataclass(frozen=True)
class ReplayedRun(IdleReasons):
    """One run of a pipeline: besides why its ranks are idle, each of its ops can be explained."""

    @cached_property
    def takers(self) -> dict[int, list[int]]:
        """By op: the ops that take its output."""
        takers = defaultdict(list)
        for op, needed in enumerate(self.replay.dependencies.input_op):
            if needed is not None:
                takers[needed].append(op)
        return takers

    def lines(self, number: int) -> list[str]:
        """Return what op ``number`` is, what it needs, who waits for it, and why it is late."""
        op, rank = self._op(number), self.replay.dependencies.rank[number]
        took = _with_unit(self.as_text(float(self.replay.duration_s[number])))
        stage = f", stage {op.stage}" if self.row == RANK else ""  # else its row says it
        takers = [self._named(taker, rank) for taker in self.takers.get(number, [])]
        waits = f"{_listed(takers)} {'waits' if len(takers) == 1 else 'wait'} for it."
        return [
            f"{op}: {_PASSES[op.kind]} of micro-batch {op.micro_batch}{stage}",
            f"{self.row.capitalize()} {rank}, {self._begins(number)} to {self._ends(number)}: takes {took}.",
            self._input(number),
            waits if takers else "Nothing waits for it.",
            self._lateness(number),
        ]

    def _input(self, number: int) -> str:
        dependencies = self.replay.dependencies
        if (needed := dependencies.input_op[number]) is None:
            return "It needs nothing but the batch."
        named = self._named(needed, dependencies.rank[number])
        return f"It needs {self._what(needed, number)} {named}, which ended at {self._ends(needed)}."

    def _what(self, needed: int, taker: int) -> str:
        return _OUTPUTS.get(self._op(needed).kind + self._op(taker).kind, "the gradient of")

    def _lateness(self, number: int) -> str:
        rank, previous = self.replay.dependencies.rank[number], self.replay.dependencies.previous_op[number]
        free = 0.0 if previous is None else float(self.replay.end_s[previous])
        idle = float(self.replay.start_s[number]) - free
        if idle <= self._rounding:
            return f"It began as soon as {self.row} {rank} was free."
        why = self.at(rank, self.replay.origin_s + free + idle / 2)
        return f"{self.row.capitalize()} {rank} was idle for {_with_unit(self.as_text(idle))} before it: {why}."

    def idle_line(self, rank: int, left: float, right: float) -> str:
        """Return what ``rank`` waits for between two times of the table, and what runs there."""
        left, middle = left - self.replay.origin_s, (left + right) / 2 - self.replay.origin_s
        code, op, _ = self._state(rank, middle)
        (chain, hops_s, overhead_s), needed = self._waiting(op, left), self.waited_for[op]
        if code in ("busy", "done") or needed is None or not (chain or hops_s):
            last = int(self.replay.end_s.argmax())
            ends = f" The step ends at {self._ends(last)}, with {self._named(last, rank)}." if code == "done" else ""
            return _sentence(self._explain(rank, middle).sentence) + ends
        runs = [f"{self._named(one, rank)} until {self._ends(one)}" for one in chain]
        if len(runs) > _MAX_NAMED:
            runs[2:-3] = [f"{len(runs) - 5} more ops"]
        waits = f"To begin {self._op(op)} it waits for {self._what(needed, op)} {self._op(needed)}"
        waits += ": " if runs else f", which is under way until {self._begins(op)}"
        parts = {"Hops take": hops_s, "Overhead takes": overhead_s}
        lost = (f" {name} {self.as_text(time)} of that." for name, time in parts.items() if time > self._rounding)
        return f"{waits}{', then '.join(runs)}.{''.join(lost if runs else ())}"

    def _waiting(self, op: int, since_s: float) -> tuple[list[int], float, float]:
        """Return what ends after ``since_s`` and before ``op`` can begin, and hops and overhead."""
        start_s, end_s, rank = self.replay.start_s, self.replay.end_s, self.replay.dependencies.rank
        chain, lost_s, later = list[int](), {True: 0.0, False: 0.0}, op
        while start_s[later] > since_s:
            if (needed := self.waited_for[later]) is None:
                lost_s[False] += start_s[later] - since_s
                break
            lost_s[rank[needed] != rank[later]] += start_s[later] - max(since_s, end_s[needed])
            if end_s[needed] > since_s:
                chain.insert(0, needed)
            later = needed
        return chain, lost_s[True], lost_s[False]

    def against(self, ideal: Replay, number: int) -> str:
        """Return how far op ``number`` is from what was predicted."""
        began = float(self.replay.start_s[number] - ideal.start_s[number])
        took = float(self.replay.duration_s[number] - ideal.duration_s[number])
        return (
            f"It began {self.as_text(abs(began))} {'later' if began >= 0 else 'earlier'} than predicted and took "
            f"{self.as_text(abs(took))} {'longer' if took >= 0 else 'less'}."
        )

    def idle_ranks(self, x: float) -> list[str]:
        """Return which ranks are idle at ``x``, and why; none outside of the run."""
        if not self.replay.origin_s <= x <= self.replay.origin_s + self.replay.makespan_s:
            return []
        idle = defaultdict(list)
        for rank in range(1 + self.replay.dependencies.rank[-1]):
            why = self.at(rank, x)
            words = {"done": "idle: done", "overhead": f"idle, could begin {why.op}"}
            if why.code != "busy":
                idle[words.get(why.code, f"idle, waiting for {why.waits_for}")].append(str(rank))
        return [f"{self.row}{'s' * (len(who) > 1)} {_listed(who)} {why}" for why, who in idle.items()]

    @property
    def _rounding(self) -> float:
        return 1e-9 * self.replay.makespan_s

    def _named(self, number: int, rank: int) -> str:
        home = self.replay.dependencies.rank[number]
        return str(self._op(number)) if home == rank else f"{self._op(number)} on {self.row} {home}"


def replayed_run(
    events: pd.DataFrame, schedule: Schedule | None, what: str, time: TimeAxis, row: str
) -> ReplayedRun | None:
    """Return the run that the table is one step of; None where it is none, unless asked for."""
    what = what or "events"
    try:
        replay = replay_events(schedule or schedule_from_events(events, what), events, what)
    except ValueError:
        if schedule is not None:
            raise
        return None
    return ReplayedRun.of(replay, time, row)


class EventExplainer:
    """Explains the bars of a panel, which are numbered table after table."""

    def __init__(
        self, tables: Mapping[str, pd.DataFrame], runs: Sequence[ReplayedRun | None], time: TimeAxis, row: str
    ):
        self.names, self.tables, self.runs = list(tables), list(tables.values()), runs
        self.time, self.row = time, row
        self.firsts = np.cumsum([0, *map(len, self.tables)])

    @property
    def needs(self) -> np.ndarray:
        """For each bar the one whose output it takes, -1 without one."""
        needs = np.full(self.firsts[-1], -1, dtype="int32")
        for run, first in zip(self.runs, self.firsts, strict=False):
            if run is None:
                continue
            for needed, takers in run.takers.items():
                needs[first + run.replay.row[takers]] = first + run.replay.row[needed]
        return needs

    @property
    def critical(self) -> np.ndarray:
        """The bars on the critical path: of what was measured, where both are there."""
        run, first = self.runs[-1], self.firsts[-2]
        if not run:
            return np.zeros(0, dtype="int32")
        return (first + run.replay.row[critical_ops(run.replay, run.waited_for)]).astype("int32")

    def _table_of(self, bar: int) -> int:
        return int(np.searchsorted(self.firsts, bar, side="right")) - 1

    def explain(self, bar: int) -> str:
        number = self._table_of(bar)
        row, run = bar - int(self.firsts[number]), self.runs[number]
        found = np.flatnonzero(run.replay.row == row).tolist() if run else []
        if not run or not found:
            lines = self._span_lines(self.tables[number].iloc[row])
        else:
            lines = run.lines(found[0])
            if number and (ideal := self.runs[0]):
                lines.append(run.against(ideal.replay, found[0]))
        if self.names[number]:
            lines[0] += f", {self.names[number]}"
        return "\n".join(lines)

    def explain_idle(self, bars: pd.DataFrame, gap: int) -> str:
        """Return why a rank is idle in a gap: see ``explain_more`` of a Panel."""
        after, bar = divmod(gap, len(bars))
        left, right, top = (bars[name].to_numpy() for name in ("left", "right", "top"))
        row, number = top == top[bar], self._table_of(bar)
        start, end = right[row & (left < left[bar])].max(initial=left.min()), left[bar]
        if after:
            start, end = right[row].max() if left[bar] == left[row].max() else np.inf, right.max()
        near = 2e-9 * (right.max() - left.min())
        if end - start <= near:
            return ""
        table, run = self.tables[number], self.runs[number]
        span = table.iloc[bar - int(self.firsts[number])]
        overlaps = (table["start_s"] < end - near) & (table["end_s"] > start + near)
        meanwhile = table[(table["rank"] == span["rank"]) & overlaps]
        if (meanwhile["lane"] == span["lane"]).any():
            return ""
        lane = f", lane {span['lane']}," if table["lane"].nunique() > 1 else ""
        where = f"{self.row.capitalize()} {span['rank']}{lane}"
        times = f"for {self.time(end - start)}, from {self.time(start)} to {self.time(end)}"
        lines = [f"{where} is idle {times}{', ' * bool(self.names[number])}{self.names[number]}"]
        if run and span["lane"] == "compute":
            lines.append(run.idle_line(span["rank"], start, end))
        others = [f"{_short(each)} in lane {each.lane}" for each in meanwhile.itertuples()]
        if others:
            lines.append(f"Meanwhile it has {_listed(others)}.")
        elif len(lines) == 1:
            lines.append("The table does not say why: nothing else is recorded there meanwhile.")
        return "\n".join(lines)

    def explain_kept(self, pieces: pd.DataFrame, cap: float | None, number: int) -> str:
        """Return whose activations a rank keeps in piece ``number`` of the strips."""
        piece, table = pieces.iloc[number], self.tables[-1]
        start, end, count = float(piece["start_s"]), float(piece["end_s"]), float(piece["micro_batches"])
        until, counts = start + 1e-9 * float(table["end_s"].max()), Counter[tuple[int, int]]()
        columns = (table[name].tolist() for name in ("rank", "name", "stage", "micro_batch", "start_s", "end_s"))
        for rank, name, stage, micro_batch, start_s, end_s in zip(*columns, strict=True):
            if rank == piece["rank"] and name in EVENT_KINDS:
                begins = name == "forward" and start_s <= until
                counts[stage, micro_batch] += begins - (name in ("backward", "weight_grad") and end_s <= until)
        kept = [str(Op("F", *key)) for key, kept_now in counts.items() if kept_now > 0]
        what = f"the activations of {count:g} micro-batch{'es' * (count != 1)}" if kept else "no activations"
        times = f"for {self.time(end - start)}, from {self.time(start)} to {self.time(end)}"
        lines = [f"{self.row.capitalize()} {piece['rank']:g} keeps {what} {times}"]
        if kept:
            whose = "its backward pass has" if len(kept) == 1 else "their backward passes have"
            lines.append(f"Kept for {_listed(kept)}: {whose} not ended.")
        if kept and piece["of"] > 1:
            lines.append(f"That of one of its {piece['of']:g} stages counts as 1/{piece['of']:g}.")
        if count == pieces[pieces["rank"] == piece["rank"]]["micro_batches"].max():
            lines.append("This is the most that it keeps.")
        if cap and count > cap:
            lines.append(f"The cap is {cap:g}.")
        return "\n".join(lines)

    def narrate(self, x: float) -> str:
        """Return one line on the time x: what begins and what goes on, and why ranks are idle."""
        parts, near = [], 1e-9 * max(1.0, abs(x))
        for table, name in zip(self.tables, self.names, strict=True):
            start, end = table["start_s"].to_numpy(), table["end_s"].to_numpy()
            going_on = (start < x - near) & (end > x + near)
            for one, several, chosen in (("begins", "begin", abs(start - x) <= near), ("goes on", "go on", going_on)):
                if who := [f"{_short(row)} on {self.row} {row.rank}" for row in table[chosen].itertuples()]:
                    parts.append(f"{name}: " * bool(name) + f"{_listed(who)} {several if len(who) > 1 else one}")
        run = self.runs[-1]
        return f"{self.time(x)}: {'; '.join([*parts, *(run.idle_ranks(x) if run else ())]) or 'all has ended'}."

    def _span_lines(self, span: pd.Series) -> list[str]:
        """Return what a span is that is no op of a pipeline: a collective, the optimizer."""
        names = (*(["stage"] if self.row == RANK else []), "micro_batch", "bucket")
        labels = [f"{name.replace('_', '-')} {span[name]}" for name in names if pd.notna(span[name])]
        size = [f"{span['bytes'] / 2**20:.3g} MiB"] if pd.notna(span["bytes"]) else []
        start, end = float(span["start_s"]), float(span["end_s"])
        times = f"{self.time(start)} to {self.time(end)}: takes {_with_unit(self.time(end - start))}"
        where = f"{self.row.capitalize()} {span['rank']}, lane {span['lane']}, {times}."
        return [", ".join([words_of(span["name"]), *labels, *size]), where]


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _with_unit(time: str) -> str:
    """Return how long something takes as it is said: of a simulation, in units."""
    return time if " " in time else f"{time} unit{'s' * (time != '1')}"


def _short(row: Any) -> str:
    """Return how a row of an event table is named in a line: its op, or its name and number."""
    if row.name in EVENT_KINDS and pd.notna(row.stage) and pd.notna(row.micro_batch):
        return str(Op(EVENT_KINDS[row.name], int(row.stage), int(row.micro_batch)))
    number = next((f" {int(value)}" for value in (row.bucket, row.micro_batch) if pd.notna(value)), "")
    return f"{words_of(row.name)}{number}"


def _listed(words: Sequence[str]) -> str:
    """Return "a", "a and b", "a, b and c", or the first of many and how many more."""
    if len(words) > _MAX_NAMED:
        return f"{', '.join(words[: _MAX_NAMED - 1])} and {len(words) - _MAX_NAMED + 1} more"
    return listed(words)
