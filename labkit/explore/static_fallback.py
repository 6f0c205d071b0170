"""Show what is interactive where nothing is: a picture and a table, for outputs that are kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pandas as pd
from IPython.display import display
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from labkit.base.notebook import static
from labkit.draw.picture import show


class StaticForm(NamedTuple):
    """What stands for a widget: a matplotlib figure, its alt text and a table."""

    figure: Figure | Axes
    alt: str
    table: pd.DataFrame


class StaticFallback:
    """A widget with a ``static_form()``: picture and table for where there is no widget.

    Kept outputs (LABKIT_STATIC=1) are these two alone. Otherwise they go along with the widget, for
    GitHub, for print, and for a notebook that is opened without its kernel.
    """

    static_form: Callable[[], StaticForm]
    model_id: str

    def _ipython_display_(self) -> None:
        form = self.static_form()
        picture = show(form.figure, alt=form.alt)
        with pd.option_context("display.max_colwidth", None, "display.width", 200):  # a sentence stays whole
            if static():
                display(picture, form.table)
                return
            data, metadata = picture._repr_mimebundle_()
            data["text/plain"] = f"{form.alt}\n{form.table}"
        view: Any = {"version_major": 2, "version_minor": 0, "model_id": self.model_id}
        display(data | {"application/vnd.jupyter.widget-view+json": view}, metadata=metadata, raw=True)
