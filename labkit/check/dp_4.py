"""dp.4: average_gradients averages gradients by one all_reduce a parameter."""

from typing import Any

from labkit.check.gradients import GROUPS, Case, averaging, mean_is_the_gradient_of_the_batch

PLAIN = Case("average_gradients", ("all_reduce",), "sum with all_reduce, divide by get_world_size()")
TASK = averaging(PLAIN)


@TASK.claim([PLAIN._replace(special=GROUPS)], after=[mean_is_the_gradient_of_the_batch])
def a_group_averages_among_its_ranks(case: Case, seen: Any) -> Any:
    """With a process_group, its ranks average among themselves."""
    for rank, name in case.wrong(seen):
        wrong = f"on rank {rank}, whose group has {2 if rank < 2 else 1} of 3 ranks, the gradient of {name} is not their mean"
        return f"{wrong}: all_reduce and get_world_size both take group=process_group"
