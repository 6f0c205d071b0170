"""Choose how an event or a series looks: by its name, the same in every picture.

Colours are those of Okabe and Ito (Color Universal Design, 2008), told apart in every common form
of colour blindness; each event name also has a hatching, so a picture survives a black and white
printer. They are chosen for white paper: :func:`on_page` has them for a page of another colour.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib import rcParams
from matplotlib.colors import to_hex, to_rgb, to_rgba


class Style(NamedTuple):
    """How the bars and the line of a name look: a hatching is written as matplotlib does.

    The edge is a darker colour if none is given; a line has its colour and form.
    """

    colour: str
    hatch: str = ""
    edge: str = ""
    line: str = "-"  # "-", "--" or ":"
    marker: str = ""

    def face(self) -> dict[str, Any]:
        """Return the look of a patch or bar, as matplotlib's arguments."""
        look = {"facecolor": self.colour, "edgecolor": self.edge or darker(self.colour), "hatch": self.hatch}
        return {**look, "linestyle": self.line, "linewidth": 0.5 if self.line == "-" else 1.1}

    def on_page(self) -> Style:
        """Return the style as it stands on the reader's page: what is blank has its colour."""
        return self._replace(colour=on_page(self.colour), edge=on_page(self.edge)) if self.edge else self


PALETTE = ("#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#F0E442", "#0072B2", "#D55E00", "#999999")
HATCHES = ("", "///", "...", "xxx", "\\\\\\", "---", "|||", "+++", "ooo")
_SKY, _ORANGE, _GREEN, _PURPLE, _YELLOW, _BLUE, _RED, _GREY = PALETTE

# What stands around and behind bars.
INK, MUTED = "#222222", "#555555"  # letters and marks; what is less important
GRID, FRAME, BAND = "#dddddd", "#888888", "#f3f3f3"  # lines, and the ground of every second rank
IDLE, ANY = "#ececec", "#8c8c8c"  # where a rank waits; in a legend, what holds for every colour
KEPT, KEPT_EDGE, ROOM = "#9aa5b1", "#4a5560", "#f7f7f7"  # a strip of memory, and its room

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
    "buckets 0, 4, 8 …": Style(_SKY, "|||"),
    "buckets 1, 5, 9 …": Style(_ORANGE, "ooo"),
    "buckets 2, 6, 10 …": Style(_GREEN, "+++"),
    "buckets 3, 7, 11 …": Style(_PURPLE, "---"),
    # Cells of a grid: what a rank holds of a tensor.
    "from rank 0": Style(_SKY, "---"),
    "from rank 1": Style(_ORANGE, "..."),
    "from rank 2": Style(_YELLOW, "|||"),
    "from rank 3": Style(_PURPLE, "|||"),
    "from rank 4": Style(_GREEN, "xxx"),
    "from rank 5": Style(_RED, "\\\\\\"),
    "from rank 6": Style(_GREY, "ooo"),
    "from rank 7": Style("#DDE3E8", "ooo"),
    "open": Style("#FFFFFF", "\\\\\\", "#999999"),
    "own part": Style("#DDE3E8", ""),
    "partial sum": Style("#4C8FC0", ""),
    "whole sum": Style(_BLUE, "..."),
    "no such sum": Style(_RED, "xxx"),
    "wrong": Style(_RED, "ooo"),
    "bytes sent": Style("#EFE0B0", ""),
    "more than the minimum": Style(_ORANGE, "xxx"),
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


def css_colours(theme: str) -> str:
    """Return the colours of a theme as CSS declarations: ``--lk-ink: #1f2328; …``."""
    return " ".join(f"--lk-{name}: {colour};" for name, colour in THEMES[theme].items())


_LIGHTEST = 0.6  # how far the last stage of a rank, or series of a source, goes towards white


def style_of(name: str) -> Style:
    """Return colour and hatching of an event name: always the same ones, for any name."""
    if name in STYLES:
        return STYLES[name]
    number = zlib.crc32(name.encode())
    return Style(PALETTE[number % len(PALETTE)], HATCHES[number // len(PALETTE) % len(HATCHES)])


def words_of(name: object) -> str:
    """Return how an event's name is written in words: ``input gradient`` for ``input_grad``."""
    return re.sub(r"_grad(?=_|$)", "_gradient", str(name)).replace("_", " ")


def styles_of(names: Collection[str], colors: Mapping[str, Any] | None = None) -> dict[str, Style]:
    """Return style_of each name; where two look alike, the later one takes another hatching.

    ``colors`` are colours by name in place of the lab's. Raises ValueError for a name that is not
    one of these, or for anything but a colour.
    """
    order = [*STYLES, *sorted(set(names) - set(STYLES))]
    styles: dict[str, Style] = {}
    for name in (name for name in order if name in names):
        style = style_of(name)
        first = HATCHES.index(style.hatch)
        turned = [style._replace(hatch=hatch) for hatch in HATCHES[first:] + HATCHES[:first]]
        styles[name] = next((other for other in turned if other not in styles.values()), style)
    return _recoloured(styles, colors)


def own_colours(colors: Mapping[str, Any] | None, names: Collection[str]) -> dict[str, str]:
    """Return a reader's colours by name. Raises ValueError for one that is not among ``names``."""
    own = {name: to_hex(colour) for name, colour in (colors or {}).items()}
    if unknown := ", ".join(sorted(own.keys() - names)):
        raise ValueError(f"colors: {unknown} is not drawn, expected some of {', '.join(names)}")
    return own


def _recoloured(styles: dict[str, Style], colors: Mapping[str, Any] | None) -> dict[str, Style]:
    own = own_colours(colors, styles)
    return styles | {name: styles[name]._replace(colour=colour, edge="") for name, colour in own.items()}


def ground() -> str:
    """Return the colour of the reader's page, behind bars and letters."""
    colours = (rcParams["axes.facecolor"], rcParams["figure.facecolor"])
    return next((to_hex(colour) for colour in colours if to_rgba(colour)[3]), "#ffffff")


def on_page(colour: str) -> str:
    """Return a colour for white paper as it stands on the reader's page, see matplotlib.rcParams.

    White becomes the colour of the page and INK that of its text; what is between them stays
    between them, as far from grey as it was.
    """
    rgb, ink, page = (np.array(to_rgb(each)) for each in (colour, rcParams["text.color"], ground()))
    lightness = (rgb.mean() - to_rgb(INK)[0]) / (1 - to_rgb(INK)[0])
    return to_hex(np.clip(ink + lightness * (page - ink) + rgb - rgb.mean(), 0, 1).tolist())


def mixed(colour: str, other: str, share: float) -> str:
    """Return the colour on the way to the other one: 0 is the colour, 1 the other one."""
    red, green, blue = ((1 - share) * a + share * b for a, b in zip(to_rgb(colour), to_rgb(other), strict=True))
    return to_hex((red, green, blue))


def darker(colour: str, share: float = 0.4) -> str:
    """Return the colour on the way to black."""
    return mixed(colour, "black", share)


def shade(colour: str, i: int, n: int) -> str:
    """Return the colour for the ``i``-th of ``n`` stages of a rank, or series: ever lighter."""
    return mixed(colour, "white", _LIGHTEST * i / (n - 1)) if i else colour


def in_theme(colour: str, theme: str) -> str:
    """Return the colour as it stands in a theme: in a dark page one near white would glare."""
    return mixed(colour, "black", 0.45) if theme == "dark" and min(to_rgb(colour)) > 0.6 else colour


def text_colour(colour: str) -> str:
    """Return black or white, whichever has more contrast on this colour: 4.5 at least.

    Contrast and luminance are those of WCAG 2; both are equal at a luminance of 0.18.
    """
    return "white" if _luminance(colour) < 0.18 else "black"


def label_ground(colour: str) -> str:
    """Return what stands behind a label on this colour: of a dark orange a lighter one.

    Black on it has WCAG's 4.5, but thin letters are still hard to read.
    """
    is_vivid = np.ptp(to_rgb(colour)) > 0.7
    return mixed(colour, "white", 0.45) if is_vivid and 0.18 <= _luminance(colour) < 0.24 else colour


def _luminance(colour: str) -> float:
    red, green, blue = (each / 12.92 if each <= 0.04 else ((each + 0.055) / 1.055) ** 2.4 for each in to_rgb(colour))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


# --- series: where their numbers come from --------------------------------------------------------

GUESS, PREDICTED, MEASURED, PUBLISHED = "your guess", "predicted", "measured", "published"

# What the reader guessed is grey and dotted; what was predicted is empty and dashed; what was
# measured is solid blue; what others published is green.
SOURCES: dict[str, Style] = {
    GUESS: Style("#C9CFD4", "..", "#555B61", ":", "*"),
    PREDICTED: Style("#FFFFFF", "", "#222222", "--"),
    MEASURED: Style(_BLUE, "", _BLUE, "-", "o"),
    PUBLISHED: Style("#5BBFA0", "///", "#00694C", "-", "D"),
}
_WORDS = {
    GUESS: r"(your )?guess(ed)?\b",
    PREDICTED: r"(predicted|prediction|formula|ideal|simulated|fitted|theory)\b",
    MEASURED: r"(measured|counted|observed|this machine)\b",
    PUBLISHED: r"(published|reported|(\d+ )?(\w+ )?reports?)\b",
}
_ALIKE = Style("#AFBAC4")  # grey and plain, for bars that are not told apart
_MARKERS = ("o", "s", "^", "v", "P", "X")
# A thin line needs a dark colour, and green is what others published.
_LINE_COLOURS = ("#0072B2", "#D55E00", "#B0558C", "#E69F00", "#56B4E9", "#6B4E16")


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


def bar_styles(names: Sequence[str], colors: Mapping[str, Any] | None = None) -> dict[str, Style]:
    """Return how the bars of each series look, by its source.

    Several of one source share its colour, and differ by lightness and hatching. Of names without
    a source each has a colour of its own; a single one is grey. ``colors`` are as for styles_of.
    """
    sources = {name: source_of(name) for name in names}
    styles: dict[str, Style] = {}
    for name, source in sources.items():
        alike = [other for other in names if sources[other] == source]
        i = alike.index(name)
        if source is None:
            styles[name] = Style(PALETTE[i % len(PALETTE)], HATCHES[i % len(HATCHES)]) if len(names) > 1 else _ALIKE
        else:
            styles[name] = SOURCES[source].on_page()
            if i:
                hatches = [hatch for hatch in HATCHES[1:] if hatch != styles[name].hatch]
                colour = shade(styles[name].colour, i, len(alike))
                styles[name] = styles[name]._replace(colour=colour, hatch=hatches[(i - 1) % len(hatches)])
    return _recoloured(styles, colors)


def line_styles(names: Iterable[str], source: str = MEASURED) -> dict[str, Style]:
    """Return how the line of each series looks; only what was measured or published has markers.

    A name that is all source has the colour of the source: ``"predicted"``. One that says what and
    then where from, ``"ring, predicted"``, has the colour of what: that of ``"ring"``. ``source``
    is that of names that do not say it.
    """
    split = {name: _split(name) for name in names}
    whats = list(dict.fromkeys(what for what, _ in split.values()))
    colours = _LINE_COLOURS[1:] if "" in whats else _LINE_COLOURS  # the first is that of what was measured
    whats = [what for what in whats if what]
    styles = {}
    for name, (what, found) in split.items():
        look = SOURCES[found or source]
        alike = whats if what else [other for other, each in split.items() if each == (what, found)]
        i = alike.index(what or name)
        edge = on_page(colours[i % len(colours)] if what else shade(look.edge, i, len(alike)))
        marker = _MARKERS[i % len(_MARKERS)] if what or i else look.marker
        styles[name] = look._replace(edge=edge, marker=look.marker and marker)
    return styles
