"""Find a best way to finish a board, by trying orders of the ops that are left.

An op goes after the last one of its rank, as a reader places it. So a way to finish is an order of
ops, and some order gives a best board: take a best one's ops by their start.

Micro-batches are alike. So of one stage's ops of one kind only the one whose input arrives first is
tried: in any way to finish another one and all that comes of it could change places with it.
"""

from __future__ import annotations

import contextlib
import math
from functools import lru_cache
from typing import NamedTuple

from labkit.explore.puzzle.board import Board
from labkit.explore.puzzle.levels import Level
from labkit.explore.puzzle.rules import Refusal
from labkit.schedule import Op

SEARCHED = 1000  # boards a search looks at before it gives up


class Completion(NamedTuple):
    """A finished board and its result; None and inf where the board cannot be finished.

    ``certain`` says that no way to finish has a better result, not only that none was found.
    """

    board: Board | None
    result_s: float
    certain: bool


@lru_cache(maxsize=512)  # of the boards of a game, which hints ask for again and again
def complete(board: Board, level: Level) -> Completion:
    """Return the best way found to finish ``board``."""
    search = _Search(level, lower_bound(board, level))
    search.visit(board)
    # a rank may have a shorter span if another micro-batch is its first, which is not tried
    every_way = search.left > 0 and (level.goal == "makespan" or not search.best)
    return Completion(search.best, search.best_s, every_way or search.best_s <= search.bound_s)


def candidates(board: Board) -> dict[Op, Board]:
    """Return the ops that may be placed now, with the board after each.

    Of each stage and kind it is the one whose input arrives first.
    """
    first: dict[tuple[int, str], tuple[float, Op]] = {}
    for op, needed in board.rules.inputs.items():
        if op in board.placed or (needed and needed not in board.placed):
            continue
        arrival_s = board.bars[needed].end_s if needed else 0.0
        group = (op.stage, op.kind)
        if group not in first or arrival_s < first[group][0]:
            first[group] = (arrival_s, op)
    after = {}
    for _, op in first.values():
        with contextlib.suppress(Refusal):
            after[op] = board.place(op)
    return after


class _Search:
    """Try every order, the reference's first, and leave out what cannot get better."""

    def __init__(self, level: Level, bound_s: float):
        self.level, self.bound_s = level, bound_s
        self.best: Board | None = None
        self.best_s = math.inf
        self.left = SEARCHED
        self.seen: set[tuple[tuple[Op, ...], ...]] = set()

    def visit(self, board: Board) -> None:
        self.left -= 1
        if board.finished and (result_s := self.level.result_s(board)) < self.best_s:
            self.best, self.best_s = board, result_s
        after = candidates(board)
        for op in sorted(after, key=lambda op: self._start_in_reference(op, board)):
            if self.left == 0 or self.best_s <= self.bound_s:
                return
            if after[op].orders not in self.seen:
                self.seen.add(after[op].orders)
                if lower_bound(after[op], self.level) < self.best_s:
                    self.visit(after[op])

    def _start_in_reference(self, op: Op, board: Board) -> float:
        """Return when the reference runs as many ops like ``op`` as ``board`` has, and one more."""
        number = sum(other.kind == op.kind and other.stage == op.stage for other in board.placed)
        return self.level.reference_board.bars[Op(op.kind, op.stage, number)].start_s


# --- a bound --------------------------------------------------------------------------------------


class _Job(NamedTuple):
    """An op of one rank: it cannot start before ``head_s``, and ``tail_s`` has to follow it."""

    head_s: float
    duration_s: float
    tail_s: float


def lower_bound(board: Board, level: Level) -> float:
    """Return a time that no way to finish ``board`` can beat.

    On one rank, take ops of which none can start before some head, and after each of which some
    tail has to follow: head + their durations + tail. The most of those over ranks, heads and tails
    (Carlier 1982, the one-machine problem). Memory is left out, so the bound may be too low.
    """
    return max(_bound_of_rank(rank, board, level) for rank in range(level.rules.n_ranks))


def _bound_of_rank(rank: int, board: Board, level: Level) -> float:
    rules, bars, makespan = level.rules, board.bars, level.goal == "makespan"
    jobs = [
        _Job(bars[op].start_s, rules.duration_s[op], rules.tail_s[op] if makespan else 0.0)
        for op in rules.ops_of_rank[rank]
    ]
    if makespan:
        return _one_machine(jobs)
    busy_s, order = sum(job.duration_s for job in jobs), board.orders[rank]
    return max(busy_s, _one_machine(jobs) - bars[order[0]].start_s) if order else busy_s


def _one_machine(jobs: list[_Job]) -> float:
    """Return the most of head + durations + tail, over all heads and tails of the jobs."""
    by_head = sorted(jobs, reverse=True)
    bound_s = 0.0
    for least_tail_s in {job.tail_s for job in jobs}:
        total_s = 0.0
        for job in by_head:
            if job.tail_s >= least_tail_s:
                total_s += job.duration_s
                bound_s = max(bound_s, job.head_s + total_s + least_tail_s)
    return bound_s
