"""How an event looks: the colour and the hatching of its name, the same in every picture, and shades of that colour.

Colours are those of Okabe and Ito (Color Universal Design, 2008), told apart in every common form of colour blindness;
each event name also has a hatching, so a picture survives a black and white printer.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection

from matplotlib.colors import to_hex, to_rgb

PALETTE = ("#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#F0E442", "#0072B2", "#D55E00", "#999999")
HATCHES = ("", "///", "...", "xxx", "\\\\\\", "---", "|||", "+++", "ooo")
_SKY, _ORANGE, _GREEN, _PURPLE, _YELLOW, _BLUE, _RED, _GREY = PALETTE

# The names that the lab itself uses. Any other name gets a colour from its own letters: see style_of.
STYLES: dict[str, tuple[str, str]] = {
    "forward": (_SKY, ""),
    "backward": (_ORANGE, "///"),
    "input_grad": (_YELLOW, "\\\\\\"),
    "weight_grad": (_GREEN, "..."),
    "optimizer": (_GREY, ""),
    "all_reduce": (_PURPLE, "xxx"),
    "broadcast": (_PURPLE, "..."),
    "gather": (_RED, "///"),
    "scatter": (_RED, "..."),
    "send": (_BLUE, "---"),
    "recv": (_RED, "|||"),
    "wait": (_GREY, "///"),
}
_LIGHTEST = 0.6  # how far the last stage of a rank goes towards white


def style_of(name: str) -> tuple[str, str]:
    """Colour and hatching of an event name: always the same ones, for a name of the lab and for any other."""
    if name in STYLES:
        return STYLES[name]
    number = zlib.crc32(name.encode())
    return PALETTE[number % len(PALETTE)], HATCHES[number // len(PALETTE) % len(HATCHES)]


def styles_of(names: Collection[str]) -> dict[str, tuple[str, str]]:
    """style_of each name. Where two names of one picture look alike, the later one takes another hatching."""
    order = [*STYLES, *sorted(set(names) - set(STYLES))]
    styles: dict[str, tuple[str, str]] = {}
    for name in (name for name in order if name in names):
        colour, hatch = style_of(name)
        first = HATCHES.index(hatch)
        turned = HATCHES[first:] + HATCHES[:first]
        hatch = next((other for other in turned if (colour, other) not in styles.values()), hatch)
        styles[name] = (colour, hatch)
    return styles


def mixed(colour: str, other: str, share: float) -> str:
    """The colour on the way to the other one: 0 is the colour, 1 the other one."""
    red, green, blue = ((1 - share) * a + share * b for a, b in zip(to_rgb(colour), to_rgb(other), strict=True))
    return to_hex((red, green, blue))


def darker(colour: str, share: float = 0.4) -> str:
    return mixed(colour, "black", share)


def shade(colour: str, chunk: int, n_chunks: int) -> str:
    """The colour for the ``chunk``-th of the ``n_chunks`` stages of a rank: itself for the first, then ever lighter."""
    return mixed(colour, "white", _LIGHTEST * chunk / (n_chunks - 1)) if chunk else colour


def text_colour(colour: str) -> str:
    """Black or white, whichever reads better on this colour."""
    red, green, blue = to_rgb(colour)
    return "white" if 0.3 * red + 0.59 * green + 0.11 * blue < 0.45 else "black"
