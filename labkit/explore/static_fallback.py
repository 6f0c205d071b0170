"""Show what is interactive where nothing is: a picture and a table, for outputs that are kept."""

from __future__ import annotations

import base64
import functools
import html
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from IPython.display import display, update_display

from labkit import draw
from labkit.base.chromium import ChromiumError, take_picture
from labkit.base.notebook import static
from labkit.base.widget_output import instead_of_widget, widget_view
from labkit.explore.standalone_html import standalone_html
from labkit.ranks.processes import rank

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from labkit.draw import Picture

KEPT_CONTENT = "labkit"  # in the metadata of an output: what makes its picture play again


@dataclass(frozen=True)
class StaticForm:
    """What stands for a widget: a picture, made once it is needed, its alt text, and a table.

    ``draw`` draws it, and takes ``colors``, as :func:`labkit.draw.timeline` does. Without that it
    is what a browser shows of the ``scene()``.
    """

    alt: str
    table: pd.DataFrame
    draw: Callable[..., Figure | Axes] | None = None
    scene: Callable[[], dict[str, Any]] = dict

    def picture(self) -> Picture | PagePicture:
        if self.draw:
            return draw.show(self.draw(), alt=self.alt)
        return PagePicture(standalone_html(self.scene(), self.alt), self.alt)


class PagePicture:
    """A page as a picture with its alt text; where no browser takes it, the text alone.

    The reason goes to stderr, once: no test compares that.
    """

    def __init__(self, page: str, alt: str):
        self.alt, self.png = alt, b""
        try:
            self.png = take_picture(page.encode(), Path.cwd())
        except ChromiumError as error:
            _say_once(f"labkit: words and a table stand for a picture: {error}")

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, str], dict[str, Any]]:
        data, metadata = draw.Picture(self.png, self.alt)._repr_mimebundle_() if self.png else ({}, {})
        return data | {"text/plain": self.alt}, metadata


@functools.cache
def _say_once(sentence: str) -> None:
    print(sentence, file=sys.stderr)


class StaticFallback:
    """A widget with a ``static_form()``: for where there is no widget.

    Kept outputs (LABKIT_STATIC=1), and those of a rank, are its picture and table alone. Otherwise
    alt text and table come after the widget as an output of their own, which is seen where the
    widget is not: in a notebook that was saved with the widget and is opened without its kernel.
    The page adds its picture, as the reader saw it last. That output alone is updated: updating
    the widget's would build its view again.
    """

    static_form: Callable[[], StaticForm]
    model_id: str

    def _ipython_display_(self) -> None:
        form = self.static_form()
        with pd.option_context("display.max_colwidth", None, "display.width", 200):  # a sentence stays whole
            if static() or rank.current is not None:  # a rank's widget has no notebook to be in
                display(form.picture(), metadata=self.kept_content())
                display(form.table)
                return
        display(widget_view(self.model_id), raw=True)
        display(_fallback(form), raw=True, display_id=self._display_id)

    def kept_content(self) -> dict[str, str]:
        """Return what a kept output has beside its picture: see :mod:`labkit.course.site`."""
        return {}

    @property
    def _display_id(self) -> str:
        return f"labkit-{self.model_id}"

    def keep_picture(self, png: bytes, size: tuple[int, int]) -> None:
        """Put the page's picture into the output after the widget; ``size`` is in its pixels."""
        update_display(_fallback(self.static_form(), png, size), raw=True, display_id=self._display_id)


def _fallback(form: StaticForm, png: bytes = b"", size: tuple[int, int] = (0, 0)) -> dict[str, str]:
    """Return alt text and table as an output, with a picture if there is one."""
    alt, (width, height) = html.escape(form.alt), size
    source = f"data:image/png;base64,{base64.b64encode(png).decode()}"
    picture = (
        f'<img src="{source}" alt="{alt}" width="{width}" height="{height}" style="max-width: 100%; height: auto">'
    )
    with pd.option_context("display.max_colwidth", None, "display.width", 200):  # a sentence stays whole
        table = form.table._repr_html_()  # type: ignore[operator]
        text = f"{picture if png else f'<p>{alt}</p>'}{table}"
        return {"text/html": instead_of_widget(text), "text/plain": f"{form.alt}\n{form.table}"}
