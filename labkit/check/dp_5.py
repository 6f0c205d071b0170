"""dp.5: ring_all_reduce adds up tensors of many kinds, and what it sends is counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from labkit.base.texts import listed
from labkit.check.calls import calls_have_ended, recorded
from labkit.check.harness import Finding, TaskClaims

SIZES = "chunks may differ by one element, and some may be empty: both sides must mean the same chunk"
STRIDES = "its elements do not lie side by side, so the chunks are of a copy: write the result back, into these only"
DTYPES = "receive into a tensor of the same dtype (torch.empty_like), and add in that dtype"
LARGE = 10**9  # whole numbers up to this add up exactly in float64 alone; those up to 60 do so in each dtype


class Case(NamedTuple):
    """A part of 1002 numbers, to be added up on some ranks. The others are not to be touched."""

    kind: str
    part: Callable[[Any, int], Any]
    advice: str = SIZES
    dtype: str = "float32"
    largest: int = 60
    world_size: int = 4

    def __str__(self) -> str:
        return f"with {self.kind}, {self.world_size} rank{'s' * (self.world_size > 1)}"

    def tensors(self, rank: int) -> tuple[Any, Any]:
        """Return what this rank has to add up, and all the numbers that it is a part of."""
        import torch

        generator = torch.Generator().manual_seed(rank)
        numbers = torch.randint(-self.largest, self.largest + 1, [1002], generator=generator)
        whole = numbers.to(getattr(torch, self.dtype))
        return self.part(whole, self.world_size), whole

    def observe(self) -> Any:
        import torch.distributed as dist

        from labkit import dp

        part, whole = self.tensors(dist.get_rank())
        with recorded() as calls:
            dp.ring_all_reduce(part)
        return {"whole": whole, "calls": calls}

    def expected(self, rank: int) -> Any:
        """Return all the numbers of a rank as they should be in the end."""
        part, whole = self.tensors(rank)
        part.copy_(sum(self.tensors(other)[0].double() for other in range(self.world_size)))
        return whole


KINDS = [  # equal chunks first: where chunks are mixed up, messages of other sizes would end the ranks
    Case("one element a chunk", lambda whole, n: whole[1 : n + 1], advice=""),
    Case("one element more than ranks", lambda whole, n: whole[1 : n + 2]),
    Case("one element fewer than ranks", lambda whole, n: whole[1:n]),
    Case("no element", lambda whole, n: whole[1:1]),
    Case("a number, 0-d", lambda whole, n: whole[1]),
    Case("a matrix, 3 by 5", lambda whole, n: whole[1:16].view(3, 5)),
    Case("a transposed matrix", lambda whole, n: whole[1:16].view(3, 5).t(), STRIDES),
    Case("every second element", lambda whole, n: whole[1:16:2], STRIDES),
    Case("17 elements of bfloat16", lambda whole, n: whole[1:18], DTYPES, "bfloat16"),
    Case("17 elements of float64", lambda whole, n: whole[1:18], DTYPES, "float64", LARGE),
]
CASES = [case._replace(world_size=world_size) for world_size in (3, 2, 4) for case in KINDS]
ROUNDED = [Case("1002 large numbers", lambda whole, n: whole, largest=LARGE, world_size=n) for n in (4, 1)]
TASK = TaskClaims(given=["_exchange"])
TASK.claim(CASES[:1])(calls_have_ended)


@TASK.claim(CASES, after=[calls_have_ended])
def the_sum_is_everywhere(case: Case, seen: Any) -> Finding:
    """Every rank's tensor becomes the sum of all, in place, whatever its size, shape, strides and
    dtype."""
    for rank, found in enumerate(seen):
        if not found["whole"].equal(case.expected(rank)):
            advice = case.advice and f"it is something other than the sum: {case.advice}"
            return f"on rank {rank} of {case.world_size}, {advice or _compare(case, rank, found['whole'])}"


def _compare(case: Case, rank: int, whole: Any) -> str:
    """Return in what way a tensor of one element a chunk is wrong."""
    n, expected = case.world_size, case.expected(rank)
    if whole.equal(case.tensors(rank)[1]):
        return "the tensor is as it was before: change the tensor itself, not a copy or a new one"
    if (whole * n)[1 : 1 + n].allclose(expected[1 : 1 + n]):
        return "the tensor is the mean: ring_all_reduce gives the sum, whoever wants the mean divides it"
    right = [chunk for chunk in range(n) if whole[1 + chunk] == expected[1 + chunk]]
    if len(right) == 1:
        return f"only chunk {right[0]} is the sum: let such chunks go round, and replace the others rather than add to them"
    return f"{len(right)} of {n} chunks are the sum. Write down for three ranks which chunk each passes on, and add in place"


@TASK.claim(ROUNDED, after=[the_sum_is_everywhere])
def ranks_agree(case: Case, seen: Any) -> Finding:
    """All ranks end up with the same numbers, to the last bit, and these are the sum up to
    rounding."""
    for rank, found in enumerate(seen):
        if not found["whole"].equal(seen[0]["whole"]):
            return f"rank 0 and rank {rank} added up in different orders, and rounding tells: let one rank finish each chunk"
    right = seen[0]["whole"].allclose(case.expected(0), atol=1000)
    return not right and f"they differ from the sum by more than rounding: {SIZES}"


@TASK.claim(ROUNDED, after=[the_sum_is_everywhere])
def messages_go_round_the_ring(case: Case, seen: Any) -> Finding:
    """A rank sends 2 (N - 1) / N of the tensor's bytes, to a neighbour in the ring, and calls no
    collective."""
    n, n_bytes = case.world_size, 1002 * 4
    share = 2 * (n - 1) * n_bytes // n
    for rank, found in enumerate(seen):
        neighbours = {(rank - 1) % n, (rank + 1) % n}
        if others := {name for name, *_ in found["calls"]} - {"send", "recv"}:
            return f"rank {rank} called {listed(sorted(others))}: make it of sending and receiving alone"
        if strangers := {peer for _, _, peer, _ in found["calls"]} - neighbours:
            return f"rank {rank} talked to rank {min(strangers)}, and its only neighbours in the ring are {neighbours}"
        sent = sum(size for name, size, *_ in found["calls"] if name == "send")
        if sent > share + 2 * (n - 1) * 8:  # chunks cannot all be equal; two elements a chunk are granted
            return f"rank {rank} sent {sent} bytes of {n_bytes}, expected {share}: send a chunk in each step, not all"
