"""Show what is interactive where nothing is: a picture and a table, for outputs that are kept."""

from __future__ import annotations

import html
from collections.abc import Callable
from typing import NamedTuple

import pandas as pd
from IPython.display import display
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from labkit.base.notebook import static
from labkit.base.widget_output import instead_of_widget, widget_view
from labkit.draw.picture import show


class StaticForm(NamedTuple):
    """What stands for a widget: a matplotlib figure, its alt text and a table."""

    figure: Figure | Axes
    alt: str
    table: pd.DataFrame


class StaticFallback:
    """A widget with a ``static_form()``: picture and table for where there is no widget.

    Kept outputs (LABKIT_STATIC=1) are these two alone. Otherwise they come after the widget as an
    output of their own, which is seen where the widget is not: on GitHub, in print, and in a
    notebook that is opened without its kernel.
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
            source, alt = f"data:image/png;base64,{data['image/png']}", html.escape(form.alt)
            image = f'<img src="{source}" alt="{alt}" width="{picture.size[0]}">'
            table = form.table._repr_html_()  # type: ignore[operator]
            data["text/html"] = instead_of_widget(image + table)
            data["text/plain"] = f"{form.alt}\n{form.table}"
        display(widget_view(self.model_id), raw=True)
        display(data, metadata=metadata, raw=True)
