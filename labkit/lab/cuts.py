"""Cut a model in two in many places, and run the cuts in turns: what notebook 08 measures first."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd
import torch
import torch.distributed as dist
from torch import nn

from labkit.base.measurement_html import as_html
from labkit.launch import Run, device, launch
from labkit.simulate import explain_gap, makespan, median_step, steps_of
from labkit.stats.repeated_times import RepeatedTimes
from labkit.trace import barrier, span

RunPipeline = Callable[[nn.Module, Sequence[torch.Tensor]], object]


def module_s(modules: nn.Sequential, x: torch.Tensor, repeats: int = 12) -> RepeatedTimes:
    """Return the seconds of each module's forward pass, the others before it, on two ranks at once.

    A row per repeat, a column per module, by its place.
    """
    return launch(_time_modules, modules, x, repeats, threads=1).repeats(by="stage")


def in_turns(
    run_pipeline: RunPipeline,
    cuts: Mapping[int, Sequence[nn.Module]],
    modules: nn.Sequential,
    micro_batches: Sequence[torch.Tensor],
    rounds: int = 7,
) -> CutsInTurns:
    """Run ``cuts`` of one model on two ranks, in turns; before each round time its single modules.

    A cut is a stage for each rank. ``run_pipeline(stage, micro_batches)`` has a span ``forward``
    for each micro-batch and returns the messages that may still be on their way. The first round
    warms up.
    """
    run = launch(_take_turns, run_pipeline, [*cuts.values()], modules, micro_batches, rounds, threads=1)
    return CutsInTurns(run, [*cuts])


@torch.no_grad()
def _time_modules(modules: nn.Sequential, x: torch.Tensor, repeats: int) -> None:
    modules, x = modules.to(device()), x.to(device())
    for _ in range(repeats):
        barrier()
        y = x
        for i, module in enumerate(modules):
            with span("module", stage=i):
                y = module(y)


@torch.no_grad()
def _take_turns(
    run_pipeline: RunPipeline,
    cuts: Sequence[Sequence[nn.Module]],
    modules: nn.Sequential,
    micro_batches: Sequence[torch.Tensor],
    rounds: int,
) -> None:
    micro_batches = [each.to(device()) for each in micro_batches]
    for number, cut in enumerate([*cuts] * rounds):
        if number % len(cuts) == 0:
            _time_modules(modules, micro_batches[0], repeats=len(micro_batches))
        stage = cut[dist.get_rank()].to(device())
        barrier()
        with span("step", lane="host", step=number):
            wait_for(run_pipeline(stage, micro_batches))


def wait_for(sent: Any) -> None:
    """Wait until messages have arrived: pairs of a tensor and the work that sends it."""
    for _, work in sent:
        work.wait()


class CutsInTurns:
    """Runs of several cuts that took turns. As the last line of a cell it shows its header."""

    def __init__(self, run: Run, cuts: Sequence[int]):
        self.run, self.cuts = run, cuts

    @functools.cached_property
    def module_s(self) -> list[float]:
        """Median seconds of each module on its own, timed between the rounds."""
        return self.run.repeats(by="stage", name="module").median().tolist()

    @functools.cached_property
    def _steps(self) -> dict[int, list[pd.DataFrame]]:
        steps = steps_of(self.run.events, within="step")
        return {cut: steps[place :: len(self.cuts)][1:] for place, cut in enumerate(self.cuts)}

    @functools.cached_property
    def step_s(self) -> RepeatedTimes:
        """Seconds of each run: a row per round, a column per cut."""
        return RepeatedTimes({cut: [makespan(step) for step in steps] for cut, steps in self._steps.items()})

    def typical(self, cut: int) -> pd.DataFrame:
        """Return the events of a cut's run with the median makespan."""
        return median_step(self._steps[cut])

    def gap_ms(self, cut: int, ideal: pd.DataFrame) -> pd.DataFrame:
        """Return by how many ms each cause makes that run longer than the ideal one, by stage."""
        gap = 1000 * explain_gap(ideal, self.typical(cut)).set_index("stage")
        return gap.rename(columns=lambda cause: cause.replace("_s", "_ms"))

    def __repr__(self) -> str:
        return self.run.header

    def _repr_html_(self) -> str:
        return f"<p>{as_html(self.run.header)}</p>"
