"""A question, or what is said of its guess, as lines with a bar at their left."""

from __future__ import annotations

import re
import sys
from typing import Any

from labkit.base.formats import Lines, as_html


class Card(Lines):
    """Lines of a question. In HTML a measured sentence has no mark, as it is one as a whole."""

    def _repr_html_(self) -> str:
        lines = re.sub(r' style="[^"]*"', "", as_html(self.text)).replace("\n", "<br>")
        return f'<div style="border-left: 4px solid #777777; padding: 0.3em 0.9em">{lines}</div>'


def in_notebook() -> bool:
    """Return whether IPython runs this code, so that something can be displayed."""
    ipython = sys.modules.get("IPython")  # who has not loaded it is not in a notebook
    return ipython is not None and ipython.get_ipython() is not None


def display(shown: Any) -> None:
    """Show it as a cell's output; outside a notebook print it."""
    if not in_notebook():
        print(shown)
        return
    from IPython.display import display as display_in_cell

    display_in_cell(shown)  # type: ignore[no-untyped-call, unused-ignore]
