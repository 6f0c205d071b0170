"""stage_assignment: a rank in the schedule, and which modules are which stages. What several ranks
do is in test_scheduled_faults."""

import pytest
import torch
from torch import nn

from labkit.parallel.stage_assignment import assign_stages, local_stages, rank_of
from labkit.schedule import gpipe, interleaved, one_f_one_b, zero_bubble_v


def test_a_ranks_modules_are_its_stages_in_ascending_order():
    a, b = nn.ReLU(), nn.Tanh()
    assert local_stages([a, b], interleaved(2, 2, 2), rank=1) == {1: a, 3: b}
    assert local_stages([a, b], zero_bubble_v(4, 4), rank=1) == {1: a, 6: b}
    assert local_stages([a], gpipe(3, 2), rank=2) == {2: a}


def test_a_sequential_is_one_stage_and_a_modulelist_is_as_many_as_are_in_it():
    layers = [nn.ReLU(), nn.Tanh()]
    plain, several = nn.Sequential(*layers), nn.ModuleList(layers)
    assert local_stages(plain, gpipe(1, 2), rank=0) == {0: plain}
    assert local_stages(several, interleaved(1, 2, 2), rank=0) == dict(enumerate(layers))


def test_the_same_module_may_be_two_stages():
    shared = nn.ReLU()
    assert local_stages([shared, shared], interleaved(1, 2, 2), rank=0) == {0: shared, 1: shared}


@pytest.mark.parametrize("n_ranks", [2, 3])
def test_without_a_process_group_there_is_one_rank(n_ranks):
    assert rank_of(interleaved(1, 4, 2)) == 0
    with pytest.raises(
        ValueError, match=f"1F1B is for {n_ranks} ranks, and there are 1 here: make it for 1, or launch with"
    ):
        rank_of(one_f_one_b(n_ranks, 4))


def test_only_the_rank_of_the_last_stage_needs_a_loss_function():
    with pytest.raises(TypeError, match="loss_fn is 'mse', expected a function of output and target"):
        assign_stages([nn.ReLU()], gpipe(1, 2), "mse")
    rank, _ = assign_stages([nn.ReLU()], gpipe(1, 2), torch.nn.functional.mse_loss)
    assert rank == 0
