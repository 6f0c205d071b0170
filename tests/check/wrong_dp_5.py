### INSTRUCTORS ONLY: this file holds answers, so it is not in the student edition
"""Wrong and right answers to dp.5; test_answers.py says how they are written."""

from labkit.check import dp_5 as claims
from labkit.check.calls import calls_have_ended

FLAT = "tensor.contiguous().view(-1)"
CHUNKS = "flat.tensor_split(world_size)"
GATHER = "_exchange(chunks[(rank + 1 - step) % world_size], chunks[(rank - step) % world_size])"
WRITE_BACK = "if not tensor.is_contiguous():\n        tensor.copy_(flat.view(tensor.shape))"


def instead(body: str) -> str:
    """A ring_all_reduce that does something else altogether."""
    return f"def ring_all_reduce(tensor):\n    rank, n = dist.get_rank(), dist.get_world_size()\n    {body.strip()}\n"


WHOLE_TENSOR_ROUND = instead("""
    passing, own = tensor.clone(memory_format=torch.contiguous_format), tensor.clone()
    total = own
    for _ in range(n - 1):
        incoming = torch.empty_like(passing)
        _exchange(passing, incoming)
        total = total + incoming
        passing = incoming
    tensor.copy_(total)
""")
STAR = instead("""
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
""")
ADDS = """incoming = torch.empty_like(chunks[(rank - step) % world_size])
        _exchange(chunks[(rank + 1 - step) % world_size], incoming)
        chunks[(rank - step) % world_size].add_(incoming)"""
EXCHANGE = "_exchange(outgoing, incoming)"
FORGETS_WHAT_IT_SENDS = """dist.isend(outgoing, (rank + 1) % world_size)
        dist.irecv(incoming, (rank - 1) % world_size).wait()"""
SEND_THEN_RECEIVE = """dist.send(outgoing, (rank + 1) % world_size)
        dist.recv(incoming, (rank - 1) % world_size)"""
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
    calls_have_ended: {
        "does not wait for what it sends": ("began send and never called wait()", (EXCHANGE, FORGETS_WHAT_IT_SENDS)),
    },
    claims.the_sum_is_everywhere: {
        "works on a copy": ("as it was before: change the tensor itself", (FLAT, "tensor.flatten().clone()")),
        "gives the mean": ("is the mean: ring_all", (WRITE_BACK, "tensor.copy_(flat.view(tensor.shape) / world_size)")),
        "stops after reduce-scatter": ("on rank 0 of 3, only chunk 1 is the sum", (GATHER, "break")),
        "adds during all-gather": ("replace the others rather than add to them", (GATHER, ADDS)),
        "always sends its own chunk": (
            "of 3 chunks are the sum. Write down for three ranks",
            ("outgoing, mine = chunks[(rank - step) % world_size]", "outgoing, mine = chunks[rank]"),
        ),
        "leaves the remainder out": (
            "chunks may differ by one element",
            (CHUNKS, "list(flat[: len(flat) // world_size * world_size].view(world_size, -1))"),
        ),
        "does not write the copy back": ("its elements do not lie side by side", (WRITE_BACK, "")),
        "adds up in float32": (
            "with 17 elements of float64, 3 ranks: on rank 0 of 3, it is something else than the sum: receive into",
            (FLAT, FLAT + ".float()"),
            (WRITE_BACK, "tensor.copy_(flat.view(tensor.shape))"),
        ),
    },
    claims.ranks_agree: {
        "each rank adds up for itself": ("added up in different orders", WHOLE_TENSOR_ROUND),
    },
    claims.messages_go_round_the_ring: {
        "calls all_reduce": (
            "called all_reduce: make it of sending and receiving alone",
            instead("flat = tensor.contiguous(); dist.all_reduce(flat); tensor.copy_(flat)"),
        ),
        "sends to rank 0": ("rank 0 talked to rank 2, and its only neighbours in the ring are {1, 3}", STAR),
        "sends the whole tensor": ("sent 12024 bytes of 4008, expected 6012: send a chunk in each", WHOLE_TENSOR_ROUND),
    },
    None: {
        "receives in half precision": (
            "a message of 4 bytes came for a tensor of 2. What a rank sends must have the size",
            ("incoming = torch.empty_like(mine)", "incoming = torch.empty_like(mine, dtype=torch.float16)"),
        ),
        "sends before it receives": ("it did not end in time. It was at labkit/dp.py", (EXCHANGE, SEND_THEN_RECEIVE)),
        "has fewer chunks than ranks": ("it raised IndexError: list index", (CHUNKS, "list(flat.chunk(world_size))")),
    },
}
RIGHT = {"the other way round, without _exchange": [OTHER_WAY_ROUND]}
