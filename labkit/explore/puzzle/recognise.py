"""Tell a reader which of the papers' schedules a finished board is."""

from __future__ import annotations

from collections.abc import Iterator

from labkit.schedule import Op, Schedule, gpipe, interleaved, one_f_one_b, zero_bubble_h1, zero_bubble_h2, zero_bubble_v

YOURS = "yours"
MEANINGS = {
    "GPipe": "every forward, then every backward",
    "1F1B": "one forward and one backward in turns as soon as the pipeline is full",
    "ZB-H1": "zero bubble with the memory of 1F1B's first rank",
    "ZB-H2": "zero bubble with more forwards ahead",
    "ZB-V": "zero bubble with stages placed in a V",
    "interleaved 1F1B": "one forward and one backward in turns with several stages a rank",
}


def recognise(schedule: Schedule) -> str:
    """Return "GPipe", "1F1B", "ZB-H1", "ZB-H2", "ZB-V", "interleaved 1F1B", or "yours".

    It is the order of ops that counts, not when they run, and micro-batches have the numbers in
    which stage 0 takes them. GPipe may take its backward passes from the last micro-batch to the
    first. Where two of the papers' schedules are the same for these numbers, it is the earlier one.
    """
    if not schedule.n_micro:
        return YOURS
    numbered = _renumbered(schedule)
    return next((known.name for known in _known(schedule) if known == numbered), YOURS)


def _known(schedule: Schedule) -> Iterator[Schedule]:
    """Yield the papers' schedules of this size."""
    n_ranks, n_stages, n_micro = schedule.n_ranks, schedule.n_stages, schedule.n_micro
    if n_stages == n_ranks:
        in_order = gpipe(n_ranks, n_micro)
        yield in_order
        yield Schedule([ops[:n_micro] + ops[: n_micro - 1 : -1] for ops in in_order.ops], in_order.name)
        yield one_f_one_b(n_ranks, n_micro)
        yield zero_bubble_h1(n_ranks, n_micro)
        yield zero_bubble_h2(n_ranks, n_micro)
        return
    if n_stages == 2 * n_ranks:
        yield zero_bubble_v(n_ranks, n_micro)
    if n_stages % n_ranks == 0 and n_micro % max(1, n_micro // n_ranks) == 0:
        yield interleaved(n_ranks, n_micro, n_stages // n_ranks)


def _renumbered(schedule: Schedule) -> Schedule:
    """Return the schedule with micro-batches numbered in the order of their first forward."""
    order = [op.micro_batch for ops in schedule.ops for op in ops if op.kind == "F" and op.stage == 0]
    if sorted(order) != list(range(schedule.n_micro)):
        return schedule  # not finished, so it is none of the papers'
    number = {micro_batch: i for i, micro_batch in enumerate(order)}
    return Schedule([[Op(op.kind, op.stage, number[op.micro_batch]) for op in ops] for ops in schedule.ops])
