"""Make the schedules of the papers: GPipe, 1F1B, interleaved 1F1B and the zero-bubble schedules.

n stages or ranks, m micro-batches, rank r. F, B, I and W are also the times that these take. Each
schedule is written in the same way: the ops of a rank, kind by kind in the order of the
micro-batches, and then how they are dealt out.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from labkit.base.checks import check_counts
from labkit.schedule.ops import Op
from labkit.schedule.schedule import Schedule


def forward_only(n_stages: int, n_micro: int) -> Schedule:
    """Schedule the forward passes alone, in micro-batch order: inference, or half of GPipe."""
    check_counts(n_stages=n_stages, n_micro=n_micro)
    return Schedule([_each("F", stage, n_micro) for stage in range(n_stages)], "forward only")


def gpipe(n_stages: int, n_micro: int) -> Schedule:
    """Schedule all forward passes, then all backward passes, both in micro-batch order.

    Huang et al. 2019, GPipe, arXiv 1811.06965.

    With equal stages the bubble is (n − 1) / (m + n − 1) of the time, and a rank keeps the
    activations of m micro-batches.
    """
    check_counts(n_stages=n_stages, n_micro=n_micro)
    return Schedule([_each("F", stage, n_micro) + _each("B", stage, n_micro) for stage in range(n_stages)], "GPipe")


def one_f_one_b(n_stages: int, n_micro: int) -> Schedule:
    """Schedule one forward, one backward, in turns, after min(n − r, m) forwards on rank r.

    Narayanan et al. 2019, PipeDream.

    The bubble of GPipe, but rank r keeps the activations of min(n − r, m) micro-batches only.
    """
    check_counts(n_stages=n_stages, n_micro=n_micro)
    ranks = []
    for stage in range(n_stages):
        forwards, backwards = _each("F", stage, n_micro), _each("B", stage, n_micro)
        ahead = n_stages - stage  # stages that the first micro-batch passes before its gradient comes back
        ranks.append(forwards[:ahead] + _in_turns(backwards, forwards[ahead:]))
    return Schedule(ranks, "1F1B")


def interleaved(n_ranks: int, n_micro: int, n_chunks: int) -> Schedule:
    """Schedule 1F1B with ``n_chunks`` stages a rank: stage s is on rank s % n_ranks.

    Narayanan et al. 2021, arXiv 2104.04473.

    A rank takes a round of micro-batches through one of its stages, then the same ones through its
    next stage. As in torch there are m // n rounds of equal size k, and one if m < n. With equal
    stages and m ≥ n a rank idles (n − 1)(F + B) of one *stage*: of v chunks, the v-th part of what
    1F1B idles with the same model. In exchange rank r keeps more, up to min(m·v,
    (v − 1)k + 2(n − 1 − r) + 1) activations of a stage, and about v times as much is sent.

    Raises ValueError for micro-batches that do not divide into the rounds; it names the nearest
    numbers that do.
    """
    check_counts(n_ranks=n_ranks, n_micro=n_micro, n_chunks=n_chunks)
    rounds = _rounds(n_ranks, n_micro)
    ranks = []
    for rank in range(n_ranks):
        stages = range(rank, n_ranks * n_chunks, n_ranks)
        forwards = [Op("F", stage, i) for micro_batches in rounds for stage in stages for i in micro_batches]
        backwards = [Op("B", stage, i) for micro_batches in rounds for stage in reversed(stages) for i in micro_batches]
        # a round through all stages but the last, and then a forward for each hop to the last rank
        # and back
        ahead = (n_chunks - 1) * len(rounds[0]) + 2 * (n_ranks - 1 - rank)
        ranks.append(forwards[:ahead] + _in_turns(forwards[ahead:], backwards))
    return Schedule(ranks, "interleaved 1F1B")


def zero_bubble_h1(n_stages: int, n_micro: int) -> Schedule:
    """Schedule 1F1B with a split backward: W waits for a gap and fills it, in 1F1B's memory.

    Qi et al. 2024, arXiv 2401.10241.

    Other ranks wait for I alone. With equal stages, m ≥ n, W no longer than F, and no longer than
    I, the makespan is m(F + I + W), and (n − 1)(F + I − W) in which every rank is idle. Between its
    first op and its last, rank r idles (n − 1 − r)(F + I − W). Every rank keeps the activations of
    up to min(n, m) micro-batches.

    The order is that of torch's ScheduleInterleavedZeroBubble with one stage a rank.
    """
    check_counts(n_stages=n_stages, n_micro=n_micro)
    return Schedule(_zero_bubble(n_stages, n_micro, kept=n_stages), "ZB-H1")


def zero_bubble_h2(n_stages: int, n_micro: int) -> Schedule:
    """Schedule ZB-H1 with enough forwards ahead that no gap is left, in twice its memory.

    Qi et al. 2024, arXiv 2401.10241.

    With equal stages, m ≥ 2n − 1, W no longer than F, and 2W no longer than F + I, rank 0 idles
    (n − 1)(F + I − 2W) between its first op and its last, and rank r (n − 1 − r)(F + I − 2W); with
    F = I = W that is nothing. Ranks start one F after the other and end that way, which an
    optimizer step that waits for all of them would spoil. Every rank keeps the activations of up to
    min(2n − 1, m) micro-batches.

    Fewer micro-batches are not enough to fill the gaps: from 2n − 1 down to n this turns into
    ZB-H1.
    """
    check_counts(n_stages=n_stages, n_micro=n_micro)
    return Schedule(_zero_bubble(n_stages, n_micro, kept=max(n_stages, min(2 * n_stages - 1, n_micro))), "ZB-H2")


def zero_bubble_v(n_ranks: int, n_micro: int) -> Schedule:
    """Schedule zero bubble with two stages a rank, r and 2n − 1 − r: down the ranks and up again.

    Qi et al. 2024, arXiv 2401.10241, section 6.

    With equal stages, F = I = W, and m ≥ 2n − 1, no rank idles between its first op and its last.
    It keeps up to 2n activations of a stage, which is half as large as a stage of 1F1B: the same
    memory. The loss is on rank 0.

    With fewer micro-batches it is, as in torch, the schedule of 2n − 1 of them without the missing
    ones.
    """
    check_counts(n_ranks=n_ranks, n_micro=n_micro)
    n, m = n_ranks, max(n_micro, 2 * n_ranks - 1)
    ranks = []
    for r in range(n):
        f0, i0, w0 = (_each(kind, r, m) for kind in "FIW")
        f1, i1, w1 = (_each(kind, 2 * n - 1 - r, m) for kind in "FIW")
        down = 2 * (n - r) - 1  # forwards until the first micro-batch is back at this rank
        warm_up = f0[:down] + _in_turns(f1[:r], f0[down : down + r]) + _in_turns(f1[r:n], i1[: n - r], w1[: n - r])
        steady = _in_turns(f0[down + r :], i0[: m - n], w0[: m - n], f1[n:], i1[n - r : m - r], w1[n - r : m - r])
        cool_down = _in_turns(i0[m - n : m - n + r], i1[m - r :]) + _in_turns(i0[m - n + r :], w0[m - n : m - r])
        ops = warm_up + steady + cool_down + w1[m - r :] + w0[m - r :]
        ranks.append([op for op in ops if op.micro_batch < n_micro])
    return Schedule(ranks, "ZB-V")


# --- what the schedules are written with ----------------------------------------------------------


def _each(kind: str, stage: int, n_micro: int) -> list[Op]:
    return [Op(kind, stage, micro_batch) for micro_batch in range(n_micro)]


def _in_turns(*queues: Sequence[Op | None]) -> list[Op]:
    """Return the first of every queue, then the second of every queue, …, without None.

    A queue that is empty misses its turn.
    """
    return [op for turn in zip_longest(*queues) for op in turn if op]


def _zero_bubble(n_stages: int, n_micro: int, kept: int) -> list[list[Op]]:
    """Return for each rank I, W and F in turns, with ``kept`` micro-batches between F and W.

    Every rank has the same number of them, n to 2n − 1.

    A rank far from the last stage spends them on forwards ahead of the first I: as many as 1F1B, or
    up to twice that, until no gap is left. A rank close to it has its gaps at the end: it spends
    them on W that it puts off until then.
    """
    ranks = []
    for stage in range(n_stages):
        forwards, inputs, weights = (_each(kind, stage, n_micro) for kind in "FIW")
        hops = n_stages - 1 - stage  # to the last stage
        ahead = 1 + hops + min(hops, kept - n_stages)
        put_off: list[Op | None] = [None] * (kept - ahead)
        ranks.append(forwards[:ahead] + _in_turns(inputs, [*put_off, *weights], forwards[ahead:]))
    return ranks


def _rounds(n_ranks: int, n_micro: int) -> list[range]:
    """Return the micro-batches of each round of interleaved 1F1B.

    Raises ValueError where they do not divide evenly.
    """
    if not divides_into_rounds(n_ranks, n_micro):
        fewer = next(count for count in range(n_micro, 0, -1) if divides_into_rounds(n_ranks, count))
        more = next(count for count in range(n_micro, n_micro + n_ranks) if divides_into_rounds(n_ranks, count))
        raise ValueError(
            f"n_micro is {n_micro}, expected one that divides into rounds of equal size, n_micro // n_ranks of them: "
            f"on {n_ranks} ranks take {fewer}, {more}, or any multiple of {n_ranks}"
        )
    size = n_micro // max(1, n_micro // n_ranks)
    return [range(start, start + size) for start in range(0, n_micro, size)]


def divides_into_rounds(n_ranks: int, n_micro: int) -> bool:
    """Return whether interleaved 1F1B takes ``n_micro`` micro-batches on ``n_ranks``."""
    return n_micro % max(1, n_micro // n_ranks) == 0
