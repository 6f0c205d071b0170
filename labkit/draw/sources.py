"""Choose how a series looks by where its numbers come from, the same in every picture.

What the reader guessed is grey and dotted; what was predicted is empty and dashed; what was
measured is solid blue; what others published is green. A series says which it is by how its name
begins: "measured, 1 Gbit/s". Names of events, such as "forward", keep the colour that they have
everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from labkit.draw.palette import (
    GUESS,
    HATCHES,
    MEASURED,
    PALETTE,
    PREDICTED,
    PUBLISHED,
    SOURCES,
    STYLES,
    SeriesStyle,
    darker,
    mixed,
)

_WORDS = {
    GUESS: r"(your )?guess(ed)?\b",
    PREDICTED: r"(predicted|prediction|formula|ideal|simulated|fitted|theory)\b",
    MEASURED: r"(measured|counted|observed|this machine)\b",
    PUBLISHED: r"(published|reported|(\d+ )?(\w+ )?reports?)\b",
}
MARKERS = ("o", "s", "^", "v", "P", "X")
# A thin line needs a dark colour, and green is what others published.
LINE_COLOURS = ("#0072B2", "#D55E00", "#B0558C", "#E69F00", "#56B4E9", "#6B4E16")
_PLAIN = ("#56B4E9", "#E69F00", "#CC79A7", "#F0E442", "#D55E00", "#999999", "#8C6BB1", "#A6761D")
_LIGHTEST = 0.55  # how far the last of several measured series goes towards white


def source_of(name: str) -> str | None:
    """Return which of SOURCES a series of this name is, or None.

    Its name begins with a word of the source, ``"measured, 1 Gbit/s"``, or has one after a comma or
    in brackets at its end: ``"ring, predicted"``, ``"BERT (reported)"``.
    """
    return _split(name)[1]


def _split(name: str) -> tuple[str, str | None]:
    """Return what a name says before its source, and that: ``"ring", PREDICTED``.

    A name that begins with its source says nothing before it.
    """
    end = re.search(r"(?:, |: | ?\()([^,:()]+)\)?$", name)
    for what, part in [("", name), *([(name[: end.start()], end[1])] if end else [])]:
        for source, words in _WORDS.items():
            if re.match(words, part.strip().lower()):
                return what, source
    return name, None


def is_told(name: str) -> bool:
    """Return whether a name alone says how its series looks: it is an event's, or has a source."""
    return name in STYLES or source_of(name) is not None


def bar_styles(names: Iterable[str]) -> dict[str, SeriesStyle]:
    """Return how the bars of each series look.

    Several of one source share its colour, and differ by lightness and hatching.
    """
    names = list(names)
    found = {name: None if name in STYLES else source_of(name) for name in names}
    others = [name for name in names if found[name] is None and name not in STYLES]
    # Where nothing has a source there is no meaning to keep apart, and the palette is free.
    palette = _PLAIN if any(found.values()) else PALETTE
    styles: dict[str, SeriesStyle] = {}
    for name in names:
        source = found[name]
        if source:
            alike = [other for other in names if found[other] == source]
            styles[name] = _variant(SOURCES[source], alike.index(name), len(alike))
        elif name in STYLES:
            colour, hatch = STYLES[name]
            styles[name] = SeriesStyle(colour, hatch, darker(colour))
        else:
            i = others.index(name)
            colour = palette[i % len(palette)]
            styles[name] = SeriesStyle(colour, HATCHES[i % len(HATCHES)], darker(colour))
    return styles


def _variant(style: SeriesStyle, number: int, count: int) -> SeriesStyle:
    """Return the ``number``-th of ``count`` looks of a source: ever lighter, hatched otherwise."""
    if number == 0:
        return style
    hatches = [hatch for hatch in HATCHES[1:] if hatch != style.hatch]
    fill = mixed(style.fill, "white", _LIGHTEST * number / (count - 1))
    return style._replace(fill=fill, hatch=hatches[(number - 1) % len(hatches)])


def line_styles(names: Iterable[str], source: str = MEASURED) -> dict[str, SeriesStyle]:
    """Return how the line of each series looks; only what was measured or published has markers.

    A name that is all source has the colour of the source: ``"predicted"``. One that says what and
    then where from, ``"ring, predicted"``, has the colour of what: that of ``"ring"``. ``source``
    is that of names that do not say it.
    """
    split = {name: _split(name) for name in names}
    whats = list(dict.fromkeys(what for what, _ in split.values() if what))
    free = LINE_COLOURS if all(what for what, _ in split.values()) else LINE_COLOURS[1:]
    styles = {}
    for name, (what, found) in split.items():
        look = SOURCES[found or source]
        if what:
            i = whats.index(what)
            edge, marker = free[i % len(free)], MARKERS[i % len(MARKERS)]
        else:
            alike = [other for other, each in split.items() if each == (what, found)]
            i = alike.index(name)
            edge = mixed(look.edge, "white", _LIGHTEST * i / (len(alike) - 1)) if i else look.edge
            marker = MARKERS[i % len(MARKERS)] if i else look.marker
        styles[name] = look._replace(edge=edge, marker=look.marker and marker)
    return styles
