"""Remember how many hints of each task were asked for, outside the notebook and its kernel."""

from __future__ import annotations

import json

from labkit.base.answers import answers_folder
from labkit.base.files import write_atomically


def remember(task: str, hint: int) -> int:
    """Note that hint ``hint`` of ``task`` was asked for; return the highest one so far.

    It is kept in ``hints.json`` of :func:`labkit.base.answers.answers_folder`. A file there that
    cannot be read is replaced.
    """
    asked = _read()
    asked[task] = max(hint, asked.get(task, 0))
    folder = answers_folder()
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "hints.json", (json.dumps(asked, indent=1, sort_keys=True) + "\n").encode())
    return asked[task]


def _read() -> dict[str, int]:
    try:
        found = json.loads((answers_folder() / "hints.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    kept = found.items() if isinstance(found, dict) else ()
    return {task: number for task, number in kept if type(number) is int}
