"""dp.3: gather_scatter_gradients averages gradients through rank 0."""

from typing import Any

from labkit.check.dp_4 import UNLIKE, Case, averaging
from labkit.check.harness import Finding

PLAIN = Case("gather_scatter_gradients", ("gather (rank 0)", "scatter (rank 0)"))
TASK = averaging(
    PLAIN,
    strict=True,
    writes="gather_scatter_gradients",
    minutes=15,
    points=10,
    notebooks="05",
    hints=(
        """Rank 0 alone sees all gradients, so it alone can average. What does it need room for, and what do
the others give in place of that?""",
        """For each parameter: gather, average, scatter. The list of tensors, one for each rank, exists on rank
0; the others give None. What a rank gets back from scatter is its new gradient.""",
        """A list that has one tensor several times has room for one gradient, so make a tensor for each rank.
Gather and scatter want contiguous memory, and a contiguous copy is no longer the gradient, so copy
the mean back into that. Where the gradient is None, all ranks leave the parameter out.""",
    ),
)


@TASK.claim([PLAIN._replace(special=UNLIKE)])
def any_strides_do(case: Case, seen: Any) -> Finding:
    """A gradient that is not contiguous is averaged as well."""
    for rank, name in case.wrong(seen):
        return f"on rank {rank}, the gradient of {name}, which lies transposed in memory, is not the mean"
