"""Play a level: what a reader does, by key or by button, and the sentence that answers it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from labkit.explore.puzzle.board import Board, Ready
from labkit.explore.puzzle.completion import candidates
from labkit.explore.puzzle.hints import ASSISTANCE, hint, way
from labkit.explore.puzzle.history import History
from labkit.explore.puzzle.levels import level
from labkit.explore.puzzle.recognise import YOURS, recognise
from labkit.explore.puzzle.refusals import Refusal
from labkit.explore.puzzle.rules import OF_KIND
from labkit.schedule import Op

MOST_RANKS = 4  # in any level

KEYS = [
    (" ".join(map(str, range(MOST_RANKS))), "choose a rank"),
    ("j k", "choose the next rank, the one before"),
    ("f b i w", "place the next forward, backward, input gradient, weight gradient of that rank"),
    ("Enter, click", "place an outlined op, or choose one that is there"),
    ("s", "stamp: place the next micro-batch as the last whole one is"),
    ("u r", "undo, redo"),
    ("g", "into a gap: pull the op that was chosen, or the last one, as early as it may be"),
    ("x", "remove the op that was chosen, or else the last one of the rank"),
    ("[ ]", "in free edit: the chosen op earlier, later"),
    ("h", "a hint; again: do it"),
]


class Game:
    """A level and its boards so far. What a reader does returns the sentence that answers it.

    A rank runs its ops in the order in which they are placed, as in a Schedule. So an op goes after
    the last one of its rank, and into a gap only when it is pulled there.

    ``assistance`` is how much is shown unasked, 0 to 3 (see :data:`hints.ASSISTANCE`), ``free``
    whether ops may be placed and removed whatever else needs them, ``rank`` where keys place ops,
    and ``chosen`` the op that was picked, if any.
    """

    def __init__(self, number: int):
        self.number, self.level = number, level(number)
        self.history = History(Board(self.level.rules))
        self.assistance = 1
        self.free = False
        self.rank = 0
        self.chosen: Op | None = None
        self._hinted: tuple[Board, Ready] | None = None
        self._offers: tuple[Board, int, list[Ready]] | None = None

    @property
    def board(self) -> Board:
        return self.history.board

    @property
    def hinted(self) -> Ready | None:
        """The move that a hint has told for this board, if it has."""
        return self._hinted[1] if self._hinted and self._hinted[0] is self.board else None

    # --- what may be done -------------------------------------------------------------------------

    def offers(self) -> list[Ready]:
        """Return the ops to show as offered: the ready ones, or the whole way; by rank and time.

        Of one stage's ops of one kind only the next one is offered, as micro-batches are alike.
        """
        if self._offers is None or self._offers[0] is not self.board or self._offers[1] != self.assistance:
            self._offers = (self.board, self.assistance, self._find_offers())
        return [self.hinted if self.hinted and op == self.hinted.op else Ready(op, s) for op, s in self._offers[2]]

    def _find_offers(self) -> list[Ready]:
        if self.assistance == 0:
            return []
        offers = way(self.board, self.level) if self.assistance == 3 else self._at_the_end()
        return sorted(offers, key=lambda ready: (self.board.rules.rank_of(ready.op), ready.start_s, ready.op))

    def _at_the_end(self) -> list[Ready]:
        """Return the ready ops, each after the last op of its rank."""
        ready = candidates(self.board)
        return [Ready(op, max(start_s, self._end_s(op))) for op, start_s in ready]

    def _end_s(self, op: Op) -> float:
        return self.board.rows[self.board.rules.rank_of(op)].end_s

    # --- what a reader does -----------------------------------------------------------------------

    def press(self, key: str) -> str:
        """Do what ``key`` stands for."""
        if key.isdigit():
            return self.choose_rank(int(key))
        actions: dict[str, Callable[[], str]] = {
            "j": lambda: self.choose_rank((self.rank + 1) % self.board.rules.n_ranks),
            "k": lambda: self.choose_rank((self.rank - 1) % self.board.rules.n_ranks),
            **{kind.lower(): partial(self.place_next, kind) for kind in OF_KIND},
            "s": self.stamp,
            "u": self.undo,
            "r": self.redo,
            "x": self.remove,
            "g": self.pull,
            "h": self.hint,
            "[": lambda: self.shift(-1),
            "]": lambda: self.shift(1),
        }
        return actions[key]() if key in actions else f"{key} means nothing here."

    def choose_rank(self, rank: int) -> str:
        rules = self.board.rules
        if rank >= rules.n_ranks:
            return f"There is no rank {rank}: the last one is {rules.n_ranks - 1}."
        self.rank, self.chosen = rank, None
        ready = sorted(self._at_the_end(), key=lambda ready: ready.start_s)
        here = [offer for offer in ready if rules.rank_of(offer.op) == rank]
        if self.assistance == 0:
            return f"Rank {rank}."
        return f"Rank {rank}: {_listed(here)} may be placed." if here else f"Rank {rank}: nothing may be placed yet."

    def place(self, op: Op, start_s: float | None = None) -> str:
        """Place ``op``: after the last op of its rank, if no start is given."""
        after = self.board.place(op, start_s, free=self.free)
        if start_s is None and isinstance(after, Board):
            after = self.board.place(op, max(after.placed[op].start_s, self._end_s(op)), free=self.free)
        if isinstance(after, Refusal):
            return f"No: {after}."
        self.rank, self.chosen = self.board.rules.rank_of(op), op
        bar = after.placed[op]
        return self._go_on(after, f"{op} on rank {self.rank} from {bar.start_s:g} to {bar.end_s:g}.")

    def place_next(self, kind: str) -> str:
        """Place on the rank that is chosen its op of ``kind`` that may start first."""
        rules = self.board.rules
        of_kind = [op for op in rules.ops if rules.rank_of(op) == self.rank and op.kind == kind]
        if not of_kind:
            return f"No: {self._other_kinds()}."
        ready = [ready for ready in self._at_the_end() if ready.op in of_kind]
        if ready:
            return self.place(min(ready, key=lambda ready: (ready.start_s, ready.op.micro_batch)).op)
        open_ops = [op for op in of_kind if op not in self.board.placed]
        if not open_ops:
            return f"No: every {OF_KIND[kind]} of rank {self.rank} is placed."
        return self.place(min(open_ops, key=lambda op: op.micro_batch))

    def remove(self) -> str:
        """Remove the op that is chosen, or else the last one of the rank."""
        if (op := self._chosen()) is None:
            return f"No: rank {self.rank} has no op to remove."
        after = self.board.remove(op, free=self.free)
        if isinstance(after, Refusal):
            return f"No: {after}."
        self.chosen = None
        return self._go_on(after, f"{op} is removed.")

    def pull(self) -> str:
        """Place the op that is chosen, or else the last one of the rank, as early as it may be."""
        if (op := self._chosen()) is None:
            return f"No: rank {self.rank} has no op to pull."
        before_s = self.board.placed[op].start_s
        without = self.board.remove(op, free=True)
        after = without if isinstance(without, Refusal) else without.place(op, free=self.free)
        if isinstance(after, Refusal) or (not self.free and after.violations()) or after.placed[op].start_s >= before_s:
            return f"No: {op} is as early as it may be."
        return self._go_on(after, f"{op} from {after.placed[op].start_s:g} on.")

    def shift(self, direction: int) -> str:
        """Move the op that is chosen earlier or later, by the time of the shortest op."""
        if self.chosen not in self.board.placed:
            return "No: choose an op first, by a click on it or by Enter."
        step_s = min(self.board.rules.duration(op) for op in self.board.rules.ops)
        start_s = self.board.placed[self.chosen].start_s + direction * step_s
        after = self.board.move(self.chosen, start_s, free=self.free)
        if isinstance(after, Refusal):
            return f"No: {after}."
        return self._go_on(after, f"{self.chosen} from {start_s:g} on.")

    def _chosen(self) -> Op | None:
        bars = self.board.rows[self.rank].bars
        if self.chosen in self.board.placed:
            return self.chosen
        return bars[-1].op if bars else None

    def pick(self, op: Op) -> str:
        """Place an op that is offered, or choose one that is there, to remove or move it."""
        if op not in self.board.placed:
            return self.place(op, dict(self.offers()).get(op))
        self.rank, self.chosen = self.board.rules.rank_of(op), op
        return f"{op} is chosen: x removes it, g pulls it into a gap{', [ and ] move it' if self.free else ''}."

    def stamp(self) -> str:
        after = self.board.stamp()
        if isinstance(after, Refusal):
            return f"No: {after}."
        new = [op for op in after.placed if op not in self.board.placed]
        start_s = min(after.placed[op].start_s for op in new)
        self.chosen = None
        return self._go_on(after, f"Micro-batch {new[0].micro_batch} is stamped, from {start_s:g} on.")

    def undo(self) -> str:
        if not self.history.undo():
            return "No: there is nothing to undo."
        self.chosen = None
        return self._with_advice("Undone.")

    def redo(self) -> str:
        if not self.history.redo():
            return "No: there is nothing to redo."
        self.chosen = None
        return self._with_advice("Done again.")

    def clear(self) -> str:
        self.chosen = None
        return self._go_on(self.board.clear(), "The board is empty.")

    def hint(self) -> str:
        """Say what to do next; asked again, or where the whole way is shown, do it."""
        if (move := self.hinted) and move.op not in self.board.placed:
            return self.place(*move)
        told = hint(self.board, self.level, self.history.before)
        if told.op is None or told.start_s is None:
            return str(told)
        self._hinted = (self.board, Ready(told.op, told.start_s))
        return (
            f"{told} {self.place(told.op, told.start_s)}"
            if self.assistance == 3
            else f"{told} Ask again (h), and it is done."
        )

    def let_edit(self, free: bool) -> str:
        """Switch free edit on or off."""
        self.free = free
        if free:
            return "Free edit: any move goes, and what is wrong is listed."
        return self._with_advice("Free edit is off: a move that is not legal is refused.")

    def assist(self, assistance: int) -> str:
        self.assistance = assistance
        return self._with_advice(f"Shown: {', '.join(ASSISTANCE[min(1, assistance) : assistance + 1])}.")

    # --- what is said -----------------------------------------------------------------------------

    def verdict(self) -> str:
        """Say how a board that is full came out; "" for any other."""
        board, this = self.board, self.level
        if len(board.placed) < len(board.rules.ops) or board.violations():
            return ""
        result_s, score = this.result_s(board), board.score
        over = result_s - this.par_s
        took = f"{score.makespan_s:g}" if this.goal == "makespan" else f"at most {result_s:g} on a rank"
        par = "that is par" if over <= 0 else f"par is {this.par_s:g}"
        advice = " Undo, and try another order; a hint says how far to go back." if over > 0 else ""
        kept = ", ".join(map(str, score.peaks))
        name = recognise(board.to_schedule()) if this.named else YOURS
        known = f" This order has a name: {name}." if name != YOURS else ""
        return (
            f"Finished in {took}: {par}.{advice} Idle: {100 * score.bubble:.0f} % of the ranks' time. "
            f"Activations kept at most, rank by rank: {kept}.{known}"
        )

    def _go_on(self, after: Board, said: str) -> str:
        self.history.do(after)
        return self._with_advice(said)

    def _with_advice(self, said: str) -> str:
        """Return ``said`` with what the reader wants to be told unasked."""
        if wrong := self.board.violations():
            more = f" ({len(wrong)} things are wrong)" if len(wrong) > 1 else ""
            return f"{said} Wrong: {wrong[0]}{more}."
        if verdict := self.verdict():
            return f"{said} {verdict}"
        if self.assistance >= 2:
            return f"{said} {hint(self.board, self.level, self.history.before)}"
        return said

    def _other_kinds(self) -> str:
        rules = self.board.rules
        if rules.split:
            return "a backward pass is split here: place the gradient of the input (i), later that of the weights (w)"
        return "a backward pass is whole here: place it with b"


def _listed(ready: list[Ready]) -> str:
    names = [f"{op} at {start_s:g}" for op, start_s in ready]
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
