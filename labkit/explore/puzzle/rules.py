"""Say what holds in a puzzle: which rank has which stage, how long ops take, how much is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from labkit.schedule import Op

OF_KIND = {"F": "forward", "B": "backward", "I": "input gradient", "W": "weight gradient"}


@dataclass(frozen=True, eq=False)
class Rules:
    """What the ops of a puzzle are, and what they need.

    ``homes[s]`` is the rank of stage s. ``times`` gives by kind of op the seconds of each stage: F
    and B, or F, I and W where the backward pass is split. ``hop`` is the delay of an activation or
    gradient from one rank to another. ``caps[r]`` is the most activations that rank r may keep,
    each from the start of its F to the end of its B (or W); None is no limit.
    """

    homes: Sequence[int]
    n_micro: int
    times: Mapping[str, Sequence[float]]
    hop: float = 0.0
    caps: Sequence[int] | None = None

    @property
    def n_ranks(self) -> int:
        return max(self.homes) + 1

    @property
    def n_stages(self) -> int:
        return len(self.homes)

    @property
    def split(self) -> bool:
        return "B" not in self.times

    @property
    def kinds(self) -> str:
        """The kinds of op, in the order in which a micro-batch meets them."""
        return "FIW" if self.split else "FB"

    @property
    def freeing_kind(self) -> str:
        """The kind whose end frees an activation."""
        return "W" if self.split else "B"

    @property
    def returning_kind(self) -> str:
        """The kind that sends a gradient to the stage before."""
        return "I" if self.split else "B"

    @cached_property
    def ops(self) -> list[Op]:
        """Every op that a finished board has, each after the one whose output it takes."""
        down, up = range(self.n_stages), range(self.n_stages - 1, -1, -1)
        of_micro_batch = [("F", stage) for stage in down] + [
            (kind, stage) for stage in up for kind in self.kinds if kind != "F"
        ]
        return [Op(kind, stage, i) for i in range(self.n_micro) for kind, stage in of_micro_batch]

    @cached_property
    def inputs(self) -> dict[Op, Op | None]:
        """By op, the one whose output it takes; None for a forward of stage 0."""
        return {op: self._input_of(op) for op in self.ops}

    @cached_property
    def outputs(self) -> dict[Op, list[Op]]:
        """By op, those that take its output."""
        takers: dict[Op, list[Op]] = {op: [] for op in self.ops}
        for op, needed in self.inputs.items():
            if needed is not None:
                takers[needed].append(op)
        return takers

    @cached_property
    def tails(self) -> dict[Op, float]:
        """By op, the least time from its end to the end of all that comes of it."""
        tails: dict[Op, float] = {}
        for op in reversed(self.ops):
            takers = self.outputs[op]
            tails[op] = max((self.delay(then) + self.duration(then) + tails[then] for then in takers), default=0.0)
        return tails

    def rank_of(self, op: Op) -> int:
        return self.homes[op.stage]

    def duration(self, op: Op) -> float:
        return float(self.times[op.kind][op.stage])

    def delay(self, op: Op) -> float:
        """Return the time that the input of ``op`` is under way to it."""
        needed = self.inputs[op]
        return 0.0 if needed is None or self.rank_of(needed) == self.rank_of(op) else self.hop

    def freed_by(self, op: Op) -> Op:
        """Return the op whose end frees the activation of the forward ``op``."""
        return Op(self.freeing_kind, op.stage, op.micro_batch)

    def cap(self, rank: int) -> float:
        return float("inf") if self.caps is None else self.caps[rank]

    def _input_of(self, op: Op) -> Op | None:
        kind, stage, micro_batch = op
        if kind == "F":
            return Op("F", stage - 1, micro_batch) if stage else None
        if kind == "W":
            return Op("I", stage, micro_batch)
        if stage == self.n_stages - 1:
            return Op("F", stage, micro_batch)
        return Op(kind, stage + 1, micro_batch)
