"""Say where what a reader answered is kept, outside the notebooks: guesses, and hints asked for."""

from __future__ import annotations

import os
from pathlib import Path

from labkit.base.lab import lab_folder


def answers_folder() -> Path:
    """Return the folder: ``LABKIT_ANSWERS`` if that is set, else ``.labkit`` of the lab.

    It need not exist yet; who writes there makes it.
    """
    given = os.environ.get("LABKIT_ANSWERS")
    return Path(given) if given else lab_folder() / ".labkit"
