"""dp.3: gather_scatter_gradients averages gradients through rank 0."""

from __future__ import annotations

from typing import Any

from labkit.check import gradients
from labkit.check.gradients import Case
from labkit.check.harness import Task

FUNCTION = "gather_scatter_gradients"
WAY, _ = gradients.WAYS[FUNCTION]
PLAIN = [Case(FUNCTION, "plain")]
TASK = Task()
gradients.add_claims(TASK, FUNCTION)


@TASK.claim(PLAIN)
def everything_goes_through_rank_0(case: Case, seen: Any) -> str | None:
    """Gradients are gathered by rank 0 and scattered by rank 0, by no other operation and no other rank."""
    for rank, found in enumerate(seen):
        called = {name for name, *_ in found["calls"]}
        if others := sorted(called - {"gather", "scatter"}):
            return f"rank {rank} called {' and '.join(others)}: {WAY}. The other ways are other tasks"
        if missing := [name for name in ("gather", "scatter") if name not in called]:
            return f"rank {rank} did not call dist.{' or dist.'.join(missing)}: {WAY}"
        if roots := sorted({root for _, _, root, _ in found["calls"]} - {0}):
            return f"rank {rank} gathered on or scattered from rank {roots[0]}: let rank 0 do both"
    return None


@TASK.claim(PLAIN, after=[everything_goes_through_rank_0])
def each_gradient_travels_once(case: Case, seen: Any) -> str | None:
    """Each gradient goes to rank 0 once, by a gather of its own, and its mean comes back once."""
    for rank, found in enumerate(seen):
        expected = gradients.sizes(found)
        for name, what in (("gather", "gave"), ("scatter", "took")):
            sizes = sorted(size for called, size, *_ in found["calls"] if called == name)
            if sizes != expected:
                return (
                    f"rank {rank} {what} {sizes} bytes in {len(sizes)} calls of {name}, and its gradients have {expected}. "
                    "Let each go to rank 0 once and its mean come back once, a gather and a scatter a parameter"
                )
    return None


@TASK.claim(
    [Case(FUNCTION, kind) for kind in ("transposed", "unlike", "sliced")],
    after=[gradients.mean_is_the_gradient_of_the_batch, everything_goes_through_rank_0],
)
def any_strides_do(case: Case, seen: Any) -> str | None:
    """A gradient that is not contiguous is averaged as well."""
    for rank, found in enumerate(seen):
        for name, gradient in case.expected(rank, seen).items():
            if not gradients.close(found["averaged"][name], gradient):
                return (
                    f"on rank {rank}, the gradient of {name} is not the mean. Communicate gradient.contiguous(), which may "
                    "be a copy, and copy what arrives back into the gradient"
                )
    return None
