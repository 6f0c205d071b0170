### INSTRUCTORS ONLY: this file holds answers, so it is not in the student edition
"""labkit.explore.grids.recorded_ring: rings that are wrong, or unusual, are shown as they are."""

import torch
import torch.distributed as dist

from labkit.explore.grids.recorded_ring import record_ring
from labkit.explore.grids.ring_panel import ring_cells, ring_panel, verdict
from labkit.explore.grids.rings import simulate_ring


def exchange(outgoing, incoming, hop=1):
    rank, n = dist.get_rank(), dist.get_world_size()
    ends = [dist.P2POp(dist.isend, outgoing, (rank + hop) % n), dist.P2POp(dist.irecv, incoming, (rank - hop) % n)]
    for work in dist.batch_isend_irecv(ends):
        work.wait()


def stops_half_way(tensor, hop=1):
    rank, n = hop * dist.get_rank(), dist.get_world_size()
    chunks = tensor.tensor_split(n)
    for step in range(n - 1):
        mine = chunks[(rank - step - 1) % n]
        incoming = torch.empty_like(mine)
        exchange(chunks[(rank - step) % n], incoming, hop)
        mine += incoming


def test_one_that_stops_after_reduce_scatter_has_one_sum_a_rank():
    trace, ideal = record_ring(4, stops_half_way), simulate_ring("ring", 4)
    assert (trace.states == ideal.states[:4]).all()
    said = verdict(trace)
    assert said.startswith("Only 4 of 16 cells end up as the whole sum")
    assert "sends 0.75 times the tensor, less than the 1.5 that an all_reduce needs" in said


def to_the_left(tensor):
    stops_half_way(tensor, hop=-1)


def test_one_that_goes_the_other_way_round_is_the_mirror_image():
    trace = record_ring(4, to_the_left)
    assert all((source - 1) % 4 == target for _, source, target in trace.messages)
    assert "every rank sends a chunk to its left neighbour" in ring_panel(trace, 1).narrate(0)


def sends_its_own_chunk_always(tensor):
    rank, n = dist.get_rank(), dist.get_world_size()
    chunks = tensor.tensor_split(n)
    for step in range(n - 1):
        mine = chunks[(rank - step - 1) % n]
        incoming = torch.empty_like(mine)
        exchange(chunks[rank], incoming)
        mine += incoming


def test_chunks_that_are_mixed_up_say_whose_they_are():
    trace = record_ring(4, sends_its_own_chunk_always)
    now = {(cell.rank, cell.column): cell.sentence for cell in ring_cells(trace) if cell.appear <= 2 < cell.vanish}
    assert "but rank 0's, rank 3's of chunk 3" in now[0, 2]


def whole_tensors_go_round(tensor):
    passing, total = tensor.clone(), tensor.clone()
    for _ in range(dist.get_world_size() - 1):
        incoming = torch.empty_like(passing)
        exchange(passing, incoming)
        total += incoming
        passing = incoming
    tensor.copy_(total)


def test_whole_tensors_that_go_round_are_the_naive_ring_though_the_sum_is_written_last():
    trace, naive = record_ring(4, whole_tensors_go_round), simulate_ring("naive ring", 4)
    assert trace.messages == naive.messages
    assert (trace.states[-1] == 15).all() and (trace.states[:-1] == naive.states[0]).all()
    assert "3 times the tensor, 2 times the least" in verdict(trace)


def even_ranks_send_first(tensor):
    rank, n = dist.get_rank(), dist.get_world_size()
    chunks = tensor.tensor_split(n)
    for step in range(n - 1):
        mine = chunks[(rank - step - 1) % n]
        incoming = torch.empty_like(mine)
        for sends in (True, False) if rank % 2 == 0 else (False, True):
            if sends:
                dist.send(chunks[(rank - step) % n], (rank + 1) % n)
            else:
                dist.recv(incoming, (rank - 1) % n)
        mine += incoming


def test_one_that_blocks_takes_twice_the_steps():
    trace = record_ring(4, even_ranks_send_first)
    assert trace.n_steps == 6
    assert {source for step, source, _ in trace.messages if step == 0} == {0, 2}
    assert (trace.states[::2] == simulate_ring("ring", 4).states[:4]).all()
