"""Train GPT-2 several ways in turns, a step each, on two ranks: what notebook 10 measures first."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd
import torch
import torch.distributed as dist

from labkit.base.formats import MeasuredTable, loss
from labkit.launch import Run, device, launch
from labkit.simulate import makespan, median_step, steps_of
from labkit.stats import repeats
from labkit.stats.repeated_times import RepeatedTimes
from labkit.trace import barrier, span, synchronize

Step = Callable[[Any], torch.Tensor | None]  # takes a batch, and returns its loss where that is known

PASSES = "forward", "backward"


def in_turns(make_ways: Callable[[], Mapping[str, Step]], batch: Any, together: str, rounds: int = 7) -> WaysInTurns:
    """Let ways to train take turns, a step each; the first round warms up.

    Rank 0 takes all of them, the other rank only the way ``together``, and else waits asleep.
    """
    run = launch(_take_turns, make_ways, batch, together, rounds, threads=1)
    return WaysInTurns(run, together)


def threads_longer_ms(parts_ms: pd.DataFrame, shrinks_to: float) -> dict[str, float]:
    """Return what makes a step with threads longer than predicted: differences of measured ways.

    ``parts_ms`` has the parts of the ways "model parallel", "cut, no overlap" and "threads". Of the
    forward passes the prediction leaves the fraction ``shrinks_to``.
    """
    alone, cut, threads = (parts_ms[way] for way in ("model parallel", "cut, no overlap", "threads"))
    return {
        "forward: small micro-batches": (cut["forward"] - alone["forward"]) * shrinks_to,
        "forward: two at once": threads["forward"] - cut["forward"] * shrinks_to,
        "backward: small micro-batches": cut["backward"] - alone["backward"],
        "backward: on two devices": threads["backward"] - cut["backward"],
        "the rest": threads["others"] - alone["others"],
    }


def _take_turns(make_ways: Callable[[], Mapping[str, Step]], batch: Any, together: str, rounds: int) -> dict[str, Any]:
    quiet, ways, losses = dist.new_group(backend="gloo"), make_ways(), {}
    batch = batch.to(device())
    for name, step in [*ways.items()] * rounds:
        barrier(quiet)
        if dist.get_rank() == 0 or name == together:
            with span(name, "host"):
                losses[name] = step(batch)
                synchronize()  # GPUs are done only now, the optimizer too
    return {name: None if loss is None else loss.item() for name, loss in losses.items()}


class WaysInTurns:
    """Steps of several ways that took turns; a step is a span of its way's name."""

    def __init__(self, run: Run, together: str):
        self.run, self.backend, self.together = run, run.backend, together

    @property
    def losses(self) -> MeasuredTable:
        """The last loss of each way, which its optimizer's earlier steps have led to."""
        own, others = self.run.values
        found = {way: others[way] if last is None else last for way, last in own.items()}
        name = f"loss after {len(self.step_s)} steps"
        return MeasuredTable({name: {way: loss(last) for way, last in found.items()}})

    @functools.cached_property
    def step_s(self) -> RepeatedTimes:
        """Seconds of each step: a row per round, a column per way."""
        return repeats(self.run.events[self.run.events["lane"] == "host"])[1:]

    def _steps(self, way: str) -> list[pd.DataFrame]:
        return steps_of(self.run.events, within=way)[1:]

    def parts_ms(self, *ways: str) -> MeasuredTable:
        """Return what a step is made of, medians: both passes of the blocks, and all else."""
        return MeasuredTable({way: self._parts_ms(way) for way in ways})

    def _parts_ms(self, way: str) -> pd.Series:
        steps = self._steps(way)
        passes = {name: pd.Series([makespan(step[step["name"] == name]) for step in steps]).median() for name in PASSES}
        return 1000 * pd.Series(passes | {"others": self.step_s[way].median() - sum(passes.values())})

    def predicted_gains(self, shrinks_to: float) -> dict[str, float]:
        """Return how many times as fast as model parallel two pipelines should be.

        Of a model-parallel step the passes that overlap shrink to this fraction: both, but with
        threads on CPUs forward passes alone.
        """
        alone_ms = self._parts_ms("model parallel")
        both, forward = alone_ms[[*PASSES]].sum(), alone_ms["forward"]
        overlapping = {"threads": both if self.backend == "nccl" else forward, "processes": both}
        return {way: alone_ms.sum() / (alone_ms.sum() - (1 - shrinks_to) * ms) for way, ms in overlapping.items()}

    def op_s(self, way: str, of_batch: float = 1.0) -> dict[str, list[float]]:
        """Return the median seconds of a way's ops, by their name, for each stage.

        ``of_batch`` scales them to that fraction of a batch.
        """
        ops = pd.concat(self._steps(way))
        seconds = (ops["end_s"] - ops["start_s"]).groupby([ops["name"], ops["stage"]]).median().unstack("stage")
        by_name = {name: seconds.loc[name].to_numpy() for name in PASSES}
        return {name: [of_batch * float(each) for each in found] for name, found in by_name.items()}

    @property
    def typical(self) -> pd.DataFrame:
        """The step of the way that ranks take together with the median time."""
        return median_step(self._steps(self.together))
