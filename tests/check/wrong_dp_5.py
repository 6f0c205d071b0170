### INSTRUCTORS ONLY: this file holds answers, so it is not in the student edition
"""Wrong and right answers to dp.5; test_answers.py says how they are written."""

from labkit.check import dp_5 as claims
from labkit.check.calls import calls_have_ended

FLAT = "tensor.contiguous().view(-1)"
CHUNKS = "flat.tensor_split(world_size)"
WITHOUT_REMAINDER = "flat[: len(flat) // world_size * world_size]"
EXCHANGE = "_exchange(outgoing, incoming)"
SEND_THEN_RECEIVE = "dist.{}(outgoing, (rank + 1) % world_size)\n        dist.recv(incoming, (rank - 1) % world_size)"
GATHER = "_exchange(chunks[(rank + 1 - step) % world_size], chunks[(rank - step) % world_size])"
GATHER_FROM_ALL = """sending = dist.isend(chunks[(rank + 1) % world_size], (rank + 1 + step) % world_size)
        dist.recv(chunks[(rank - step) % world_size], (rank - 1 - step) % world_size)
        sending.wait()"""
WRITE_BACK = "if not tensor.is_contiguous():\n        tensor.copy_(flat.view(tensor.shape))"
ALWAYS_WRITE_BACK = (WRITE_BACK, "tensor.copy_(flat.view(tensor.shape))")
WHOLE_TENSOR_ROUND = """
def ring_all_reduce(tensor):
    passing, total = tensor.contiguous(), tensor.clone()
    for _ in range(dist.get_world_size() - 1):
        incoming = torch.empty_like(passing)
        _exchange(passing, incoming)
        total += incoming
        passing = incoming
    tensor.copy_(total)
"""
ALL_REDUCE = f"{FLAT}\n    dist.all_reduce(flat)\n    return tensor.copy_(flat.view(tensor.shape))"
EXCHANGE_WITH_THE_LEFT = """
def _exchange(outgoing, incoming):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    receiving = dist.irecv(incoming, (rank + 1) % world_size)
    dist.send(outgoing, (rank - 1) % world_size)
    receiving.wait()
"""

WRONG = {
    calls_have_ended: {
        "does not wait for what it sends": ("began send and never", (EXCHANGE, SEND_THEN_RECEIVE.format("isend")))
    },
    claims.the_sum_is_everywhere: {
        "works on a copy": ("as it was before, though what was sent is right", (FLAT, "tensor.flatten().clone()")),
        "gives the mean": (
            "the tensor is the mean, expected the sum",
            (WRITE_BACK, "tensor.copy_(flat.view(tensor.shape) / world_size)"),
        ),
        "stops after reduce-scatter": ("on rank 0 of 3, only chunk 1 is the sum", (GATHER, "break")),
        "always sends its own chunk": (
            "in step 2 of the reduce-scatter half, rank 0 of 3 sent chunk 0 with the part of rank 0 alone",
            ("= chunks[(rank - step) % world_size]", "= chunks[rank]"),
        ),
        "does not add in place": (
            "sent chunk 2 with the part of rank 0 alone, expected a chunk with the parts of 2 ranks. What it had received",
            ("mine += incoming", "mine = mine + incoming"),
        ),
        "replaces where it should add": (
            "part of rank 2 alone, expected",
            ("mine += incoming", "mine.copy_(incoming)"),
        ),
        "passes on the wrong chunk in the second half": (
            "in step 1 of the all-gather half, rank 0 of 3 sent chunk 0 with the part of rank 0 alone",
            (GATHER, GATHER.replace("(rank + 1 - step)", "(rank - step)")),
        ),
        "spoils what arrives last": (
            "chunk 2 is numbers that no rank had, though what was sent is right",
            (GATHER, f"{GATHER}\n    chunks[(rank + 2) % world_size].fill_(-1)"),
        ),
        "knows four ranks": (
            "(drawn with seed=",
            ("range(world_size - 1):  # reduce-scatter", "range(min(3, world_size - 1)):  # reduce-scatter"),
        ),
        "leaves the remainder out": ("may differ by one", (CHUNKS, CHUNKS.replace("flat", WITHOUT_REMAINDER))),
        "does not write the copy back": ("its elements do not lie side by side", (WRITE_BACK, "")),
        "adds up in float32": ("float64, 3 ranks: on rank 0", (FLAT, FLAT + ".float()"), ALWAYS_WRITE_BACK),
    },
    claims.ranks_agree: {"each rank adds up for itself": ("added up in different orders", WHOLE_TENSOR_ROUND)},
    claims.messages_go_round_the_ring: {
        "calls all_reduce": ("called all_reduce: make it of sending and receiving alone", (FLAT, ALL_REDUCE)),
        "sends to rank 0": ("and its only neighbours in the", (GATHER, GATHER_FROM_ALL)),
    },
    None: {
        "receives in half precision": (
            "a message of 4 bytes came for a tensor of 2. What a rank sends must have the size",
            ("incoming = torch.empty_like(mine)", "incoming = torch.empty_like(mine, dtype=torch.float16)"),
        ),
        "sends before it receives": (
            "all ranks are in `send`, nobody receives",
            (EXCHANGE, SEND_THEN_RECEIVE.format("send")),
        ),
    },
}
RIGHT = {"the other way round": [("= dist.get_rank(),", "= -dist.get_rank(),"), EXCHANGE_WITH_THE_LEFT]}
BY_HAND = """works = [dist.isend(outgoing, (rank + 1) % world_size), dist.irecv(incoming, (rank - 1) % world_size)]
        for work in works:
            work.wait()"""
RIGHT |= {"sends and receives by hand": [(EXCHANGE, BY_HAND)]}
