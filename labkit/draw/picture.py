"""Save a figure as a picture: PNG, SVG, the data that it shows as CSV, and an alt text.

The same data gives the same bytes, so a figure that is under version control changes only when its
data do.
"""

from __future__ import annotations

import base64
import contextlib
import io
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import matplotlib
import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from labkit.base.files import write_atomically
from labkit.base.lab import lab
from labkit.base.notebook import static
from labkit.base.widget_output import themed_picture
from labkit.draw.palette import FRAME, INK, ground, text_colour
from labkit.draw.small_svg import small_svg

PAGE_IN = 9.0  # as wide is a page, inches
_DPI = 150
_DPI_SHOWN = 100  # a picture has half as many dots again as it takes on the page, for sharp screens
_HOUSE_STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so every machine draws the same letters
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": FRAME,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "xtick.color": INK,
    "ytick.color": INK,
    "hatch.linewidth": 0.7,
    "legend.frameon": False,
    "legend.handlelength": 2.2,
    "legend.handleheight": 1.1,
    "savefig.dpi": _DPI,
    "svg.hashsalt": "labkit",  # without it the ids in an SVG file are random
}
_PAGE: dict[str, Any] = {"savefig.bbox": "tight"}  # and of a size that was asked for, with a margin
_SLIDE: dict[str, Any] = {f"figure.constrained_layout.{side}_pad": 0.12 for side in "wh"}
_attached: WeakKeyDictionary[Axes, pd.DataFrame] = WeakKeyDictionary()
_columns: WeakKeyDictionary[Axes, dict[str, str]] = WeakKeyDictionary()


@contextlib.contextmanager
def house_style() -> Iterator[None]:
    """Draw under the lab's settings, and over them whatever the reader has set of matplotlib's.

    A picture is as large as what is in it, or as large as the reader's "figure.figsize".
    """
    interactive = matplotlib.is_interactive()
    style = _HOUSE_STYLE | (_SLIDE if _is_own("figure.figsize") else _PAGE)
    shared: Any = {name: value for name, value in style.items() if not _is_own(name)}
    try:
        with plt.rc_context(shared):
            try:
                yield
            finally:
                interactive |= matplotlib.is_interactive()
    finally:
        # A kernel's first figure switches it on, so that cells show what they draw; the style's end
        # would take that back.
        matplotlib.interactive(interactive)


def _is_own(name: Any) -> bool:
    """Return whether the reader has set this one of matplotlib's settings."""
    return bool(matplotlib.rcParams[name] != matplotlib.rcParamsDefault[name])


def figure_size(width_in: float, height_in: float) -> tuple[float, float]:
    """Return the size of a new figure in inches: the reader's "figure.figsize", or else this."""
    width, height = matplotlib.rcParams["figure.figsize"] if _is_own("figure.figsize") else (width_in, height_in)
    return width, height


def scaled(points: float) -> float:
    """Return a size that goes with letters of the lab's "font.size", for those of the reader's."""
    size: float = points * matplotlib.rcParams["font.size"] / _HOUSE_STYLE["font.size"]
    return size


def behind(pad: float = 0.8, **look: Any) -> dict[str, Any]:
    """Return the ground of a number that stands on lines or hatchings, in the page's colour."""
    return {"facecolor": ground(), "edgecolor": "none", "pad": pad, **look}


def new_axes(width_in: float, height_in: float) -> Axes:
    """Return axes in a figure of their own, at most as wide as a page (inches)."""
    return plt.subplots(figsize=figure_size(min(width_in, PAGE_IN), height_in), layout="constrained")[1]


def put_legend_right(ax: Axes, entries: Mapping[str, Any] | None = None, **look: Any) -> None:
    """Put a legend to the right of the axes: of ``entries``, or of what is drawn, bars first."""
    if entries is None:
        named = dict(zip(*reversed(ax.get_legend_handles_labels()), strict=True))
        entries = dict(sorted(named.items(), key=lambda entry: isinstance(entry[1], Line2D)))
    place: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.005, 1.0), "borderaxespad": 0.0}
    ax.legend(list(entries.values()), list(entries), **place | look)


def attach(ax: Axes, table: pd.DataFrame, **columns: str | None) -> None:
    """Remember the table that is drawn on these axes; :func:`save` writes it as CSV.

    It comes after those that were attached before. ``columns`` say what is drawn as ``x``, ``y``
    and ``series``.
    """
    _attached[ax] = pd.concat([_attached[ax], table], ignore_index=True) if ax in _attached else table
    _columns[ax] = _columns.get(ax, {}) | {role: name for role, name in columns.items() if name}


def drawn_columns(ax: Axes) -> dict[str, str]:
    """Return which columns of the attached table are drawn as ``x``, ``y`` and ``series``."""
    return _columns.get(ax, {})


@dataclass(frozen=True, repr=False)
class Picture:
    """A figure as PNG with its alt text; ``files`` were written, if any.

    A notebook shows it; where the figure is ``light``, a dark one with its white turned dark.
    """

    png: bytes
    alt: str
    name: str = ""
    files: tuple[Path, ...] = field(default=())
    light: bool = True

    def __repr__(self) -> str:
        return f"Picture {self.name}".strip()

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels as shown on a page."""
        width, height = struct.unpack(">II", self.png[16:24])  # where the PNG format has them
        return round(width * _DPI_SHOWN / _DPI), round(height * _DPI_SHOWN / _DPI)

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, str], dict[str, Any]]:
        width, height = self.size
        png = base64.b64encode(self.png).decode()
        data = {"image/png": png, "text/plain": repr(self)}
        if self.light and not static():  # a page that is kept has it once
            data["text/html"] = themed_picture(f"data:image/png;base64,{png}", self.alt, self.size)
        return data, {"image/png": {"alt": self.alt, "width": width, "height": height}}


def show(figure: Figure | Axes, *, alt: str) -> Picture:
    """Return the figure as a :class:`Picture`, and write nothing.

    As the last line of a cell it is shown there, once.

    Raises ValueError without an alt text.
    """
    alt = _checked_alt(alt, "show")
    figure = figure_of(figure, "show")
    picture = Picture(render(figure, "png", alt), alt, light=_is_light(figure))
    plt.close(figure)
    return picture


def save(figure: Figure | Axes, name: str, *, alt: str) -> Picture:
    """Write ``name`` as .png, .svg, .csv and .alt.txt into the folder of figures, and show it.

    The CSV holds the table that a function of :mod:`labkit.draw` drew; of a figure that you drew
    yourself, the one that you gave to :func:`attach`. The folder is ``LABKIT_FIGURES``, else
    ``figures`` of the lab that the working directory is in, else ``./figures``. ``alt`` tells what
    the picture shows to readers who cannot see it. A file appears whole or not at all.

    Raises ValueError for a name that is not a plain file name, no alt text, or a figure
    without data.
    """
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name):
        raise ValueError(f"save: name is {name!r}, expected letters, digits, _ and - only, no folder and no ending")
    alt = _checked_alt(alt, "save")
    figure = figure_of(figure, "save")
    table = drawn_data(figure)
    png = render(figure, "png", alt)
    contents = {
        "png": png,
        "svg": render(figure, "svg", alt),
        "csv": table.to_csv(index=False, lineterminator="\n").encode(),
        "alt.txt": (alt + "\n").encode(),
    }
    folder = lab().figures
    folder.mkdir(parents=True, exist_ok=True)
    files = tuple(folder / f"{name}.{ending}" for ending in contents)
    for path, content in zip(files, contents.values(), strict=True):
        write_atomically(path, content)
    plt.close(figure)  # or else the notebook shows it a second time
    return Picture(png, alt, name, files, _is_light(figure))


def _is_light(figure: Figure) -> bool:
    return text_colour(to_hex(figure.get_facecolor())) == "black"


def _checked_alt(alt: str, what: str) -> str:
    if not isinstance(alt, str) or not alt.strip():
        raise ValueError(f"{what}: alt is {alt!r}, expected a sentence that tells what the picture shows")
    return " ".join(alt.split())


def figure_of(figure: Figure | Axes, what: str) -> Figure:
    """Return the figure, or that of the axes. Raises TypeError, naming ``what``, for any other."""
    found = figure.get_figure(root=True) if isinstance(figure, Axes) else figure
    if not isinstance(found, Figure):
        raise TypeError(f"{what}: got {type(figure).__name__}, expected a matplotlib figure or axes")
    return found


def render(figure: Figure, form: str, alt: str) -> bytes:
    """Return the figure as a file: ``form`` is "png" or "svg"."""
    unwanted: dict[str, str | None] = {"Software": None} if form == "png" else {"Date": None, "Creator": None}
    buffer = io.BytesIO()
    with house_style():
        figure.savefig(buffer, format=form, metadata={**unwanted, "Description": alt})
    return buffer.getvalue() if form == "png" else small_svg(buffer.getvalue())


def drawn_data(figure: Figure) -> pd.DataFrame:
    """Return what the figure shows, as a table; with a column ``panel`` if several axes have data.

    Raises ValueError if there is no data in it.
    """
    tables = [_attached[ax] for ax in figure.axes if ax in _attached]
    if not tables:
        raise ValueError(
            "save: no table says what the figure shows; draw it with labkit.draw, or call "
            "labkit.draw.attach(axes, table) before"
        )
    if len(tables) == 1:
        return tables[0]
    return pd.concat([table.assign(panel=i) for i, table in enumerate(tables)], ignore_index=True)
