"""Say what holds in a puzzle: where stages are, how long ops take, how much ranks may keep.

And say why a move breaks that: a :class:`Refusal` is data, with a sentence that names the op that
blocks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from labkit.base.texts import listed
from labkit.schedule import EVENT_NAMES, Op, Schedule, find_dependencies

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
    def kinds(self) -> str:
        """The kinds of op, in the order in which a micro-batch meets them."""
        return "".join(self.times)

    @property
    def freeing_kind(self) -> str:
        """The kind whose end frees an activation."""
        return self.kinds[-1]

    @property
    def returning_kind(self) -> str:
        """The kind that sends a gradient to the stage before."""
        return self.kinds[1]

    @property
    def simulated(self) -> dict[str, Any]:
        """The times as :func:`labkit.simulate.simulate` takes them."""
        return {EVENT_NAMES[kind]: list(times) for kind, times in self.times.items()} | {"hop": self.hop}

    @cached_property
    def ops(self) -> list[Op]:
        """Every op that a finished board has, each after the one whose output it takes."""
        stages = range(self.n_stages)
        back = [(kind, stage) for stage in reversed(stages) for kind in self.kinds[1:]]
        of_micro_batch = [("F", stage) for stage in stages] + back
        return [Op(kind, stage, i) for i in range(self.n_micro) for kind, stage in of_micro_batch]

    @cached_property
    def ops_of_rank(self) -> list[list[Op]]:
        return [[op for op in self.ops if self.rank_of(op) == rank] for rank in range(self.n_ranks)]

    @cached_property
    def inputs(self) -> dict[Op, Op | None]:
        """By op, the one whose output it takes; None for a forward of stage 0."""
        known = find_dependencies(Schedule(self.ops_of_rank))
        needed = {op: None if i is None else known.ops[i] for op, i in zip(known.ops, known.input_op, strict=True)}
        return {op: needed[op] for op in self.ops}

    @cached_property
    def outputs(self) -> dict[Op, list[Op]]:
        """By op, those that take its output."""
        return {op: [then for then, needed in self.inputs.items() if needed == op] for op in self.ops}

    @cached_property
    def duration_s(self) -> dict[Op, float]:
        return {op: float(self.times[op.kind][op.stage]) for op in self.ops}

    @cached_property
    def delay_s(self) -> dict[Op, float]:
        """By op, the time that its input is under way to it."""
        sent = {op: needed and self.rank_of(needed) != self.rank_of(op) for op, needed in self.inputs.items()}
        return {op: self.hop if sent[op] else 0.0 for op in self.ops}

    @cached_property
    def tails(self) -> dict[Op, float]:
        """By op, the least time from its end to the end of all that comes of it."""
        tails: dict[Op, float] = {}
        for op in reversed(self.ops):
            after = (self.delay_s[then] + self.duration_s[then] + tails[then] for then in self.outputs[op])
            tails[op] = max(after, default=0.0)
        return tails

    def rank_of(self, op: Op) -> int:
        return self.homes[op.stage]

    def freed_by(self, op: Op) -> Op:
        """Return the op whose end frees the activation of the forward ``op``."""
        return Op(self.freeing_kind, op.stage, op.micro_batch)

    def cap(self, rank: int) -> float:
        return float("inf") if self.caps is None else self.caps[rank]


# --- why not --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Refusal:
    """Why a move is refused. Printed, it is its ``sentence``.

    ==========  ===================================================================================
    unknown     the puzzle has no such op
    placed      the op is on the board already
    absent      the op is not on the board
    dependency  what the op needs is not placed
    memory      the rank would keep more activations than it may
    needed      another op needs this one
    order       the rank cannot run its ops in this order
    whole       no micro-batch is there whole, or there is none left to place
    ==========  ===================================================================================

    ``op`` is the op that was to be placed or removed, ``blocker`` the one that is in its way.
    """

    code: str
    sentence: str
    op: Op | None = None
    blocker: Op | None = None

    def __str__(self) -> str:
        return self.sentence


def missing_input(op: Op, needed: Op) -> Refusal:
    if needed.stage == op.stage:
        output = f"{needed}, the {OF_KIND[needed.kind]} of its own stage"
    else:
        output = f"the {'activation' if needed.kind == 'F' else 'gradient'} of {needed}"
    return Refusal("dependency", f"{op} needs {output}, which is not placed yet", op, needed)


def no_room(op: Op, rules: Rules, kept: Sequence[Op], placed: Collection[Op]) -> Refusal:
    """Refuse the forward ``op``, as its rank has no room beside the activations of ``kept``."""
    rank, freeing = rules.rank_of(op), [rules.freed_by(forward) for forward in kept]
    room = f"rank {rank} has room for {len(kept)} activation{'s' if len(kept) > 1 else ''}"
    stays = f"it keeps {'those' if len(kept) > 1 else 'that'} of {listed(kept)} until {listed(freeing, 'or')} has ended"
    missing = "" if freeing[0] in placed else f", and {freeing[0]} is not placed yet"
    return Refusal("memory", f"{room}: {stays}{missing}. {op} has to wait", op, freeing[0])
