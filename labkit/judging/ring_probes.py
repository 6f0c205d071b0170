"""What runs in ranks to judge dp.5: the student's ring adds up tensors of many kinds, and what it sends is counted."""

from __future__ import annotations

from typing import Any

from labkit.judging.calls import Call, recorded

EQUAL, COUNTED, NOISE = "one element a chunk", "1000 elements", "random numbers"


def tensors(rank: int, world_size: int) -> dict[str, tuple[Any, Any]]:
    """By name: a tensor, and the larger one that it is a part of, whose other elements are not to be touched.

    Numbers that add up without rounding, in their dtype; ``NOISE`` alone is rounded.
    """
    import torch

    generator = torch.Generator().manual_seed(100 + rank)

    def numbers(*shape: int, dtype: Any = torch.float32) -> Any:
        return torch.randint(-9, 10, shape, generator=generator).to(dtype)

    found = {}
    sizes = {EQUAL: world_size, COUNTED: 1000, "one element more than ranks": world_size + 1}
    sizes |= {"one element fewer than ranks": world_size - 1, "no element": 0, "1 element": 1, "2 elements": 2}
    for name, size in sizes.items():
        whole = numbers(size + 2)
        found[name] = whole[1:-1], whole
    for name, (dtype, finest) in DTYPES.items():
        whole = (numbers(19, dtype=torch.float64) * (1 + finest)).to(getattr(torch, dtype))
        found[name] = whole[1:-1], whole
    scalar, matrix, transposed, strided, table = (numbers(*shape) for shape in ((3,), (5, 5), (3, 5), (4, 15), (7, 4)))
    found["a number, 0-d"] = scalar[1], scalar
    found["a matrix, 3 by 5"] = matrix[1:4], matrix
    found["a transposed matrix"] = transposed.t(), transposed
    found["every second element"] = strided[1, ::2], strided
    found["a column of a matrix"] = table[:, 2], table
    noise = torch.randn(1000, generator=generator)
    return found | {NOISE: (noise, noise)}


DTYPES = {  # the dtype's name, and a fraction that it can hold beside a small whole number, and a smaller one cannot
    f"17 elements of {dtype}": (dtype, fraction)
    for dtype, fraction in (("float16", 0), ("bfloat16", 0), ("float32", 2**-12), ("float64", 2**-30))
}


def sums(world_size: int) -> dict[str, tuple[Any, list[Any]]]:
    """By name: the sum of all ranks' tensors in double precision, and what each rank's larger tensor should hold in the end."""
    ranks = [tensors(rank, world_size) for rank in range(world_size)]
    totals = {name: sum(each[name][0].double() for each in ranks) for name in ranks[0]}
    for each in ranks:
        for name, (part, _) in each.items():
            part.copy_(totals[name])
    return {name: (total, [each[name][1] for each in ranks]) for name, total in totals.items()}


def probe_ring() -> dict[str, Any]:
    """In each rank: every tensor's larger one afterwards, and every call made for the tensor of 1000 elements.

    Tensors that do not fall into equal chunks come only once equal chunks are right on every rank: with chunks mixed up,
    messages of different sizes would meet, and end the ranks.
    """
    import torch
    import torch.distributed as dist

    from labkit import dp

    rank, world_size = dist.get_rank(), dist.get_world_size()
    after: dict[str, Any] = {}
    called: list[Call] = []
    with recorded() as calls:
        expected = sums(world_size)[EQUAL][1][rank]
        for name, (part, whole) in tensors(rank, world_size).items():
            calls.clear()
            _reduce(dp.ring_all_reduce, part, f"{name}, {world_size} ranks")
            after[name] = whole
            if name == COUNTED:
                called = calls.copy()
            if name == EQUAL:
                right = torch.tensor([float(torch.equal(whole, expected))])
                dist.all_reduce(right)
                if right < world_size:
                    break
    return {"after": after, "calls": [tuple(call) for call in called]}


def _reduce(ring_all_reduce: Any, part: Any, case: str) -> None:
    """Try it, and say in the error, if there is one, what it was tried with."""
    try:
        ring_all_reduce(part)
    except Exception as error:
        error.args = (f"{error} (with {case})",)
        raise
