"""Train with a pipeline in turns with the same stages op after op: what notebook 09 measures."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import pandas as pd
import torch
import torch.distributed as dist
from torch import nn

from labkit.base.formats import measured
from labkit.base.measurement_html import as_html
from labkit.launch import Run, device, launch
from labkit.parallel.devices import real_device, training_devices
from labkit.simulate import by_stage, explain_gap, makespan, median_step, steps_of
from labkit.stats import Interval
from labkit.stats.repeated_times import RepeatedTimes
from labkit.trace import barrier, span, synchronize

PIPELINE, OP_AFTER_OP = "pipeline", "op after op"

Step = Callable[[torch.Tensor, torch.Tensor], object]
MakeStep = Callable[[Sequence[nn.Module], Sequence[torch.device]], Step]


def in_turns(
    op_after_op: Callable[..., object],
    make_pipeline: MakeStep,
    stages: Sequence[nn.Module],
    x: torch.Tensor,
    target: torch.Tensor,
    world_size: int,
    rounds: int = 7,
) -> PipelineInTurns:
    """Let a pipeline take turns with ``op_after_op(stages, devices, x, target)``, a step each.

    ``make_pipeline(stages, devices)`` returns the pipeline's step, a function of x and target. One
    rank has a device for each stage; of several, each has its own, and rank 0 alone works op after
    op. The first round warms up.
    """
    run = launch(
        _take_turns,
        *(op_after_op, make_pipeline, stages, x, target, rounds),
        world_size=world_size,
        compared_with=len(stages),
        threads=1,
    )
    return PipelineInTurns(run)


def _take_turns(
    op_after_op: Callable[..., object],
    make_pipeline: MakeStep,
    stages: Sequence[nn.Module],
    x: torch.Tensor,
    target: torch.Tensor,
    rounds: int,
) -> None:
    quiet = dist.new_group(backend="gloo")  # a rank that waits in its barrier sleeps
    alone = dist.get_world_size() == 1
    devices = training_devices(device(), len(stages)) if alone else [device()] * len(stages)
    stages = [stage.to(real_device(place)) for stage, place in zip(stages, devices, strict=True)]
    x, target = x.to(real_device(devices[0])), target.to(real_device(devices[-1]))
    step = make_pipeline(stages, devices)
    for _ in range(rounds):
        if dist.get_rank() == 0:
            with span(OP_AFTER_OP, "host"):
                op_after_op(stages, devices, x, target)
                synchronize()  # GPUs are done only now
        barrier(quiet)
        with span(PIPELINE, "host"):
            step(x, target)
            synchronize()
        barrier(quiet)


class PipelineInTurns:
    """Steps of a pipeline, and of the same stages op after op. ``step_s`` has their seconds.

    As the last line of a cell it shows its header, and T.
    """

    def __init__(self, run: Run):
        self.run = run

    @functools.cached_property
    def _steps(self) -> dict[str, list[pd.DataFrame]]:
        found = {name: steps_of(self.run.events, within=name)[1:] for name in (PIPELINE, OP_AFTER_OP)}
        if self.run.world_size == 1:  # threads of one rank: a row of a picture is a stage
            found[PIPELINE] = [by_stage(step) for step in found[PIPELINE]]
        return found

    @functools.cached_property
    def step_s(self) -> RepeatedTimes:
        """Seconds from the first op of a step to the end of its last."""
        return RepeatedTimes({name: [makespan(step) for step in steps] for name, steps in self._steps.items()})

    @property
    def alone_s(self) -> float:
        """Median seconds of a step op after op: T."""
        return float(self.step_s[OP_AFTER_OP].median())

    @property
    def fraction(self) -> Interval:
        """Which fraction of T a step of the pipeline takes."""
        return self.step_s.ratio(PIPELINE, OP_AFTER_OP)

    @property
    def op_s(self) -> dict[str, float]:
        """Median seconds of a forward and of a backward op, alone."""
        return self._median_op_s(OP_AFTER_OP)

    @property
    def typical(self) -> pd.DataFrame:
        """The step of the pipeline with the median time."""
        return median_step(self._steps[PIPELINE])

    @property
    def op_beside_alone(self) -> dict[str, float]:
        """How many times as long as alone an op takes beside the other stage's."""
        beside, alone = self._median_op_s(PIPELINE), self.op_s
        return {name: beside[name] / alone[name] for name in alone}

    def gap_ms(self, ideal: pd.DataFrame) -> pd.DataFrame:
        """Return by how many ms each cause makes the typical step longer than ideal, by stage."""
        gap = 1000 * explain_gap(ideal, self.typical).set_index("stage")
        return gap.rename(columns=lambda cause: cause.replace("_s", "_ms"))

    def parts(self, ideal: pd.DataFrame) -> dict[str, float]:
        """Return what the typical step is made of, in T: two parts are drawn, the others its gap.

        In the ``ideal`` step of m micro-batches each of two ranks computes for m of m + 1 clocks.
        """
        m = 1 + int(ideal["micro_batch"].max())
        drawn = makespan(ideal) / self.alone_s
        gap = self.gap_ms(ideal).sum() / (1000 * self.alone_s)
        return {
            "computing": drawn * m / (m + 1),
            "bubble": drawn / (m + 1),
            "messages": gap["communication_ms"],
            "longer": gap["op_time_ms"] + gap["imbalance_ms"] + gap["core_ms"],
            "python": gap["overhead_ms"],
        }

    def _median_op_s(self, name: str) -> dict[str, float]:
        step = median_step(self._steps[name])
        seconds = (step["end_s"] - step["start_s"]).groupby(step["name"]).median()
        return {kind: float(seconds[kind]) for kind in ("forward", "backward")}

    def __repr__(self) -> str:
        return f"{self.run.header}\nT: {measured(1000 * self.alone_s, 'ms')}"

    def _repr_html_(self) -> str:
        return "".join(f"<p>{as_html(line)}</p>" for line in repr(self).splitlines())
