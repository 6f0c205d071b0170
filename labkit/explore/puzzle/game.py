"""Play a level: what a reader does, by key or by button, and the sentence that answers it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from labkit.base.texts import listed
from labkit.explore.puzzle.board import Bar, Board
from labkit.explore.puzzle.completion import candidates
from labkit.explore.puzzle.hints import ASSISTANCE, hint, way
from labkit.explore.puzzle.levels import LEVELS, level
from labkit.explore.puzzle.recognise import MEANINGS, YOURS, recognise
from labkit.explore.puzzle.rules import OF_KIND, Refusal
from labkit.schedule import Op


class Game:
    """A level and its boards so far. What a reader does returns the sentence that answers it.

    A rank runs its ops in the order in which they are placed, as in a Schedule: an op goes after
    the last one of its rank, and later may change places with its neighbours.

    ``assistance`` is how much is shown unasked, 0 to 3 (see :data:`hints.ASSISTANCE`), ``rank``
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
        self._hinted: tuple[Board, Op] | None = None

    # --- what may be done -------------------------------------------------------------------------

    def key_list(self) -> list[tuple[str, str]]:
        """Return the keys that mean something in this level, each with what it does."""
        rules = self.board.rules
        names = [OF_KIND[kind] for kind in rules.kinds]
        whole = [("s", "place the next micro-batch whole, as early as it delays nothing")]
        return [
            (" ".join(map(str, range(rules.n_ranks))), "choose a rank"),
            ("j k", "choose the next rank, the one before"),
            (" ".join(rules.kinds.lower()), f"place the next {', '.join(names)} of that rank"),
            ("[ ]", "the chosen op, or the last one of the rank, earlier or later in its rank's order"),
            ("x", "remove the chosen op, or the last one of the rank"),
            *(whole if rules.n_micro > 1 else []),
            ("u r", "undo, redo"),
            ("h", "a hint; again: do it"),
            *([("n", "the next level")] if self.number < len(LEVELS) else []),
        ]

    def offers(self) -> dict[Op, Bar]:
        """Return the ops to show as offered, rank by rank, with their times.

        They are those that may be next, or the whole way. Of one stage's ops of one kind only one
        may be next, as micro-batches are alike.
        """
        if self.assistance == 0:
            return {}
        whole = self.assistance == 3
        offers = way(self.board, self.level) if whole else {op: self.board.bars[op] for op in candidates(self.board)}
        return dict(
            sorted(offers.items(), key=lambda offer: (self.board.rules.rank_of(offer[0]), offer[1].start_s, offer[0]))
        )

    def placeable(self) -> list[Op]:
        """Return the offers that can be placed now: of a whole way the next one of each rank."""
        offers = list(self.offers())
        if self.assistance == 3:
            offers = list({self.board.rules.rank_of(op): op for op in reversed(offers)}.values())[::-1]
        return [op for op in offers if isinstance(self.board.place(op), Board)]

    # --- what a reader does -----------------------------------------------------------------------

    def press(self, key: str) -> str:
        """Do what ``key`` stands for."""
        if key.isdigit():
            return self.choose_rank(int(key))
        actions: dict[str, Callable[[], str]] = {
            "j": lambda: self.choose_rank((self.rank + 1) % self.board.rules.n_ranks),
            "k": lambda: self.choose_rank((self.rank - 1) % self.board.rules.n_ranks),
            **{kind.lower(): partial(self.place_next, kind) for kind in OF_KIND},
            "s": self.place_micro_batch,
            "u": self.undo,
            "r": self.redo,
            "x": self.remove,
            "h": self.hint,
            "[": lambda: self.swap(-1),
            "]": lambda: self.swap(1),
        }
        return actions[key]() if key in actions else f"{key} means nothing here."

    def choose_rank(self, rank: int) -> str:
        n_ranks = self.board.rules.n_ranks
        if rank >= n_ranks:
            return f"There is no rank {rank}: the last one is {n_ranks - 1}."
        self.rank, self.chosen = rank, None
        if self.assistance == 0:
            return f"Rank {rank}."
        bars = self.board.bars
        ready = sorted(self._ready_here(), key=lambda op: bars[op].start_s)
        may_be = f"{listed(f'{op} at {bars[op].start_s:g}' for op in ready)} may be placed"
        return f"Rank {rank}: {may_be if ready else 'nothing may be placed yet'}."

    def place(self, op: Op, why: str = "") -> str:
        """Place ``op`` after the last op of its rank."""
        after = self.board.place(op)
        if isinstance(after, Refusal):
            return f"No: {after}."
        self.rank, self.chosen = self.board.rules.rank_of(op), op
        start_s, end_s = after.bars[op]
        because = f": {why}" if why else ""
        return self._go_on(after, f"{op} on rank {self.rank} from {start_s:g} to {end_s:g}{because}.")

    def place_next(self, kind: str) -> str:
        """Place on the rank that is chosen its op of ``kind`` that may start first."""
        of_kind = [op for op in self.board.rules.ops_of_rank[self.rank] if op.kind == kind]
        if not of_kind:
            return f"No: {self._other_kinds()}."
        ready = [op for op in self._ready_here() if op.kind == kind]
        if not (left := ready or [op for op in of_kind if op not in self.board.placed]):
            return f"No: every {OF_KIND[kind]} of rank {self.rank} is placed."
        return self.place(min(left, key=lambda op: (ready and self.board.bars[op].start_s, op.micro_batch)))

    def remove(self) -> str:
        """Remove the op that is chosen, or else the last one of the rank."""
        if (op := self._chosen()) is None:
            return f"No: rank {self.rank} has no op to remove."
        after = self.board.remove(op)
        if isinstance(after, Refusal):
            return f"No: {after}."
        self.chosen = None
        return self._go_on(after, f"{op} is removed.")

    def swap(self, direction: int) -> str:
        """Let the op that is chosen, or else the last one, change places with one of its rank."""
        if (op := self._chosen()) is None:
            return f"No: rank {self.rank} has no op to move."
        after = self.board.swap(op, direction)
        if isinstance(after, Refusal):
            return f"No: {after}."
        self.chosen, order = op, after.orders[self.rank]
        other = order[order.index(op) - direction]
        said = f"{op} now runs {'before' if direction < 0 else 'after'} {other}, from {after.bars[op].start_s:g} on"
        return self._go_on(after, f"{said}; every op is as early as this order lets it be.")

    def pick(self, op: Op) -> str:
        """Place an op that is offered, or choose one that is there, to remove or move it."""
        if op not in self.board.placed:
            return self.place(op)
        self.rank, self.chosen = self.board.rules.rank_of(op), op
        return f"{op} is chosen: x removes it, [ and ] move it in its rank's order."

    def place_micro_batch(self) -> str:
        after = self.board.place_micro_batch()
        if isinstance(after, Refusal):
            return f"No: {after}."
        self.chosen = None
        new = next(iter(after.placed - self.board.placed)).micro_batch
        return self._go_on(after, f"Micro-batch {new} is placed whole, as early as it delays nothing.")

    def undo(self) -> str:
        return self._go_to(self.before, self.undone, "Undone") or "No: there is nothing to undo."

    def redo(self) -> str:
        return self._go_to(self.undone, self.before, "Done again") or "No: there is nothing to redo."

    def clear(self) -> str:
        self.chosen = None
        return self._go_on(Board(self.level.rules), "The board is empty.")

    def hint(self) -> str:
        """Say what to do next; asked again, or where the whole way is shown, do it."""
        if self._hinted and self._hinted[0] is self.board:
            return self.place(self._hinted[1])
        told = hint(self.board, self.level, self.before)
        if told.op is None:
            return str(told)
        if self.assistance == 3:
            return self.place(told.op, told.why)
        self._hinted = (self.board, told.op)
        return f"{told} Ask again (h), and it is done."

    def assist(self, assistance: int) -> str:
        self.assistance = assistance
        return self._with_advice(f"Shown: {', '.join(ASSISTANCE[min(1, assistance) : assistance + 1])}.")

    def _ready_here(self) -> list[Op]:
        return [op for op in candidates(self.board) if self.board.rules.rank_of(op) == self.rank]

    def _chosen(self) -> Op | None:
        if self.chosen in self.board.placed:
            return self.chosen
        return next(reversed(self.board.orders[self.rank]), None)

    def _go_on(self, after: Board, said: str) -> str:
        self.before.append(self.board)
        self.board, self.undone = after, []
        return self._with_advice(said)

    def _go_to(self, boards: list[Board], back: list[Board], done: str) -> str:
        """Go to the last one of ``boards``, if there is one, and say what that changes."""
        if not boards:
            return ""
        now = self.board
        back.append(now)
        self.board, self.chosen = boards.pop(), None
        return self._with_advice(f"{done}: {_difference(now, self.board)}.")

    # --- what is said -----------------------------------------------------------------------------

    @property
    def at_par(self) -> bool:
        return self.board.finished and self.level.result_s(self.board) <= self.level.par_s

    def verdict(self) -> str:
        """Say how a board that is full came out; "" for any other."""
        if not self.board.finished:
            return ""
        board, this, result_s = self.board, self.level, self.level.result_s(self.board)
        took = f"{result_s:g}" if this.goal == "makespan" else f"at most {result_s:g} on a rank"
        if self.at_par:
            finished = f"✓ Finished in {took}: that is par."
        else:
            advice = "Undo, and try another order; a hint says how far to go back."
            finished = f"Finished in {took}: par is {this.par_s:g}. {advice}"
        bubble = f"{100 * board.bubble:.0f} %"
        if this.goal == "makespan":
            idle = f"Bubble (idle share of the ranks' time): {bubble}."
        else:
            idle_s = sum(board.idle_s(rank, board.span_s(rank)) for rank in range(board.rules.n_ranks))
            within = f"Ranks are idle for {idle_s:g} in all" if idle_s else "No rank is idle"
            idle = (
                f"{within} between its first op and its last; with the time before and after, the bubble is {bubble}."
            )
        peaks = ", ".join(str(board.peak(rank)) for rank in range(board.rules.n_ranks))
        kept = f"Activations (what forwards leave for their backwards) kept at most, rank by rank: {peaks}."
        return " ".join([finished, idle, kept, *self._name_in_words()])

    def _name_in_words(self) -> list[str]:
        """Say the name of a finished board, if it has one, and what to try next with it."""
        name = recognise(self.board.to_schedule()) if self.level.named else YOURS
        if name == YOURS:
            return []
        return [f"This order has a name: {name}, {MEANINGS[name]}.", *filter(None, [self.level.then.get(name)])]

    def _with_advice(self, said: str) -> str:
        """Return ``said`` with what the reader wants to be told unasked."""
        if verdict := self.verdict():
            return verdict if self.at_par else f"{said} {verdict}"
        if self.assistance < 2:
            return said
        told = hint(self.board, self.level, self.before)
        return f"{said} {told if self.assistance == 2 else told.about_par}".strip()

    def _other_kinds(self) -> str:
        if self.board.rules.split:
            return "a backward pass is split here: place the gradient of the input (i), later that of the weights (w)"
        return "a backward pass is whole here: place it with b"


def _difference(before: Board, after: Board) -> str:
    """Say what changed between two boards that a move made of each other."""
    if ops := before.placed ^ after.placed:
        where = "off the board" if ops <= before.placed else "on the board"
        in_order = [op for op in after.rules.ops if op in ops]
        return (
            f"{in_order[0]} is {where}"
            if len(ops) == 1
            else f"{len(ops)} ops are {where}, {in_order[0]} to {in_order[-1]}"
        )
    moved = [op for op in after.rules.ops if op in after.placed and after.bars[op] != before.bars[op]]
    if len(moved) == 1:
        return f"{moved[0]} is at {after.bars[moved[0]].start_s:g}"
    return f"{len(moved)} ops are at other times" if moved else "the board is the same"
