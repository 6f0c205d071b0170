"""Remember the boards of a game, so that a move can be taken back and made again."""

from __future__ import annotations

from labkit.explore.puzzle.board import Board


class History:
    """The boards from the first to the last: ``board`` is the present one, others can come back.

    A player goes on, and back:

        history = History(Board(rules))
        history.do(history.board.place("0F0"))
        history.undo()
    """

    def __init__(self, board: Board):
        self._boards = [board]
        self._at = 0

    @property
    def board(self) -> Board:
        return self._boards[self._at]

    @property
    def before(self) -> list[Board]:
        """The boards that :meth:`undo` goes back to, the latest first."""
        return self._boards[: self._at][::-1]

    @property
    def can_undo(self) -> bool:
        return self._at > 0

    @property
    def can_redo(self) -> bool:
        return self._at < len(self._boards) - 1

    def do(self, board: Board) -> None:
        """Make ``board`` the present one; what was undone before is forgotten."""
        self._boards[self._at + 1 :] = [board]
        self._at += 1

    def undo(self) -> bool:
        """Go back one board, if there is one."""
        self._at -= (moved := self.can_undo)
        return moved

    def redo(self) -> bool:
        """Go forward again one board, if there is one."""
        self._at += (moved := self.can_redo)
        return moved
