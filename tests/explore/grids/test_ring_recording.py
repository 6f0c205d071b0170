"""labkit.explore.grids.ring_recording: what a reader's own ring did in real ranks."""

import pytest
import torch
import torch.distributed as dist
from to_do import task

from labkit.explore.grids.ring_panel import ring_cells, verdict
from labkit.explore.grids.ring_recording import RingError, record_ring
from labkit.explore.grids.rings import simulate_ring


@task("dp.5")
def test_the_answer_to_dp5_goes_round_as_in_the_picture():
    trace, ideal = record_ring(4), simulate_ring("ring", 4)
    assert (trace.states == ideal.states).all() and trace.messages == ideal.messages
    assert trace.bytes_sent == pytest.approx(ideal.bytes_sent)
    assert trace.bytes_received == pytest.approx(ideal.bytes_received)
    assert verdict(trace) == (
        "Every rank ends up with the whole sum. Step by step it is the ring of the picture. "
        "The busiest rank sends 1.5 times the tensor, the minimum of an all_reduce."
    )


def adds_twice(tensor):
    other, theirs = 1 - dist.get_rank(), torch.empty_like(tensor)
    for _ in range(2):
        requests = dist.isend(tensor.clone(), other), dist.irecv(theirs, other)
        for request in requests:
            request.wait()
        tensor += theirs


def test_what_is_no_sum_of_different_parts_is_shown_and_said():
    trace = record_ring(2, adds_twice)
    cells = [cell for cell in ring_cells(trace) if cell.vanish > 2]
    assert {(cell.name, cell.label) for cell in cells} == {("no such sum", "?")}
    assert "but 2 times rank 0's, 2 times rank 1's." in cells[0].sentence
    assert verdict(trace).startswith("None of 4 cells end up as the whole sum")


def calls_a_collective(tensor):
    dist.all_reduce(tensor)


def raises(tensor):
    raise ArithmeticError("two and two")


def waits_for_ever(tensor):
    if dist.get_rank() == 0:
        dist.recv(tensor, 1)


@pytest.mark.parametrize(
    ("ring", "reason"),
    [
        (calls_a_collective, "no message from rank to rank: it called all_reduce"),
        (raises, "it raised ArithmeticError: two and two"),
        (waits_for_ever, "it waits for ever: rank 0 is in recv of 8 float32 from rank 1 .*nobody sends"),
    ],
)
def test_what_cannot_be_shown_is_said_in_a_sentence(ring, reason):
    with pytest.raises(RingError, match=reason):
        record_ring(2, ring)
