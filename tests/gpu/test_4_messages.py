"""Messages between ranks on GPUs print nothing of their own."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from labkit.launch import device

pytestmark = pytest.mark.gpu


def every_kind_of_message(alone):
    """Each kind once: unbatched both ways, in a batch, objects, barriers, and a barrier of a group
    with this back end alone. Gives what has come from the other rank."""
    rank, found = dist.get_rank(), []
    mine, other = torch.full((4,), float(rank), device=device()), 1 - rank
    for sender in (0, 1):
        theirs = torch.empty_like(mine)
        if rank == sender:
            dist.send(mine, other)
        else:
            dist.recv(theirs, other)
            found.append(theirs)
    theirs = torch.empty_like(mine)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, mine, other), dist.P2POp(dist.irecv, theirs, other)]):
        work.wait()
    found.append(theirs)
    dist.barrier()
    objects = [None, None]
    dist.all_gather_object(objects, rank)
    dist.barrier(dist.new_group(backend=alone))
    return [*(each.unique().tolist() for each in found), objects]


def test_a_run_with_messages_prints_nothing_of_its_own(rig, capfd, noted):
    run = rig.launch(every_kind_of_message, rig.backend)
    assert run.values == [[[1.0], [1.0], [0, 1]], [[0.0], [0.0], [0, 1]]]
    lines = [line for text in capfd.readouterr() for line in text.splitlines() if line.strip()]
    noted("lines that a run with messages printed", len(lines))
    assert lines == []
