"""dp.5: ring_all_reduce adds up tensors of many kinds, and what it sends is counted."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

from labkit.base.texts import listed
from labkit.check.calls import calls_have_ended, recorded
from labkit.check.harness import Finding, Task

SIZES = "chunks may differ by one element, and some may be empty: both sides must mean the same chunk"
STRIDES = "its elements do not lie side by side, so what is cut of it may be a copy"
DTYPES = "what arrives has the dtype of what was sent, and is added in it"
ONE_A_CHUNK = "one element a chunk"
BASE = 8  # of the numbers that tell whose part of which chunk they are
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
        part = self.part(whole, self.world_size)
        if self.kind == ONE_A_CHUNK:
            n = self.world_size
            part.copy_(torch.tensor([float(BASE) ** (chunk * n + rank) for chunk in range(n)]))
        return part, whole

    def observe(self) -> Any:
        import torch.distributed as dist

        from labkit import dp

        (part, whole), sent = self.tensors(dist.get_rank()), list[list[float]]()

        def keep(call: Any, tensors: Any) -> None:
            if call.name == "send" and self.kind == ONE_A_CHUNK:
                sent.append(tensors[0].flatten().tolist())

        with recorded(keep) as calls:
            dp.ring_all_reduce(part)
        return {"whole": whole, "calls": calls, "sent": sent}

    def expected(self, rank: int) -> Any:
        """Return all the numbers of a rank as they should be in the end."""
        part, whole = self.tensors(rank)
        part.copy_(sum(self.tensors(other)[0].double() for other in range(self.world_size)))
        return whole


KINDS = [  # equal chunks first: where chunks are mixed up, messages of other sizes would end the ranks
    Case(ONE_A_CHUNK, lambda whole, n: whole[1 : n + 1], advice=""),
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


def drawn(draw: random.Random) -> list[Case]:
    """Return all kinds on more ranks, and a number of elements that they cannot share evenly."""
    n_ranks = draw.choice((5, 6))
    n = 60 * draw.randint(1, 16) + draw.choice((1, 7, 11, 13))
    some = Case(f"{n} elements", lambda whole, _: whole[1 : n + 1])
    return [case._replace(world_size=n_ranks) for case in (*KINDS, some)]


CASES: list[Any] = [*(case._replace(world_size=world_size) for world_size in (3, 2) for case in KINDS), drawn]


def rounded(draw: random.Random) -> list[Case]:
    """Return all numbers on as many ranks, and on one."""
    sizes = draw.choice((5, 6)), 1
    return [Case("1002 large numbers", lambda whole, _: whole, largest=LARGE, world_size=n) for n in sizes]


TASK = Task(
    writes="ring_all_reduce",
    minutes=30,
    points=15,
    notebooks="02",
    given=["_exchange"],
    hints=(
        """Draw three ranks in a ring, each with three chunks. If rank r begins by sending chunk r, which chunk
arrives at it, and which one does it pass on next?""",
        """There are two loops, each of one step fewer than there are ranks. In the first, a rank adds what
arrives to its own chunk and passes that on; at the end it has the whole sum of chunk r + 1. In the
second, finished chunks go round, and what arrives replaces what was there.""",
        """In step s of the first half rank r sends chunk r − s and receives chunk r − s − 1; in the second
half both are one higher, all modulo the number of ranks. In the first half what arrives needs room
of its own, as it has to be added. Chunks are views of a contiguous tensor; where the given one is
not contiguous, that is a copy, and the result has to go back.""",
    ),
)
TASK.claim(CASES[:1])(calls_have_ended)


@TASK.claim(CASES, core=True)
def the_sum_is_everywhere(case: Case, seen: Any) -> Finding:
    """Every rank's tensor becomes the sum of all, in place, whatever its size, shape, strides and
    dtype."""
    for rank, found in enumerate(seen):
        if not found["whole"].equal(case.expected(rank)):
            if case.kind == ONE_A_CHUNK:
                sent = [each["sent"] for each in seen]
                return _compare(case, rank, sent, found["whole"][1 : 1 + case.world_size])
            return f"on rank {rank} of {case.world_size}, it is not the sum: {case.advice}"


def _compare(case: Case, rank: int, sent: list[list[list[float]]], chunks: Any) -> str:
    """Return in what way chunks of one element are wrong, with the first message that was."""
    n, where = case.world_size, f"on rank {rank} of {case.world_size}, "
    expected = case.expected(rank)[1 : 1 + n]
    if (chunks * n).allclose(expected):
        return where + "the tensor is the mean, expected the sum. Do not divide it"
    if wrong := _first_wrong_message(n, sent):
        return f"{wrong}. ring_explorer() shows each step"
    if chunks.equal(case.tensors(rank)[0]):
        return where + "the tensor is as it was before, though what was sent is right: a copy changed"
    right = [str(chunk) for chunk in range(n) if chunks[chunk] == expected[chunk]]
    if len(sent[rank]) == n - 1:
        return where + f"only chunk {listed(right)} is the sum: the all-gather half is missing"
    chunk = next(chunk for chunk in range(n) if chunks[chunk] != expected[chunk])
    found = _parts(float(chunks[chunk]), n)
    return where + f"chunk {chunk} is {found}, though what was sent is right"


def _first_wrong_message(n: int, sent: list[list[list[float]]]) -> str:
    """Return which message was the first not to be of one chunk with as many parts as it should.

    In step s of the reduce-scatter half a chunk has the parts of s ranks, in the other half of all.
    """
    for step in range(1, 1 + min(map(len, sent))):
        first_half, n_parts = step < n, min(step, n)
        half = "reduce-scatter" if first_half else "all-gather"
        for rank, messages in enumerate(sent):
            parts = [_parts(value, n) for value in messages[step - 1]]
            if len(parts) != 1:
                return f"in step {step} rank {rank} sent {len(parts)} of {n} chunks, expected one"
            if not parts[0].is_sum_of(n_parts):
                expected = f"with the parts of {n_parts} ranks" if first_half else "that is the whole sum"
                number = step if first_half else step - n + 1
                sent_it = f"in step {number} of the {half} half, rank {rank} of {n} sent {parts[0]}"
                lacking = parts[0].lacking(rank, first_half)
                return f"{sent_it}, expected a chunk {expected}{lacking}"
    return ""


class _Parts(NamedTuple):
    """How often the part of each rank is in a number, by chunk; none if it is not a sum of them."""

    times: dict[int, dict[int, int]]

    def is_sum_of(self, n_parts: int) -> bool:
        """Return whether it has ``n_parts`` ranks' parts of one chunk, each once."""
        return [list(ranks.values()) for ranks in self.times.values()] == [[1] * n_parts]

    def lacking(self, rank: int, first_half: bool) -> str:
        """Return what the sender's own part tells of what went wrong in the reduce-scatter half."""
        if not first_half or len(self.times) != 1:
            return ""
        (ranks,) = self.times.values()
        if list(ranks) == [rank]:
            return ". What it had received for that chunk is not in it"
        return "" if rank in ranks else ". Its own part is not in it"

    def __str__(self) -> str:
        chunks = []
        for chunk, ranks in self.times.items():
            parts = [f"{rank}{f' ({times} times)' if times > 1 else ''}" for rank, times in ranks.items()]
            whose = f"parts of ranks {listed(parts)}" if len(parts) > 1 else f"part of rank {parts[0]} alone"
            chunks.append(f"chunk {chunk} with the {whose}")
        return " plus ".join(chunks) or "numbers that no rank had"


def _parts(value: float, n: int) -> _Parts:
    """Return whose parts a number adds up, each of which is a power of BASE."""
    times: dict[int, dict[int, int]] = {}
    if value != value or value != int(value) or not 0 < value < BASE ** (n * n):
        return _Parts(times)
    for power in range(n * n):
        if digit := int(value) // BASE**power % BASE:
            times.setdefault(power // n, {})[power % n] = digit
    return _Parts(times)


@TASK.claim([rounded])
def ranks_agree(case: Case, seen: Any) -> Finding:
    """All ranks end up with the same numbers, to the last bit, and these are the sum up to
    rounding."""
    for rank, found in enumerate(seen):
        if not found["whole"].equal(seen[0]["whole"]):
            return f"ranks 0 and {rank} added up in different orders, and their rounding differs"
    right = seen[0]["whole"].allclose(case.expected(0), atol=1000)
    return not right and f"they differ from the sum by more than rounding: {SIZES}"


@TASK.claim([rounded])
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
            talked = f"rank {rank} talked to rank {min(strangers)}"
            return f"{talked}, and its only neighbours in the ring are {neighbours}"
        sent = sum(size for name, size, *_ in found["calls"] if name == "send")
        if sent > share + 2 * (n - 1) * 8:  # chunks cannot all be equal; two elements a chunk are granted
            return f"rank {rank} sent {sent} bytes of {n_bytes}, expected {share}: send one chunk a step"
