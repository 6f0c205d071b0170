"""Say what holds in a puzzle: where stages are, how long ops take, how much ranks may keep.

And say why a move breaks that, in a sentence that names the op that blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from labkit.base.texts import listed
from labkit.schedule import EVENT_NAMES, Op, find_dependencies
from labkit.simulate import TimedSchedule

OF_KIND = {"F": "forward", "B": "backward", "I": "input gradient", "W": "weight gradient"}


@dataclass(frozen=True, eq=False)
class Rules:
    """What the ops of a puzzle are, and what they need.

    They are those of a schedule, which also says where each stage is, with their times: ``timed``.
    ``caps[r]`` is the most activations that rank r may keep, each from the start of its F to the
    end of its B (or W); None: no limit.
    """

    timed: TimedSchedule
    caps: Sequence[int] | None = None

    @property
    def n_ranks(self) -> int:
        return self.timed.schedule.n_ranks

    @cached_property
    def kinds(self) -> str:
        """The kinds of op, in the order in which a micro-batch meets them."""
        there = {op.kind for op in self.ops}
        return "".join(kind for kind in EVENT_NAMES if kind in there)

    @property
    def freeing_kind(self) -> str:
        """The kind whose end frees an activation."""
        return self.kinds[-1]

    @cached_property
    def rank_of_stage(self) -> dict[int, int]:
        """By stage, its rank."""
        ranks = enumerate(self.timed.schedule.ops)
        return {op.stage: rank for rank, ops in ranks for op in ops}

    def rank_of(self, op: Op) -> int:
        return self.rank_of_stage[op.stage]

    def freed_by(self, op: Op) -> Op:
        """Return the op whose end frees the activation of the forward ``op``."""
        return Op(self.freeing_kind, op.stage, op.micro_batch)

    def cap(self, rank: int) -> float:
        return self.caps[rank] if self.caps else float("inf")

    # --- by op ------------------------------------------------------------------------------------

    @cached_property
    def ops(self) -> list[Op]:
        """Every op that a finished board has: each micro-batch down the stages, and up again."""

        def place(op: Op) -> tuple[int, bool, int, str]:
            forward = op.kind == "F"
            return op.micro_batch, not forward, op.stage if forward else -op.stage, op.kind

        return sorted((op for ops in self.timed.schedule.ops for op in ops), key=place)

    @cached_property
    def ops_of_rank(self) -> list[list[Op]]:
        ranks = range(self.n_ranks)
        return [[op for op in self.ops if self.rank_of(op) == rank] for rank in ranks]

    @cached_property
    def inputs(self) -> dict[Op, Op | None]:
        """By op, the one whose output it takes; None for a forward of stage 0."""
        known = find_dependencies(self.timed.schedule)
        needed = [None if number is None else known.ops[number] for number in known.input_op]
        inputs = dict(zip(known.ops, needed, strict=True))
        return {op: inputs[op] for op in self.ops}

    @cached_property
    def duration_s(self) -> dict[Op, float]:
        by_kind = {kind: self.timed.per_stage(EVENT_NAMES[kind]) for kind in self.kinds}
        return {op: by_kind[op.kind][op.stage] for op in self.ops}

    @cached_property
    def delay_s(self) -> dict[Op, float]:
        """By op, the time that its input is under way to it."""
        home = {op: self.rank_of(op) for op in self.ops}
        return {op: self.timed.hop if home[op] != home[needed or op] else 0.0 for op, needed in self.inputs.items()}


# --- why not --------------------------------------------------------------------------------------


class Refusal(Exception):
    """A move that cannot be made. Printed, it says why and names the op that blocks."""


def missing_input(op: Op, needed: Op) -> str:
    if needed.stage == op.stage:
        output = f"{needed}, the {OF_KIND[needed.kind]} of its own stage"
    else:
        output = f"the {'activation' if needed.kind == 'F' else 'gradient'} of {needed}"
    return f"{op} needs {output}, which is not placed yet"


def no_room(op: Op, kept: Sequence[Op], rules: Rules) -> str:
    """Say that the rank of the forward ``op`` has no room beside the activations of ``kept``."""
    freeing = [rules.freed_by(forward) for forward in kept]
    count, those = ("1 activation", "that") if len(kept) == 1 else (f"{len(kept)} activations", "those")
    stays = f"it keeps {those} of {listed(kept)} until {listed(freeing, 'or')} has ended"
    missing = f"{freeing[0]} is not placed yet"
    return f"rank {rules.rank_of(op)} has room for {count}: {stays}, and {missing}. {op} has to wait"
