"""The sums by hand are sums, for any number of ranks."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from labkit.lab.all_reduces import sum_by_server, sum_by_tree
from labkit.launch import launch


def by_hand_and_by_gloo(way):
    by_hand = torch.arange(5) * (dist.get_rank() + 1)
    by_gloo = by_hand.clone()
    way(by_hand)
    dist.all_reduce(by_gloo)
    return by_hand.tolist(), by_gloo.tolist()


@pytest.mark.parametrize("way", [sum_by_server, sum_by_tree])
@pytest.mark.parametrize("world_size", [1, 5])
def test_every_rank_ends_up_with_the_sum_that_gloo_gives(way, world_size):
    for by_hand, by_gloo in launch(by_hand_and_by_gloo, way, world_size=world_size).values:
        assert by_hand == by_gloo
