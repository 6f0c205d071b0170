"""Show a board: as an event table that the page draws and explains, and in words."""

from __future__ import annotations

import numpy as np
import pandas as pd

from labkit.draw.layout import TimeAxis, time_axis
from labkit.draw.panel import Mark
from labkit.explore.event_tables import EventTables
from labkit.explore.puzzle.board import Bar
from labkit.explore.puzzle.game import Game
from labkit.explore.scene_message import scene_of
from labkit.explore.static_fallback import StaticForm
from labkit.schedule import EVENT_NAMES, Op
from labkit.trace import event_table


def axis() -> TimeAxis:
    return time_axis(1.0, "time")


def shown(game: Game) -> dict[Op, Bar]:
    """Return the ops of the panel's bars with their times: what is placed, then what is offered."""
    board = game.board
    return {op: board.bars[op] for op in board.rules.ops if op in board.placed} | game.offers()


def board_panel(game: Game) -> EventTables:
    """Return the board as an event table, with the facts from which the page explains its ops.

    What is ``offered`` may be placed next. ``cap`` is by rank.
    """
    board, rules, ops = game.board, game.board.rules, list(shown(game))
    row = {op: number for number, op in enumerate(ops)}

    def rows(of: list[Op | None]) -> np.ndarray:
        return np.array([-1 if op is None else row[op] for op in of])

    offered = np.array([op not in board.placed for op in ops])
    facts = {"needs": rows([rules.inputs[op] for op in ops]), "waited_for": rows(list(map(board.waited_for, ops)))}
    more = {
        "labels": list(map(str, ops)),
        "facts": facts_of(game),
        "marks": list(map(list, _par(game))),
        "chosen": row.get(game.chosen) if game.chosen else None,
        "ranks": rules.n_ranks,
        "memory": True,
        "cap": rules.caps and list(rules.caps),
    }
    title = f"Level {game.number}: {game.level.title}"
    return EventTables(title, {"": _events(game)}, [facts | {"offered": offered}], more)


def _par(game: Game) -> list[Mark]:
    return [Mark(game.level.par_s, "par", True)] if game.level.goal == "makespan" else []


def _events(game: Game) -> pd.DataFrame:
    rank_of = game.board.rules.rank_of
    return event_table(
        (rank_of(op), "compute", EVENT_NAMES[op.kind], None, op.stage, op.micro_batch, None, None, *bar)
        for op, bar in shown(game).items()
    )


def facts_of(game: Game) -> str:
    """Return how far the board is, in a line."""
    board, this = game.board, game.level
    if not board.finished:
        return f"{len(board.placed)} of {len(board.rules.ops)} ops · par {this.par_s:g}"
    reached = "✓ par" if game.at_par else f"{game.result_s:g} · par {this.par_s:g}"
    return f"{reached} · bubble {100 * board.bubble:.0f} %"


def alt_text(game: Game) -> str:
    """Return the board in words, for readers who cannot see it."""
    board, offers = game.board, game.offers()
    done = f"{len(board.placed)} of {len(board.rules.ops)} ops are placed"
    until = f", up to {board.makespan_s:g}" if board.placed else ""
    words = [f"Level {game.number}, {game.level.title}: {done}{until}."]
    for rank, order in enumerate(board.orders):
        times = ("{} from {:g} to {:g}".format(op, *board.bars[op]) for op in order)
        words += [f"Rank {rank}: {', '.join(times)}."] if order else []
    offered = ", ".join(f"{op} at {bar.start_s:g}" for op, bar in offers.items())
    return " ".join([*words, f"To be placed: {offered}."] if offers else words)


def static_form(game: Game) -> StaticForm:
    """Return picture, words and table for where there is no widget; outlines are offered ops."""
    alt = alt_text(game)
    return StaticForm(
        alt, table(game).set_index("rank"), scene=lambda: scene_of([board_panel(game)], time=axis(), alt=alt)
    )


def table(game: Game) -> pd.DataFrame:
    """Return a row per rank: its ops in order, when it ends, how long it is idle, what it keeps.

    Idle is counted as the goal counts it: to the end of the board, or between the rank's own ops.
    """
    board, ranks, within = game.board, range(game.board.rules.n_ranks), game.level.goal == "span"
    within_s = [board.span_s(rank) if within else board.makespan_s for rank in ranks]
    idle = [f"{board.idle_s(rank, within_s[rank]):g}" for rank in ranks]
    columns = {
        "rank": ranks,
        "ops": [" ".join(map(str, order)) for order in board.orders],
        "ends": [f"{board.end_s(rank):g}" for rank in ranks],
        "idle between its ops" if within else "idle": idle,
        "keeps at most": [board.peak(rank) for rank in ranks],
    }
    may_keep = {"may keep": list(board.rules.caps)} if board.rules.caps else {}
    return pd.DataFrame(columns | may_keep)
