"""What gloo would misread is refused in a rank; what it takes with gaps stays right."""

from __future__ import annotations

import re

import pytest
import torch
import torch.distributed as dist

from labkit.cost import ETHERNET_1G
from labkit.launch import workers


def with_gaps(*numbers: float) -> torch.Tensor:
    """Return these numbers, each with another behind it in memory."""
    return torch.tensor([[each, 7.0] for each in numbers])[:, 0]


def of(x, count: int = 2) -> list[torch.Tensor]:
    return [x] * count


CALLS = {
    "broadcast": lambda x, new, group: dist.broadcast(x, 0, async_op=True),
    "broadcast in a subgroup": lambda x, new, group: dist.broadcast(x, 0, group=group),
    "reduce": lambda x, new, group: dist.reduce(x, 0),
    "all_reduce": lambda x, new, group: dist.all_reduce(x),
    "all_reduce of rows": lambda x, new, group: dist.all_reduce(torch.zeros(4, 2)[::2]),
    "broadcast of one number, repeated": lambda x, new, group: dist.broadcast(torch.zeros(1).expand(4), 0),
    "broadcast conjugated": lambda x, new, group: dist.broadcast(torch.zeros(2, dtype=torch.complex64).conj().imag, 0),
    "scatter into": lambda x, new, group: dist.scatter(x, of(new) if dist.get_rank() == 0 else None),
    "reduce_scatter into": lambda x, new, group: dist.reduce_scatter(x, of(new)),
    "reduce_scatter of": lambda x, new, group: dist.reduce_scatter(new, of(x)),
    "reduce_scatter_tensor into": lambda x, new, group: dist.reduce_scatter_tensor(x, torch.zeros(4)),
    "all_to_all_single into": lambda x, new, group: dist.all_to_all_single(x, new),
    "send": lambda x, new, group: dist.isend(x, 1 - dist.get_rank()),
    "recv": lambda x, new, group: dist.irecv(x, 1 - dist.get_rank()),
    "recv in a batch": lambda x, new, group: dist.batch_isend_irecv([dist.P2POp(dist.irecv, x, 1 - dist.get_rank())]),
}


def what_is_said() -> dict[str, str]:
    group, said = dist.new_group([0, 1]), {}
    for name, call in CALLS.items():
        x, new = with_gaps(1.0, 2.0), torch.zeros(2)
        try:
            call(x, new, group)
        except ValueError as error:
            said[name] = str(error)
    return said


def taken() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return pairs of what has come and what should have."""
    rank = dist.get_rank()
    mine, both = with_gaps(rank, 10.0 + rank), torch.tensor([[0.0, 10.0], [1.0, 11.0]])
    gathered, exchanged = ([with_gaps(9.0, 9.0) for _ in range(2)] for _ in range(2))
    dist.all_gather(gathered, mine)
    if torch.__version__ >= (2, 13):  # gloo's first with an all_to_all of lists
        dist.all_to_all(exchanged, [mine, mine])
    else:
        exchanged = gathered
    on_rank_0 = [with_gaps(9.0, 9.0) for _ in range(2)] if rank == 0 else None
    dist.gather(mine, on_rank_0)
    image = torch.arange(16.0).view(1, 2, 2, 4).contiguous(memory_format=torch.channels_last)
    sent = image * (rank + 1)
    dist.all_reduce(sent)
    one = torch.full((1, 5), float(rank))[:, 0]
    dist.broadcast(one, 1)
    pairs = [(each, both) for each in (torch.stack(gathered), torch.stack(exchanged))]
    return [*pairs, (torch.stack(on_rank_0 or list(both)), both), (sent, image * 3), (one, torch.ones(1))]


@pytest.mark.parametrize("link", [None, ETHERNET_1G], ids=["", "link"])
def test_a_tensor_that_gloo_would_misread_is_refused_by_every_rank_and_any_other_arrives(link):
    with workers(link=link) as ranks:
        for said in ranks.run(what_is_said).values:
            assert said.keys() == CALLS.keys()
            for name, message in said.items():
                assert re.match(name.split(" ")[0], message) and "Give a contiguous() copy" in message, name
            assert "all_reduce: a tensor of shape (2,) and strides (2,) is not contiguous" in said["all_reduce"]
        for pairs in ranks.run(taken).values:
            for found, expected in pairs:
                assert torch.equal(found, expected)
