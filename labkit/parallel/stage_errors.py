"""Given code under Stage and run_stage: errors that name stage and micro-batch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch


@contextlib.contextmanager
def noted(what: str, stage: int, micro_batch: int) -> Iterator[None]:
    """Add to an exception raised in the block a note of where it happened."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"in the {what} of stage {stage}, micro-batch {micro_batch}")
        raise


def check_output(y: Any, stage: int, micro_batch: int) -> None:
    """Raise TypeError unless a stage returned one tensor."""
    if not isinstance(y, torch.Tensor):
        raise TypeError(
            f"stage {stage} returned a {type(y).__name__} for micro-batch {micro_batch}, expected one tensor: have the last "
            "module of the stage pack what the next one needs into one, or cut elsewhere"
        )
