"""Find what each op of a schedule waits for, when that lets it run, and what can never run.

Everything here works on plain lists: for each rank, its ops in the order in which it runs them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from labkit.schedule.ops import KINDS, Op, check_types


class ScheduleError(ValueError):
    """A schedule that cannot run: ``rank``, ``position`` and ``op`` say where, ``reason`` why.

    ``position`` counts in the rank's list. Where an op is missing, ``op`` is that one and
    ``position`` the end of the list; where a whole rank is, ``op`` is None.
    """

    def __init__(self, rank: int, position: int, op: Op | None, reason: str):
        super().__init__(rank, position, op, reason)  # what pickle makes it from again
        self.rank, self.position, self.op, self.reason = rank, position, op, reason

    def __str__(self) -> str:
        return f"rank {self.rank}, position {self.position}{f', {self.op}' if self.op else ''}: {self.reason}"


@dataclass(frozen=True)
class Dependencies:
    """What each op of a schedule waits for. Ops are numbered rank by rank, in order of their lists.

    ``previous_op[i]`` is the op before op i on its rank, ``input_op[i]`` the one whose output it
    takes; None where there is none. ``order`` has every op once, each after the two it waits for.
    """

    ops: list[Op]
    rank: list[int]
    previous_op: list[int | None]
    input_op: list[int | None]
    order: list[int]

    @classmethod
    def of(cls, ranks: list[list[Op]]) -> Dependencies:
        """Find what waits for what in ``ranks``.

        Raises ScheduleError for the first thing that is wrong, TypeError for anything but an Op.
        """
        check_types(ranks)
        ops = [op for rank_ops in ranks for op in rank_ops]
        n_stages = 1 + max((op.stage for op in ops), default=-1)
        n_micro = 1 + max((op.micro_batch for op in ops), default=-1)
        numbers, home = _number_ops(ranks, n_micro)
        for missing in _missing_ops(numbers, n_stages, n_micro):
            raise _missing_error(ranks, home, missing)
        input_op = _input_ops(ops, numbers, n_stages, n_micro)
        rank_of: list[int] = []
        previous_op: list[int | None] = []
        for rank, rank_ops in enumerate(ranks):
            first = len(rank_of)
            rank_of += [rank] * len(rank_ops)
            previous_op += [None, *range(first, first + len(rank_ops) - 1)]
        return cls(ops, rank_of, previous_op, input_op, _runnable_order(ranks, input_op))

    @cached_property
    def remote_input(self) -> list[int | None]:
        """``input_op`` where it is on another rank, else None: the rank's order says the rest."""
        rank = self.rank
        return [
            there if there is not None and rank[there] != rank[here] else None
            for here, there in enumerate(self.input_op)
        ]


class Times(NamedTuple):
    """When each op starts and ends, in seconds."""

    start_s: list[float]
    end_s: list[float]


def earliest_times(
    dependencies: Dependencies,
    duration_s: Sequence[float],
    transfer_s: Sequence[float] | None = None,
    overhead_s: Sequence[float] | None = None,
) -> Times:
    """Return when each op starts and ends if it starts as soon as it can.

    It can ``overhead_s`` after the op before it on its rank, and ``transfer_s`` after the op whose
    output it takes; both are nothing if not given. Then it takes ``duration_s``.
    """
    previous_op, input_op = dependencies.previous_op, dependencies.input_op
    nothing = [0.0] * len(duration_s)
    transfer_s, overhead_s = transfer_s or nothing, overhead_s or nothing
    start, end = nothing.copy(), nothing.copy()
    for i in dependencies.order:
        previous, needed = previous_op[i], input_op[i]
        at = overhead_s[i] if previous is None else end[previous] + overhead_s[i]
        if needed is not None and (arrives := end[needed] + transfer_s[i]) > at:
            at = arrives
        start[i] = at
        end[i] = at + duration_s[i]
    return Times(start, end)


# --- what is there, and what is missing -----------------------------------------------------------
#
# A schedule of 64 ranks and 512 micro-batches has 65,536 ops, and someone drags a slider: hence
# numbers in dictionaries of numbers, looked up in one pass, and no op hashed or made.

Numbers = dict[int, int]  # of the ops of one kind, by place = stage · n_micro + micro_batch


def _number_ops(ranks: list[list[Op]], n_micro: int) -> tuple[dict[str, Numbers], dict[int, int]]:
    """Return by kind the numbers of its ops, and the rank of each stage.

    Raises ScheduleError for an op in the wrong place.
    """
    if not ranks:
        raise ScheduleError(0, 0, None, "the schedule has no ranks")
    numbers: dict[str, Numbers] = {kind: {} for kind in KINDS}
    forward, backward, input_grad, weight_grad = numbers.values()
    # of each kind: where its ops are numbered, those it needs before it, and those that exclude it
    tables: dict[str, tuple[Numbers, Numbers | None, Numbers]] = {
        "F": (forward, None, {}),
        "B": (backward, forward, input_grad),
        "I": (input_grad, forward, backward),
        "W": (weight_grad, input_grad, {}),
    }
    home: dict[int, int] = {}
    number = 0
    for rank, ops in enumerate(ranks):
        if not ops:
            raise ScheduleError(rank, 0, None, "the rank has nothing to do")
        for position, (kind, stage, micro_batch) in enumerate(ops):
            place = stage * n_micro + micro_batch
            mine, needed, other = tables[kind]
            if place in mine:
                reason = "it is there twice"
            elif home.setdefault(stage, rank) != rank:
                reason = f"stage {stage} is on rank {home[stage]} already"
            elif needed is not None and place not in needed:
                reason = f"it needs {stage}{'I' if kind == 'W' else 'F'}{micro_batch}, which does not come before it"
            elif place in other:
                reason = "the backward pass is there whole (B) and split (I, W), expected one of the two"
            else:
                mine[place] = number
                number += 1
                continue
            raise ScheduleError(rank, position, ops[position], reason)
    return numbers, home


def _missing_ops(numbers: dict[str, Numbers], n_stages: int, n_micro: int) -> Iterator[Op]:
    """Yield the ops that should be there and are not."""
    has_backward = bool(numbers["B"] or numbers["I"])
    for place in range(n_stages * n_micro):
        if place not in numbers["F"]:
            yield Op("F", *divmod(place, n_micro))
        elif place in numbers["I"]:
            if place not in numbers["W"]:
                yield Op("W", *divmod(place, n_micro))
        elif has_backward and place not in numbers["B"]:
            yield Op("B", *divmod(place, n_micro))


def _missing_error(ranks: list[list[Op]], home: dict[int, int], missing: Op) -> ScheduleError:
    """Return the error for ``missing``: at the end of its rank, or at the next stage there is."""
    if missing.stage in home:
        rank = home[missing.stage]
        whole_or_split = " (or I and W in its place)" if missing.kind == "B" else ""
        return ScheduleError(rank, len(ranks[rank]), missing, f"it is missing{whole_or_split}")
    next_stage = min(stage for stage in home if stage > missing.stage)
    rank = home[next_stage]
    position, op = next((position, op) for position, op in enumerate(ranks[rank]) if op.stage == next_stage)
    return ScheduleError(rank, position, op, f"stage {missing.stage} comes before its stage, and no rank has it")


# --- what takes whose output, and in which order that can run -------------------------------------


def _input_ops(ops: list[Op], numbers: dict[str, Numbers], n_stages: int, n_micro: int) -> list[int | None]:
    """Return for each op the number of the one whose output it takes, None for F of stage 0.

    That is the activation of the stage before, or the gradient of the stage after; the last stage
    takes its own output, through the loss, and W what its I has left for it.
    """
    forward, input_grad = numbers["F"], numbers["I"]
    backward = numbers["B"] | input_grad
    inputs: list[int | None] = []
    for kind, stage, micro_batch in ops:
        place = stage * n_micro + micro_batch
        if kind == "F":
            inputs.append(forward.get(place - n_micro))
        elif kind == "W":
            inputs.append(input_grad[place])
        elif stage == n_stages - 1:
            inputs.append(forward[place])
        else:
            inputs.append(backward[place + n_micro])
    return inputs


def _runnable_order(ranks: list[list[Op]], input_op: list[int | None]) -> list[int]:
    """Return every op once, each after the op before it on its rank and after its input.

    Raises ScheduleError for a deadlock.
    """
    starts = [0]
    for ops in ranks:
        starts.append(starts[-1] + len(ops))
    at = starts[:-1]  # of each rank, the op that comes next
    done = [False] * starts[-1]
    waiting: dict[int, int] = {}  # an op that is not done -> the rank that waits for it
    order: list[int] = []
    ready = list(range(len(ranks)))
    while ready:
        rank = ready.pop()
        i, end = at[rank], starts[rank + 1]
        while i < end:
            needed = input_op[i]
            if needed is not None and not done[needed]:
                waiting[needed] = rank
                break
            done[i] = True
            order.append(i)
            if (waiter := waiting.pop(i, None)) is not None:
                ready.append(waiter)
            i += 1
        at[rank] = i
    if waiting:
        raise _deadlock_error(ranks, waiting, at, starts)
    return order


def _deadlock_error(ranks: list[list[Op]], waiting: dict[int, int], at: list[int], starts: list[int]) -> ScheduleError:
    """Return the error for the circle of ranks that wait for each other, from the lowest on."""
    ops = [op for rank_ops in ranks for op in rank_ops]
    owner = [rank for rank, rank_ops in enumerate(ranks) for _ in rank_ops]
    wants = {rank: i for i, rank in waiting.items()}
    rank, seen = min(wants), []
    while rank not in seen:
        seen.append(rank)
        rank = owner[wants[rank]]
    circle = seen[seen.index(rank) :]
    first = min(circle)
    turned = circle[circle.index(first) :] + circle[: circle.index(first)]
    steps = [
        f"{ops[at[r]]} on rank {r} waits for {ops[wants[r]]}, which rank {owner[wants[r]]} runs later" for r in turned
    ]
    return ScheduleError(first, at[first] - starts[first], ops[at[first]], "a deadlock: " + "; ".join(steps))
