"""Help as much as a reader wants: what may be placed, what to place next and why, the whole way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from labkit.explore.puzzle.board import Board, Ready
from labkit.explore.puzzle.completion import Completion, best_way, reaches_par
from labkit.explore.puzzle.levels import Level
from labkit.explore.puzzle.refusals import Refusal
from labkit.schedule import Op

ASSISTANCE = ("none", "what may be placed", "and what to place next", "and the whole way")


@dataclass(frozen=True)
class Hint:
    """What to do next. Printed, it is all that there is to say.

    ``sentence`` says the move, ``op`` and ``start_s``, None where there is none to make, and
    ``why`` its reason. ``about_par`` says that par is lost and that ``undo`` moves have to be taken
    back first for it to be within reach again; "" and 0 where it is.
    """

    sentence: str
    op: Op | None = None
    start_s: float | None = None
    why: str = ""
    about_par: str = ""
    undo: int = 0

    def __str__(self) -> str:
        return " ".join(filter(None, [self.sentence, self.about_par]))


def hint(board: Board, level: Level, before: Sequence[Board] = ()) -> Hint:
    """Return a move of a best way to finish ``board``, with its reason; and whether par is lost.

    The move goes after the last op of its rank unless a gap is better. ``before`` are the boards
    that undo goes back to, the latest first.
    """
    if wrong := board.violations():
        more = f" ({len(wrong)} things are wrong)" if len(wrong) > 1 else ""
        return Hint(f"First mend what is there: {wrong[0]}{more}", wrong[0].op)
    best = best_way(board, level)
    undo, about_par = _undo(board, best, level, before)
    if best.board is None or board.finished:
        return Hint("" if about_par else "All is placed, and at par.", about_par=about_par, undo=undo)
    op, start_s = _in_order(board, best.board)[0]
    rank = board.rules.rank_of(op)
    later = next((bar.op for bar in board.rows[rank].bars if bar.start_s > start_s), None)
    where = f"on rank {rank} at {start_s:g}" + (f", in the gap before {later}" if later else "")
    if later and not about_par and (number := _moves_back(before, level)):
        about_par = f"Or undo {_moves(number)}: from there on no op has to go into a gap."
    why = _why(op, board, best.board)
    return Hint(f"Place {op} next, {where}: {why}.", op, start_s, why, about_par, undo)


def way(board: Board, level: Level) -> list[Ready]:
    """Return the moves of a best way to finish ``board``, one after the other; [] without one."""
    best = best_way(board, level) if not board.violations() else None
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
    moves = f"undo {_moves(number)} for par" if number else "clear the board for par"
    if best.board is None:
        dead_end = "There is no way on from here" if best.certain else "I find no way on from here"
        return number, f"{dead_end}: {moves}."
    how_sure = "is the best there is" if best.certain else "is the best I find"
    here = f"This board takes {best.result_s:g}" if board.finished else f"From here {best.result_s:g} {how_sure}"
    return number, f"{here}; par is {level.par_s:g}: {moves}."


def _moves_back(before: Sequence[Board], level: Level) -> int:
    """Return how many moves ago par was within reach without an op in a gap, 0 if never.

    Once it is lost it stays lost, until something is removed. So halving finds the move that lost
    it.
    """
    reached, lost = len(before), 0
    while reached - lost > 1:
        middle = (reached + lost) // 2
        if reaches_par(before[middle - 1], level, append=True):
            reached = middle
        else:
            lost = middle
    return reached if before and reaches_par(before[reached - 1], level, append=True) else 0


def _moves(number: int) -> str:
    return f"{number} move{'s' if number != 1 else ''}"


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
