"""Tell whether a notebook runs this code, and show something in its cell."""

from __future__ import annotations

import os
import sys


def static() -> bool:
    """Return whether outputs are for keeping (LABKIT_STATIC=1): no bars, prints in rank order."""
    return os.environ.get("LABKIT_STATIC", "0") not in ("", "0")


def in_notebook() -> bool:
    """Return whether IPython runs this code, so that something can be displayed."""
    ipython = sys.modules.get("IPython")  # code that runs in a notebook has loaded it
    return ipython is not None and ipython.get_ipython() is not None


def display(shown: object) -> None:
    """Show something as an output of the cell; outside a notebook print it."""
    if not in_notebook():
        print(shown)
        return
    from IPython.display import display as display_in_cell

    display_in_cell(shown)  # type: ignore[no-untyped-call, unused-ignore]
