"""What must hold of dp.5, the ring. Each claim is a function: its docstring says what must hold, and it gives None where
that holds, else what is wrong and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from labkit.judging import ring_probes as probes
from labkit.judging.evidence import NotTried
from labkit.judging.in_ranks import try_in_ranks

WORLD_SIZES = (3, 2, 4, 1)
STRIDED = ("a transposed matrix", "every second element", "a column of a matrix")


@dataclass(frozen=True)
class Ring:
    """What the ring did, by world size: for each rank its tensors afterwards and its calls; and what they should hold."""

    worlds: dict[int, list[dict[str, Any]]]
    sums: dict[int, dict[str, tuple[Any, list[Any]]]]

    def tried(self, name: str) -> Iterator[tuple[int, int, Any, Any]]:
        """World size, rank, the larger tensor around the one of that name as it was found, and as it should be."""
        for world_size, rank, found in self._found(name):
            yield world_size, rank, found["after"][name], self.sums[world_size][name][1][rank]

    def calls(self) -> Iterator[tuple[int, int, list[tuple[str, int, int]]]]:
        """World size, rank, and the calls that it made for a tensor of 1000 elements."""
        for world_size, rank, found in self._found(probes.COUNTED):
            yield world_size, rank, found["calls"]

    def _found(self, name: str) -> Iterator[tuple[int, int, dict[str, Any]]]:
        for world_size, ranks in self.worlds.items():
            for rank, found in enumerate(ranks):
                if name not in found["after"]:
                    raise NotTried("not tried, because chunks of equal size do not add up yet")
                yield world_size, rank, found


def gather() -> Ring:
    """Tensors of all kinds, added up by three, two and four ranks, and by a single one."""
    worlds = {world_size: try_in_ranks(probes.probe_ring, world_size=world_size) for world_size in WORLD_SIZES}
    return Ring(worlds, {world_size: probes.sums(world_size) for world_size in WORLD_SIZES})


def the_sum_is_everywhere(ring: Ring) -> str | None:
    """Every rank's tensor becomes the sum of all ranks' tensors, in place."""
    for world_size, rank, found, expected in ring.tried(probes.EQUAL):
        if not bool((found == expected).all()):
            own = probes.tensors(rank, world_size)[probes.EQUAL][1]
            return f"on rank {rank} of {world_size}, {_compare(found, expected, own, world_size)}"
    return None


def _compare(found: Any, expected: Any, own: Any, world_size: int) -> str:
    """In what way a tensor of one element a chunk, with one more at either end, is wrong."""
    if bool((found == own).all()):
        return "the tensor is as it was before: change the tensor itself, not a copy or a new one"
    if bool((found[1:-1] * world_size - expected[1:-1]).abs().max() < 1e-3):
        return "the tensor is the mean: ring_all_reduce gives the sum, whoever wants the mean divides it"
    right = [chunk for chunk in range(world_size) if found[chunk + 1] == expected[chunk + 1]]
    if len(right) == 1:
        return (
            f"only chunk {right[0]} is the sum. If every rank has one such chunk, reduce-scatter is done, and all-gather is "
            "still to do: the finished chunks go round, and replace the others rather than add to them"
        )
    return (
        f"{len(right)} of {world_size} chunks are the sum. Write down for three ranks which chunk each sends and receives in "
        "each step: what arrives is added during reduce-scatter, and replaces during all-gather"
    )


def any_size_does(ring: Ring) -> str | None:
    """The tensor may have any size and shape: empty, smaller than the world, not divisible by it."""
    names = [name for name in ring.sums[1] if name not in (*STRIDED, *probes.DTYPES, probes.EQUAL, probes.NOISE)]
    return _first_wrong(
        ring, names, "chunks may differ by one element, and some may be empty: both sides must mean the same chunk"
    )


def any_strides_do(ring: Ring) -> str | None:
    """The tensor may be a part of a larger one, which is not touched otherwise."""
    _wait_for_any_size(ring)
    return _first_wrong(
        ring, STRIDED, "reshape copies what is not contiguous: write the result back, into these elements only"
    )


def any_dtype_does(ring: Ring) -> str | None:
    """The tensor may have any floating-point dtype."""
    _wait_for_any_size(ring)
    return _first_wrong(
        ring, tuple(probes.DTYPES), "receive into a tensor of the same dtype (torch.empty_like), and add in that dtype"
    )


def _wait_for_any_size(ring: Ring) -> None:
    """Tensors of other strides and dtypes do not fall into equal chunks either: they say nothing until that is right."""
    if any_size_does(ring):
        raise NotTried("not judged, because chunks of different sizes do not add up yet")


def _first_wrong(ring: Ring, names: Any, advice: str) -> str | None:
    for name in names:
        for world_size, rank, found, expected in ring.tried(name):
            if not bool((found == expected).all()):
                return f"with {name}, rank {rank} of {world_size} has something else than the sum: {advice}"
    return None


def ranks_agree(ring: Ring) -> str | None:
    """All ranks end up with the same numbers, to the last bit, and these are the sum up to rounding."""
    for world_size, rank, found, _ in ring.tried(probes.NOISE):
        if not bool((found == ring.worlds[world_size][0]["after"][probes.NOISE]).all()):
            return (
                f"rank 0 and rank {rank} of {world_size} differ: they added up in different orders, and rounding tells. Let one "
                "rank finish each chunk, and the others take it from there"
            )
        if not bool(found.double().allclose(ring.sums[world_size][probes.NOISE][0], rtol=1e-4, atol=1e-4)):
            return f"on rank {rank} of {world_size}, random numbers do not add up to their sum"
    return None


def only_point_to_point(ring: Ring) -> str | None:
    """It sends and receives, and calls no collective."""
    for world_size, rank, calls in ring.calls():
        if others := sorted({name for name, _, _ in calls} - {"send", "recv"}):
            return f"rank {rank} of {world_size} called {' and '.join(others)}: make it of sending and receiving alone"
    return None


def only_neighbours_talk(ring: Ring) -> str | None:
    """A rank talks to its neighbours in the ring only."""
    for world_size, rank, calls in ring.calls():
        neighbours = {(rank - 1) % world_size, (rank + 1) % world_size}
        if strangers := sorted({peer for name, _, peer in calls if name in ("send", "recv")} - neighbours):
            return (
                f"rank {rank} of {world_size} talked to rank {strangers[0]}, expected its neighbours, "
                f"{' and '.join(map(str, sorted(neighbours)))}: a ring needs no other links"
            )
    return None


def a_rank_sends_its_share(ring: Ring) -> str | None:
    """A rank sends 2 (N - 1) / N of the tensor's bytes."""
    n_bytes = 1000 * 4
    for world_size, rank, calls in ring.calls():
        share = 2 * (world_size - 1) / world_size * n_bytes
        rounding = 2 * (world_size - 1) * 2 * 4  # chunks cannot all be equal; two elements a chunk are granted
        if (sent := sum(size for name, size, _ in calls if name == "send")) > share + rounding:
            return (
                f"rank {rank} of {world_size} sent {sent} bytes of a tensor of {n_bytes}, expected {share:.0f}: send one "
                "chunk in each step, not the whole tensor"
            )
    return None


CLAIMS = (
    the_sum_is_everywhere,
    any_size_does,
    any_strides_do,
    any_dtype_does,
    ranks_agree,
    only_point_to_point,
    only_neighbours_talk,
    a_rank_sends_its_share,
)
