"""Show a puzzle in a notebook: a board to click into, buttons and keys for all that it can do."""

from __future__ import annotations

import html
from collections.abc import Sequence
from functools import partial
from typing import Any

import ipywidgets

from labkit.base.notebook import static
from labkit.explore.explorer import Explorer, table_html
from labkit.explore.puzzle.board import Board
from labkit.explore.puzzle.game import Game
from labkit.explore.puzzle.levels import LEVELS
from labkit.explore.puzzle.picture import alt_text, axis, board_panel, shown, static_form, table
from labkit.explore.puzzle.rules import OF_KIND, Rules
from labkit.explore.static_fallback import StaticForm
from labkit.explore.timeline import Timeline
from labkit.schedule import EVENT_NAMES, Schedule

_BUTTONS = {  # by key; each with the first level that has it
    "u": ("Undo", "Take the last move back", 1),
    "c": ("Clear", "Empty the board", 2),
    "h": ("Hint", "What to do next, and why; again: do it", 1),
}
_TOOLBAR_FROM = 4  # the first level with all of the picture's buttons


def schedule_puzzle(level: int = 1) -> SchedulePuzzle:
    """Return a puzzle: build the schedule of ``level``, 1 to 12, op by op.

    Click an outlined op to place it and drag it to change the order, or use buttons, or keys in
    the picture: "keys" lists them. A move that cannot be is refused with the reason.
    ``puzzle.schedule`` is the schedule once it is finished, ``puzzle.csv`` what is placed so far.

    Raises TypeError for a level that is not a number, ValueError for one that does not exist.
    """
    return SchedulePuzzle(level)


class SchedulePuzzle(Explorer):
    """A :class:`Game` with a Timeline, buttons and a line that answers every move.

    A cell can use the keys too: ``puzzle.press("f")``.
    """

    def __init__(self, level: int = 1):
        self._games = {level: Game(level)}
        self.game = self._games[level]
        levels = [(f"{k} of {len(LEVELS)}: {each.title}", k) for k, each in enumerate(LEVELS, start=1)]
        look = {"style": {"description_width": "auto"}, **_narrow()}
        self.choice = ipywidgets.Dropdown(options=levels, value=level, description="Level", **look)
        self.text = ipywidgets.HTML()
        self.rank = ipywidgets.ToggleButtons(style={"button_width": "70px"}, **_narrow())
        self.kinds = {
            kind: self._button(name, f"Place the next {name} of the rank", kind.lower())
            for kind, name in OF_KIND.items()
        }
        self.buttons = {key: self._button(name, tooltip, key) for key, (name, tooltip, _) in _BUTTONS.items()}
        self.lesson = ipywidgets.HTML(layout=ipywidgets.Layout(min_height="36px"))  # so that nothing moves at par
        self.next = self._button("Next level", "Go to the next level", "n")
        self.table = ipywidgets.HTML()
        timeline = Timeline()
        super().__init__(self._rows(timeline), timeline)
        timeline.on_pick(lambda _, bar: self.guarded(partial(self._pick, bar))())
        timeline.on_drop(lambda _, bar, time_s: self.guarded(partial(self._pick, bar, time_s))())
        timeline.on_key(lambda key: self.guarded(partial(self.press, key))())
        self.choice.observe(self.guarded(lambda: self.go_to(self.choice.value)), "value")
        self.rank.observe(self.guarded(self._choose_rank), "value")
        self._open()

    # --- for a cell -------------------------------------------------------------------------------

    @property
    def board(self) -> Board:
        return self.game.board

    @property
    def schedule(self) -> Schedule:
        """The schedule that was built. Raises ValueError, with the reason, if it is unfinished."""
        ops = self.board.rules.ops
        if missing := [op for op in ops if op not in self.board.placed]:
            left = f"{len(missing)} of {len(ops)} ops are not placed yet, {missing[0]} for one"
            raise ValueError(f"the board of level {self.game.number} is not finished: {left}")
        return self.board.to_schedule("yours")

    @property
    def csv(self) -> str:
        """What is placed so far as torch's CSV of a schedule: a line per rank."""
        return self.board.to_schedule().to_csv()

    def press(self, key: str) -> None:
        """Do what ``key`` does in the picture."""
        if key == "n" and self.game.number < len(LEVELS):
            self.go_to(self.game.number + 1)
        else:
            self._after(self.game.press(key))

    def go_to(self, number: int) -> None:
        """Go to another level; each keeps its board.

        Raises as :func:`schedule_puzzle` does.
        """
        if number not in self._games:
            self._games[number] = Game(number)
        self.game = self._games[number]
        if self.choice.value == number:
            self._open()
        else:
            self.choice.value = number  # which comes back here

    def static_form(self) -> StaticForm:
        """What stands for the puzzle on a page; in a stored notebook an empty board is finished."""
        return static_form(self.game.finished() if static() and not self.board.placed else self.game)

    # --- what is shown ----------------------------------------------------------------------------

    def _open(self) -> None:
        """Show the level anew: its text, the controls that it needs, its board."""
        game, rules = self.game, self.game.board.rules
        self.text.value = _level_text(game)
        self.timeline.own_keys = [list(pair) for pair in game.key_list()]
        chosen = game.rank
        self.rank.options = [(f"rank {rank}", rank) for rank in range(rules.n_ranks)]
        game.rank = chosen  # not the first one, which the new options choose
        needed = {button: kind in rules.kinds for kind, button in self.kinds.items()}
        needed |= {self.buttons[key]: game.number >= first for key, (_, _, first) in _BUTTONS.items()}
        for control, is_needed in needed.items():
            control.layout.display = "" if is_needed else "none"
        (self.remove_class if game.number >= _TOOLBAR_FROM else self.add_class)("labkit-few-controls")
        self._after(f"Level {game.number}: {game.level.title}.")

    def _after(self, narration: str) -> None:
        """Show the board after a move, and say how it went."""
        game = self.game
        self.timeline.show([board_panel(game)], alt=alt_text(game), time=axis(), said=narration)
        self.rank.value = game.rank
        self.buttons["u"].disabled = not game.before
        self.table.value = table_html(table(game))
        self.lesson.value = _lesson(game)
        self.next.layout.visibility = "visible" if game.at_par and game.number < len(LEVELS) else "hidden"

    # --- what a reader does -----------------------------------------------------------------------

    def _button(self, name: str, tooltip: str, key: str) -> ipywidgets.Button:
        """Return a button that does what a key does."""
        button = ipywidgets.Button(description=name, tooltip=f"{tooltip} ({key})", **_narrow())
        button.on_click(self.guarded(partial(self.press, key)))
        return button

    def _pick(self, bar: int, dropped_s: float | None = None) -> None:
        """Take a click on a bar, or its drop at a time."""
        op = list(shown(self.game))[bar]
        self._after(self.game.pick(op) if dropped_s is None else self.game.drop(op, dropped_s))

    def _choose_rank(self) -> None:
        if self.rank.value is not None and self.rank.value != self.game.rank:
            self._after(self.game.choose_rank(self.rank.value))

    # --- the page ---------------------------------------------------------------------------------

    def _rows(self, timeline: Timeline) -> Sequence[ipywidgets.Widget]:
        wrapped = ipywidgets.Layout(flex_flow="row wrap")
        controls = [self.rank, *self.kinds.values(), *self.buttons.values()]
        return [
            self.choice,
            self.text,
            ipywidgets.HBox(controls, layout=wrapped),  # above the line that answers them
            timeline,
            self.lesson,
            self.next,
            self.table,
        ]


def _narrow() -> Any:
    return {"layout": ipywidgets.Layout(width="max-content", max_width="100%")}


_MOVES = (
    "Click an outlined op to place it, or choose a rank and press forward or backward; keys do the same. "
    "An op goes after the last one of its rank: drag it to change the order."
)
_GOALS = {
    "makespan": "End as early as you can; no order ends earlier than par",
    "span": "Let each rank be done as soon as you can after its own first op; no order does better than par",
}


def _level_text(game: Game) -> str:
    """Return what the level asks and what holds in it, as HTML."""
    this = game.level
    goal = f"{_rules_in_words(this.rules)} {_GOALS[this.goal]}, {this.par_s:g}."
    style = '<p style="margin: 3px 0; line-height: 1.4">'
    return "".join(f"{style}{html.escape(line)}</p>" for line in (this.asks, goal))


def _lesson(game: Game) -> str:
    """Return, as HTML, what the level teaches once the board is at par; until then how to move."""
    learned = f"✓ Par reached. What this level teaches: {game.level.teaches}"
    text, weight = (learned, 600) if game.at_par else (_MOVES, 400)
    return f'<p style="margin: 0; line-height: 1.4; font-weight: {weight}">{html.escape(text)}</p>'


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
