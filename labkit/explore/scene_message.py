"""Write panels as the browser reads them: columns as bytes, colours and hatchings by name."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from labkit.draw.layout import TimeAxis
from labkit.draw.palette import THEMES, darker, in_theme, shade, styles_of, text_colour, words_of
from labkit.draw.panel import Panel

_TYPES = {"f8": "<f8", "f4": "<f4", "i4": "<i4", "u1": "u1"}  # numpy's, by the browser's names
_KINDS = {
    **dict.fromkeys(("left", "right"), "f8"),
    **dict.fromkeys(("top", "height", "bottom", "share", "appear", "vanish"), "f4"),
    **dict.fromkeys(("source", "target", "same"), "i4"),
    **dict.fromkeys(("style", "chunk", "ghost", "over"), "u1"),
}


def scene_of(
    panels: Sequence[Panel],
    *,
    time: TimeAxis | None,
    alt: str,
    note: str = "",
    steps: Sequence[str] = (),
    opens_at: int = 0,
    version: int = 0,
) -> dict[str, Any]:
    """Return panels on one axis as a message: without a ``time`` it is the columns of grids.

    ``alt`` says what the picture shows to who cannot see it, ``note`` stands under it. ``steps``
    are what is said at each step of a grid, which opens at the step ``opens_at``.
    """
    names = sorted(set().union(*(panel.bars["name"].unique() for panel in panels)))
    n_chunks = 1 + max((int(panel.bars["chunk"].max()) for panel in panels if len(panel.bars)), default=0)
    styles = styles_message(names, n_chunks)
    return {
        "version": version,
        "alt": alt,
        "note": note,
        "steps": "\n".join(steps),
        "opens_at": opens_at if len(steps) > 1 else -1,
        "axis": _axis(time),
        "extent": _extent([panel for panel in panels if not panel.axis]),
        "clock": next((panel.clock for panel in panels if len(panel.clocks)), ""),
        "styles": styles,
        "panels": [_panel(panel, {style["name"]: number for number, style in enumerate(styles)}) for panel in panels],
    }


def styles_message(names: Collection[str], n_chunks: int) -> list[dict[str, Any]]:
    """Return how the bars of these names look, for so many stages of a rank."""
    return [
        {
            "name": name,
            "words": words_of(name),
            "hatch": style.hatch,
            "fills": {
                theme: [_fill(in_theme(style.colour, theme), k, n_chunks) for k in range(n_chunks)] for theme in THEMES
            },
        }
        for name, style in styles_of(names).items()
    ]


def _panel(panel: Panel, number_of: dict[str, int]) -> dict[str, Any]:
    links = panel.links
    style = [number_of[name] for name in panel.bars["name"].tolist()]
    return {
        "title": panel.title,
        "facts": panel.facts,
        "axis": _axis(panel.axis),
        "extent": _extent([panel]),
        "height": float(panel.height),
        "rows": [list(label) for label in panel.rows],
        "columns": [list(label) for label in panel.columns],
        "peaks": [list(label) for label in panel.peaks],
        "marks": [list(mark) for mark in panel.marks],
        "bars": _columns({**panel.bars, "style": style}),
        "labels": _lines(panel.bars["label"]),
        "chosen": panel.chosen,
        "needs": _column(panel.needs, "i4"),
        "critical": _column(panel.critical, "i4"),
        "clocks": _column(panel.clocks, "f8"),
        "moments": _column(panel.moments, "f8"),
        "explains": " ".join(panel.explain_more),
        "of_ops": panel.of_ops,
        "strips": None if panel.strips is None else _columns(panel.strips),
        "links": None if links is None else {"columns": _columns(links), "labels": _lines(links["label"])},
    }


def _axis(axis: TimeAxis | None) -> dict[str, Any] | None:
    return {"label": axis.label, "unit": axis.unit, "per_second": axis.per_second} if axis else None


def _columns(table: Mapping[Any, Any] | pd.DataFrame) -> dict[str, Any]:
    return {name: _column(table[name], kind) for name, kind in _KINDS.items() if name in table}


def _lines(texts: pd.Series) -> str:
    return "\n".join(texts.tolist())  # a list: one by one out of a column takes twenty times as long


def _column(values: Any, kind: str) -> list[Any]:
    return [kind, np.ascontiguousarray(values, dtype=_TYPES[kind]).tobytes()]


def _fill(colour: str, chunk: int, n_chunks: int) -> dict[str, str]:
    colour = shade(colour, chunk, n_chunks)
    return {"colour": colour, "edge": darker(colour), "ink": text_colour(colour)}


def _extent(panels: Sequence[Panel]) -> list[float]:
    filled = [panel.bars for panel in panels if len(panel.bars)]
    low = min((float(bars["left"].min()) for bars in filled), default=0.0)
    high = max((float(bars["right"].max()) for bars in filled), default=1.0)
    marks = [mark.x for panel in panels for mark in panel.marks]
    low, high = min([low, 0.0, *marks]), max([high, *marks])
    return [low, high if high > low else low + 1.0]
