### INSTRUCTORS ONLY: this file holds answers, so it is not in the student edition
"""Wrong answers to dp.5, each with the claim that rejects it and a phrase of the finding; and right ones."""

from __future__ import annotations

from labkit.judging import ring_claims as claims

RIGHT_STEPS = """
    for step in range(n - 1):
        incoming = torch.empty_like(chunks[(rank - step - 1) % n])
        _exchange(chunks[(rank - step) % n], incoming)
        chunks[(rank - step - 1) % n] += incoming
"""
RIGHT_GATHER = """
    for step in range(n - 1):
        _exchange(chunks[(rank + 1 - step) % n], chunks[(rank - step) % n])
"""
WRITE_BACK = "tensor.copy_(flat.view(tensor.shape))"


def ring(
    flat: str = "tensor.contiguous().view(-1)",
    chunks: str = "list(flat.tensor_split(n))",
    scatter: str = RIGHT_STEPS,
    gather: str = RIGHT_GATHER,
    end: str = WRITE_BACK,
) -> str:
    """A ring_all_reduce that differs from a right one in one of its parts."""
    return f"""
@torch.no_grad()
def ring_all_reduce(tensor):
    rank, n = dist.get_rank(), dist.get_world_size()
    flat = {flat}
    chunks = {chunks}
    {scatter.strip()}
    {gather.strip()}
    {end}
"""


def instead(body: str) -> str:
    """A ring_all_reduce that does something else altogether."""
    return f"def ring_all_reduce(tensor):\n    rank, n = dist.get_rank(), dist.get_world_size()\n    {body.strip()}\n"


WHOLE_TENSOR_ROUND = """
    passing, own = tensor.clone(memory_format=torch.contiguous_format), tensor.clone()
    total = own
    for _ in range(n - 1):
        incoming = torch.empty_like(passing)
        _exchange(passing, incoming)
        total = total + incoming
        passing = incoming
    tensor.copy_(total)
"""
STAR = """
    flat = tensor.contiguous().view(-1)
    if rank == 0:
        for other in range(1, n):
            incoming = torch.empty_like(flat)
            dist.recv(incoming, other)
            flat += incoming
        for other in range(1, n):
            dist.send(flat, other)
    else:
        dist.send(flat, 0)
        dist.recv(flat, 0)
    tensor.copy_(flat.view(tensor.shape))
"""
SEND_THEN_RECEIVE = """
    for step in range(n - 1):
        incoming = torch.empty_like(chunks[(rank - step - 1) % n])
        dist.send(chunks[(rank - step) % n], (rank + 1) % n)
        dist.recv(incoming, (rank - 1) % n)
        chunks[(rank - step - 1) % n] += incoming
"""
OTHER_WAY_ROUND = """
def ring_all_reduce(tensor):
    rank, n = dist.get_rank(), dist.get_world_size()
    flat = tensor.detach().flatten().clone()
    edges = [len(flat) * chunk // n for chunk in range(n + 1)]
    part = lambda chunk: slice(edges[chunk % n], edges[chunk % n + 1])
    for step in range(2 * (n - 1)):
        there = flat[part(rank + step)].clone()
        here = torch.empty_like(flat[part(rank + step + 1)])
        receiving, sending = dist.irecv(here, (rank + 1) % n), dist.isend(there, (rank - 1) % n)
        receiving.wait()
        sending.wait()
        flat[part(rank + step + 1)] = here + (flat[part(rank + step + 1)] if step < n - 1 else 0)
    tensor.detach().copy_(flat.reshape(tensor.shape))
    return tensor
"""

WRONG = {
    "works on a copy": (
        claims.the_sum_is_everywhere,
        ring(flat="tensor.clone(memory_format=torch.contiguous_format).view(-1)", end=""),
        "as it was before: change the tensor itself",
    ),
    "gives the mean": (
        claims.the_sum_is_everywhere,
        ring(end="tensor.copy_(flat.view(tensor.shape) / n)"),
        "is the mean: ring_all_reduce gives the sum",
    ),
    "stops after reduce-scatter": (
        claims.the_sum_is_everywhere,
        ring(gather=""),
        "on rank 0 of 3, only chunk 1 is the sum",
    ),
    "adds during all-gather": (
        claims.the_sum_is_everywhere,
        ring(gather=RIGHT_STEPS.replace("rank - step", "rank + 1 - step")),
        "replace the others rather than add to them",
    ),
    "always sends its own chunk": (
        claims.the_sum_is_everywhere,
        ring(scatter=RIGHT_STEPS.replace("_exchange(chunks[(rank - step) % n]", "_exchange(chunks[rank]")),
        "of 3 chunks are the sum. Write down for three ranks",
    ),
    "leaves the remainder out": (
        claims.any_size_does,
        ring(chunks="list(flat[: len(flat) // n * n].view(n, -1))"),
        "chunks may differ by one element",
    ),
    "writes into a copy if strides are not plain": (claims.any_strides_do, ring(end=""), "with a transposed matrix"),
    "adds up in float32": (
        claims.any_dtype_does,
        ring(flat="tensor.contiguous().view(-1).float()"),
        "with 17 elements of float64, rank 0 of 3",
    ),
    "adds up in bfloat16": (
        claims.any_dtype_does,
        ring(flat="tensor.contiguous().view(-1).bfloat16()"),
        "with 17 elements of float32, rank 0 of 3",
    ),
    "each rank adds up for itself": (
        claims.ranks_agree,
        instead(WHOLE_TENSOR_ROUND),
        "they added up in different orders",
    ),
    "calls all_reduce": (
        claims.only_point_to_point,
        instead("flat = tensor.contiguous(); dist.all_reduce(flat); tensor.copy_(flat)"),
        "called all_reduce: make it of sending and receiving alone",
    ),
    "sends to rank 0": (
        claims.only_neighbours_talk,
        instead(STAR),
        "rank 0 of 4 talked to rank 2, expected its neighbours, 1 and 3",
    ),
    "sends the whole tensor": (
        claims.a_rank_sends_its_share,
        instead(WHOLE_TENSOR_ROUND),
        "sent 8000 bytes of a tensor of 4000, expected 5333",
    ),
    "sends before it receives": (
        None,
        ring(scatter=SEND_THEN_RECEIVE),
        "it did not end in time. It was at labkit/dp.py",
    ),
    "has fewer chunks than ranks": (
        None,
        ring(chunks="list(flat.chunk(n))"),
        "list index out of range (with one element more than ranks, 3 ranks) (labkit/dp.py, line ",
    ),
}
RIGHT = {"the other way round, without _exchange": OTHER_WAY_ROUND}
