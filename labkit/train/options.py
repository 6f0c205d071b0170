"""The values that options of training can have: one table for all tasks, and types of flags."""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

WHOLE = {  # the least and the most: beyond it there is no machine, or no number in torch
    **dict.fromkeys(("epochs", "batch_size", "vocab_size"), (1, 10**6)),
    **dict.fromkeys(("limit", "limit_eval", "iterations"), (1, 10**9)),
    **dict.fromkeys(("n_devices", "stages_per_rank", "n_layer"), (1, 1000)),
    **dict.fromkeys(("warmup_epochs", "warmup_steps"), (0, 10**6)),
    "n_micro": (1, 1000),
    "max_length": (1, 10**5),
    "seed": (0, 2**32 - 1),
}
ABOVE_0 = {"learning_rate": sys.float_info.max, "max_grad_norm": math.inf}  # and the most; inf does not clip
LONGEST_S = 1e8  # three years; a lock takes 292, a date 10,000


def check_options(config: Any, least: Mapping[str, int] | None = None, **choices: Collection[str]) -> None:
    """Raise ValueError for a field of a task's ``config`` whose value cannot be.

    ``least`` replaces the table's; ``choices`` are the words that a field can be. None can be where
    it is the default.
    """
    for name, default in ((field.name, field.default) for field in fields(config)):
        value = getattr(config, name)
        if value is None and default is None:
            continue
        expected = ""
        if name in WHOLE:
            lowest, most = (least or {}).get(name, WHOLE[name][0]), WHOLE[name][1]
            if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
                expected = f"a whole number, {lowest} or more"
            elif value > most:
                expected = f"at most {most:,}"
        elif name in ABOVE_0 and not 0 < value <= ABOVE_0[name]:
            expected = "a finite number above 0"
        elif name in choices and value not in choices[name]:
            expected = f"one of {', '.join(choices[name])}"
        if expected:
            raise ValueError(f"{name} is {value!r}, expected {expected}")


def seconds(text: str) -> float:
    """Return the time to wait that a flag gives: a type for argparse."""
    if not 0 < float(text) <= LONGEST_S:
        raise argparse.ArgumentTypeError(f"{text} is no time to wait, expected seconds above 0, at most {LONGEST_S:g}")
    return float(text)


def check_output(flag: str, folder: str) -> None:
    """Make the folder that ``flag`` names. Raise ValueError unless files can be written there."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ValueError(f"{flag} is {folder!r}, where no results can be written: {reason}") from None


def check_losses(losses: Collection[float], first_step: int, name: str = "the loss") -> None:
    """Raise FloatingPointError, with the step, unless every step's loss is a finite number.

    Steps count from 1, through all epochs. The ``losses`` are those of all ranks together, so that
    all of them stop.
    """
    for step, loss in enumerate(losses, start=first_step):
        if not math.isfinite(loss):
            raise FloatingPointError(f"the learning rate may be too high: {name} is {loss} from step {step} on")
