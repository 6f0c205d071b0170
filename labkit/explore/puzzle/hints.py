"""Help as much as a reader wants: what may be placed, what to place next and why, the whole way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from labkit.explore.puzzle.board import Bar, Board
from labkit.explore.puzzle.completion import complete
from labkit.explore.puzzle.levels import Level
from labkit.schedule import Op

ASSISTANCE = ("nothing", "what may be placed", "the whole way")


class Hint(NamedTuple):
    """What to do next. Printed, it is all that there is to say.

    ``sentence`` says the move, ``op``, None where there is none to make, and ``why`` its reason.
    ``about_par`` says that par is lost and how many moves have to be taken back first for it to be
    within reach again; "" where it is.
    """

    sentence: str
    op: Op | None
    why: str
    about_par: str

    def __str__(self) -> str:
        return f"{self.sentence} {self.about_par}".strip()


def hint(board: Board, level: Level, before: Sequence[Board] = ()) -> Hint:
    """Return a move of a best way to finish ``board``, with its reason; and whether par is lost.

    ``before`` are the boards that undo goes back to, the latest one last.
    """
    about_par = _about_par(board, level, before)
    best, next_ops = complete(board, level).board, list(way(board, level))
    if not best or not next_ops:
        return Hint("" if about_par else "All is placed, and at par.", None, "", about_par)
    op, why = next_ops[0], _why(next_ops[0], board, best)
    where = f"on rank {board.rules.rank_of(op)} at {best.bars[op].start_s:g}"
    return Hint(f"Place {op} next, {where}: {why}.", op, why, about_par)


def way(board: Board, level: Level) -> dict[Op, Bar]:
    """Return the ops of a best way to finish ``board`` by their start, with their times."""
    if not (best := complete(board, level).board):
        return {}

    def order(op: Op) -> tuple[float, bool, int]:
        return best.bars[op].start_s, op.kind == "F", board.rules.rank_of(op)

    return {op: best.bars[op] for op in sorted(best.placed - board.placed, key=order)}


# --- is par lost? ---------------------------------------------------------------------------------


def _about_par(board: Board, level: Level, before: Sequence[Board]) -> str:
    """Say how many moves to undo for par to be in reach again, "" if it is."""
    best = complete(board, level)
    if best.result_s <= level.par_s:
        return ""
    moves_back = enumerate(reversed(before), start=1)
    reached = (n for n, board in moves_back if complete(board, level).result_s <= level.par_s)
    number = next(reached, 0)
    moves = f"undo {number} move{'s' * (number > 1)}" if number else "clear the board"
    if board.finished:
        here = f"This board takes {best.result_s:g}; par is {level.par_s:g}"
    elif best.board:
        how_sure = "is the best there is" if best.certain else "is the best I find"
        here = f"From here {best.result_s:g} {how_sure}; par is {level.par_s:g}"
    else:
        here = f"{'There is' if best.certain else 'I find'} no way on from here"
    return f"{here}: {moves} for par."


# --- why this op ----------------------------------------------------------------------------------


def _why(op: Op, board: Board, finished: Board) -> str:
    """Say why ``op`` comes next on the way to ``finished``."""
    rules, rank, end_s = board.rules, board.rules.rank_of(op), finished.bars[op].end_s
    takers = {then: finished.bars[then].start_s - rules.delay_s[then] for then in rules.outputs[op]}
    awaited = next((then for then, sent_s in takers.items() if sent_s == end_s), None)
    if op.kind == "W":
        return f"nobody waits for a W, and rank {rank} has nothing more urgent to do then"
    if op.kind != "F" and board.is_full(rank):
        freed = f"only the end of a {rules.freeing_kind} makes room"
        return f"rank {rank} keeps all the activations it may, and {freed}"
    if awaited and rules.rank_of(awaited) != rank:
        other = rules.rank_of(awaited)
        return f"rank {other} waits for it, and can run {awaited} as soon as it is there"
    if op.kind == "F":
        room = ", and it has room for the activation" if rules.caps else ""
        return f"rank {rank} would be idle otherwise{room}"
    if op.stage == 0:
        frees = f"its end frees the activation of micro-batch {op.micro_batch}"
        return f"its gradient is there, and {frees}"
    return f"what it needs is there, and stage {op.stage - 1} will need its gradient"
