"""Find a best way to finish a board: by rules of thumb, and where those leave doubt by search.

An op is always placed at its earliest start: in a gap if it fits, or with ``append`` after the last
op of its rank, as a reader places it. So a way to finish is an order of ops, and some order gives a
best board: take a best one's ops by their start.

Micro-batches are alike. So of one stage's ops of one kind only the one whose input arrives first is
tried: in any way to finish another one and all that comes of it could change places with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import NamedTuple

from labkit.explore.puzzle.board import Board, Ready
from labkit.explore.puzzle.levels import Level
from labkit.explore.puzzle.refusals import Refusal
from labkit.schedule import Op

SEARCHED = 1000  # boards a search looks at before it gives up


class Completion(NamedTuple):
    """A finished board and its result; None and inf where the board cannot be finished.

    ``certain`` says that no way to finish has a better result, not only that none was found.
    """

    board: Board | None
    result_s: float
    certain: bool


def best_way(board: Board, level: Level) -> Completion:
    """Return the best way found to finish ``board``: one without gaps unless others are better."""
    appended = complete(board, level, append=True)
    if appended.result_s <= level.par_s:
        return appended
    best = complete(board, level)
    return best if best.result_s < appended.result_s else appended._replace(certain=best.certain)


@lru_cache(maxsize=512)  # of the boards of a game, which hints ask for again and again
def complete(board: Board, level: Level, append: bool = False) -> Completion:
    """Return the best way found to finish ``board``, which must have no violations."""
    bound_s = lower_bound(board, level, append)
    best: Board | None = None
    for finished in _by_rules(board, level, append):
        if best is None or level.result_s(finished) < level.result_s(best):
            best = finished
        if level.result_s(best) <= bound_s:
            return Completion(best, level.result_s(best), True)
    return _Search(level, best, append=append).run(board)


@lru_cache(maxsize=512)
def reaches_par(board: Board, level: Level, append: bool = False) -> bool:
    """Return whether a way to finish ``board`` at par was found."""
    if board.violations() or lower_bound(board, level, append) > level.par_s:
        return False
    if any(level.result_s(finished) <= level.par_s for finished in _by_rules(board, level, append)):
        return True
    return _Search(level, None, level.par_s, append).run(board).board is not None


def candidates(board: Board, append: bool = False) -> list[Ready]:
    """Return of each stage and kind the op that may be placed now and whose input arrives first."""
    first: dict[tuple[int, str], tuple[float, Op]] = {}
    placed, rules = board.placed, board.rules
    for op, needed in rules.inputs.items():
        if op in placed or (needed is not None and needed not in placed):
            continue
        arrival_s = 0.0 if needed is None else placed[needed].end_s
        group = (op.stage, op.kind)
        if group not in first or arrival_s < first[group][0]:
            first[group] = (arrival_s, op)
    starts = ((op, board.earliest(op)) for _, op in first.values())
    ready = [Ready(op, start_s) for op, start_s in starts if not isinstance(start_s, Refusal)]
    return [Ready(op, max(start_s, board.end_of_rank(op))) for op, start_s in ready] if append else ready


# --- rules of thumb -------------------------------------------------------------------------------

Key = Callable[[Ready, Board], tuple[float, ...]]  # the least goes next


def _keys(level: Level) -> list[Key]:
    tails, starts = level.rules.tails, _starts(level)
    returning, freeing = level.rules.returning_kind, level.rules.freeing_kind

    def nth(ready: Ready, board: Board) -> int:
        return sum(bar.op.kind == ready.op.kind and bar.op.stage == ready.op.stage for bar in board.placed.values())

    def as_reference(ready: Ready, board: Board) -> tuple[float, ...]:
        return (starts[ready.op.kind, ready.op.stage][nth(ready, board)],)

    def earliest_back(ready: Ready, _: Board) -> tuple[float, ...]:
        return ready.start_s, ready.op.kind != returning, ready.op.kind != "F", ready.op.micro_batch

    def earliest_forward(ready: Ready, _: Board) -> tuple[float, ...]:
        return ready.start_s, ready.op.kind != "F", ready.op.kind != returning, ready.op.micro_batch

    def longest_tail(ready: Ready, _: Board) -> tuple[float, ...]:
        return ready.start_s, -tails[ready.op], ready.op.micro_batch

    def back_first(ready: Ready, _: Board) -> tuple[float, ...]:
        return ready.op.kind != returning, ready.op.kind == freeing, ready.start_s, ready.op.micro_batch

    def gaps_last(ready: Ready, _: Board) -> tuple[float, ...]:
        return ready.op.kind == "W", ready.start_s, ready.op.kind != returning, ready.op.micro_batch

    def by_micro_batch(ready: Ready, _: Board) -> tuple[float, ...]:
        return ready.op.micro_batch, ready.start_s

    return [as_reference, earliest_back, earliest_forward, longest_tail, back_first, gaps_last, by_micro_batch]


def _starts(level: Level) -> dict[tuple[str, int], list[float]]:
    """Return by kind and stage when the reference starts its ops, in order."""
    starts: dict[tuple[str, int], list[float]] = {}
    for op, bar in level.reference_board.placed.items():
        starts.setdefault((op.kind, op.stage), []).append(bar.start_s)
    return {group: sorted(times) for group, times in starts.items()}


def _by_rules(board: Board, level: Level, append: bool) -> Iterator[Board]:
    """Yield ways to finish ``board``: as the reference if it is on its way, then by each rule."""
    reference = level.reference_board.placed
    if all(reference[op] == bar for op, bar in board.placed.items()):
        gaps = any(bar.start_s < board.end_of_rank(op) for op, bar in reference.items() if op not in board.placed)
        if not (append and gaps):
            yield level.reference_board
    for key in _keys(level):
        if finished := _by_rule(board, key, append):
            yield finished


def _by_rule(board: Board, key: Key, append: bool) -> Board | None:
    """Place one op after the other, always the one with the least key; None in a dead end."""
    while ready := candidates(board, append):
        op, start_s = min(ready, key=lambda ready: key(ready, board))
        board = board.with_op(op, start_s)
    return board if len(board.placed) == len(board.rules.ops) else None


# --- a bound, and a search with it ----------------------------------------------------------------


def lower_bound(board: Board, level: Level, append: bool = False) -> float:
    """Return a time that no way to finish ``board`` can beat.

    On one rank, take ops of which none can start before some head, and after each of which some
    tail has to follow: head + their durations + tail. The most of those over ranks, heads and tails
    (Carlier 1982, the one-machine problem). Memory is left out, so the bound may be too low.
    """
    rules, tails = board.rules, board.rules.tails
    heads = _heads(board, append)
    rows: list[list[tuple[float, float, float]]] = [[] for _ in range(rules.n_ranks)]
    for op in rules.ops:
        tail_s = 0.0 if level.goal == "span" else tails[op]
        rows[rules.rank_of(op)].append((heads[op], rules.duration(op), tail_s))
    ends = [_one_machine(ops) for ops in rows]
    if level.goal == "makespan":
        return max(ends)
    starts = [row.bars[0].start_s if row.bars else None for row in board.rows]
    work = [sum(duration_s for _, duration_s, _ in ops) for ops in rows]
    return max(
        total if start_s is None else max(total, end_s - start_s)
        for total, start_s, end_s in zip(work, starts, ends, strict=True)
    )


def _heads(board: Board, append: bool) -> dict[Op, float]:
    """Return by op its start, or a time before which it cannot start."""
    heads: dict[Op, float] = {}
    rules = board.rules
    for op in rules.ops:
        if bar := board.placed.get(op):
            heads[op] = bar.start_s
            continue
        needed = rules.inputs[op]
        arrival_s = 0.0 if needed is None else heads[needed] + rules.duration(needed) + rules.delay(op)
        row = board.rows[rules.rank_of(op)]
        heads[op] = max(arrival_s, row.end_s) if append else row.gap(arrival_s, rules.duration(op))
    return heads


def _one_machine(ops: list[tuple[float, float, float]]) -> float:
    """Return the most of head + durations + tail, over all heads and tails of the ops."""
    by_head = sorted(ops, reverse=True)
    bound = 0.0
    for tail_s in {tail for _, _, tail in ops}:
        total = 0.0
        for head_s, duration_s, tail in by_head:
            if tail >= tail_s:
                total += duration_s
                bound = max(bound, head_s + total + tail_s)
    return bound


class _Search:
    """Try every order, the one that starts earliest first, and leave out what cannot get better."""

    def __init__(self, level: Level, best: Board | None, most_s: float = float("inf"), append: bool = False):
        self.level, self.best, self.most_s, self.append = level, best, most_s, append
        self.left = SEARCHED
        self.seen: set[frozenset] = set()

    @property
    def best_s(self) -> float:
        return self.level.result_s(self.best) if self.best else float("inf")

    def run(self, board: Board) -> Completion:
        self._visit(board)
        # a rank's span can also be shortened by a later start, which is not tried
        every_way = self.left > 0 and (self.level.goal == "makespan" or not self.best)
        return Completion(self.best, self.best_s, every_way)

    def _visit(self, board: Board) -> None:
        if self.left <= 0:
            return
        self.left -= 1
        if len(board.placed) == len(board.rules.ops):
            if self.level.result_s(board) < self.best_s:
                self.best = board
            if self.best_s <= self.most_s < float("inf"):
                self.left = 0  # good enough
            return
        ready = candidates(board, self.append)
        for op, start_s in sorted(ready, key=lambda ready: (ready.start_s, -board.rules.tails[ready.op])):
            after = board.with_op(op, start_s)
            state = frozenset(after.placed.values())
            if state in self.seen:
                continue
            self.seen.add(state)
            if (bound_s := lower_bound(after, self.level, self.append)) < self.best_s and bound_s <= self.most_s:
                self._visit(after)
