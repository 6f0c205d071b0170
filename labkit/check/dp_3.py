"""dp.3: gather_scatter_gradients averages gradients through rank 0."""

from __future__ import annotations

from typing import Any

from labkit.check import gradients
from labkit.check.gradients import Case

TASK = gradients.averaging("gather_scatter_gradients")
STRIDED = [Case("gather_scatter_gradients", kind) for kind in ("transposed", "unlike", "sliced")]


@TASK.claim(STRIDED, after=[gradients.each_gradient_travels_by_itself])
def any_strides_do(case: Case, seen: Any) -> Any:
    """A gradient that is not contiguous is averaged as well."""
    for rank, name in case.wrong(seen):
        wrong = f"on rank {rank}, the gradient of {name} is not the mean"
        return f"{wrong}. Communicate gradient.contiguous(), which may be a copy, and copy what arrives back into it"
