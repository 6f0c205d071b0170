"""Help as much as a reader wants: what may be placed, what to place next and why, the whole way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from labkit.explore.puzzle.board import Bar, Board
from labkit.explore.puzzle.completion import complete
from labkit.explore.puzzle.levels import Level
from labkit.schedule import Op

ASSISTANCE = ("none", "what may be placed", "and what to place next", "and the whole way")


@dataclass(frozen=True)
class Hint:
    """What to do next. Printed, it is all that there is to say.

    ``sentence`` says the move, ``op``, None where there is none to make, and ``why`` its reason.
    ``about_par`` says that par is lost and that ``undo`` moves have to be taken back first for it
    to be within reach again; "" and 0 where it is.
    """

    sentence: str
    op: Op | None = None
    why: str = ""
    about_par: str = ""
    undo: int = 0

    def __str__(self) -> str:
        return " ".join(filter(None, [self.sentence, self.about_par]))


def hint(board: Board, level: Level, before: Sequence[Board] = ()) -> Hint:
    """Return a move of a best way to finish ``board``, with its reason; and whether par is lost.

    ``before`` are the boards that undo goes back to, the latest one last.
    """
    undo, about_par = _undo(board, level, before)
    best, next_ops = complete(board, level).board, way(board, level)
    if not best or not next_ops:
        return Hint("" if about_par else "All is placed, and at par.", about_par=about_par, undo=undo)
    op, bar = next(iter(next_ops.items()))
    why = _why(op, board, best)
    return Hint(
        f"Place {op} next, on rank {board.rules.rank_of(op)} at {bar.start_s:g}: {why}.", op, why, about_par, undo
    )


def way(board: Board, level: Level) -> dict[Op, Bar]:
    """Return the ops of a best way to finish ``board`` by their start, with their times."""
    if not (best := complete(board, level).board):
        return {}
    left = sorted(best.placed - board.placed, key=lambda op: (best.bars[op], board.rules.rank_of(op)))
    return {op: best.bars[op] for op in left}


# --- is par lost? ---------------------------------------------------------------------------------


def _undo(board: Board, level: Level, before: Sequence[Board]) -> tuple[int, str]:
    """Return how many moves to undo for par to be in reach again, and say so; 0 and "" if it is."""
    best = complete(board, level)
    if best.result_s <= level.par_s:
        return 0, ""
    number = _moves_back(before, level)
    moves = f"undo {number} move{'s' if number > 1 else ''} for par" if number else "clear the board for par"
    if best.board is None:
        dead_end = "There is no way on from here" if best.certain else "I find no way on from here"
        return number, f"{dead_end}: {moves}."
    how_sure = "is the best there is" if best.certain else "is the best I find"
    here = f"This board takes {best.result_s:g}" if board.finished else f"From here {best.result_s:g} {how_sure}"
    return number, f"{here}; par is {level.par_s:g}: {moves}."


def _moves_back(before: Sequence[Board], level: Level) -> int:
    """Return how many moves ago par was within reach, 0 if never.

    Once it is lost it stays lost, until something is removed or moved. So halving finds the move
    that lost it.
    """
    reached, lost = len(before), 0
    while reached - lost > 1:
        middle = (reached + lost) // 2
        if complete(before[-middle], level).result_s <= level.par_s:
            reached = middle
        else:
            lost = middle
    return reached if before and complete(before[0], level).result_s <= level.par_s else 0


# --- why this op ----------------------------------------------------------------------------------


def _why(op: Op, board: Board, finished: Board) -> str:
    """Say why ``op`` comes next on the way to ``finished``."""
    rules, rank, end_s = board.rules, board.rules.rank_of(op), finished.bars[op].end_s
    at_once = (then for then in rules.outputs[op] if finished.bars[then].start_s == end_s + rules.delay_s[then])
    awaited = next(at_once, None)
    if op.kind == "W":
        return f"nobody waits for a W, and rank {rank} has nothing more urgent to do then"
    if op.kind != "F" and board.is_full(rank):
        return f"rank {rank} keeps all the activations it may, and only the end of a {rules.freeing_kind} makes room"
    if awaited and rules.rank_of(awaited) != rank:
        return f"rank {rules.rank_of(awaited)} waits for it, and can run {awaited} as soon as it is there"
    if op.kind != "F" and op.stage == 0:
        return f"its gradient is there, and its end frees the activation of micro-batch {op.micro_batch}"
    if op.kind == "F":
        room = ", and it has room for the activation" if rules.caps else ""
        return f"rank {rank} would be idle otherwise{room}"
    return f"what it needs is there, and stage {op.stage - 1} will need its gradient"
