"""Who computes what in which order: pipeline schedules as data, the ones of the papers, a validator, and torch's CSV.

    schedule = one_f_one_b(n_stages=4, n_micro=8)
    str(schedule.ops[3][1]) == "3B0"      # the second op of rank 3: stage 3, backward, micro-batch 0

A schedule says nothing about time. When each op runs follows from it, and :mod:`labkit.simulate` works that out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

KINDS = "FBIW"
_OP = re.compile(rf"(\d+)([{KINDS}])(\d+)")


class _Op(NamedTuple):
    kind: str
    stage: int
    micro_batch: int


class Op(_Op):
    """One thing a rank does: ``kind`` of ``stage`` for ``micro_batch``. It prints as ``2F0``, as torch's do.

    ``F`` is the forward pass and ``B`` the whole backward pass. ``I`` is the backward pass towards the input alone, and
    ``W`` the one towards the weights: I and W together replace B. Raises ValueError for what is none of that.
    """

    __slots__ = ()

    def __new__(cls, kind: str, stage: int, micro_batch: int) -> Op:
        if kind not in KINDS or len(kind) != 1:
            raise ValueError(f"kind is {kind!r}, expected one of {', '.join(KINDS)}")
        if stage < 0 or micro_batch < 0:
            raise ValueError(f"stage is {stage} and micro_batch {micro_batch}; both count from 0")
        return tuple.__new__(cls, (kind, stage, micro_batch))

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.micro_batch}"

    @classmethod
    def parse(cls, text: str) -> Op:
        """The op that prints as ``text``, such as ``"2F0"``. Raises ValueError for any other text."""
        if not (match := _OP.fullmatch(text.strip())):
            raise ValueError(f"{text!r} is no op, expected stage, kind and micro-batch, such as 2F0")
        return cls(match[2], int(match[1]), int(match[3]))


@dataclass(frozen=True)
class Schedule:
    """For each rank its ops, in the order in which it runs them. ``name`` is what it is called where it is shown.

    A stage is on the rank that has its ops. Whether everything fits together is for :func:`validate` to say.
    """

    ops: list[list[Op]]
    name: str = field(default="", compare=False)

    @property
    def n_ranks(self) -> int:
        return len(self.ops)

    @property
    def n_stages(self) -> int:
        return 1 + max((op.stage for ops in self.ops for op in ops), default=-1)

    @property
    def n_micro(self) -> int:
        return 1 + max((op.micro_batch for ops in self.ops for op in ops), default=-1)

    def __str__(self) -> str:
        lines = (f"rank {rank}: {' '.join(map(str, ops))}" for rank, ops in enumerate(self.ops))
        return "\n".join([*([self.name] if self.name else []), *lines])


# --- what waits for what ---------------------------------------------------------------------------------------------


class ScheduleError(ValueError):
    """A schedule that cannot run. ``rank``, ``position`` in its list and ``op`` say where, ``reason`` why.

    ``op`` is None where a rank or an op is missing; then ``position`` is where the list ends.
    """

    def __init__(self, rank: int, position: int, op: Op | None, reason: str):
        super().__init__(f"rank {rank}, position {position}{f', {op}' if op else ''}: {reason}")
        self.rank, self.position, self.op, self.reason = rank, position, op, reason


@dataclass(frozen=True)
class Flow:
    """What each op of a schedule waits for. Ops are numbered rank by rank, in the order of their lists.

    ``before[i]`` is the op before op i on its rank, ``source[i]`` the one whose output it takes; -1 where there is none.
    ``order`` has every op once, each behind the two that it waits for.
    """

    ops: list[Op]
    rank: list[int]
    before: list[int]
    source: list[int]
    order: list[int]


def validate(schedule: Schedule) -> None:
    """Whether ``schedule`` can run: every op once, on the rank of its stage, behind what it needs, and no deadlock.

    Either no micro-batch has a backward pass, or every one has it in every stage, whole (B) or split (I and later W).
    Raises ScheduleError for the first thing that is wrong.
    """
    flow(schedule)


def flow(schedule: Schedule) -> Flow:
    """What waits for what in ``schedule``. Raises ScheduleError as :func:`validate` does."""
    number: dict[tuple[str, int, int], int] = {}
    home: dict[int, int] = {}  # the rank of each stage
    for rank, ops in enumerate(schedule.ops):
        if not ops:
            raise ScheduleError(rank, 0, None, "the rank has nothing to do")
        for position, op in enumerate(ops):
            if reason := _misplaced(op, rank, number, home):
                raise ScheduleError(rank, position, op, reason)
            number[op] = len(number)
    for missing in _missing(schedule, number):
        rank = home.get(missing.stage, 0)
        raise ScheduleError(rank, len(schedule.ops[rank]), missing, "it is missing")
    rank_of = [rank for rank, ops in enumerate(schedule.ops) for _ in ops]
    before = [i - 1 if i and rank_of[i - 1] == rank_of[i] else -1 for i in range(len(rank_of))]
    ops, n_stages = [op for ops in schedule.ops for op in ops], schedule.n_stages
    source = [number.get(_input_of(op, n_stages, number), -1) for op in ops]
    return Flow(ops, rank_of, before, source, _order(schedule, source))


def _misplaced(op: Op, rank: int, number: dict[tuple[str, int, int], int], home: dict[int, int]) -> str:
    """Why ``op`` cannot come here, on this rank after the ops numbered so far; empty if it can."""
    kind, stage, micro_batch = op
    if op in number:
        return "it is there twice"
    if home.setdefault(stage, rank) != rank:
        return f"stage {stage} is on rank {home[stage]} already"
    needed = {"F": None, "B": "F", "I": "F", "W": "I"}[kind]
    if needed and (needed, stage, micro_batch) not in number:
        return f"it comes before {stage}{needed}{micro_batch}, which it needs"
    other = {"B": "I", "I": "B"}.get(kind)
    if other and (other, stage, micro_batch) in number:
        return f"{stage}{other}{micro_batch} is there too, expected the backward pass either whole (B) or split (I, W)"
    return ""


def _missing(schedule: Schedule, number: dict[tuple[str, int, int], int]) -> Iterator[Op]:
    """The ops that should be there and are not."""
    has_backward = any(op.kind != "F" for ops in schedule.ops for op in ops)
    for stage in range(schedule.n_stages):
        for micro_batch in range(schedule.n_micro):
            if ("F", stage, micro_batch) not in number:
                yield Op("F", stage, micro_batch)
            elif ("I", stage, micro_batch) in number:
                if ("W", stage, micro_batch) not in number:
                    yield Op("W", stage, micro_batch)
            elif has_backward and ("B", stage, micro_batch) not in number:
                yield Op("B", stage, micro_batch)


def _input_of(op: Op, n_stages: int, number: dict[tuple[str, int, int], int]) -> tuple[str, int, int]:
    """The op whose output ``op`` takes: the activation of the stage before, or the gradient of the stage after."""
    kind, stage, micro_batch = op
    if kind == "F":
        return "F", stage - 1, micro_batch  # of stage 0: there is none
    if kind == "W":
        return "I", stage, micro_batch
    if stage == n_stages - 1:
        return "F", stage, micro_batch
    split = ("I", stage + 1, micro_batch)
    return split if split in number else ("B", stage + 1, micro_batch)


def _order(schedule: Schedule, source: list[int]) -> list[int]:
    """Every op once, each behind the op before it on its rank and behind its source. Raises ScheduleError for a deadlock."""
    starts = [0]
    for ops in schedule.ops:
        starts.append(starts[-1] + len(ops))
    at = starts[:-1]  # of each rank, the op that comes next
    done = [False] * starts[-1]
    waiting: dict[int, int] = {}  # an op that is not done -> the rank that waits for it
    order: list[int] = []
    ready = list(range(schedule.n_ranks))
    while ready:
        rank = ready.pop()
        i, end = at[rank], starts[rank + 1]
        while i < end and (source[i] < 0 or done[source[i]]):
            done[i] = True
            order.append(i)
            if (waiter := waiting.pop(i, None)) is not None:
                ready.append(waiter)
            i += 1
        at[rank] = i
        if i < end:
            waiting[source[i]] = rank
    if waiting:
        raise _deadlock(schedule, waiting, at, starts)
    return order


def _deadlock(schedule: Schedule, waiting: dict[int, int], at: list[int], starts: list[int]) -> ScheduleError:
    """The circle of ranks that wait for each other, from its lowest rank on."""
    ops = [op for rank_ops in schedule.ops for op in rank_ops]
    owner = [rank for rank, rank_ops in enumerate(schedule.ops) for _ in rank_ops]
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


# --- schedules without a backward pass, GPipe, 1F1B --------------------------------------------------------------------


def _check_counts(**counts: int) -> None:
    for name, count in counts.items():
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise ValueError(f"{name} is {count!r}, expected a whole number, 1 or more")


def forward_only(n_stages: int, n_micro: int) -> Schedule:
    """Every stage runs the forward pass of micro-batch 0, 1, …: inference, or the forward half of GPipe."""
    _check_counts(n_stages=n_stages, n_micro=n_micro)
    return Schedule([[Op("F", stage, i) for i in range(n_micro)] for stage in range(n_stages)], "forward only")


def gpipe(n_stages: int, n_micro: int) -> Schedule:
    """All forward passes, then all backward passes, both in micro-batch order (Huang et al. 2019, arXiv 1811.06965).

    With equal stages the bubble is (n − 1) / (m + n − 1) of the time, and a rank keeps the activations of m micro-batches.
    """
    _check_counts(n_stages=n_stages, n_micro=n_micro)
    return Schedule(
        [[Op(kind, stage, i) for kind in "FB" for i in range(n_micro)] for stage in range(n_stages)], "GPipe"
    )


def one_f_one_b(n_stages: int, n_micro: int) -> Schedule:
    """One forward, one backward, in turns, after min(n − r, m) forwards on rank r (Narayanan et al. 2019, PipeDream).

    The bubble of GPipe, but rank r keeps the activations of min(n − r, m) micro-batches only.
    """
    _check_counts(n_stages=n_stages, n_micro=n_micro)
    ops = []
    for stage in range(n_stages):
        ahead = min(n_stages - stage, n_micro)  # forwards before the first backward
        forwards = [Op("F", stage, i) for i in range(n_micro)]
        backwards = [Op("B", stage, i) for i in range(n_micro)]
        steady = [op for pair in zip(backwards, forwards[ahead:], strict=False) for op in pair]
        ops.append(forwards[:ahead] + steady + backwards[n_micro - ahead :])
    return Schedule(ops, "1F1B")
