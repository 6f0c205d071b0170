"""Read the hints for each task from ``hints.toml``: three, each bigger than the one before."""

from __future__ import annotations

import tomllib
from pathlib import Path

_TEXTS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
HINTS = {task: tuple(" ".join(hint.split()) for hint in hints.values()) for task, hints in _TEXTS.items()}
