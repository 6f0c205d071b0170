"""Show a board: as a panel of bars, in words, and as a table."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.ticker import MaxNLocator

from labkit.draw.layout import TimeAxis, stack, time_axis
from labkit.draw.painter import panel_figure
from labkit.draw.panel import BAR_COLUMNS, Label, Mark, Panel
from labkit.explore.puzzle.board import Board, Ready
from labkit.explore.puzzle.game import Game
from labkit.explore.puzzle.rows import Bar, Row
from labkit.explore.puzzle.rules import OF_KIND
from labkit.explore.static_fallback import StaticForm
from labkit.schedule import EVENT_NAMES, Op

TIME_LABEL = "time"
_BAR, _STRIP, _RANK = 1.36, 0.42, 2.25  # heights in rows: of bars, of what is kept, of all of a rank
_TOP = 0.07  # of the bars in their rank's rows
_KEPT = _TOP + _BAR + 0.14  # the top of what is kept


def axis() -> TimeAxis:
    return time_axis(1.0, TIME_LABEL)


def shown_ops(game: Game) -> list[Op]:
    """Return the ops of the panel's bars, in their order: what is placed, then what is offered."""
    return [*game.board.placed, *(ready.op for ready in game.offers())]


def board_panel(game: Game) -> Panel:
    """Return the panel of a game: bars where ops are placed, ghosts where they may be.

    Under the bars of each rank is what it keeps; a strip that is full has no room for more.
    """
    board, offers, ops = game.board, game.offers(), shown_ops(game)
    placed = [(bar.op, bar.start_s, bar.end_s, _TOP, _BAR, False) for bar in board.placed.values()]
    bars = _bars(board, placed + _ghosts(board, offers))
    end_s = max(board.end_s, game.level.par_s if game.level.goal == "makespan" else 0.0)
    times = sorted({time_s for bar in board.placed.values() for time_s in (bar.start_s, bar.end_s)})
    return Panel(
        bars=bars,
        height=_RANK * board.rules.n_ranks,
        rows=[
            Label(_RANK * rank + _TOP + _BAR / 2, f"▸ rank {rank}" if rank == game.rank else f"rank {rank}")
            for rank in range(board.rules.n_ranks)
        ],
        title=f"Level {game.number}: {game.level.title}",
        facts=facts(game),
        marks=[Mark(game.level.par_s, "par", True)] if game.level.goal == "makespan" else [],
        needs=_needs(board, ops),
        strips=_strips(board, end_s),
        peaks=[Label(_RANK * rank + _KEPT + _STRIP / 2, _peak(row)) for rank, row in enumerate(board.rows) if row.bars],
        clocks=np.arange(0.0, board.end_s + 1.0) if board.placed else np.zeros(0),
        moments=np.array(times),
        explain=lambda number: explain(board, ops[number], offers),
        narrate=lambda time_s: narrate(board, time_s),
    )


def facts(game: Game) -> str:
    """Return how far the board is, in a line."""
    board = game.board
    if board.finished:
        bubble = f"bubble {100 * board.score.bubble:.0f} %"
        reached = f"✓ par reached: {game.level.par_s:g}"
        return f"{reached if game.at_par else f'{game.level.result_s(board):g} · par {game.level.par_s:g}'} · {bubble}"
    return f"{len(board.placed)} of {len(board.rules.ops)} ops · par {game.level.par_s:g}"


def alt_text(game: Game) -> str:
    """Return the board in words, for who cannot see it."""
    board = game.board
    done = f"Level {game.number}, {game.level.title}: {len(board.placed)} of {len(board.rules.ops)} ops are placed"
    done += f", up to {board.end_s:g}." if board.placed else "."
    ranks = [f"Rank {rank}: {_ops_in_words(row.bars)}." for rank, row in enumerate(board.rows) if row.bars]
    offered = ", ".join(f"{op} at {start_s:g}" for op, start_s in game.offers())
    return " ".join([done, *ranks, *([f"To be placed: {offered}."] if offered else [])])


def static_form(game: Game) -> StaticForm:
    """Return picture, words and table for where there is no widget; outlines are offered ops."""
    figure = panel_figure([(board_panel(game), axis())])
    figure.axes[0].xaxis.set_major_locator(MaxNLocator(integer=True))
    return StaticForm(figure, alt_text(game), table(game).set_index("rank"))


def table(game: Game) -> pd.DataFrame:
    """Return a row per rank: its ops in order, when it ends, how long it is idle, what it keeps.

    Idle is counted as the goal counts it: to the end of the board, or between the rank's own ops.
    """
    board, rules, within = game.board, game.board.rules, game.level.goal == "span"
    idle = [(row.span_s if within else board.end_s) - row.busy_s for row in board.rows]
    columns = {
        "rank": range(rules.n_ranks),
        "ops": [" ".join(str(bar.op) for bar in row.bars) for row in board.rows],
        "ends": [f"{row.end_s:g}" for row in board.rows],
        "idle between its ops" if within else "idle": [f"{idle_s:g}" for idle_s in idle],
        "keeps at most": [row.peak for row in board.rows],
    }
    return pd.DataFrame(columns if rules.caps is None else columns | {"may keep": list(rules.caps)})


# --- words ----------------------------------------------------------------------------------------


def explain(board: Board, op: Op, offers: Sequence[Ready]) -> str:
    """Say what an op is, what it needs and what needs it; if it is offered, how to place it."""
    rules, needed = board.rules, board.rules.inputs[op]
    start_s = board.placed[op].start_s if op in board.placed else dict(offers)[op]
    where = f"rank {rules.rank_of(op)} from {start_s:g} to {start_s + rules.duration(op):g}"
    what = f"{op}: the {OF_KIND[op.kind]} of stage {op.stage} for micro-batch {op.micro_batch}, on {where}."
    if op not in board.placed:
        what = f"{what[:-1]} if you place it there: click, or press Enter."
    needs = f"It needs {needed}." if needed else "It needs nothing but the batch."
    takers = [str(then) for then in rules.outputs[op]]
    needed_by = f"{' and '.join(takers)} {'need' if len(takers) > 1 else 'needs'} it." if takers else ""
    if op.kind == "F":
        kept = f"Its activation is kept until {rules.freed_by(op)} has ended."
    else:
        kept = "Its end frees the activation." if op.kind == rules.freeing_kind else ""
    return "\n".join([what, " ".join(filter(None, [needs, needed_by, kept]))])


def narrate(board: Board, time_s: float) -> str:
    """Say in a line what each rank does at a time."""
    doing = []
    for rank, row in enumerate(board.rows):
        bar = row.busy(time_s, time_s + 1e-9)
        doing.append(
            f"rank {rank} {'begins' if bar.start_s == time_s else 'runs'} {bar.op}" if bar else f"rank {rank} idles"
        )
    return f"At {time_s:g}: {', '.join(doing)}."


def _ops_in_words(bars: Sequence[Bar]) -> str:
    return ", ".join(f"{bar.op} from {bar.start_s:g} to {bar.end_s:g}" for bar in bars)


def _peak(row: Row) -> str:
    """Return the most that the rank keeps, and what it may."""
    return f"{row.peak} kept" if row.cap == float("inf") else f"{row.peak} of {row.cap:g} kept"


# --- bars -----------------------------------------------------------------------------------------

_Placed = tuple[Op, float, float, float, float, bool]  # op, from, to, top and height in its rank's row, ghost


def _bars(board: Board, placed: Sequence[_Placed]) -> pd.DataFrame:
    rules = board.rules
    chunk = {stage: sum(home == rank for home in rules.homes[:stage]) for stage, rank in enumerate(rules.homes)}
    rows = [
        (start_s, end_s, _RANK * rules.rank_of(op) + top, height, EVENT_NAMES[op.kind], chunk[op.stage], str(op), ghost)
        for op, start_s, end_s, top, height, ghost in placed
    ]
    return pd.DataFrame(rows, columns=[*BAR_COLUMNS, "ghost"]).astype(
        {"left": float, "right": float, "top": float, "height": float, "chunk": int, "ghost": bool}
    )


def _ghosts(board: Board, offers: Sequence[Ready]) -> list[_Placed]:
    """Return the bars that are offered: one above the other where they overlap on a rank."""
    ghosts: list[_Placed] = []
    for rank in range(board.rules.n_ranks):
        here = [ready for ready in offers if board.rules.rank_of(ready.op) == rank]
        if not here:
            continue
        starts = np.array([start_s for _, start_s in here])
        ends = starts + [board.rules.duration(op) for op, _ in here]
        lanes, n_lanes = stack(starts, ends)
        height = _BAR / n_lanes
        ghosts += [
            (ready.op, float(start_s), float(end_s), _TOP + height * int(lane), height, True)
            for ready, start_s, end_s, lane in zip(here, starts, ends, lanes, strict=True)
        ]
    return ghosts


def _needs(board: Board, ops: Sequence[Op]) -> np.ndarray:
    number = {op: i for i, op in enumerate(ops)}
    needed = [board.rules.inputs[op] for op in ops]
    return np.array([-1 if op is None else number.get(op, -1) for op in needed], dtype="int32")


def _strips(board: Board, end_s: float) -> pd.DataFrame:
    """Return the steps of what each rank keeps; a strip is full where the rank may keep no more."""
    rows = []
    for rank, row in enumerate(board.rows):
        most = row.cap if row.cap < float("inf") else max(board.rules.n_micro, 1)
        top = _RANK * rank + _KEPT
        ends = [time_s for time_s, _ in row.counts[1:]] + [end_s]
        rows += [
            (time_s, next_s, top, top + _STRIP, min(1.0, count / most), count > most)
            for (time_s, count), next_s in zip(row.counts, ends, strict=False)
            if next_s > time_s
        ]
    columns = ["left", "right", "top", "bottom", "share", "over"]
    return pd.DataFrame(rows, columns=columns).astype({name: float for name in columns[:5]} | {"over": "uint8"})
