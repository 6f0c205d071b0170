### INSTRUCTORS ONLY: this file holds answers, so it is not in the student edition
"""labkit.explore.grids.recorded_ring: rings that are wrong, or unusual, are shown as they are."""

import numpy as np
import torch
import torch.distributed as dist

from labkit.explore.grids import rings
from labkit.explore.grids.recorded_ring import record_ring, verdict


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
    story, ideal = record_ring(4, stops_half_way), rings.follow("ring", 4)
    assert (story.states == ideal.states[:4]).all()
    said = verdict(story)
    assert said.startswith("Only 4 of 16 cells end up as the whole sum")
    assert "sends 0.75 times the tensor, less than the 1.5 that an all_reduce needs" in said


def to_the_left(tensor):
    stops_half_way(tensor, hop=-1)


def test_one_that_goes_the_other_way_round_is_the_mirror_image():
    story = record_ring(4, to_the_left)
    assert ((story.sent["source"] - 1) % 4 == story.sent["target"]).all()
    assert "every rank sends a chunk to its left neighbour" in rings.grid(story).narrate(0)


def sends_its_own_chunk_always(tensor):
    rank, n = dist.get_rank(), dist.get_world_size()
    chunks = tensor.tensor_split(n)
    for step in range(n - 1):
        mine = chunks[(rank - step - 1) % n]
        incoming = torch.empty_like(mine)
        exchange(chunks[rank], incoming)
        mine += incoming


def test_chunks_that_are_mixed_up_say_whose_they_are():
    story = record_ring(4, sends_its_own_chunk_always)
    assert (story.states[1] > 0).all() and (story.states[-1] < 0).any()
    cells = rings.grid(story).at(2).cells
    text = cells[(cells["rank"] == 0) & (cells["column"] == 2)]["sentence"].iloc[0]
    assert "but rank 0's, rank 3's of chunk 3" in text


def whole_tensors_go_round(tensor):
    passing, total = tensor.clone(), tensor.clone()
    for _ in range(dist.get_world_size() - 1):
        incoming = torch.empty_like(passing)
        exchange(passing, incoming)
        total += incoming
        passing = incoming
    tensor.copy_(total)


def test_whole_tensors_that_go_round_are_the_naive_ring_though_the_sum_is_written_last():
    story, naive = record_ring(4, whole_tensors_go_round), rings.follow("naive ring", 4)
    columns = ["step", "source", "target", "column"]
    assert story.sent.sort_values(columns, ignore_index=True).equals(naive.sent.sort_values(columns, ignore_index=True))
    assert (story.states[-1] == 15).all() and (story.states[:-1] == naive.states[0]).all()
    assert "3 times the tensor, 2 times the least" in verdict(story)


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
    story = record_ring(4, even_ranks_send_first)
    assert story.n_steps == 6
    assert np.unique(story.sent["source"][story.sent["step"] == 0]).tolist() == [0, 2]
    assert (story.states[::2] == rings.follow("ring", 4).states[:4]).all()
