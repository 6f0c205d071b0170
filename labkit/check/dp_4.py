"""dp.4: average_gradients averages gradients by one all_reduce a parameter."""

from __future__ import annotations

from typing import Any

from labkit.check import gradients
from labkit.check.gradients import WORLD_SIZE, Case
from labkit.check.harness import Task

FUNCTION = "average_gradients"
TASK = Task()
gradients.add_claims(TASK, FUNCTION)


@TASK.claim([Case(FUNCTION, "plain")], after=[gradients.mean_is_the_gradient_of_the_batch])
def one_all_reduce_a_parameter(case: Case, seen: Any) -> str | None:
    """There is one all_reduce a parameter, and no other message."""
    for rank, found in enumerate(seen):
        called = [name for name, *_ in found["calls"]]
        if others := sorted(set(called) - {"all_reduce"}):
            return (
                f"rank {rank} called {' and '.join(others)}: sum with all_reduce alone. The other ways are other tasks"
            )
        expected, sizes = gradients.sizes(found), sorted(size for _, size, *_ in found["calls"])
        if sizes != expected:
            return (
                f"rank {rank} gave {sizes} bytes in {len(sizes)} calls of all_reduce, and its gradients have {expected}. "
                "Sum each by an all_reduce of its own; fewer and larger messages are another task, dp.7"
            )
    return None


@TASK.claim([Case(FUNCTION, "groups")], after=[gradients.mean_is_the_gradient_of_the_batch])
def a_group_averages_among_its_ranks(case: Case, seen: Any) -> str | None:
    """With a process_group, its ranks average among themselves."""
    for rank, found in enumerate(seen):
        for name, expected in case.expected(rank, seen).items():
            if not gradients.close(found["averaged"][name], expected):
                return (
                    f"on rank {rank}, whose group has {2 if rank < 2 else 1} of {WORLD_SIZE} ranks, the gradient of {name} "
                    "is not the mean over these: all_reduce and get_world_size both take group=process_group"
                )
    return None
