"""Show a puzzle in a notebook: a board to click into, and a form."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

import traitlets

from labkit.base.notebook import static
from labkit.explore.explorer import Explorer
from labkit.explore.html_table import table_html
from labkit.explore.puzzle.board import Board
from labkit.explore.puzzle.game import Game
from labkit.explore.puzzle.levels import LEVELS
from labkit.explore.puzzle.levels import level as level_of
from labkit.explore.puzzle.picture import alt_text, axis, board_panel, shown, static_form, table
from labkit.explore.puzzle.rules import OF_KIND, Rules
from labkit.explore.static_fallback import StaticForm
from labkit.explore.timeline import Timeline
from labkit.schedule import EVENT_NAMES, Op, Schedule

_TITLES = [f"{k} of {len(LEVELS)}: {each.title}" for k, each in enumerate(LEVELS, start=1)]


def schedule_puzzle(level: int = 1) -> SchedulePuzzle:
    """Return a puzzle: build the schedule of ``level``, 1 to 12, op by op.

    Click an outlined op to place it, or go to it with arrow keys and press Enter; undo takes the
    last one back. A move that cannot be is refused with the reason.
    ``puzzle.schedule`` is the schedule once it is finished, ``puzzle.csv`` what is placed so far.

    Raises TypeError for a level that is not a number, ValueError for one that does not exist.
    """
    return SchedulePuzzle(level)


class SchedulePuzzle(Explorer):
    """A :class:`Game` with a Timeline, a form and a line that answers every move.

    puzzle = schedule_puzzle()
    puzzle.level = 3                         # each level keeps its board
    puzzle.place("0F0")                      # as a click does
    """

    level: traitlets.Any = traitlets.Any()  # a number; wrong ones are refused as schedule_puzzle does

    def __init__(self, level: int = 1):
        self._games = dict[int, Game]()
        timeline = Timeline()
        super().__init__([timeline], timeline)
        timeline.handlers = {
            "pick": self.guarded(lambda bar: self.place(list(shown(self.game))[bar])),
            "control": self.guarded(self._take),
        }
        self.level = level

    @traitlets.validate("level")
    def _checked(self, proposal: dict[str, Any]) -> int:
        level_of(proposal["value"])
        return proposal["value"]

    @traitlets.observe("level")
    def _open(self, _: object) -> None:
        self._after(f"Level {self.level}: {self.game.level.title}.")

    # --- for a cell -------------------------------------------------------------------------------

    @property
    def game(self) -> Game:
        """The level that is shown, with what has been done in it."""
        if self.level not in self._games:
            self._games[self.level] = Game(self.level)
        return self._games[self.level]

    @property
    def board(self) -> Board:
        return self.game.board

    @property
    def schedule(self) -> Schedule:
        """The schedule that was built. Raises ValueError, with the reason, if it is unfinished."""
        ops = self.board.rules.ops
        if missing := [op for op in ops if op not in self.board.placed]:
            left = f"{len(missing)} of {len(ops)} ops are not placed yet, {missing[0]} for one"
            raise ValueError(f"the board of level {self.level} is not finished: {left}")
        return self.board.to_schedule("yours")

    @property
    def csv(self) -> str:
        """What is placed so far as torch's CSV of a schedule: a line per rank."""
        return self.board.to_schedule().to_csv()

    def place(self, op: Op | str) -> None:
        """Place ``op``, such as "0F0", after the last one of its rank; say why that cannot be."""
        self._after(self.game.place(Op.parse(op) if isinstance(op, str) else op))

    def _take(self, name: str, title: str) -> None:
        """Take what the form says."""
        if name == "level":
            self.level = 1 + _TITLES.index(title)
        elif name == "next":
            self.level += 1
        else:
            self._after({"undo": self.game.undo, "clear": self.game.clear, "hint": self.game.hint}[name]())

    def static_form(self) -> StaticForm:
        """What stands for the puzzle on a page; in a stored notebook an empty board is finished."""
        return static_form(self.game.finished() if static() and not self.board.placed else self.game)

    # --- what is shown ----------------------------------------------------------------------------

    def _after(self, narration: str) -> None:
        """Show the board after a move, and say how it went."""
        game = self.game
        with self.timeline.hold_sync():
            self.timeline.form = {"controls": _form(game)}
            self.timeline.show(
                [board_panel(game)],
                alt=alt_text(game),
                time=axis(),
                narration=narration,
                numbers=_lesson(game) + table_html(table(game)),
            )


# --- the form -------------------------------------------------------------------------------------

_GOALS = {
    "makespan": "End as early as you can; no order ends earlier than par",
    "span": "Let each rank be done as soon as you can after its own first op; no order does better than par",
}


def _form(game: Game) -> list[dict[str, Any]]:
    """Return the controls of a level."""
    this = game.level
    goal = f"{_rules_in_words(game.board.rules)} {_GOALS[this.goal]}, {this.par_s:g}."
    buttons = {"undo": ("Undo", "Take the last move back"), "clear": ("Clear", "Empty the board")}
    buttons |= {"hint": ("Hint", "What to do next; again: do it"), "next": ("Next level", "Go to the next level")}
    if game.number == len(LEVELS):
        del buttons["next"]
    return [
        {"name": "level", "label": "level", "look": "menu", "options": _TITLES, "value": _TITLES[game.number - 1]},
        {"name": "asks", "look": "words", "value": this.asks, "group": "asks"},
        {"name": "goal", "look": "words", "value": goal, "group": "goal"},
        *(
            {"name": name, "label": label, "look": "action", "tooltip": tooltip, "group": "moves"}
            for name, (label, tooltip) in buttons.items()
        ),
    ]


def _lesson(game: Game) -> str:
    """Return, as HTML, what the level teaches, once the board is at par."""
    if game.at_par:
        return f"<p><strong>✓ Par reached. What this level teaches: {html.escape(game.level.teaches)}</strong></p>"
    return ""


def _rules_in_words(rules: Rules) -> str:
    def each(times: Sequence[float]) -> str:
        several = len(set(times)) > 1
        return f"{', '.join(map('{:g}'.format, times))} (by stage)" if several else f"{times[0]:g}"

    stages = {kind: rules.timed.per_stage(EVENT_NAMES[kind]) for kind in rules.kinds}
    times = [f"{kind} ({OF_KIND[kind]}) takes {each(seconds)}" for kind, seconds in stages.items()]
    hop = f", and what is sent to another rank is there {rules.timed.hop:g} later" if rules.timed.hop else ""
    if not rules.caps:
        return f"{', '.join(times)}{hop}."
    by_rank = ", ".join(f"{cap} on rank {rank}" for rank, cap in enumerate(rules.caps))
    room = f"{rules.caps[0]} on each rank" if len(set(rules.caps)) == 1 else by_rank
    return f"{', '.join(times)}{hop}. Room for activations: {room}."
