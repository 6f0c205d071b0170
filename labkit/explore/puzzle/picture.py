"""Show a board: as a panel of bars, in words, and as a table."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import pandas as pd

from labkit.draw.layout import TimeAxis, stack, time_axis
from labkit.draw.painter import panel_figure
from labkit.draw.panel import BAR_COLUMNS, Label, Mark, TimedPanel
from labkit.explore.puzzle.board import Bar, Board
from labkit.explore.puzzle.game import Game
from labkit.explore.puzzle.rules import OF_KIND
from labkit.explore.static_fallback import StaticForm
from labkit.schedule import EVENT_NAMES, Op

_BAR, _STRIP, _RANK = 1.36, 0.42, 2.25  # heights in rows: of bars, what is kept, all of a rank
_TOP = 0.07  # of the bars in their rank's rows
_KEPT = _TOP + _BAR + 0.14  # the top of what is kept


def axis() -> TimeAxis:
    return time_axis(1.0, "time")


def shown(game: Game) -> dict[Op, Bar]:
    """Return the ops of the panel's bars with their times: what is placed, then what is offered."""
    board = game.board
    return {op: board.bars[op] for op in board.rules.ops if op in board.placed} | game.offers()


def board_panel(game: Game) -> TimedPanel:
    """Return the panel of a game: bars where ops are placed, ghosts where they may be.

    Under the bars of each rank is what it keeps; a strip that is full has no room for more.
    """
    board, rules, bars = game.board, game.board.rules, shown(game)
    ops, ranks = list(bars), range(rules.n_ranks)
    names = [f"▸ rank {rank}" if rank == game.rank else f"rank {rank}" for rank in ranks]
    inputs = [rules.inputs[op] for op in ops]
    par = [Mark(game.level.par_s, "par", True)] if game.level.goal == "makespan" else []
    return TimedPanel(
        bars=_bars(board, bars),
        height=_RANK * rules.n_ranks,
        rows=[Label(_RANK * rank + _TOP + _BAR / 2, names[rank]) for rank in ranks],
        title=f"Level {game.number}: {game.level.title}",
        facts=facts(game),
        marks=par,
        needs=np.array([ops.index(op) if op in bars else -1 for op in inputs], dtype="int32"),
        strips=_strips(board, max([board.makespan_s, *(mark.x for mark in par)])),
        chosen=ops.index(game.chosen) if game.chosen in bars else None,
        peaks=[_peak(board, rank) for rank in ranks if board.orders[rank]],
        explain=lambda number: explain(board, ops[number], bars[ops[number]]),
    )


def facts(game: Game) -> str:
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
    return StaticForm(lambda: panel_figure([board_panel(game)], axis()), alt_text(game), table(game).set_index("rank"))


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


# --- words ----------------------------------------------------------------------------------------


def explain(board: Board, op: Op, bar: Bar) -> str:
    """Say what an op is, what it needs and what needs it; if it is offered, how to place it."""
    rules, needed, consumers = board.rules, board.rules.inputs[op], board.rules.outputs[op]
    what = f"{op}: the {OF_KIND[op.kind]} of stage {op.stage} for micro-batch {op.micro_batch}"
    where = f"on rank {rules.rank_of(op)} from {bar.start_s:g} to {bar.end_s:g}"
    to_place = "" if op in board.placed else " if you place it there: click, or press Enter"
    words = [f"It needs {needed}." if needed else "It needs nothing but the batch."]
    if consumers:
        words += [f"{' and '.join(map(str, consumers))} {'need' if len(consumers) > 1 else 'needs'} it."]
    if op.kind == "F":
        words += [f"Its activation is kept until {rules.freed_by(op)} has ended."]
    if op.kind == rules.freeing_kind:
        words += ["Its end frees the activation."]
    return f"{what}, {where}{to_place}.\n{' '.join(words)}"


# --- bars -----------------------------------------------------------------------------------------


def _bars(board: Board, bars: Mapping[Op, Bar]) -> pd.DataFrame:
    rank_of_stage, lanes = board.rules.rank_of_stage, _lanes(board, bars)
    rows = []
    for op, bar in bars.items():
        rank, (lane, n_lanes) = rank_of_stage[op.stage], lanes.get(op, (0, 1))
        top = _RANK * rank + _TOP + _BAR * lane / n_lanes
        chunk = sum(rank_of_stage[stage] == rank for stage in range(op.stage))
        style = (EVENT_NAMES[op.kind], chunk, str(op), op not in board.placed)
        rows.append((*bar, top, _BAR / n_lanes, *style))
    return pd.DataFrame(rows, columns=[*BAR_COLUMNS, "ghost"]).astype(
        {"left": float, "right": float, "top": float, "height": float, "chunk": int, "ghost": bool}
    )


def _lanes(board: Board, bars: Mapping[Op, Bar]) -> dict[Op, tuple[int, int]]:
    """Return by offered op its lane and the number of lanes, as offers of a rank may overlap."""
    lanes: dict[Op, tuple[int, int]] = {}
    for ops in board.rules.ops_of_rank:
        if here := [op for op in bars if op in ops and op not in board.placed]:
            lane, n_lanes = stack(*np.array([bars[op] for op in here]).T)
            lanes |= {op: (number, n_lanes) for op, number in zip(here, lane.tolist(), strict=True)}
    return lanes


def _peak(board: Board, rank: int) -> Label:
    """Return the most that the rank keeps, and what it may, beside its strip."""
    may_keep = f" of {board.rules.caps[rank]}" if board.rules.caps else ""
    return Label(_RANK * rank + _KEPT + _STRIP / 2, f"{board.peak(rank)}{may_keep} kept")


def _strips(board: Board, end_s: float) -> pd.DataFrame:
    """Return the steps of what each rank keeps; a strip is full where the rank may keep no more."""
    rows = []
    for rank in range(board.rules.n_ranks):
        most = board.rules.caps[rank] if board.rules.caps else board.rules.n_micro
        top = _RANK * rank + _KEPT
        steps = []
        for op, kept in board.kept(rank).items():
            start_s, end_of_op_s = board.bars[op]
            steps.append((start_s if op.kind == "F" else end_of_op_s, len(kept)))
        for (time_s, count), (next_s, _) in pairwise([*steps, (end_s, 0)]):
            if next_s > time_s:
                rows.append((time_s, next_s, top, top + _STRIP, min(1.0, count / most)))
    columns = ["left", "right", "top", "bottom", "share"]
    return pd.DataFrame(rows, columns=columns, dtype=float)
