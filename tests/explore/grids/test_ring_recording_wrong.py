### INSTRUCTORS ONLY: this file holds answers, so it is not in the student edition
"""labkit.explore.grids.ring_recording: a ring that is wrong is shown as it is."""

import torch
import torch.distributed as dist

from labkit.explore.grids.ring_panel import verdict
from labkit.explore.grids.ring_recording import record_ring
from labkit.explore.grids.rings import simulate_ring


def half_a_ring(tensor):
    rank, n = dist.get_rank(), dist.get_world_size()
    chunks = tensor.tensor_split(n)
    for step in range(n - 1):
        mine = chunks[(rank - step - 1) % n]
        incoming = torch.empty_like(mine)
        sent = dist.isend(chunks[(rank - step) % n], (rank + 1) % n)
        dist.recv(incoming, (rank - 1) % n)
        sent.wait()
        mine += incoming


def test_one_that_stops_after_reduce_scatter_has_one_sum_a_rank():
    trace = record_ring(4, half_a_ring)
    assert (trace.states == simulate_ring("ring", 4).states[:4]).all()
    assert verdict(trace).startswith("Only 4 of 16 cells end up as the whole sum")
    assert "sends 0.75 times the tensor, less than the 1.5 that an all_reduce needs" in verdict(trace)
