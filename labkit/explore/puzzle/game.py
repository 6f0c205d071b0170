"""Play a level: what a reader does, by key or by button, and the sentence that answers it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from labkit.base.texts import listed
from labkit.explore.puzzle.board import Bar, Board
from labkit.explore.puzzle.levels import LEVELS, level
from labkit.explore.puzzle.rules import OF_KIND, Refusal
from labkit.schedule import Op


class Game:
    """A level and its boards so far. What a reader does returns the sentence that answers it.

    A rank runs its ops in the order in which they are placed, as in a Schedule: an op goes after
    the last one of its rank, and later may change places with its neighbours.

    ``rank`` is where keys place ops, and ``chosen`` the op that was picked, if any. ``before`` are
    the boards that undo goes back to, the nearest one last.
    """

    def __init__(self, number: int):
        self.number, self.level = number, level(number)
        self.board = Board(self.level.rules)
        self.before: list[Board] = []
        self.rank = 0
        self.chosen: Op | None = None
        self._hinted: tuple[Board, Op] | None = None  # what the latest hint said to place, and where

    def finished(self) -> Game:
        """Return this level with the board that sets par."""
        game = Game(self.number)
        game.board = self.level.reference_board
        return game

    # --- what may be done -------------------------------------------------------------------------

    def key_list(self) -> list[tuple[str, str]]:
        """Return the keys that mean something in this level, each with what it does."""
        rules = self.board.rules
        names = [OF_KIND[kind] for kind in rules.kinds]
        return [
            (" ".join(map(str, range(rules.n_ranks))), "choose a rank"),
            ("j k", "choose the next rank, the one before"),
            (" ".join(rules.kinds.lower()), f"place the next {', '.join(names)} of that rank"),
            ("[ ]", "the chosen op, or the last one of the rank, earlier or later in its rank's order"),
            ("c", "clear the board"),
            ("u", "undo"),
            ("h", "a hint; again: do it"),
            *([("n", "the next level")] if self.number < len(LEVELS) else []),
        ]

    def offers(self) -> dict[Op, Bar]:
        """Return the ops that may be placed now, rank by rank, with their times."""
        board = self.board
        by_rank = sorted(board.ready(), key=lambda op: (board.rules.rank_of(op), board.bars[op].start_s, op))
        return {op: board.bars[op] for op in by_rank}

    # --- what a reader does -----------------------------------------------------------------------

    def press(self, key: str) -> str:
        """Do what ``key`` stands for."""
        if key.isdigit():
            return self.choose_rank(int(key))
        actions: dict[str, Callable[[], str]] = {
            "j": lambda: self.choose_rank((self.rank + 1) % self.board.rules.n_ranks),
            "k": lambda: self.choose_rank((self.rank - 1) % self.board.rules.n_ranks),
            **{kind.lower(): partial(self.place_next, kind) for kind in OF_KIND},
            "u": self.undo,
            "c": self.clear,
            "h": self.hint,
            "[": lambda: self.swap(-1),
            "]": lambda: self.swap(1),
        }
        return _answer(actions[key]) if key in actions else f"{key} means nothing here."

    def choose_rank(self, rank: int) -> str:
        n_ranks = self.board.rules.n_ranks
        if rank >= n_ranks:
            return f"There is no rank {rank}: the last one is {n_ranks - 1}."
        self.rank, self.chosen = rank, None
        ready = listed(f"{op} at {self.board.bars[op].start_s:g}" for op in self._ready())
        return f"Rank {rank}: {f'{ready} may be placed' if ready else 'nothing may be placed yet'}."

    def place(self, op: Op) -> str:
        """Place ``op`` after the last op of its rank."""
        self._change(self.board.place(op), op)
        start_s, end_s = self.board.bars[op]
        return self._with_verdict(f"{op} on rank {self.rank} from {start_s:g} to {end_s:g}.")

    def place_next(self, kind: str) -> str:
        """Place on the rank that is chosen its op of ``kind`` that may start first."""
        rules = self.board.rules
        if kind not in rules.kinds:
            whole = "whole here: place it with b"
            split = "split here: place the gradient of the input (i), later that of the weights (w)"
            raise Refusal(f"a backward pass is {whole if 'B' in rules.kinds else split}")
        here = rules.ops_of_rank[self.rank]
        left = [op for op in here if op.kind == kind and op not in self.board.placed]
        if not left:
            raise Refusal(f"every {OF_KIND[kind]} of rank {self.rank} is placed")
        return self.place(next((op for op in self._ready() if op.kind == kind), left[0]))

    def swap(self, direction: int) -> str:
        """Let the op that is chosen, or else the last one, change places with one of its rank."""
        if not (order := self.board.orders[self.rank]):
            raise Refusal(f"rank {self.rank} has no op to move")
        op = self.chosen if self.chosen in order else order[-1]
        return self._move(op, order.index(op) + direction)

    def drop(self, op: Op, time_s: float) -> str:
        """Move an op to where the middle of its bar was dragged; place one that is only offered."""
        is_offered, answer = op not in self.board.placed, self.pick(op)
        order, bars = self.board.orders[self.rank], self.board.bars
        place = sum(sum(bars[other]) / 2 < time_s for other in order if other != op)
        if is_offered or order[place] == op:
            return answer
        return _answer(partial(self._move, op, place))

    def pick(self, op: Op) -> str:
        """Place an op that is offered, or choose one that is there, to move it."""
        if op not in self.board.placed:
            return _answer(partial(self.place, op))
        self.rank, self.chosen = self.board.rules.rank_of(op), op
        return f"{op} is chosen: drag it, or press [ or ], to change its place in its rank's order."

    def clear(self) -> str:
        self._change(Board(self.level.rules))
        return "The board is empty."

    def undo(self) -> str:
        """Go to the board before, if there is one."""
        if not self.before:
            raise Refusal("there is nothing to undo")
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
            return f"Your order is another one: {where}. Undo, or drag it, to come back to that schedule."
        following = self.level.next_op(board)
        if following is None:
            return "All is placed, and at par."
        self._hinted = (board, following)
        where = f"on rank {board.rules.rank_of(following)} at {board.bars[following].start_s:g}"
        return f"Place {following} next, {where}, as the schedule that sets par does. Ask again (h), and it is done."

    def _ready(self) -> list[Op]:
        """Return what may be placed on the rank that is chosen, the earliest first."""
        board = self.board
        here = [op for op in board.ready() if board.rules.rank_of(op) == self.rank]
        return sorted(here, key=lambda op: (board.bars[op].start_s, op.micro_batch))

    def _move(self, op: Op, place: int) -> str:
        """Move ``op``, which is on the rank that is chosen, to another place in its order."""
        earlier = place < self.board.orders[self.rank].index(op)
        self._change(self.board.move(op, place), op)
        other = self.board.orders[self.rank][place + 1 if earlier else place - 1]
        start_s = self.board.bars[op].start_s
        now = f"{op} now runs {'before' if earlier else 'after'} {other}, from {start_s:g} on"
        return self._with_verdict(f"{now}; every op is as early as this order lets it be.")

    def _change(self, after: Board, chosen: Op | None = None) -> None:
        self.before.append(self.board)
        self.board, self.chosen = after, chosen
        self.rank = self.board.rules.rank_of(chosen) if chosen else self.rank

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
            finished = f"Finished in {took}: par is {this.par_s:g}. Drag an op to another place, or undo."
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


def _answer(action: Callable[[], str]) -> str:
    """Return what an action answers, or why it is refused."""
    try:
        return action()
    except Refusal as why:
        return f"No: {why}."
