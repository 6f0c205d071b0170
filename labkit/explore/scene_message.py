"""Write a scene as the page reads it: panels with what they have in common, colours by name."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pandas as pd

from labkit.draw.palette import THEMES, darker, in_theme, label_ground, shade, styles_of, text_colour, words_of
from labkit.draw.panel import TimeAxis
from labkit.explore.event_tables import EventTables, column
from labkit.explore.panel import Panel

_KINDS = {
    **dict.fromkeys(("left", "right"), "f8"),
    **dict.fromkeys(("top", "height", "appear", "vanish"), "f4"),
    **dict.fromkeys(("source", "target", "same"), "i4"),
    **dict.fromkeys(("style", "chunk"), "u1"),
}


def scene_of(
    panels: Sequence[Panel | EventTables],
    *,
    time: TimeAxis | None = None,
    alt: str,
    title: str = "",
    narration: str = "",
    note: str = "",
    numbers: str = "",
    opens_at: int = 0,
    version: int = 0,
    memory: bool = False,
    cap: float | None = None,
    pipeline: dict[str, Any] | None = None,
    puzzle: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return panels on one axis as a message: without a ``time`` it is the columns of grids.

    ``alt`` says what the picture shows to readers who cannot see it. ``title`` stands over a file
    of it, ``narration`` over the picture, a ``note`` and ``numbers``, in HTML, below. A grid opens
    at the step ``opens_at``. Panels of bars bring their sentences; of event tables the page makes
    them, with ``memory`` also how many micro-batches' activations each rank keeps, and where that
    is over ``cap``. What a ``pipeline`` or a ``puzzle`` shows the page works out itself:
    browser/schedules.js, browser/puzzle.js.
    """
    drawn = [panel for panel in panels if isinstance(panel, Panel)]
    names = set().union(*(panel.names if isinstance(panel, EventTables) else panel.bars["name"] for panel in panels))
    chunks = [panel.n_chunks if isinstance(panel, EventTables) else _n_chunks(panel) for panel in panels]
    styles = styles_message(names, max(chunks, default=1))
    number_of = {style["name"]: number for number, style in enumerate(styles)}
    stops = sorted(set().union(*(panel.stops.tolist() for panel in drawn)))
    return {
        "version": version,
        "alt": alt,
        "title": title,
        "narration": narration,
        "note": note,
        "numbers": numbers,
        "pipeline": pipeline,
        "puzzle": puzzle,
        "stops": column(stops, "f8"),
        "steps": [_narration(drawn, x) for x in stops],
        "opens_at": opens_at if time is None and len(stops) > 1 else -1,
        "axis": axis_message(time) if time else None,
        "styles": styles,
        "memory": memory,
        "cap": cap,
        "panels": [panel.message() if isinstance(panel, EventTables) else _panel(panel, number_of) for panel in panels],
    }


def _n_chunks(panel: Panel) -> int:
    return 1 + (int(panel.bars["chunk"].max()) if len(panel.bars) else 0)


def _narration(panels: Sequence[Panel], x: float) -> str:
    parts = [(panel.title, text) for panel in panels if (text := panel.narrate(x))]
    return " ".join(f"{title}: {text}" if len(parts) > 1 and title else text for title, text in parts)


def styles_message(names: Collection[str], n_chunks: int) -> list[dict[str, Any]]:
    """Return how the bars of these names look, for each of a rank's ``n_chunks`` stages."""
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
        "is_still": not len(panel.stops),
        "height": float(panel.height),
        "rows": [list(label) for label in panel.rows],
        "columns": [list(label) for label in panel.columns],
        "marks": [list(mark) for mark in panel.marks],
        "bars": _columns({**panel.bars, "style": style}),
        "labels": panel.bars["label"].tolist(),
        "needs": column(panel.needs, "i4"),
        "critical": column(panel.critical, "i4"),
        "sentences": [panel.explain(bar) for bar in range(len(panel.bars))],
        "links": None if links is None else {"columns": _columns(links), "labels": links["label"].tolist()},
    }


def axis_message(axis: TimeAxis) -> dict[str, Any]:
    return {"label": axis.label, "unit": axis.unit, "per_second": axis.per_second}


def _columns(table: Mapping[Any, Any] | pd.DataFrame) -> dict[str, Any]:
    return {name: column(table[name], kind) for name, kind in _KINDS.items() if name in table}


def _fill(colour: str, chunk: int, n_chunks: int) -> dict[str, str]:
    colour = shade(colour, chunk, n_chunks)
    return {"colour": colour, "edge": darker(colour), "plate": label_ground(colour), "ink": text_colour(colour)}
