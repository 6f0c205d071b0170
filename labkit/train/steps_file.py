"""Keep each step's row on disk as soon as it is taken: a run that is ended has left its steps."""

from __future__ import annotations

from pathlib import Path
from typing import TextIO

import pandas as pd

from labkit.base import machine
from labkit.train.exchange import read_on_rank_0
from labkit.train.trainer import Step

NAME = "steps.csv"
OF_AN_EARLIER_RUN = ("merged.json", "events.csv", "loss_*.txt", "model*_gradients.pth")


def open_steps_file(folder: str) -> TextIO | None:
    """Return ``steps.csv`` in rank 0's ``folder``, to append a line for each step of this rank.

    Every rank of the group has to ask. It is None without a folder, and on other machines than
    rank 0's. What an earlier run has left there goes: it would stand beside another run's steps.
    """
    begun = read_on_rank_0(lambda: (machine.name(), _begin(Path(folder))) if folder else None)
    if begun is None or begun[0] != machine.name():
        return None
    return begun[1].open("a", encoding="utf-8", buffering=1)  # so that a line goes out whole


def _begin(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in OF_AN_EARLIER_RUN:
        for file in folder.glob(name):
            file.unlink()
    path = folder.resolve() / NAME
    path.write_text(",".join(Step._fields) + "\n", encoding="utf-8")
    return path


def steps_kept(folder: str, since_s: float) -> str:
    """Return where a run that was ended has left how many steps, as the end of a sentence.

    ``since_s`` is when the run began, as time.time() has it: an older file is another run's.
    """
    path = Path(folder, NAME)
    if not folder or not path.is_file() or path.stat().st_mtime < since_s:
        return ""
    if not (n_steps := pd.read_csv(path).step.nunique()):
        return ""
    return f"; the run's first {n_steps} steps are in {path}" if n_steps > 1 else f"; the run's first step is in {path}"
