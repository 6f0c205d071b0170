"""Show a puzzle in a notebook: a board to click into, buttons and keys for all that it can do."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import ipywidgets

from labkit.explore.explorer import Explorer, RunButtons, table_html
from labkit.explore.puzzle.board import Board
from labkit.explore.puzzle.game import Game
from labkit.explore.puzzle.hints import ASSISTANCE
from labkit.explore.puzzle.levels import LEVELS
from labkit.explore.puzzle.picture import alt_text, axis, board_panel, shown, static_form, table
from labkit.explore.puzzle.rules import OF_KIND, Rules
from labkit.explore.schedules.measure import run_schedule
from labkit.explore.schedules.tables import gap_as_html
from labkit.explore.static_fallback import StaticForm
from labkit.explore.timeline import Timeline
from labkit.schedule import EVENT_NAMES, Op, Schedule

_CHOSEN = "the op that is chosen, or the last one"
_SWAP = f"Let {_CHOSEN}, change places with the one"
_BUTTONS = {  # by key
    "u": ("Undo", "Take the last move back"),
    "r": ("Redo", "Make it again"),
    "x": ("Remove", f"Remove {_CHOSEN} of the rank"),
    "[": ("Earlier", f"{_SWAP} before it on its rank"),
    "]": ("Later", f"{_SWAP} after it on its rank"),
    "s": ("Micro-batch", "Place the next one whole, as early as it delays nothing"),
    "h": ("Hint", "What to do next, and why; again: do it"),
}


def schedule_puzzle(level: int = 1) -> SchedulePuzzle:
    """Return a puzzle: build the schedule of ``level``, 1 to 12, op by op.

    Click an outlined op to place it, or use buttons, or keys in the picture: "keys" lists them. A
    move that cannot be is refused with the reason. ``puzzle.schedule`` is the schedule once
    it is finished, ``puzzle.csv`` what is placed so far.

    Raises TypeError for a level that is no number, ValueError for one that does not exist.
    """
    return SchedulePuzzle(level)


class SchedulePuzzle(Explorer):
    """A :class:`Game` with a Timeline, buttons and a line that answers every move.

    A cell can use the controls too: ``puzzle.press("f")``, ``puzzle.assistance.value = 2``.
    """

    def __init__(self, level: int = 1):
        self._games = {level: Game(level)}
        self.game = self._games[level]
        self.text = ipywidgets.HTML()
        narrow: Any = {"button_width": "70px"}
        self.rank = ipywidgets.ToggleButtons(style=narrow, layout=ipywidgets.Layout(width="auto"))
        self.kinds = {
            kind: self._button(name, f"Place the next {name} ({kind}) of the rank", kind.lower())
            for kind, name in OF_KIND.items()
        }
        self.done = ipywidgets.HTML(layout=ipywidgets.Layout(min_height="36px"))  # so that nothing moves at par
        self.buttons = {key: self._button(name, f"{tooltip} ({key})", key) for key, (name, tooltip) in _BUTTONS.items()}
        self.clear = self._button("Clear", "Empty the board", self._clear)
        options = [(shown, assistance) for assistance, shown in enumerate(ASSISTANCE)]
        self.assistance = ipywidgets.Dropdown(description="Show", options=options)
        self.previous = self._button("Previous level", "", lambda: self.go_to(self.game.number - 1))
        self.next = self._button("Next level", "", lambda: self.go_to(self.game.number + 1))
        self.runs = RunButtons("Run it", self._run_it, self.say)
        self.run_shown = ipywidgets.VBox()
        self.table = ipywidgets.HTML()
        timeline = Timeline()
        super().__init__(self._rows(timeline), timeline)
        timeline.on_pick(lambda _, bar: self.guarded(partial(self._pick, bar))())
        timeline.on_key(lambda key: self.guarded(partial(self.press, key))())
        self.rank.observe(self.guarded(self._choose_rank), "value")
        self.assistance.observe(self.guarded(self._assist), "value")
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
        return self.board.to_schedule(self.game.level.name_of(self.board))

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

    def place(self, op: Op) -> None:
        """Place ``op`` after the last one of its rank, or choose it if it is there, as a click."""
        self._after(self.game.pick(op))

    def go_to(self, number: int) -> None:
        """Go to another level; each keeps its board and how much it shows unasked.

        Raises as :func:`schedule_puzzle` does.
        """
        if number not in self._games:
            self._games[number] = Game(number)
        self.game = self._games[number]
        self._open()

    def static_form(self) -> StaticForm:
        return static_form(self.game)

    # --- what is shown ----------------------------------------------------------------------------

    def _open(self) -> None:
        """Show the level anew: its text, the controls that it needs, its board."""
        game, rules = self.game, self.game.board.rules
        self.text.value = _level_text(game)
        self.timeline.own_keys = [list(pair) for pair in game.key_list()]
        chosen = game.rank
        self.rank.options = [(f"rank {rank}", rank) for rank in range(rules.n_ranks)]
        game.rank = chosen  # not the first one, which the new options choose
        for kind, button in self.kinds.items():
            button.layout.display = "" if kind in rules.kinds else "none"
        self.buttons["s"].layout.display = "" if rules.n_micro > 1 else "none"
        self.assistance.value = game.assistance
        self.previous.disabled, self.next.disabled = game.number == 1, game.number == len(LEVELS)
        self.run_shown.children = []
        self._after(f"{_CLICK if game.assistance else _UNAIDED} {_ORDER}")

    def _after(self, said: str) -> None:
        """Show the board after a move, and say how it went."""
        game = self.game
        self.timeline.show([board_panel(game)], alt=alt_text(game), time=axis(), said=said)
        self.rank.value = game.rank
        self.buttons["u"].disabled = not game.before
        self.buttons["r"].disabled = not game.undone
        self.runs.start.disabled = not game.board.finished
        self.table.value = table_html(table(game))
        self.done.value = _what_was_learned(game) if game.at_par else ""

    # --- what a reader does -----------------------------------------------------------------------

    def _button(self, name: str, tooltip: str, action: str | Callable[[], None]) -> ipywidgets.Button:
        """Return a button that does ``action``: what a key does, or a function."""
        auto = ipywidgets.Layout(width="auto")
        button = ipywidgets.Button(description=name, tooltip=tooltip, layout=auto)
        act = partial(self.press, action) if isinstance(action, str) else action
        button.on_click(self.guarded(act))
        return button

    def _pick(self, bar: int) -> None:
        self.place(list(shown(self.game))[bar])

    def _clear(self) -> None:
        self._after(self.game.clear())

    def _choose_rank(self) -> None:
        if self.rank.value is not None and self.rank.value != self.game.rank:
            self._after(self.game.choose_rank(self.rank.value))

    def _assist(self) -> None:
        if self.assistance.value != self.game.assistance:
            self._after(self.game.assist(self.assistance.value))

    def _run_it(self) -> str:
        """Run the schedule on real ranks, and show the run over what it should be."""
        self.run_shown.children = []
        run = run_schedule(*self.board.rules.timed._replace(schedule=self.schedule))
        title = f"Level {self.game.number}, on real ranks"
        measured = Timeline(run.measured, run.schedule, run.ideal, title=title)
        self.run_shown.children = [measured, ipywidgets.HTML(gap_as_html("This run", run.gap))]
        return f"{run.note} The run lies under what was predicted, below."

    # --- the page ---------------------------------------------------------------------------------

    def _rows(self, timeline: Timeline) -> Sequence[ipywidgets.Widget]:
        return [
            self.text,
            timeline,
            self.done,
            ipywidgets.HBox([self.rank, *self.kinds.values()], layout=_wrapped()),
            ipywidgets.HBox([*self.buttons.values(), self.clear], layout=_wrapped()),
            ipywidgets.HBox([self.assistance, self.previous, self.next], layout=_wrapped()),
            self.runs,
            self.table,
            self.run_shown,
        ]


def _wrapped() -> ipywidgets.Layout:
    return ipywidgets.Layout(flex_flow="row wrap")


_ORDER = "An op goes after the last one of its rank; Earlier and Later change a rank's order."
_CLICK = "Click an outlined op to place it, or use the buttons below; keys work in the picture."
_UNAIDED = "Choose a rank below and place its next op, or use keys in the picture."
_GOALS = {
    "makespan": "End as early as you can",
    "span": "Let each rank be done as soon as you can after its own first op",
}


def _level_text(game: Game) -> str:
    """Return what the level asks and what holds in it, as HTML."""
    this = game.level
    par = "par, the least that any order needs," if game.number == 1 else "par"
    goal = f"{_rules_in_words(this.rules)} {_GOALS[this.goal]}: {par} is {this.par_s:g}."
    style = '<p style="margin: 3px 0; line-height: 1.4">'
    paragraphs = "".join(f"{style}{html.escape(line)}</p>" for line in (this.asks, goal))
    title = html.escape(f"Level {game.number} of {len(LEVELS)}: {this.title}")
    return f'<h4 style="margin: 0 0 4px">{title}</h4>{paragraphs}'


def _what_was_learned(game: Game) -> str:
    """Return the line that stays while the board is at par, as HTML."""
    on = " Go on with n in the picture, or with Next level." if game.number < len(LEVELS) else ""
    learned = f"✓ Par reached. What this level teaches: {game.level.teaches}{on}"
    return f'<p style="margin: 0; line-height: 1.4; font-weight: 600">{html.escape(learned)}</p>'


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
