"""Help as much as a reader wants: what may be placed, what to place next and why, the whole way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from labkit.explore.puzzle.board import Board, Ready
from labkit.explore.puzzle.completion import Completion, complete, reaches_par
from labkit.explore.puzzle.levels import Level
from labkit.explore.puzzle.refusals import Refusal
from labkit.schedule import Op

ASSISTANCE = ("none", "what may be placed", "and what to place next", "and the whole way")


@dataclass(frozen=True)
class Hint:
    """What to do next. Printed, it is its ``sentence``.

    ``op`` and ``start_s`` are the move, None where there is none to make. ``undo`` moves have to be
    taken back first for par to be within reach again; 0 where it is.
    """

    sentence: str
    op: Op | None = None
    start_s: float | None = None
    undo: int = 0

    def __str__(self) -> str:
        return self.sentence


def hint(board: Board, level: Level, before: Sequence[Board] = ()) -> Hint:
    """Return a move of a best way to finish ``board``, with its reason; and whether par is lost.

    ``before`` are the boards that undo goes back to, the latest first.
    """
    if wrong := board.violations():
        more = f" ({len(wrong)} things are wrong)" if len(wrong) > 1 else ""
        return Hint(f"First mend what is there: {wrong[0]}{more}", wrong[0].op)
    best = complete(board, level)
    undo, about_par = _undo(board, best, level, before)
    if best.board is None:
        return Hint(about_par, undo=undo)
    if board.finished:
        return Hint(about_par or "All is placed, and at par.", undo=undo)
    op, start_s = _in_order(board, best.board)[0]
    rank = board.rules.rank_of(op)
    later = next((bar.op for bar in board.rows[rank].bars if bar.start_s > start_s), None)
    where = f"on rank {rank} at {start_s:g}" + (f", in the gap before {later}" if later else "")
    place = f"Place {op} next, {where}: {_why(op, board, best.board)}."
    return Hint(f"{place} {about_par}".strip(), op, start_s, undo)


def way(board: Board, level: Level) -> list[Ready]:
    """Return the moves of a best way to finish ``board``, one after the other; [] without one."""
    best = complete(board, level) if not board.violations() else None
    return _in_order(board, best.board) if best and best.board else []


def _in_order(board: Board, finished: Board) -> list[Ready]:
    """Return the moves from ``board`` to ``finished`` by their start, if each is legal there.

    Otherwise they come in the order in which they were found, which always is.
    """
    found = [Ready(op, bar.start_s) for op, bar in finished.placed.items() if op not in board.placed]
    in_time = sorted(found, key=lambda move: move.start_s)
    for op, start_s in in_time:
        after = board.place(op, start_s)
        if isinstance(after, Refusal):
            return found
        board = after
    return in_time


# --- is par lost? ---------------------------------------------------------------------------------


def _undo(board: Board, best: Completion, level: Level, before: Sequence[Board]) -> tuple[int, str]:
    """Return how many moves to undo for par to be in reach again, and say so; 0 and "" if it is."""
    if best.result_s <= level.par_s:
        return 0, ""
    number = _moves_back(before, level)
    moves = f"undo {number} move{'s' if number != 1 else ''} for par" if number else "clear the board for par"
    if best.board is None:
        dead_end = "There is no way on from here" if best.certain else "I find no way on from here"
        return number, f"{dead_end}: {moves}."
    how_sure = "is the best there is" if best.certain else "is the best I find"
    here = f"This board takes {best.result_s:g}" if board.finished else f"From here {best.result_s:g} {how_sure}"
    return number, f"{here}; par is {level.par_s:g}: {moves}."


def _moves_back(before: Sequence[Board], level: Level) -> int:
    """Return how many moves ago par was within reach, 0 if never.

    Once it is lost it stays lost, until something is removed. So halving finds the move that lost
    it.
    """
    reached, lost = len(before), 0
    while reached - lost > 1:
        middle = (reached + lost) // 2
        if reaches_par(before[middle - 1], level):
            reached = middle
        else:
            lost = middle
    return reached if before and reaches_par(before[reached - 1], level) else 0


# --- why this op ----------------------------------------------------------------------------------


def _why(op: Op, board: Board, finished: Board) -> str:
    """Say why ``op`` comes next on the way to ``finished``."""
    rules, rank, bar = board.rules, board.rules.rank_of(op), finished.placed[op]
    row = board.rows[rank]
    awaited = next(
        (then for then in rules.outputs[op] if finished.placed[then].start_s == bar.end_s + rules.delay(then)), None
    )
    if op.kind == "W":
        return f"nobody waits for a W, and rank {rank} has nothing more urgent to do then"
    if op.kind != "F" and row.full_from(bar.start_s) is not None:
        return f"rank {rank} keeps all the activations it may, and only the end of a {rules.freeing_kind} makes room"
    if awaited and rules.rank_of(awaited) != rank:
        return f"rank {rules.rank_of(awaited)} waits for it, and can run {awaited} as soon as it is there"
    if op.kind != "F" and op.stage == 0:
        return f"its gradient is there, and its end frees the activation of micro-batch {op.micro_batch}"
    if op.kind == "F":
        room = ", and it has room for the activation" if rules.caps else ""
        return f"rank {rank} would be idle otherwise{room}"
    return f"what it needs is there, and stage {op.stage - 1} will need its gradient"
