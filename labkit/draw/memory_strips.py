"""Draw strips under the ranks of a schedule: how many micro-batches' activations it keeps.

A rank with v stages runs its share of the model in v parts, so one activation there counts as a
v-th of a micro-batch: the strips of different schedules of one model compare.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.patches import Patch, Rectangle

from labkit.draw.artists import points_per_unit
from labkit.draw.layout import Layout
from labkit.draw.palette import mixed
from labkit.simulate import activations
from labkit.simulate.replay import KeptActivations, Replay, kept_activations

_ROOM = "#f7f7f7"  # behind a strip, as high as the highest one
_KEPT, EDGE = "#9aa5b1", "#4a5560"
_ABOVE = 0.06  # between bars and strip, in rows
_LEAST_STEPS_PT = 6.0  # a strip that is lower has shades instead of steps
_PARTS = {2: "½", 3: "⅓", 4: "¼", 5: "⅕", 6: "⅙", 8: "⅛"}


def pieces_of(events: pd.DataFrame, end_s: float) -> pd.DataFrame:
    """Return the pieces of each rank's step function until ``end_s``, a row each.

    Columns: rank, start_s, end_s, kept, of, micro_batches.

    ``kept`` counts activations of a stage, ``of`` the stages of the rank, ``micro_batches`` is
    their quotient. Errors are those of :func:`labkit.simulate.activations`.
    """
    steps = activations(events)
    forwards = events[(events["name"] == "forward").to_numpy()]
    homes = set(zip(forwards["rank"].tolist(), forwards["stage"].tolist(), strict=True))
    return _pieces(KeptActivations(*(steps[name].to_numpy() for name in ("rank", "time_s", "count"))), homes, end_s)


def pieces_of_replay(replay: Replay, end_s: float) -> pd.DataFrame:
    """Return the same of a run that is known op by op; times are those of the replay."""
    dependencies = replay.dependencies
    homes = {(rank, op.stage) for rank, op in zip(dependencies.rank, dependencies.ops, strict=True)}
    return _pieces(kept_activations(replay), homes, end_s)


def _pieces(steps: KeptActivations, homes: Collection[tuple[int, int]], end_s: float) -> pd.DataFrame:
    """Return the pieces of step functions; ``homes`` has each stage with its rank."""
    rank, time_s, count = steps
    ends_rank = np.diff(rank, append=-1) != 0
    ends = ends_rank | (np.diff(time_s, append=np.nan) != 0)  # of several steps at one time the last counts
    rank, time_s, count, ends_rank = (values[ends] for values in (rank, time_s, count, ends_rank))
    n_stages = Counter(home for home, _ in homes)
    of = np.array([n_stages[home] for home in rank.tolist()], dtype="int64")
    pieces = {"rank": rank, "start_s": time_s, "kept": count, "end_s": np.where(ends_rank, end_s, np.roll(time_s, -1))}
    return pd.DataFrame(pieces | {"of": of, "micro_batches": count / of})


def draw_strips(
    ax: Axes,
    pieces: pd.DataFrame,
    layout: Layout,
    per_second: float,
    span_s: tuple[float, float],
    most: float,
    named: Sequence[int],
) -> None:
    """Draw the strip of each rank, as high as its room where ``most`` micro-batches are kept.

    Beside the ranks in ``named`` stands the peak.
    """
    row_pt = points_per_unit(ax)[1]
    left, right = (seconds * per_second for seconds in span_s)
    for rank, (top, bottom) in layout.strips.items():
        ax.add_patch(Rectangle((left, bottom), right - left, top + _ABOVE - bottom, color=_ROOM, linewidth=0, zorder=1))
        of_rank = pieces[pieces["rank"] == rank]
        if of_rank.empty:
            continue
        edges = np.array([*of_rank["start_s"], of_rank["end_s"].iloc[-1]]) * per_second
        draw = _draw_shades if row_pt * (bottom - top) < _LEAST_STEPS_PT else _draw_steps
        draw(ax, edges, of_rank["micro_batches"].to_numpy() / most, top + _ABOVE, bottom)
        if rank in named:
            at: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "va": "center"}
            ax.annotate(_peak(of_rank), (1, (top + bottom) / 2), (8, 0), fontsize=8, **at)


def legend_entry(height_pt: float) -> tuple[Any, str]:
    """Return handle and label for strips of that height."""
    if height_pt < _LEAST_STEPS_PT:
        shades = tuple(Patch(facecolor=_shade(share)) for share in (0.2, 0.6, 1.0))
        return shades, "activations kept (darker: more)"
    return Patch(facecolor=_KEPT, edgecolor=EDGE, linewidth=0.5), "activations kept"


def unit_of(pieces: Iterable[pd.DataFrame]) -> str:
    """Return a sentence on how activations are counted, where that needs one; else nothing.

    It does where some are those of a part of a rank's share.
    """
    counts = sorted(set().union(*(set(table["of"]) for table in pieces)) - {1})
    parts = " or ".join(f"one of a rank's {of} stages as {_part(of)}" for of in counts)
    return parts and f"Activations count in micro-batches, {parts}."


def _draw_steps(ax: Axes, edges: np.ndarray, shares: np.ndarray, top: float, bottom: float) -> None:
    heights = (bottom - top) * np.append(shares, shares[-1])
    look: dict[str, Any] = {"facecolor": _KEPT, "edgecolor": EDGE, "linewidth": 0.5, "zorder": 1.5}
    ax.fill_between(edges, bottom - heights, bottom, step="post", **look)


def _draw_shades(ax: Axes, edges: np.ndarray, shares: np.ndarray, top: float, bottom: float) -> None:
    corners = [[(left, top), (right, top), (right, bottom), (left, bottom)] for left, right in pairwise(edges)]
    colours = [_shade(share) for share in shares]
    ax.add_collection(PolyCollection(corners, facecolor=colours, linewidth=0, zorder=1.5, snap=False), autolim=False)


def _shade(share: float) -> str:
    return mixed(_ROOM, EDGE, share)


def _peak(pieces: pd.DataFrame) -> str:
    """Return the most that a rank keeps: ``8``, or of two stages ``11 × ½``."""
    most, of = int(pieces["kept"].max()), int(pieces["of"].max())
    return f"{most}" if of == 1 else f"{most} × {_part(of)}"


def _part(of: int) -> str:
    return _PARTS.get(of, f"1/{of}")
