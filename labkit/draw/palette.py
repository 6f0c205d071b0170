"""Choose how an event looks: the colour and hatching of its name, the same in every picture.

Colours are those of Okabe and Ito (Color Universal Design, 2008), told apart in every common form
of colour blindness; each event name also has a hatching, so a picture survives a black and white
printer.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection
from typing import Any, NamedTuple

from matplotlib.colors import to_hex, to_rgb


class Style(NamedTuple):
    """How the events of a name look: a colour, and a hatching as matplotlib writes it."""

    colour: str
    hatch: str

    def face(self, linewidth: float) -> dict[str, Any]:
        """Return the look of a patch or bar, as matplotlib's arguments."""
        look = {"facecolor": self.colour, "edgecolor": darker(self.colour), "hatch": self.hatch}
        return {**look, "linewidth": linewidth}


PALETTE = ("#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#F0E442", "#0072B2", "#D55E00", "#999999")
HATCHES = ("", "///", "...", "xxx", "\\\\\\", "---", "|||", "+++", "ooo")
_SKY, _ORANGE, _GREEN, _PURPLE, _YELLOW, _BLUE, _RED, _GREY = PALETTE

# What stands around and behind bars.
INK, MUTED = "#222222", "#555555"  # letters and marks; what is less important
GRID, FRAME, BAND = "#dddddd", "#888888", "#f3f3f3"  # lines, and the ground of every second rank
IDLE, ANY = "#ececec", "#8c8c8c"  # where a rank waits; in a legend, what holds for every colour
KEPT, KEPT_EDGE, ROOM, TOO_MUCH = "#9aa5b1", "#4a5560", "#f7f7f7", _RED  # a strip of memory, its room, over the cap

# The names that the lab itself uses. Any other name gets a colour from its own letters: see
# style_of.
STYLES: dict[str, Style] = {
    "forward": Style(_SKY, ""),
    "backward": Style(_ORANGE, "///"),
    "input_grad": Style(_YELLOW, "\\\\\\"),
    "weight_grad": Style(_GREEN, "..."),
    "optimizer": Style(_GREY, ""),
    "all_reduce": Style(_PURPLE, "xxx"),
    "broadcast": Style(_PURPLE, "..."),
    "gather": Style(_RED, "///"),
    "scatter": Style(_RED, "..."),
    "send": Style(_BLUE, "---"),
    "recv": Style(_RED, "|||"),
    "wait": Style(_GREY, "///"),
    "queued": Style(_YELLOW, "---"),
    "result waits": Style(_GREY, "\\\\\\"),
    # Parts of a step, as explain_step and stacked bars have them.
    "compute": Style(_SKY, "..."),
    "waiting": Style("#BCC2C8", "..."),
    "communication": Style("#B0578C", ""),
    "host": Style(_YELLOW, "..."),
    "exposed communication": Style("#B0578C", "///"),
    "hidden communication": Style("#F1DDE8", "///"),
    "hidden": Style("#F1DDE8", "..."),
    "buckets 0, 4, 8 …": Style(_SKY, "|||"),
    "buckets 1, 5, 9 …": Style(_ORANGE, "ooo"),
    "buckets 2, 6, 10 …": Style(_GREEN, "+++"),
    "buckets 3, 7, 11 …": Style(_PURPLE, "---"),
    # Cells of a grid: what a rank holds of a tensor, and of a model.
    "from rank 0": Style(_SKY, "---"),
    "from rank 1": Style(_ORANGE, "..."),
    "from rank 2": Style(_YELLOW, "|||"),
    "from rank 3": Style(_PURPLE, "|||"),
    "from rank 4": Style(_GREEN, "xxx"),
    "from rank 5": Style(_RED, "\\\\\\"),
    "from rank 6": Style(_GREY, "ooo"),
    "from rank 7": Style("#DDE3E8", "ooo"),
    "own part": Style("#DDE3E8", ""),
    "partial sum": Style("#4C8FC0", ""),
    "whole sum": Style(_BLUE, "..."),
    "no such sum": Style(_RED, "xxx"),
    "wrong": Style(_RED, "ooo"),
    "bytes sent": Style("#EFE0B0", ""),
    "more than the least": Style(_ORANGE, "xxx"),
    "weights": Style("#A9D3EC", ""),
    "gradients": Style(_ORANGE, "\\\\\\"),
    "optimizer state": Style("#C4CAD0", "..."),
    "master": Style(_GREEN, ""),
}

# Around the bars, in a light and in a dark page: --lk-ink, … in browser/timeline.css and themes.js.
_IN_A_PAGE = {
    "ink": ("#1f2328", "#f0f3f6"),
    "muted": ("#57606a", "#b3bcc6"),
    "ground": ("#ffffff", "#111111"),
    "raised": ("#f6f8fa", "#262b31"),
    "line": ("#8c959f", "#7d8590"),
    "focus": ("#0a58ca", "#79b8ff"),
    "idle": (IDLE, "#2b3036"),
    "kept": (KEPT, "#6e7781"),
    "alarm": ("#b42318", "#ff8a7a"),
}
THEMES = {theme: {name: pair[i] for name, pair in _IN_A_PAGE.items()} for i, theme in enumerate(("light", "dark"))}

# --- where the numbers of a series come from: see sources -----------------------------------------

GUESS, PREDICTED, MEASURED, PUBLISHED = "your guess", "predicted", "measured", "published"


class SeriesStyle(NamedTuple):
    """How a series looks: bars have fill, hatch and an edge; its line has the edge's form."""

    fill: str
    hatch: str
    edge: str
    line: str = "-"  # "-", "--" or ":"
    marker: str = ""

    def face(self) -> dict[str, Any]:
        """Return the look of a bar, as matplotlib's arguments."""
        look = {"facecolor": self.fill, "edgecolor": self.edge, "hatch": self.hatch, "linestyle": self.line}
        return {**look, "linewidth": 0.5 if self.line == "-" else 1.1}


SOURCES: dict[str, SeriesStyle] = {
    GUESS: SeriesStyle("#C9CFD4", "..", "#555B61", ":", "*"),
    PREDICTED: SeriesStyle("#FFFFFF", "", "#222222", "--"),
    MEASURED: SeriesStyle(_BLUE, "", _BLUE, "-", "o"),
    PUBLISHED: SeriesStyle("#5BBFA0", "///", "#00694C", "-", "D"),
}

_LIGHTEST = 0.6  # how far the last stage of a rank goes towards white


def style_of(name: str) -> Style:
    """Return colour and hatching of an event name: always the same ones, for any name."""
    if name in STYLES:
        return STYLES[name]
    number = zlib.crc32(name.encode())
    return Style(PALETTE[number % len(PALETTE)], HATCHES[number // len(PALETTE) % len(HATCHES)])


def words_of(name: object) -> str:
    """Return how an event's name is written in words: ``input gradient`` for ``input_grad``."""
    return str(name).replace("_grad", "_gradient").replace("_", " ")


def styles_of(names: Collection[str]) -> dict[str, Style]:
    """Return style_of each name; where two look alike, the later one takes another hatching."""
    order = [*STYLES, *sorted(set(names) - set(STYLES))]
    styles: dict[str, Style] = {}
    for name in (name for name in order if name in names):
        colour, hatch = style_of(name)
        first = HATCHES.index(hatch)
        turned = HATCHES[first:] + HATCHES[:first]
        hatch = next((other for other in turned if (colour, other) not in styles.values()), hatch)
        styles[name] = Style(colour, hatch)
    return styles


def mixed(colour: str, other: str, share: float) -> str:
    """Return the colour on the way to the other one: 0 is the colour, 1 the other one."""
    red, green, blue = ((1 - share) * a + share * b for a, b in zip(to_rgb(colour), to_rgb(other), strict=True))
    return to_hex((red, green, blue))


def darker(colour: str, share: float = 0.4) -> str:
    """Return the colour on the way to black."""
    return mixed(colour, "black", share)


def shade(colour: str, chunk: int, n_chunks: int) -> str:
    """Return the colour for the ``chunk``-th of a rank's ``n_chunks`` stages: ever lighter."""
    return mixed(colour, "white", _LIGHTEST * chunk / (n_chunks - 1)) if chunk else colour


def text_colour(colour: str) -> str:
    """Return black or white, whichever reads better on this colour."""
    red, green, blue = to_rgb(colour)
    return "white" if 0.3 * red + 0.59 * green + 0.11 * blue < 0.45 else "black"
