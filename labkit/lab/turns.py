"""Let several ways to do a step take turns, and compare them: the one loop behind the notebooks.

    def make_ways():  # on every rank
        ddp = torch.nn.parallel.DistributedDataParallel(network())
        return {"DDP": partial(step, ddp), "alone": partial(step, network())}

    turns = take_turns(make_ways, rounds=9, link=ETHERNET_1G)
    turns.step_s.ratio("DDP", "alone")

A step lasts from the first rank's start to the last one's end.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd
import torch
import torch.distributed as dist
from torch.utils import _pytree as pytree

from labkit import simulate
from labkit.base.formats import MeasuredTable
from labkit.base.measurement_html import as_html
from labkit.launch import Run, WarmRanks, launch
from labkit.stats import Interval
from labkit.stats.repeated_times import RepeatedTimes
from labkit.trace import barrier, set_step, span, synchronize

Step = Callable[[], Any]
Ways = Mapping[Any, Step | None]

_TURN = "turn"  # the loop's span around a step, from barrier to barrier


def take_turns(
    make_ways: Callable[[], Ways], rounds: int = 7, *, ranks: WarmRanks | None = None, **options: Any
) -> Turns:
    """Take a step of each way in turn, one round to warm up and then ``rounds`` that count.

    So a slow moment of the machine hits all ways alike. ``make_ways()`` runs on every rank and
    returns its steps by name, the same names everywhere: functions without arguments, or None where
    the rank has no part in that way and waits asleep. All spans of a step have its number.
    ``ranks`` are warm ones to run on; otherwise ``options`` are those of
    :func:`labkit.launch.launch`, with one thread a rank unless they say so.

    Raises ValueError for an even number of rounds: then no step is the median. On the ranks, it is
    raised for ways that differ in their names.
    """
    if rounds < 1 or rounds % 2 == 0:
        raise ValueError(
            f"take_turns: rounds is {rounds}, expected an odd number, so that the median step is one that ran"
        )
    if ranks is not None and options:
        raise TypeError(
            f"take_turns: {', '.join(options)} beside ranks=…, expected one of them: warm ranks have their own"
        )
    if ranks is None:
        run = launch(_on_this_rank, make_ways, 1 + rounds, **{"threads": 1} | options)
    else:
        run = ranks.run(_on_this_rank, make_ways, 1 + rounds)
    return Turns(run)


class _Returned(NamedTuple):
    names: list[Any]
    of: dict[Any, list[Any]]  # what each step returned, where this rank took one


def _on_this_rank(make_ways: Callable[[], Ways], rounds: int) -> _Returned:
    ways = make_ways()
    _check_same_on_all_ranks([*ways])
    asleep = dist.new_group(backend="gloo")  # NCCL's barrier would keep a core and the GPU busy
    returned = _Returned([*ways], {name: [] for name, step in ways.items() if step is not None})
    for number, (name, step) in enumerate([*ways.items()] * rounds):
        set_step(number)
        barrier(asleep)
        if step is not None:
            with span(_TURN, lane="host"):
                found = step()
                synchronize()  # GPUs are done only now
            returned.of[name].append(pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, found))
    return returned


def _check_same_on_all_ranks(names: list[Any]) -> None:
    of_rank: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(of_rank, names)
    if not names:
        raise ValueError("take_turns: make_ways() returned no way")
    for rank, others in enumerate(of_rank):
        if others != of_rank[0]:
            raise ValueError(
                f"take_turns: rank {rank} has the ways {others}, and rank 0 {of_rank[0]}: expected the same"
            )


class Turns:
    """Steps of several ways that took turns. As the last line of a cell: its header and ``parts``.

    ``run`` is the run, ``ways`` are the names. ``returned[way][rank]`` are what the steps returned
    there, from the round that warms up on; a rank that takes no part has none.
    """

    def __init__(self, run: Run):
        self.run, self.ways = run, run.values[0].names
        self.returned: dict[Any, list[list[Any]]] = {
            way: [found.of.get(way, []) for found in run.values] for way in self.ways
        }

    # --- steps ---

    @functools.cached_property
    def _numbers(self) -> dict[Any, range]:
        """The numbers of each way's steps, without the one that warms up."""
        n = len(self.ways)
        last = int(self.run.events["step"].max())
        return {way: range(n + place, last + 1, n) for place, way in enumerate(self.ways)}

    @functools.cached_property
    def _by_number(self) -> dict[int, pd.DataFrame]:
        events = self.run.events
        return {int(step["step"].iloc[0]): step for _, step in events.groupby("step")}

    @functools.cached_property
    def _steps(self) -> dict[Any, list[pd.DataFrame]]:
        return {way: [self._step(number) for number in numbers] for way, numbers in self._numbers.items()}

    def _step(self, number: int) -> pd.DataFrame:
        step = self._by_number[number]
        began_s = step["start_s"].min()
        step = step.assign(start_s=step["start_s"] - began_s, end_s=step["end_s"] - began_s)
        step.attrs = dict(self.run.events.attrs)
        return step

    def steps(self, way: Hashable) -> list[pd.DataFrame]:
        """Return the events of each step of a way, on all ranks, in seconds from its begin."""
        return [_without_turns(step) for step in self._steps[way]]

    def typical(self, way: Hashable) -> pd.DataFrame:
        """Return the events of the step with the median time, on all ranks."""
        seconds = self.step_s[way]
        return self.steps(way)[seconds.argsort().iloc[len(seconds) // 2]]

    # --- seconds ---

    def each(self, measure: Callable[[pd.DataFrame], float], ways: Sequence[Any] | None = None) -> RepeatedTimes:
        """Return ``measure`` of each step's events: a row per round, a column per way."""
        return self._table({way: [*map(measure, self.steps(way))] for way in ways or self.ways})

    def _table(self, columns: Mapping[Any, Sequence[float]]) -> RepeatedTimes:
        names = pd.Index([*columns], tupleize_cols=False)  # a tuple is a name like any other
        table = RepeatedTimes(pd.DataFrame([*columns.values()], index=names).T)
        table.attrs = dict(self.run.events.attrs)
        return table

    @functools.cached_property
    def step_s(self) -> RepeatedTimes:
        """Seconds of each whole step: from the first rank's begin to the last one's end."""
        return self._table({way: [_seconds(_turns(step)) for step in steps] for way, steps in self._steps.items()})

    def part_s(self, name: str) -> RepeatedTimes:
        """Return the seconds in spans of that name in each step: the mean over the way's ranks."""
        return self._table(
            {
                way: [_total(step[step["name"] == name]) / _n_ranks(step) for step in steps]
                for way, steps in self._steps.items()
            }
        )

    @property
    def parts(self) -> MeasuredTable:
        """Milliseconds of a step's parts, medians: a row per way, and last the whole step.

        A part is the mean over the way's ranks; *rest* is between the parts, or a rank's wait for
        the slowest. Spans that begin while another of their rank is open are not counted.
        """
        found = {way: pd.DataFrame([*map(_parts, steps)]).fillna(0.0).median() for way, steps in self._steps.items()}
        names = dict.fromkeys(name for parts in found.values() for name in parts.index if name != "rest")
        rows = {way: 1000 * parts.reindex([*names, "rest"]).fillna(0.0) for way, parts in found.items()}
        table = MeasuredTable(pd.DataFrame([*rows.values()], index=self.step_s.columns))
        table["step"] = 1000 * self.step_s.median()
        table.attrs = dict(self.run.events.attrs)
        return table

    # --- why ---

    def explain(self, way: Hashable, ideal: pd.DataFrame) -> dict[str, Interval]:
        """Return by how many seconds each part of a data-parallel step is longer than ideal.

        See :func:`labkit.simulate.explain_step`: means over ranks and steps, from the least to the
        greatest step.
        """
        table = simulate.explain_turns(simulate.explain_step(ideal, step) for step in self.steps(way))
        ends = table.set_index("part")[["difference_s", "low", "high"]]
        return {part: Interval(*row) for part, *row in ends.itertuples()}

    def gap_ms(self, way: Hashable, ideal: pd.DataFrame) -> pd.DataFrame:
        """Return by how many ms each cause makes a pipeline's typical step longer, by stage.

        See :func:`labkit.simulate.explain_gap`.
        """
        gap = 1000 * simulate.explain_gap(ideal, self.typical(way)).set_index("stage")
        return gap.rename(columns=lambda cause: cause.replace("_s", "_ms"))

    def __repr__(self) -> str:
        return f"{self.run.header}\n{self.parts!r}"

    def _repr_html_(self) -> str:
        return f"<p>{as_html(self.run.header)}</p>{self.parts._repr_html_()}"


def _is_turn(step: pd.DataFrame) -> Any:
    return (step["name"] == _TURN) & (step["lane"] == "host")


def _turns(step: pd.DataFrame) -> pd.DataFrame:
    return step[_is_turn(step)]


def _without_turns(step: pd.DataFrame) -> pd.DataFrame:
    return step[~_is_turn(step)].reset_index(drop=True)


def _seconds(spans: pd.DataFrame) -> float:
    return float(spans["end_s"].max() - spans["start_s"].min())


def _total(spans: pd.DataFrame) -> float:
    return float((spans["end_s"] - spans["start_s"]).sum())


def _n_ranks(step: pd.DataFrame) -> int:
    return len(_turns(step))


def _parts(step: pd.DataFrame) -> dict[str, float]:
    """Return the seconds of each part, and the rest: means over the ranks that take the step."""
    totals: dict[str, float] = {}
    for _, spans in _without_turns(step).sort_values("start_s", kind="stable").groupby("rank"):
        free_s = -1.0
        for name, start_s, end_s in zip(spans["name"], spans["start_s"], spans["end_s"], strict=True):
            if start_s >= free_s:
                totals[name] = totals.get(name, 0.0) + end_s - start_s
                free_s = end_s
    n = _n_ranks(step)
    whole = n * _seconds(_turns(step))
    return {name: seconds / n for name, seconds in totals.items()} | {"rest": (whole - sum(totals.values())) / n}
