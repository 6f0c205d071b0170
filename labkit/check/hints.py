"""Read the hints for each task, and log how many of them were asked for.

They are words, in ``hints.toml``: three a task, each says more than the one before. The log is a
file outside the notebook and its kernel.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

from labkit.base.files import answers_folder, write_atomically

_TEXTS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
HINTS = {task: tuple(" ".join(hint.split()) for hint in hints.values()) for task, hints in _TEXTS.items()}


def log_hint(task: str, hint: int) -> int:
    """Log that hint ``hint`` of ``task`` was asked for; return the highest one so far.

    The log is ``hints.json`` in :func:`labkit.base.files.answers_folder`. A file there that
    cannot be read is replaced.
    """
    file = answers_folder() / "hints.json"
    log = _read(file)
    log[task] = max(hint, log.get(task, 0))
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, (json.dumps(log, indent=1, sort_keys=True) + "\n").encode())
    return log[task]


def _read(file: Path) -> dict[str, int]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    kept = found.items() if isinstance(found, dict) else ()
    return {task: number for task, number in kept if type(number) is int}
