"""Show what is interactive where nothing is: a picture and a table, for outputs that are kept."""

from __future__ import annotations

from typing import Any, NamedTuple

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from labkit.draw.picture import show
from labkit.ranks.cell_output import static

__all__ = ["StaticForm", "bundle", "static"]


class StaticForm(NamedTuple):
    """What stands for a widget: a matplotlib figure, its alt text and a table."""

    figure: Figure | Axes
    alt: str
    table: pd.DataFrame


def bundle(form: StaticForm) -> tuple[dict[str, str], dict[str, Any]]:
    """Return picture and table as a cell output: data and metadata by MIME type."""
    data, metadata = show(form.figure, alt=form.alt)._repr_mimebundle_()
    data["text/plain"] = repr(form.table)
    return data, metadata
