"""dp.3: gather_scatter_gradients averages gradients through rank 0."""

from typing import Any

from labkit.check.dp_4 import UNLIKE, Case, averaging
from labkit.check.harness import Finding

EACH = "in a tensor of its own for each rank (not [tensor] * n)"
HOW = f"gather on rank 0, {EACH}, scatter the mean, copy_ it into grad"
PLAIN = Case("gather_scatter_gradients", ("gather (rank 0)", "scatter (rank 0)"), HOW)
TASK = averaging(PLAIN)


@TASK.claim([PLAIN._replace(special=UNLIKE)])
def any_strides_do(case: Case, seen: Any) -> Finding:
    """A gradient that is not contiguous is averaged as well."""
    for rank, name in case.wrong(seen):
        wrong = f"on rank {rank}, the gradient of {name} is not the mean"
        return f"{wrong}: gather and scatter contiguous() tensors, and copy_ back what arrives"
