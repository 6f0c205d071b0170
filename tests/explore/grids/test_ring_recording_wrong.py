### INSTRUCTORS ONLY: this file holds answers, so it is not in the student edition
"""labkit.explore.grids.ring_recording: rings that are wrong, or unusual, are shown as they are."""

from functools import partial

import torch
import torch.distributed as dist

from labkit.explore.grids.ring_panel import verdict
from labkit.explore.grids.ring_recording import record_ring
from labkit.explore.grids.rings import simulate_ring


def at_once(outgoing, incoming, to, source):
    for work in dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, outgoing, to), dist.P2POp(dist.irecv, incoming, source)]
    ):
        work.wait()


def even_ranks_send_first(outgoing, incoming, to, source):
    if dist.get_rank() % 2:
        dist.recv(incoming, source)
    dist.send(outgoing, to)
    if dist.get_rank() % 2 == 0:
        dist.recv(incoming, source)


def half_a_ring(tensor, hop=1, exchange=at_once, always_own=False):
    rank, n = dist.get_rank(), dist.get_world_size()
    chunks = tensor.tensor_split(n)
    for step in range(n - 1):
        mine = chunks[(hop * rank - step - 1) % n]
        incoming = torch.empty_like(mine)
        exchange(chunks[(hop * rank - (0 if always_own else step)) % n], incoming, (rank + hop) % n, (rank - hop) % n)
        mine += incoming


def test_one_that_stops_after_reduce_scatter_has_one_sum_a_rank():
    trace = record_ring(4, half_a_ring)
    assert (trace.states == simulate_ring("ring", 4).states[:4]).all()
    assert verdict(trace).startswith("Only 4 of 16 cells end up as the whole sum")
    assert "sends 0.75 times the tensor, less than the 1.5 that an all_reduce needs" in verdict(trace)


def test_one_that_blocks_takes_twice_the_steps():
    trace = record_ring(4, partial(half_a_ring, exchange=even_ranks_send_first))
    assert trace.n_steps == 6 and {source for step, source, _ in trace.messages if step == 0} == {0, 2}
    assert (trace.states[::2] == simulate_ring("ring", 4).states[:4]).all()
