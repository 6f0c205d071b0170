"""Save a figure as a picture: PNG, SVG, the data that it shows as CSV, and an alt text.

The same data gives the same bytes, so a figure that is under version control changes only when its
data do.
"""

from __future__ import annotations

import base64
import contextlib
import io
import os
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.container import BarContainer, ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from labkit.base.files import lab_folder, write_atomically
from labkit.draw.palette import FRAME, INK
from labkit.draw.small_svg import small_svg

PAGE_IN = 9.0  # as wide is a page, inches
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
    "savefig.facecolor": "white",  # opaque, so that it reads on a dark theme too
    "svg.hashsalt": "labkit",  # without it the ids in an SVG file are random
}
_DPI = 150
_DPI_SHOWN = 100  # a picture has half as many dots again as it takes on the page, for sharp screens
_attached: WeakKeyDictionary[Axes, pd.DataFrame] = WeakKeyDictionary()


@contextlib.contextmanager
def house_style() -> Iterator[None]:
    """Draw under the lab's settings, whatever the reader's own settings of matplotlib are."""
    interactive = matplotlib.is_interactive()
    try:
        with plt.style.context(["default", _HOUSE_STYLE]):
            try:
                yield
            finally:
                interactive |= matplotlib.is_interactive()
    finally:
        # A kernel's first figure switches it on, so that cells show what they draw; the style's end
        # would take that back.
        matplotlib.interactive(interactive)


def new_axes(width_in: float, height_in: float) -> Axes:
    """Return axes in a figure of their own, at most as wide as a page (inches)."""
    return plt.subplots(figsize=(min(width_in, PAGE_IN), height_in), layout="constrained")[1]


def put_legend_right(ax: Axes, entries: Mapping[str, Any] | None = None, **look: Any) -> None:
    """Put a legend to the right of the axes: of ``entries``, or of what is drawn, bars first."""
    if entries is None:
        named = dict(zip(*reversed(ax.get_legend_handles_labels()), strict=True))
        entries = dict(sorted(named.items(), key=lambda entry: isinstance(entry[1], Line2D)))
    place: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.005, 1.0), "borderaxespad": 0.0}
    ax.legend(list(entries.values()), list(entries), **place, **look)


def attach(ax: Axes, table: pd.DataFrame, after: pd.DataFrame | None = None) -> None:
    """Remember the table that was drawn on these axes; :func:`save` writes it as CSV.

    It comes after those that were attached before, or ``after`` another table.
    """
    before = _attached.get(ax) if after is None else after
    _attached[ax] = table if before is None or before.empty else pd.concat([before, table], ignore_index=True)


def drawn_table(ax: Axes) -> pd.DataFrame:
    """Return what these axes show: the attached table, else the lines, bars and points on them."""
    return _attached[ax] if ax in _attached else _data_of_artists(ax)


@dataclass(frozen=True, repr=False)
class Picture:
    """A figure as PNG with its alt text, which a notebook shows; ``files`` were written, if any."""

    png: bytes
    alt: str
    name: str = ""
    files: tuple[Path, ...] = field(default=())

    def __repr__(self) -> str:
        return f"Picture {self.name}".strip()

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels as shown on a page."""
        width, height = struct.unpack(">II", self.png[16:24])  # where the PNG format has them
        return round(width * _DPI_SHOWN / _DPI), round(height * _DPI_SHOWN / _DPI)

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, str], dict[str, Any]]:
        width, height = self.size
        data = {"image/png": base64.b64encode(self.png).decode(), "text/plain": repr(self)}
        return data, {"image/png": {"alt": self.alt, "width": width, "height": height}}


def show(figure: Figure | Axes, *, alt: str) -> Picture:
    """Return the figure as a :class:`Picture`, and write nothing.

    As the last line of a cell it is shown there, once.

    Raises ValueError without an alt text.
    """
    alt = _checked_alt(alt, "show")
    figure = figure_of(figure, "show")
    picture = Picture(render(figure, "png", alt), alt)
    plt.close(figure)
    return picture


def save(figure: Figure | Axes, name: str, *, alt: str) -> Picture:
    """Write ``name`` as .png, .svg, .csv and .alt.txt into the folder of figures, and show it.

    The CSV holds the table that a function of :mod:`labkit.draw` drew; of any other figure, its
    lines, bars and points. The folder is ``LABKIT_FIGURES``, else ``figures`` of the lab that the
    working directory is in, else ``./figures``. ``alt`` tells what the picture shows to who cannot
    see it. A file appears whole or not at all.

    Raises ValueError for a name that is no plain file name, no alt text, or a figure with no data
    in it.
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
    folder = figures_folder()
    folder.mkdir(parents=True, exist_ok=True)
    files = tuple(folder / f"{name}.{ending}" for ending in contents)
    for path, content in zip(files, contents.values(), strict=True):
        write_atomically(path, content)
    plt.close(figure)  # or else the notebook shows it a second time
    return Picture(png, alt, name, files)


def figures_folder() -> Path:
    """Return where :func:`save` writes: ``LABKIT_FIGURES``, else ``figures`` of the lab."""
    given = os.environ.get("LABKIT_FIGURES")
    return Path(given) if given else lab_folder() / "figures"


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
        figure.savefig(
            buffer,
            format=form,
            dpi=_DPI,
            bbox_inches="tight",
            facecolor="white",
            metadata={**unwanted, "Description": alt},
        )
    return buffer.getvalue() if form == "png" else small_svg(buffer.getvalue())


# --- the data of a figure -------------------------------------------------------------------------


def drawn_data(figure: Figure) -> pd.DataFrame:
    """Return what the figure shows, as a table; with a column ``panel`` if several axes have data.

    Raises ValueError if there is no data in it.
    """
    tables = [drawn_table(ax) for ax in figure.axes]
    tables = [table for table in tables if not table.empty]
    if not tables:
        raise ValueError("save: the figure shows no data (no timeline, bars, lines or points were found in it)")
    if len(tables) == 1:
        return tables[0]
    return pd.concat([table.assign(panel=i) for i, table in enumerate(tables)], ignore_index=True)


def _data_of_artists(ax: Axes) -> pd.DataFrame:
    """Return lines, bars and points of axes that were drawn by hand.

    Columns: series, x, y, and y_error if any has one.
    """
    names = _names_of_ticks(ax)
    rows: list[dict[str, Any]] = []
    parts_of_error_bars: set[Any] = set()
    for container in ax.containers:
        label = container.get_label()
        if isinstance(container, BarContainer):
            errors = _error_bars(container.errorbar, len(container))
            points = [(bar.get_x() + bar.get_width() / 2, bar.get_height()) for bar in container]
        elif isinstance(container, ErrorbarContainer) and container[0] is not None:
            points = list(zip(*map(np.asarray, container[0].get_data()), strict=True))
            errors = _error_bars(container, len(points))
            parts_of_error_bars |= {container[0]}
        else:
            continue
        rows += [_point(label, x, y, names, error) for (x, y), error in zip(points, errors, strict=True)]
        if errorbar := getattr(container, "errorbar", container):
            parts_of_error_bars |= {line for line in errorbar[1]} if isinstance(errorbar, ErrorbarContainer) else set()
    for line in ax.lines:
        if line not in parts_of_error_bars and line.get_transform() == ax.transData:
            rows += [
                _point(line.get_label(), x, y, names) for x, y in zip(*map(np.asarray, line.get_data()), strict=True)
            ]
    for points_drawn in ax.collections:
        if isinstance(points_drawn, PathCollection):
            rows += [_point(points_drawn.get_label(), x, y, names) for x, y in np.asarray(points_drawn.get_offsets())]
    return pd.DataFrame(rows)


def _point(series: object, x: Any, y: Any, names: dict[float, str], error: float | None = None) -> dict[str, Any]:
    shown = "" if str(series).startswith("_") else str(series)  # matplotlib's own names begin with an underscore
    point = {"series": shown, "x": names.get(x, x), "y": y}
    return point if error is None else {**point, "y_error": error}


def _error_bars(container: ErrorbarContainer | None, n: int) -> list[float | None]:
    """Return half the length of each vertical error bar."""
    if container is None or not container.has_yerr:
        return [None] * n
    segments = container[2][-1].get_segments()  # the vertical ones come last
    return [float(segment[1, 1] - segment[0, 1]) / 2 for segment in segments]


def _names_of_ticks(ax: Axes) -> dict[float, str]:
    """Return tick positions that carry a word, not a number, such as the names under bars."""
    labels = {position: label.get_text() for position, label in zip(ax.get_xticks(), ax.get_xticklabels(), strict=True)}
    return {position: text for position, text in labels.items() if re.search(r"[A-Za-z]", text)}
