"""Messages between ranks on GPUs: what they print, unequal numbers of them, and which GPUs an
environment shows to ranks."""

from __future__ import annotations

import os

import pytest
import torch
import torch.distributed as dist

from labkit.launch import device, launch

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


def neighbours_exchange():
    """A batch of a send and a receive with each neighbour, so ranks in the middle have two batches.
    Gives the process, and the sum of what came."""
    rank, total = dist.get_rank(), torch.ones(1, device=device())
    dist.all_reduce(total)  # a batch may be a group's first call only where all ranks join in
    mine, total = torch.full((1,), float(rank), device=device()), torch.zeros(1, device=device())
    for lower in range(dist.get_world_size() - 1):
        if rank in (lower, lower + 1):
            other, theirs = 2 * lower + 1 - rank, torch.empty_like(mine)
            batch = [dist.P2POp(dist.isend, mine, other), dist.P2POp(dist.irecv, theirs, other)]
            for work in dist.batch_isend_irecv(batch):
                work.wait()
            total += theirs
    return os.getpid(), total.item()


def test_warm_ranks_with_unequal_numbers_of_messages_stay(rig, capsys):
    with rig.workers(3) as ranks:
        first, second = (ranks.run(neighbours_exchange).values for _ in range(2))
    assert first == second and [total for _, total in first] == [1.0, 2.0, 1.0]
    assert "out of step" not in capsys.readouterr().out


def step_on_own_device():
    """A backward pass, on this rank's device."""
    layer = torch.nn.Linear(2, 2, device=device())
    layer(torch.ones(1, 2, device=device())).sum().backward()
    return layer.weight.grad.device.type, torch.cuda.is_available()


def test_cuda_visible_devices_counts_as_it_is_at_each_launch(monkeypatch, capfd):
    shown = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
    for value, backend, expected in (
        (shown, "nccl", ("cuda", True)),
        ("", "gloo", ("cpu", False)),
        (shown, "nccl", ("cuda", True)),
    ):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
        run = launch(step_on_own_device, world_size=1)
        assert (run.backend, run.values) == (backend, [expected])
    assert capfd.readouterr().err == ""
