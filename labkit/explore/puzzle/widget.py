"""Show a puzzle in a notebook: a board to click into, and a form.

The page has the rules and answers every move (browser/puzzle.js), and tells what is placed.
"""

from __future__ import annotations

from typing import Any

import pandas as pd
import traitlets

from labkit.base.notebook import static
from labkit.draw.layout import time_axis
from labkit.explore.explorer import Explorer
from labkit.explore.puzzle.board import Board
from labkit.explore.puzzle.levels import LEVELS, spans_s
from labkit.explore.puzzle.levels import level as level_of
from labkit.explore.puzzle.rules import Refusal
from labkit.explore.scene_message import axis_message, scene_of, styles_message
from labkit.explore.static_fallback import StaticForm
from labkit.explore.timeline import Timeline
from labkit.schedule import EVENT_NAMES, Op, Schedule
from labkit.simulate import makespan, peak_activations


def schedule_puzzle(level: int = 1) -> SchedulePuzzle:
    """Return a puzzle: build the schedule of ``level``, 1 to 12, op by op.

    Click an outlined op to place it, or go to it with arrow keys and press Enter; undo takes the
    last one back. ``puzzle.schedule`` is the schedule once it is finished, ``puzzle.csv`` what is
    placed so far.

    Raises TypeError for a level that is not a number, ValueError for one that does not exist.
    """
    return SchedulePuzzle(level)


class SchedulePuzzle(Explorer):
    """A Timeline on which ops are placed, a form, and a line that answers every move.

    puzzle = schedule_puzzle()
    puzzle.level = 3                         # each level keeps its board
    puzzle.place("0F0")                      # as a click does
    """

    level: traitlets.Any = traitlets.Any()  # a number; wrong ones are refused as schedule_puzzle does

    def __init__(self, level: int = 1):
        self._boards = dict[int, Board]()
        timeline = Timeline()
        super().__init__([timeline], timeline)
        timeline.on_control = self.guarded(self._take)
        level_of(level)  # None is no change, which no validator sees
        self.level = level

    @traitlets.validate("level")
    def _checked(self, proposal: dict[str, Any]) -> int:
        level_of(proposal["value"])
        return proposal["value"]

    # --- for a cell -------------------------------------------------------------------------------

    @property
    def board(self) -> Board:
        """What is placed in the level that is shown."""
        return self._boards.setdefault(self.level, Board(level_of(self.level).rules))

    @property
    def schedule(self) -> Schedule:
        """The schedule that was built. Raises ValueError, with the reason, if it is unfinished."""
        if missing := self.board.missing:
            left = f"{len(missing)} of {len(self.board.rules.inputs)} ops are not placed yet, {missing[0]} for one"
            raise ValueError(f"the board of level {self.level} is not finished: {left}")
        return self.board.to_schedule("yours")

    @property
    def csv(self) -> str:
        """What is placed so far as torch's CSV of a schedule: a line per rank."""
        return self.board.to_schedule().to_csv()

    def place(self, op: Op | str) -> None:
        """Place ``op``, such as "0F0", after the last one of its rank; say why that cannot be."""
        try:
            self._boards[self.level] = self.board.place(Op.parse(op) if isinstance(op, str) else op)
        except Refusal as why:
            self.say(f"No: {why}.")
        else:
            self._show()

    def _take(self, _: str, state: tuple[int, list[str]]) -> None:
        """Take the level that the page shows, and its moves."""
        level, moves = state
        board = Board(level_of(level).rules)
        for op in moves:
            board = board.place(Op.parse(op))
        self._boards[level] = board
        if level == self.level:
            self._show()
        self.level = level

    # --- what is shown ----------------------------------------------------------------------------

    @traitlets.observe("level")
    def _show(self, _: object = None) -> None:
        self.timeline.show([], alt=self._alt(self.board), puzzle=self._message(self.board))

    def _message(self, board: Board) -> dict[str, Any]:
        """Return what the page needs: levels, their boards, and how ops look."""
        boards = self._boards | {self.level: board}
        shades = [styles_message(EVENT_NAMES.values(), chunks) for chunks in (1, 2)]
        return {
            "levels": [each.message for each in LEVELS],
            "level": self.level,
            "placed": {number: " ".join(map(str, board.moves)) for number, board in boards.items()},
            "look": {"axis": axis_message(time_axis(1.0, "time")), "shades": shades},
        }

    # --- in print ---------------------------------------------------------------------------------

    def static_form(self) -> StaticForm:
        """What stands for the puzzle on a page; in a stored notebook an empty board is finished."""
        board = self.board
        if static() and not board.moves:
            board = level_of(self.level).solution
        alt = self._alt(board)
        return StaticForm(alt, self._table(board), scene=lambda: scene_of([], alt=alt, puzzle=self._message(board)))

    def _alt(self, board: Board) -> str:
        """Return a board in words; with its times, once it is finished."""
        done = f"{len(board.moves)} of {len(board.rules.inputs)} ops are placed"
        bars = dict[Op, str]()
        if board.finished:
            events = self._events(board)
            ops = [op for order in board.orders for op in order]
            times = zip(ops, events["start_s"], events["end_s"], strict=True)
            bars = {op: f" from {start_s:g} to {end_s:g}" for op, start_s, end_s in times}
            done += f", up to {makespan(events):g}"
        words = [f"Level {self.level}, {level_of(self.level).title}: {done}."]
        for rank, order in enumerate(board.orders):
            placed = ", ".join(f"{op}{bars.get(op, '')}" for op in order)
            words += [f"Rank {rank}: {placed}."] if order else []
        return " ".join(words)

    def _table(self, board: Board) -> pd.DataFrame:
        """Return a row per rank: its ops in order; of a finished board when it ends, how long it is
        idle as the goal counts it, and what it keeps."""
        columns: dict[str, Any] = {"ops": [" ".join(map(str, order)) for order in board.orders]}
        if board.finished:
            events, within = self._events(board), level_of(self.level).goal == "span"
            busy_s = (events["end_s"] - events["start_s"]).groupby(events["rank"]).sum()
            whole_s = spans_s(events) if within else [makespan(events)] * len(busy_s)
            columns["ends"] = [f"{end_s:g}" for end_s in events.groupby("rank")["end_s"].max()]
            idle_s = (whole - busy for whole, busy in zip(whole_s, busy_s, strict=True))
            columns["idle between its ops" if within else "idle"] = [f"{idle:g}" for idle in idle_s]
            columns["keeps at most"] = [*peak_activations(events).values()]
        if board.rules.caps:
            columns["may keep"] = list(board.rules.caps)
        return pd.DataFrame(columns, index=pd.RangeIndex(len(board.orders), name="rank"))

    def _events(self, board: Board) -> pd.DataFrame:
        return board.rules.timed._replace(schedule=board.to_schedule()).simulate()
