### INSTRUCTORS ONLY: this file holds answers, so it is not in the student edition
"""labkit.explore.grids.ring_recording: rings that are wrong, or unusual, are shown as they are."""

from functools import partial

import torch
import torch.distributed as dist

from labkit.explore.grids.ring_panel import ring_cells, ring_panel, verdict
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


def test_one_that_goes_the_other_way_round_is_the_mirror_image():
    trace = record_ring(4, partial(half_a_ring, hop=-1))
    assert all((source - 1) % 4 == target for _, source, target in trace.messages)
    assert "every rank sends a chunk to its left neighbour" in ring_panel(trace, 1).narrate(0)


def test_chunks_that_are_mixed_up_say_whose_they_are():
    trace = record_ring(4, partial(half_a_ring, always_own=True))
    now = {(cell.rank, cell.column): cell.sentence for cell in ring_cells(trace) if cell.appear <= 2 < cell.vanish}
    assert "but rank 0's, rank 3's of chunk 3" in now[0, 2]


def test_one_that_blocks_takes_twice_the_steps():
    trace = record_ring(4, partial(half_a_ring, exchange=even_ranks_send_first))
    assert trace.n_steps == 6 and {source for step, source, _ in trace.messages if step == 0} == {0, 2}
    assert (trace.states[::2] == simulate_ring("ring", 4).states[:4]).all()
