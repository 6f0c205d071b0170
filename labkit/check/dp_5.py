"""dp.5: ring_all_reduce adds up tensors of many kinds, and what it sends is counted."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

from labkit.check.calls import calls_have_ended, recorded
from labkit.check.harness import Task

WORLD_SIZES = (3, 2, 4, 1)
EQUAL, COUNTED, NOISE = "one element a chunk", "1000 elements", "random numbers"


class Kind(NamedTuple):
    """A larger tensor, by its shape, and the part of it that is to be added up; the rest of it is not to be touched."""

    shape: Callable[[int], tuple[int, ...]]  # of the world size
    part: Callable[[Any], Any]
    dtype: str = "float32"
    finest: float = (
        0.0  # a fraction that a number of this dtype can have beside its whole part, and a smaller dtype cannot
    )


def _vector(size: Callable[[int], int], dtype: str = "float32", finest: float = 0.0) -> Kind:
    return Kind(lambda n: (size(n) + 2,), lambda whole: whole[1:-1], dtype, finest)


SIZES = {
    "one element more than ranks": _vector(lambda n: n + 1),
    "one element fewer than ranks": _vector(lambda n: n - 1),
    "no element": _vector(lambda n: 0),
    "1 element": _vector(lambda n: 1),
    "2 elements": _vector(lambda n: 2),
    "a number, 0-d": Kind(lambda n: (3,), lambda whole: whole[1]),
    "a matrix, 3 by 5": Kind(lambda n: (5, 5), lambda whole: whole[1:4]),
    COUNTED: _vector(lambda n: 1000),
}
STRIDES = {
    "a transposed matrix": Kind(lambda n: (3, 5), lambda whole: whole.t()),
    "every second element": Kind(lambda n: (4, 15), lambda whole: whole[1, ::2]),
    "a column of a matrix": Kind(lambda n: (7, 4), lambda whole: whole[:, 2]),
}
DTYPES = {
    f"17 elements of {dtype}": _vector(lambda n: 17, dtype, finest)
    for dtype, finest in (("float16", 0), ("bfloat16", 0), ("float32", 2**-12), ("float64", 2**-30))
}
KINDS = {EQUAL: _vector(lambda n: n), **SIZES, **STRIDES, **DTYPES, NOISE: Kind(lambda n: (1000,), lambda whole: whole)}


class Case(NamedTuple):
    """A tensor of some kind on each of some ranks."""

    kind: str
    world_size: int

    def __str__(self) -> str:
        return f"with {self.kind}, {self.world_size} rank{'s' * (self.world_size > 1)}"

    def tensors(self, rank: int) -> tuple[Any, Any]:
        """Return what this rank has to add up, and the larger tensor that it is a part of.

        Numbers that add up without rounding, in their dtype; ``NOISE`` alone is rounded.
        """
        import torch

        generator = torch.Generator().manual_seed(zlib.crc32(self.kind.encode()) + rank)
        kind = KINDS[self.kind]
        shape = kind.shape(self.world_size)
        whole = torch.randint(-60, 61, shape, generator=generator, dtype=torch.float64) * (1 + kind.finest)
        if self.kind == NOISE:
            whole = torch.randn(shape, generator=generator)
        whole = whole.to(getattr(torch, kind.dtype))
        return kind.part(whole), whole

    def observe(self) -> Any:
        import torch.distributed as dist

        from labkit import dp

        part, whole = self.tensors(dist.get_rank())
        with recorded() as calls:
            dp.ring_all_reduce(part)
        return {"whole": whole, "calls": calls}

    def total(self) -> Any:
        """Return the sum of all ranks' tensors, in double precision."""
        return sum(self.tensors(rank)[0].double() for rank in range(self.world_size))

    def expected(self, rank: int) -> Any:
        """Return what the larger tensor of a rank should hold in the end."""
        part, whole = self.tensors(rank)
        part.copy_(self.total())
        return whole


def _cases(kinds: Any) -> list[Case]:
    return [Case(kind, world_size) for world_size in WORLD_SIZES for kind in kinds]


COUNTED_CASES = _cases([COUNTED])
TASK = Task(given=["_exchange"])


TASK.claim(_cases([EQUAL]))(calls_have_ended)


@TASK.claim(_cases([EQUAL]), after=[calls_have_ended])
def the_sum_is_everywhere(case: Case, seen: Any) -> str | None:
    """Every rank's tensor becomes the sum of all ranks' tensors, in place."""
    for rank, found in enumerate(seen):
        if not bool((found["whole"] == case.expected(rank)).all()):
            return f"on rank {rank} of {case.world_size}, {_compare(case, rank, found['whole'])}"
    return None


def _compare(case: Case, rank: int, found: Any) -> str:
    """Return in what way a tensor of one element a chunk, with one more at either end, is wrong."""
    n, expected = case.world_size, case.expected(rank)
    if bool((found == case.tensors(rank)[1]).all()):
        return "the tensor is as it was before: change the tensor itself, not a copy or a new one"
    if bool((found[1:-1] * n - expected[1:-1]).abs().max() < 1e-3):
        return "the tensor is the mean: ring_all_reduce gives the sum, whoever wants the mean divides it"
    right = [chunk for chunk in range(n) if found[chunk + 1] == expected[chunk + 1]]
    if len(right) == 1:
        return (
            f"only chunk {right[0]} is the sum. If every rank has one such chunk, reduce-scatter is done, and all-gather is "
            "still to do: the finished chunks go round, and replace the others rather than add to them"
        )
    return (
        f"{len(right)} of {n} chunks are the sum. Write down for three ranks which chunk each sends and receives in each "
        "step: what arrives is added during reduce-scatter, and replaces during all-gather"
    )


# With chunks of equal size mixed up, messages of different sizes would meet, and end the ranks.
@TASK.claim(_cases(SIZES), after=[the_sum_is_everywhere])
def any_size_does(case: Case, seen: Any) -> str | None:
    """The tensor may have any size and shape: empty, smaller than the world, not divisible by it."""
    return _wrong(
        case, seen, "chunks may differ by one element, and some may be empty: both sides must mean the same chunk"
    )


@TASK.claim(_cases(STRIDES), after=[any_size_does])
def any_strides_do(case: Case, seen: Any) -> str | None:
    """The tensor may be a part of a larger one, which is not touched otherwise."""
    return _wrong(
        case,
        seen,
        "its elements do not lie side by side, so the chunks are of a copy: write the result back, into these only",
    )


@TASK.claim(_cases(DTYPES), after=[any_size_does])
def any_dtype_does(case: Case, seen: Any) -> str | None:
    """The tensor may have any floating-point dtype."""
    return _wrong(case, seen, "receive into a tensor of the same dtype (torch.empty_like), and add in that dtype")


def _wrong(case: Case, seen: Any, advice: str) -> str | None:
    for rank, found in enumerate(seen):
        if not bool((found["whole"] == case.expected(rank)).all()):
            return f"rank {rank} has something else than the sum: {advice}"
    return None


@TASK.claim(_cases([NOISE]), after=[any_size_does])
def ranks_agree(case: Case, seen: Any) -> str | None:
    """All ranks end up with the same numbers, to the last bit, and these are the sum up to rounding."""
    for rank, found in enumerate(seen):
        if not bool((found["whole"] == seen[0]["whole"]).all()):
            return (
                f"rank 0 and rank {rank} differ: they added up in different orders, and rounding tells. Let one rank finish "
                "each chunk, and the others take it from there"
            )
        if not bool(found["whole"].double().allclose(case.total(), rtol=1e-4, atol=1e-4)):
            return f"on rank {rank}, they do not add up to their sum"
    return None


@TASK.claim(COUNTED_CASES, after=[the_sum_is_everywhere])
def only_point_to_point(case: Case, seen: Any) -> str | None:
    """It sends and receives, and calls no collective."""
    for rank, found in enumerate(seen):
        if others := sorted({name for name, *_ in found["calls"]} - {"send", "recv"}):
            return f"rank {rank} called {' and '.join(others)}: make it of sending and receiving alone"
    return None


@TASK.claim(COUNTED_CASES, after=[the_sum_is_everywhere])
def only_neighbours_talk(case: Case, seen: Any) -> str | None:
    """A rank talks to its neighbours in the ring only."""
    for rank, found in enumerate(seen):
        neighbours = {(rank - 1) % case.world_size, (rank + 1) % case.world_size}
        talked = {peer for name, _, peer, _ in found["calls"] if name in ("send", "recv")}
        if strangers := sorted(talked - neighbours):
            return (
                f"rank {rank} talked to rank {strangers[0]}, expected its neighbours, "
                f"{' and '.join(map(str, sorted(neighbours)))}: a ring needs no other links"
            )
    return None


@TASK.claim(COUNTED_CASES, after=[the_sum_is_everywhere])
def a_rank_sends_its_share(case: Case, seen: Any) -> str | None:
    """A rank sends 2 (N - 1) / N of the tensor's bytes."""
    n_bytes, n = 1000 * 4, case.world_size
    share = 2 * (n - 1) / n * n_bytes
    rounding = 2 * (n - 1) * 2 * 4  # chunks cannot all be equal; two elements a chunk are granted
    for rank, found in enumerate(seen):
        if (sent := sum(size for name, size, *_ in found["calls"] if name == "send")) > share + rounding:
            return (
                f"rank {rank} sent {sent} bytes of a tensor of {n_bytes}, expected {share:.0f}: send one chunk in each step, "
                "not the whole tensor"
            )
    return None
