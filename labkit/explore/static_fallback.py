"""Show what is interactive where nothing is: a picture and a table, for outputs that are kept."""

from __future__ import annotations

import html
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import pandas as pd
from IPython.display import display

from labkit import draw
from labkit.base.notebook import static
from labkit.base.widget_output import instead_of_widget, widget_view
from labkit.ranks import rank

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class StaticForm:
    """What stands for a widget: a picture, drawn once it is needed, its alt text, and a table.

    ``draw`` takes ``colors``, as :func:`labkit.draw.timeline` does.
    """

    draw: Callable[..., Figure | Axes]
    alt: str
    table: pd.DataFrame

    @cached_property
    def figure(self) -> Figure | Axes:
        return self.draw()


class StaticFallback:
    """A widget with a ``static_form()``: for where there is no widget.

    Kept outputs (LABKIT_STATIC=1), and those of a rank, are its picture and table alone. Otherwise
    alt text and table come after the widget as an output of their own, which is seen where the
    widget is not: in a notebook that was saved with the widget and is opened without its kernel. A
    picture is drawn only for outputs and files that are kept.
    """

    static_form: Callable[[], StaticForm]
    model_id: str

    def _ipython_display_(self) -> None:
        form = self.static_form()
        with pd.option_context("display.max_colwidth", None, "display.width", 200):  # a sentence stays whole
            if static() or rank.current is not None:  # a rank's widget has no notebook to be in
                display(draw.show(form.figure, alt=form.alt), form.table)
                return
            table = form.table._repr_html_()  # type: ignore[operator]
            text = f"<p>{html.escape(form.alt)}</p>{table}"
            data = {"text/html": instead_of_widget(text), "text/plain": f"{form.alt}\n{form.table}"}
        display(widget_view(self.model_id), raw=True)
        display(data, raw=True)
