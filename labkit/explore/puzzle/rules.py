"""Say what holds in a puzzle: where stages are, what an op needs, how much ranks may keep.

And say why a move breaks that, in a sentence that names the op that blocks. When ops run is for the
page to say: browser/puzzle.js.
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
        there = {op.kind for op in self.inputs}
        return "".join(kind for kind in EVENT_NAMES if kind in there)

    @cached_property
    def rank_of_stage(self) -> list[int]:
        ranks = enumerate(self.timed.schedule.ops)
        by_stage = {op.stage: rank for rank, ops in ranks for op in ops}
        return [by_stage[stage] for stage in range(len(by_stage))]

    def rank_of(self, op: Op) -> int:
        return self.rank_of_stage[op.stage]

    def freed_by(self, op: Op) -> Op:
        """Return the op whose end frees the activation of the forward ``op``."""
        return Op(self.kinds[-1], op.stage, op.micro_batch)

    def cap(self, rank: int) -> float:
        return self.caps[rank] if self.caps else float("inf")

    @cached_property
    def inputs(self) -> dict[Op, Op | None]:
        """By op, the one whose output it takes; None for a forward of stage 0."""
        known = find_dependencies(self.timed.schedule)
        needed = [None if number is None else known.ops[number] for number in known.input_op]
        return dict(zip(known.ops, needed, strict=True))


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
