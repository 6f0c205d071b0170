"""Check something on every rank: all of them go on, or all raise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from labkit.base.consequence import as_consequence


def check_together(check: Callable[[], Any], group: Any = None, checking: str = "arguments") -> list[Any]:
    """Call ``check`` on this rank, and return what it returned on each rank of ``group``, by rank.

    All ranks call this together, and it returns on all of them or raises on all of them: one that
    went on alone would never end. Without torch.distributed there is one rank.

    Raises what ``check`` raises, and on the ranks where it raises nothing a ValueError with the
    first of the others' exceptions. ``checking`` says there what was checked.
    """
    value: Any = None
    mistake: Exception | None = None
    try:
        value = check()
    except Exception as error:
        mistake = error
    answers = [(value, f"{type(mistake).__name__}: {mistake}" if mistake else "")]
    if dist.is_initialized() and (n_ranks := dist.get_world_size(group)) > 1:
        answers *= n_ranks
        dist.all_gather_object(answers, answers[0], group=group)
    if mistake:
        raise mistake
    for rank, (_, raised) in enumerate(answers):
        if raised:
            text = (
                f"rank {rank} cannot take part in the pipeline, so no rank can. Checking its {checking} raised {raised}"
            )
            raise as_consequence(ValueError(text))
    return [value for value, _ in answers]
