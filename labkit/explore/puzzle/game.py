"""Play a level: what a reader does, and the sentence that answers it."""

from __future__ import annotations

from labkit.explore.puzzle.board import Bar, Board
from labkit.explore.puzzle.levels import level
from labkit.explore.puzzle.rules import Refusal
from labkit.schedule import Op


class Game:
    """A level and its boards so far. What a reader does returns the sentence that answers it.

    A rank runs its ops in the order in which they are placed, as in a Schedule. ``chosen`` is the
    op that was placed last, if any. ``before`` are the boards that undo goes back to, the nearest
    one last.
    """

    def __init__(self, number: int):
        self.number, self.level = number, level(number)
        self.board = Board(self.level.rules)
        self.before: list[Board] = []
        self.chosen: Op | None = None
        self._hinted: tuple[Board, Op] | None = None  # what the latest hint said to place, and where

    def finished(self) -> Game:
        """Return this level with the board that sets par."""
        game = Game(self.number)
        game.board = self.level.reference_board
        return game

    # --- what may be done -------------------------------------------------------------------------

    def offers(self) -> dict[Op, Bar]:
        """Return the ops that may be placed now, rank by rank, with their times."""
        board = self.board
        by_rank = sorted(board.ready(), key=lambda op: (board.rules.rank_of(op), board.bars[op].start_s, op))
        return {op: board.bars[op] for op in by_rank}

    # --- what a reader does -----------------------------------------------------------------------

    def place(self, op: Op) -> str:
        """Place ``op`` after the last op of its rank, or say why that cannot be."""
        try:
            self._change(self.board.place(op), op)
        except Refusal as why:
            return f"No: {why}."
        start_s, end_s = self.board.bars[op]
        return self._with_verdict(f"{op} on rank {self.board.rules.rank_of(op)} from {start_s:g} to {end_s:g}.")

    def clear(self) -> str:
        self._change(Board(self.level.rules))
        return "The board is empty."

    def undo(self) -> str:
        """Go to the board before, if there is one."""
        if not self.before:
            return "No: there is nothing to undo."
        self.board, self.chosen = self.before.pop(), None
        return self._with_verdict(f"Undone: {len(self.board.placed)} of {len(self.board.rules.ops)} ops are placed.")

    def hint(self) -> str:
        """Say what the schedule that sets par runs next; asked again, place it."""
        board = self.board
        if self._hinted and self._hinted[0] is board:
            return self.place(self._hinted[1])
        if departure := self.level.departure(board):
            op, its = departure
            where = f"rank {board.rules.rank_of(op)} runs {op} where the schedule that sets par runs {its}"
            return f"Your order is another one: {where}. Undo to come back to that schedule."
        following = self.level.next_op(board)
        if following is None:
            return "All is placed, and at par."
        self._hinted = (board, following)
        where = f"on rank {board.rules.rank_of(following)} at {board.bars[following].start_s:g}"
        return f"Place {following} next, {where}, as the schedule that sets par does. Ask again, and it is done."

    def _change(self, after: Board, chosen: Op | None = None) -> None:
        self.before.append(self.board)
        self.board, self.chosen = after, chosen

    # --- how a board came out ---------------------------------------------------------------------

    @property
    def result_s(self) -> float:
        """What the goal measures of a board that is finished."""
        return self.level.result_s(self.board)

    @property
    def at_par(self) -> bool:
        return self.board.finished and self.result_s <= self.level.par_s

    def verdict(self) -> str:
        """Say how a board that is finished came out."""
        board, this = self.board, self.level
        ranks, by_makespan = range(board.rules.n_ranks), this.goal == "makespan"
        took = f"{self.result_s:g}" if by_makespan else f"at most {self.result_s:g} on a rank"
        if self.at_par:
            finished = f"✓ Finished in {took}: that is par."
        else:
            finished = f"Finished in {took}: par is {this.par_s:g}. Undo, and try another order."
        bubble = f"{100 * board.bubble:.0f} %"
        if by_makespan:
            idle = f"Bubble (idle fraction of the ranks' time): {bubble}."
        else:
            idle_s = sum(board.idle_s(rank, board.span_s(rank)) for rank in ranks)
            within = f"Ranks are idle for {idle_s:g} in all" if idle_s else "No rank is idle"
            without = f"with the time before and after, the bubble is {bubble}"
            idle = f"{within} between its first op and its last; {without}."
        peaks = ", ".join(str(board.peak(rank)) for rank in ranks)
        left = "Activations (what forwards leave for their backwards)"
        return f"{finished} {idle} {left} kept at most, rank by rank: {peaks}."

    def _with_verdict(self, answer: str) -> str:
        """Return an answer, and how the board came out if that finished it."""
        if not self.board.finished:
            return answer
        return self.verdict() if self.at_par else f"{answer} {self.verdict()}"
