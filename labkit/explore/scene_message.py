"""Write panels as the browser reads them: columns as bytes, colours and hatchings by name."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from labkit.draw.layout import TimeAxis
from labkit.draw.palette import darker, shade, styles_of, text_colour, words_of
from labkit.draw.panel import Panel

_KINDS = {"f8": "<f8", "f4": "<f4", "i4": "<i4", "u1": "u1"}
_BAR_KINDS = {"left": "f8", "right": "f8", "top": "f4", "height": "f4", "appear": "f4", "vanish": "f4", "ghost": "u1"}


def scene_of(
    panels: Sequence[Panel], *, time: TimeAxis | None, alt: str, note: str = "", version: int = 0
) -> dict[str, Any]:
    """Return panels on one axis as a message: without a ``time`` it is the columns of grids.

    ``alt`` says what the picture shows to who cannot see it, ``note`` stands under it.
    """
    names = sorted(set().union(*(set(panel.bars["name"]) for panel in panels)))
    n_chunks = 1 + max((int(panel.bars["chunk"].max()) for panel in panels if len(panel.bars)), default=0)
    styles = styles_of(names)
    order = {name: number for number, name in enumerate(styles)}
    return {
        "version": version,
        "alt": alt,
        "note": note,
        "axis": {"label": time.label, "unit": time.unit, "per_second": time.per_second} if time else None,
        "extent": _extent(panels),
        "styles": [
            {
                "name": name,
                "words": words_of(name),
                "hatch": style.hatch,
                "fills": [_fill(style.colour, k, n_chunks) for k in range(n_chunks)],
            }
            for name, style in styles.items()
        ],
        "panels": [_panel(panel, order) for panel in panels],
    }


def _panel(panel: Panel, order: dict[str, int]) -> dict[str, Any]:
    bars = panel.bars
    columns = {name: _column(bars[name], kind) for name, kind in _BAR_KINDS.items() if name in bars}
    columns["style"] = _column(bars["name"].map(order), "u1")
    columns["chunk"] = _column(bars["chunk"], "u1")
    return {
        "title": panel.title,
        "facts": panel.facts,
        "height": float(panel.height),
        "rows": [list(label) for label in panel.rows],
        "columns": [list(label) for label in panel.columns],
        "peaks": [list(label) for label in panel.peaks],
        "marks": [list(mark) for mark in panel.marks],
        "bars": columns,
        "labels": "\n".join(bars["label"]),
        "needs": _column(panel.needs, "i4"),
        "critical": _column(panel.critical, "i4"),
        "clocks": _column(panel.clocks, "f8"),
        "moments": _column(panel.moments, "f8"),
        "strips": _strips(panel.strips),
        "links": _links(panel.links),
    }


def _strips(strips: pd.DataFrame | None) -> dict[str, Any] | None:
    if strips is None:
        return None
    return {name: _column(strips[name], "u1" if name == "over" else "f8") for name in map(str, strips)}


def _links(links: pd.DataFrame | None) -> dict[str, Any] | None:
    if links is None:
        return None
    kinds = {"source": "i4", "target": "i4", "appear": "f4", "vanish": "f4"}
    columns = {name: _column(links[name], kind) for name, kind in kinds.items()}
    return {"columns": columns, "labels": "\n".join(links["label"])}


def _column(values: Any, kind: str) -> list[Any]:
    return [kind, np.ascontiguousarray(values, dtype=_KINDS[kind]).tobytes()]


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


def as_text(scene: Any) -> Any:
    """Return the same message without bytes, for a file: they become text in base64."""
    if isinstance(scene, bytes):
        return base64.b64encode(scene).decode()
    if isinstance(scene, dict):
        return {name: as_text(value) for name, value in scene.items()}
    return [as_text(value) for value in scene] if isinstance(scene, list) else scene
