"""Keep the reader's guesses in a file outside the notebook.

A reader's own are in ``.labkit/guesses.json`` of the lab, so running all cells again keeps them.
The marked source has ``notebooks/guesses.json`` as well: the guesses of its stored notebooks
(LABKIT_STATIC=1). Either file is one JSON object: for each question, by name, what is known of it,
in the order in which they were answered.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from labkit.base.files import write_atomically
from labkit.base.lab import lab
from labkit.base.notebook import static

FILE = "guesses.json"
KEPT = "LABKIT_KEEP_ANSWERS"  # set while an instructor stores the notebooks: their answers are kept too


def stored_file() -> Path:
    """Return the file of the stored notebooks' guesses. A student edition has none."""
    return lab().notebooks / FILE


def own_file() -> Path:
    """Return the file of the reader's own guesses."""
    return lab().answers / FILE


def load() -> dict[str, dict[str, Any]]:
    """Return what is known of each question, by name: ``guess``, ``answer``, ``left_out`` …

    Nothing where there is no file. Raises ValueError for one that is damaged, with what to do.
    """
    file = _file()
    try:
        known = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ValueError(f"{file} is damaged ({error}): repair it, or delete it and guess again") from None
    if not isinstance(known, dict) or not all(isinstance(each, dict) for each in known.values()):
        raise ValueError(f"{file} is not an object of guesses: repair it, or delete it and guess again")
    return known


def _file() -> Path:
    return stored_file() if static() and stored_file().is_file() else own_file()


def keep(name: str, **facts: Any) -> None:
    """Write facts of a question into the file, and keep what it holds already.

    In a stored notebook nothing is written, except while an instructor stores it.
    """
    if static() and not os.environ.get(KEPT):
        return
    known = load()
    known[name] = known.get(name, {}) | facts
    _write(known)


def forget(name: str) -> None:
    """Take a question out of the file."""
    if not static():
        _write({other: facts for other, facts in load().items() if other != name})


def _write(known: dict[str, dict[str, Any]]) -> None:
    file = _file()
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"{json.dumps(name)}: {json.dumps(facts, ensure_ascii=False)}" for name, facts in known.items()]
    write_atomically(file, ("{\n" + ",\n".join(lines) + "\n}\n").encode())
