"""Play a level: what a reader does, by key or by button, and the sentence that answers it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from labkit.base.texts import listed
from labkit.explore.puzzle.board import Board, Ready
from labkit.explore.puzzle.completion import candidates
from labkit.explore.puzzle.hints import ASSISTANCE, hint, way
from labkit.explore.puzzle.history import History
from labkit.explore.puzzle.levels import LEVELS, level
from labkit.explore.puzzle.recognise import MEANINGS, YOURS, recognise
from labkit.explore.puzzle.refusals import Refusal
from labkit.explore.puzzle.rules import OF_KIND
from labkit.schedule import Op


class Game:
    """A level and its boards so far. What a reader does returns the sentence that answers it.

    A rank runs its ops in the order in which they are placed, as in a Schedule: an op goes after
    the last one of its rank, and later may change places with its neighbours. Only a stamp, or a
    hint that says so, puts ops into a gap.

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

    def key_list(self) -> list[tuple[str, str]]:
        """Return the keys that mean something in this level, each with what it does."""
        rules = self.board.rules
        names = [OF_KIND[kind] for kind in rules.kinds]
        stamp = [("s", "stamp: place the next micro-batch as the last whole one is")]
        return [
            (" ".join(map(str, range(rules.n_ranks))), "choose a rank"),
            ("j k", "choose the next rank, the one before"),
            (" ".join(rules.kinds.lower()), f"place the next {', '.join(names)} of that rank"),
            ("[ ]", "the chosen op, or the last one of the rank, earlier or later in its rank's order"),
            ("x", "remove the chosen op, or the last one of the rank"),
            *(stamp if rules.n_micro > 1 else []),
            ("u r", "undo, redo"),
            ("h", "a hint; again: do it"),
            *([("n", "the next level")] if self.number < len(LEVELS) else []),
        ]

    def offers(self) -> list[Ready]:
        """Return the ops to show as offered: the ready ones, or the whole way; by rank and time.

        Of one stage's ops of one kind only the next one is offered, as micro-batches are alike.
        """
        if self._offers is None or self._offers[0] is not self.board or self._offers[1] != self.assistance:
            self._offers = (self.board, self.assistance, self._find_offers())
        return [self.hinted if self.hinted and op == self.hinted.op else Ready(op, s) for op, s in self._offers[2]]

    def legal_offers(self) -> list[Ready]:
        """Return of the offers those that can be placed now, one of each stage and kind."""
        next_ops = {ready.op for ready in candidates(self.board)}
        return [ready for ready in self.offers() if ready.op in next_ops and not self.board.refuse(*ready)]

    def _find_offers(self) -> list[Ready]:
        if self.assistance == 0:
            return []
        offers = way(self.board, self.level) if self.assistance == 3 else self._at_the_end()
        return sorted(offers, key=lambda ready: (self.board.rules.rank_of(ready.op), ready.start_s, ready.op))

    def _at_the_end(self) -> list[Ready]:
        """Return the ready ops, each after the last op of its rank."""
        return candidates(self.board, append=True)

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
            "h": self.hint,
            "[": lambda: self.swap(-1),
            "]": lambda: self.swap(1),
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

    def place(self, op: Op, start_s: float | None = None, why: str = "") -> str:
        """Place ``op``: after the last op of its rank, if no start is given."""
        after = self.board.place(op, start_s, free=self.free)
        if start_s is None and isinstance(after, Board):
            start_s = max(after.placed[op].start_s, self.board.end_of_rank(op))
            after = self.board.place(op, start_s, free=self.free)
        if isinstance(after, Refusal):
            return f"No: {after}."
        self.rank, self.chosen = self.board.rules.rank_of(op), op
        bar = after.placed[op]
        because = f": {why}" if why else ""
        return self._go_on(after, f"{op} on rank {self.rank} from {bar.start_s:g} to {bar.end_s:g}{because}.")

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

    def swap(self, direction: int) -> str:
        """Let the op that is chosen, or else the last one, change places with one of its rank."""
        if (op := self._chosen()) is None:
            return f"No: rank {self.rank} has no op to move."
        after = self.board.swap(op, direction, free=self.free)
        if isinstance(after, Refusal):
            return f"No: {after}."
        self.chosen, row = op, after.rows[self.rank].bars
        other = row[[bar.op for bar in row].index(op) - direction].op
        said = f"{op} now runs {'before' if direction < 0 else 'after'} {other}, from {after.placed[op].start_s:g} on"
        return self._go_on(after, f"{said}; every op is as early as this order lets it be.")

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
        return f"{op} is chosen: x removes it, [ and ] move it in its rank's order."

    def stamp(self) -> str:
        after, pattern = self.board.stamp(), self.board.last_whole()
        if isinstance(after, Refusal) or pattern is None:
            return f"No: {after}."
        new = next(op for op in after.placed if op not in self.board.placed)
        shift_s = after.placed[new].start_s - after.placed[new._replace(micro_batch=pattern)].start_s
        self.chosen = None
        how = f"as micro-batch {pattern}, {shift_s:g} later: the least shift at which all of it fits"
        return self._go_on(after, f"Micro-batch {new.micro_batch} is stamped {how}.")

    def undo(self) -> str:
        before = self.board
        if not self.history.undo():
            return "No: there is nothing to undo."
        self.chosen = None
        return self._with_advice(f"Undone: {_difference(before, self.board)}.")

    def redo(self) -> str:
        before = self.board
        if not self.history.redo():
            return "No: there is nothing to redo."
        self.chosen = None
        return self._with_advice(f"Done again: {_difference(before, self.board)}.")

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
        if self.assistance == 3:
            return self.place(told.op, told.start_s, told.why)
        self._hinted = (self.board, Ready(told.op, told.start_s))
        return f"{told} Ask again (h), and it is done."

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

    @property
    def at_par(self) -> bool:
        return self.board.finished and self.level.result_s(self.board) <= self.level.par_s

    def verdict(self) -> str:
        """Say how a board that is full came out; "" for any other."""
        board, this = self.board, self.level
        if not board.finished:
            return ""
        result_s, score = this.result_s(board), board.score
        took = f"{score.makespan_s:g}" if this.goal == "makespan" else f"at most {result_s:g} on a rank"
        if self.at_par:
            finished = f"✓ Finished in {took}: that is par."
        else:
            advice = "Undo, and try another order; a hint says how far to go back."
            finished = f"Finished in {took}: par is {this.par_s:g}. {advice}"
        peaks = ", ".join(map(str, score.peaks))
        kept = f"Activations (what forwards leave for their backwards) kept at most, rank by rank: {peaks}."
        return " ".join([finished, self._idle_in_words(), kept, *self._name_in_words()])

    def _idle_in_words(self) -> str:
        score = self.board.score
        bubble = f"{100 * score.bubble:.0f} %"
        if self.level.goal == "makespan":
            return f"Bubble (idle share of the ranks' time): {bubble}."
        within = "No rank is idle" if score.idle_within_s == 0 else f"Ranks are idle for {score.idle_within_s:g} in all"
        return f"{within} between its first op and its last; with the time before and after, the bubble is {bubble}."

    def _name_in_words(self) -> list[str]:
        """Say the name of a finished board, if it has one, and what to try next with it."""
        name = recognise(self.board.to_schedule()) if self.level.named else YOURS
        if name == YOURS:
            return []
        return [f"This order has a name: {name}, {MEANINGS[name]}.", *filter(None, [self.level.then.get(name)])]

    def _go_on(self, after: Board, said: str) -> str:
        self.history.do(after)
        return self._with_advice(said)

    def _with_advice(self, said: str) -> str:
        """Return ``said`` with what the reader wants to be told unasked."""
        if wrong := self.board.violations():
            more = f" ({len(wrong)} things are wrong)" if len(wrong) > 1 else ""
            return f"{said} Wrong: {wrong[0]}{more}."
        if verdict := self.verdict():
            return verdict if self.at_par else f"{said} {verdict}"
        if self.assistance < 2:
            return said
        told = hint(self.board, self.level, self.history.before)
        return f"{said} {told if self.assistance == 2 else told.about_par}".strip()

    def _other_kinds(self) -> str:
        rules = self.board.rules
        if rules.split:
            return "a backward pass is split here: place the gradient of the input (i), later that of the weights (w)"
        return "a backward pass is whole here: place it with b"


def _listed(ready: list[Ready]) -> str:
    return listed(f"{op} at {start_s:g}" for op, start_s in ready)


def _difference(before: Board, after: Board) -> str:
    """Say what changed between two boards that a move made of each other."""
    gone = [op for op in before.placed if op not in after.placed]
    come = [op for op in after.placed if op not in before.placed]
    if gone or come:
        where = "off the board" if gone else "on the board"
        ops = gone or come
        return f"{ops[0]} is {where}" if len(ops) == 1 else f"{len(ops)} ops are {where}, {ops[0]} to {ops[-1]}"
    moved = [op for op in after.placed if after.placed[op] != before.placed[op]]
    if len(moved) == 1:
        return f"{moved[0]} is at {after.placed[moved[0]].start_s:g}"
    return f"{len(moved)} ops are at other times" if moved else "the board is the same"
