"""Play a level: what a reader does, by key or by button, and the sentence that answers it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import partial

from labkit.base.texts import listed
from labkit.explore.puzzle.board import Bar, Board
from labkit.explore.puzzle.completion import candidates
from labkit.explore.puzzle.hints import ASSISTANCE, Hint, hint, way
from labkit.explore.puzzle.levels import LEVELS, MEANINGS, YOURS, level
from labkit.explore.puzzle.results import Result
from labkit.explore.puzzle.rules import OF_KIND, Refusal
from labkit.schedule import Op


class Game:
    """A level and its boards so far. What a reader does returns the sentence that answers it.

    A rank runs its ops in the order in which they are placed, as in a Schedule: an op goes after
    the last one of its rank, and later may change places with its neighbours.

    ``assistance`` is how much is shown unasked, 0 to 2 (see :data:`hints.ASSISTANCE`), ``rank``
    where keys place ops, and ``chosen`` the op that was picked, if any. ``before`` are the boards
    that undo goes back to and ``undone`` those that redo brings back, each the nearest one last.
    """

    def __init__(self, number: int):
        self.number, self.level = number, level(number)
        self.board = Board(self.level.rules)
        self.before: list[Board] = []
        self.undone: list[Board] = []
        self.assistance = 1
        self.rank = 0
        self.chosen: Op | None = None
        self._told: tuple[Board, Op] | None = None  # what the latest hint said to do, and where
        self._hinted: dict[Board, set[Board]] = defaultdict(set)  # by the empty board that they began with

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
            ("u r", "undo, redo"),
            ("h", "a hint; again: do it"),
            *([("n", "the next level")] if self.number < len(LEVELS) else []),
        ]

    def offers(self) -> dict[Op, Bar]:
        """Return the ops to show as offered, rank by rank, with their times.

        They are those that may be next, or the whole way. Of one stage's ops of one kind only one
        may be next, as micro-batches are alike.
        """
        board = self.board
        if self.assistance == 0:
            offers = {}
        elif self.assistance == 2:
            offers = way(board, self.level)
        else:
            offers = {op: board.bars[op] for op in candidates(board)}
        by_rank = sorted(offers, key=lambda op: (board.rules.rank_of(op), offers[op].start_s, op))
        return {op: offers[op] for op in by_rank}

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
            "r": self.redo,
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
        if self.assistance == 0:
            return f"Rank {rank}."
        ready = listed(f"{op} at {self.board.bars[op].start_s:g}" for op in self._ready())
        return f"Rank {rank}: {f'{ready} may be placed' if ready else 'nothing may be placed yet'}."

    def place(self, op: Op, why: str = "") -> str:
        """Place ``op`` after the last op of its rank."""
        self._go_on(self.board.place(op), op)
        start_s, end_s = self.board.bars[op]
        return self._with_advice(f"{op} on rank {self.rank} from {start_s:g} to {end_s:g}{why and f': {why}'}.")

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
        is_offered, chosen = op not in self.board.placed, self.pick(op)
        order, bars = self.board.orders[self.rank], self.board.bars
        place = sum(sum(bars[other]) / 2 < time_s for other in order if other != op)
        if is_offered or order[place] == op:
            return chosen
        return _answer(partial(self._move, op, place))

    def pick(self, op: Op) -> str:
        """Place an op that is offered, or choose one that is there, to move it."""
        home = self.board.rules.homes
        if op in self.board.placed:
            self.rank, self.chosen = home[op.stage], op
            return f"{op} is chosen: drag it, or press [ or ], to change its place in its rank's order."
        try:
            self.board.place(op)
            here = [other for other in self.offers() if home[other.stage] == home[op.stage]]
            if self.assistance == 2 and op in here[1:]:
                raise Refusal(f"on this way rank {home[op.stage]} runs {here[0]} before {op}")
            return self.place(op)
        except Refusal as why:
            return f"No: {why}."

    def clear(self) -> str:
        self._go_on(Board(self.level.rules))
        return self._with_advice("The board is empty.")

    def undo(self) -> str:
        return self._go_to(self.before, self.undone, "undo", "Undone")

    def redo(self) -> str:
        return self._go_to(self.undone, self.before, "redo", "Done again")

    def hint(self) -> str:
        """Say what to do next; asked again, or where the whole way is shown, do it."""
        if self._told and self._told[0] is self.board:
            return self.place(self._told[1])
        told = self._hint()
        if told.op is None:
            return str(told)
        if self.assistance == 2:
            return self.place(told.op, told.why)
        self._told = (self.board, told.op)
        return f"{told} Ask again (h), and it is done."

    def assist(self, assistance: int) -> str:
        self.assistance = assistance
        return self._with_advice(f"Shown: {ASSISTANCE[assistance]}.")

    def _ready(self) -> list[Op]:
        """Return what may be placed on the rank that is chosen, the earliest first."""
        board = self.board
        here = [op for op in candidates(board) if board.rules.rank_of(op) == self.rank]
        return sorted(here, key=lambda op: (board.bars[op].start_s, op.micro_batch))

    def _move(self, op: Op, place: int) -> str:
        """Move ``op``, which is on the rank that is chosen, to another place in its order."""
        earlier = place < self.board.orders[self.rank].index(op)
        self._go_on(self.board.move(op, place), op)
        other = self.board.orders[self.rank][place + 1 if earlier else place - 1]
        start_s = self.board.bars[op].start_s
        now = f"{op} now runs {'before' if earlier else 'after'} {other}, from {start_s:g} on"
        return self._with_advice(f"{now}; every op is as early as this order lets it be.")

    def _go_on(self, after: Board, chosen: Op | None = None) -> None:
        self.before.append(self.board)
        self.board, self.undone, self.chosen = after, [], chosen
        self.rank = self.board.rules.rank_of(chosen) if chosen else self.rank

    def _go_to(self, boards: list[Board], back: list[Board], do: str, done: str) -> str:
        """Go to the last one of ``boards``, if there is one, and say what that changes."""
        if not boards:
            raise Refusal(f"there is nothing to {do}")
        back.append(self.board)
        self.board, self.chosen, self._told = boards.pop(), None, None
        return self._with_advice(f"{done}: {_difference(back[-1], self.board)}.")

    # --- hints, counted ---------------------------------------------------------------------------

    @property
    def hints(self) -> int:
        """On how many boards a hint was given since the board was last empty."""
        return len(self._boards_hinted())

    def _boards_hinted(self) -> set[Board]:
        empty = next(board for board in (self.board, *reversed(self.before)) if not board.placed)
        return self._hinted[empty]

    def _hint(self) -> Hint:
        if not self.at_par:
            self._boards_hinted().add(self.board)
        return hint(self.board, self.level, self.before)

    # --- what is said -----------------------------------------------------------------------------

    @property
    def result(self) -> Result:
        """The result of a board that is finished."""
        return Result(self.level.result_s(self.board), self.hints)

    @property
    def at_par(self) -> bool:
        return self.board.finished and self.level.result_s(self.board) <= self.level.par_s

    def verdict(self) -> str:
        """Say how a board that is full came out; "" for any other."""
        board, this = self.board, self.level
        if not board.finished:
            return ""
        ranks, result_s = range(board.rules.n_ranks), this.result_s(board)
        took = f"{result_s:g}" if this.goal == "makespan" else f"at most {result_s:g} on a rank"
        if self.at_par:
            finished = f"✓ Finished in {took}: that is {self.result.in_words(this.par_s)}."
        else:
            advice = "Drag an op to another place, or undo; a hint says how far to go back."
            finished = f"Finished in {took}: par is {this.par_s:g}. {advice}"
        bubble = f"{100 * board.bubble:.0f} %"
        if this.goal == "makespan":
            idle = f"Bubble (idle share of the ranks' time): {bubble}."
        else:
            idle_s = sum(board.idle_s(rank, board.span_s(rank)) for rank in ranks)
            within = f"Ranks are idle for {idle_s:g} in all" if idle_s else "No rank is idle"
            without = f"with the time before and after, the bubble is {bubble}"
            idle = f"{within} between its first op and its last; {without}."
        peaks = ", ".join(str(board.peak(rank)) for rank in ranks)
        left = "Activations (what forwards leave for their backwards)"
        kept = f"{left} kept at most, rank by rank: {peaks}."
        name = this.name_of(board)
        named = "" if name == YOURS else f"This order has a name: {name}, {MEANINGS[name]}."
        return " ".join(filter(None, [finished, idle, kept, named, this.then.get(name)]))

    def _with_advice(self, said: str) -> str:
        """Return ``said`` with what the reader wants to be told unasked."""
        if verdict := self.verdict():
            return verdict if self.at_par else f"{said} {verdict}"
        return said if self.assistance < 2 else f"{said} {self._hint().about_par}".strip()


def _answer(action: Callable[[], str]) -> str:
    """Return what an action answers, or why it is refused."""
    try:
        return action()
    except Refusal as why:
        return f"No: {why}."


def _difference(before: Board, after: Board) -> str:
    """Say what changed between two boards that a move made of each other."""
    changed = [op for op in after.rules.ops if op in before.placed ^ after.placed]
    if changed:
        where = "off the board" if changed[0] in before.placed else "on the board"
        return f"{changed[0]} {f'to {changed[-1]} are' if changed[1:] else 'is'} {where}"
    moved = [op for op in after.placed if after.bars[op] != before.bars[op]]
    if len(moved) == 1:
        return f"{moved[0]} is at {after.bars[moved[0]].start_s:g}"
    return f"{len(moved)} ops are at other times" if moved else "the board is the same"
