"""What notebook 04 reads off its steps, of steps by hand: arithmetic is the oracle."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from labkit import cost, dp
from labkit.lab import overlap
from labkit.lab.turns import take_turns
from labkit.launch import device
from labkit.trace import event_table, span


def step_of(rows):
    """Rows are (rank, name, bucket, start_s, end_s)."""
    lanes = {"all_reduce": "comm", "hand over": "host"}
    return event_table(
        (rank, lanes.get(name, "compute"), name, 0, None, None, bucket, None, start_s, end_s)
        for rank, name, bucket, start_s, end_s in rows
    )


# Backward begins after 10 s. Rank 1 calls bucket 0 two seconds late; bucket 1 is called while 0 is
# on its way, which is done after 20 s on rank 0 and 21 s on rank 1.
BY_HAND = [
    *((rank, "forward", None, 0.0, 10.0) for rank in (0, 1)),
    *((rank, "backward", None, 10.0, 19.0) for rank in (0, 1)),
    *((rank, "wait", None, 19.0, 27.0) for rank in (0, 1)),
    *((0, "hand over", k, 13.0, 13.5) for k in (0, 1)),
    (0, "all_reduce", 0, 13.0, 20.0),
    (1, "all_reduce", 0, 15.0, 21.0),
    (0, "all_reduce", 1, 18.0, 27.0),
    (1, "all_reduce", 1, 19.0, 27.0),
]


def spans(shown, name):
    chosen = shown[(shown["name"] == name) & (shown["end_s"] - shown["start_s"] > 1e-6)]
    return sorted(zip(chosen["rank"], chosen["bucket"].fillna(-1), chosen["start_s"], chosen["end_s"], strict=True))


def test_a_bucket_travels_once_all_have_called_it_and_the_one_before_is_done_and_until_then_a_rank_waits():
    shown = overlap.waiting_apart(step_of(BY_HAND))
    assert set(shown["name"]) == {"backward", "wait", "waiting", "all_reduce"}
    assert spans(shown, "all_reduce") == [(0, 0, 5, 10), (0, 1, 10, 17), (1, 0, 5, 11), (1, 1, 11, 17)]
    assert spans(shown, "waiting") == [(0, 0, 3, 5)]  # bucket 1 was called by both before 0 was done
    assert spans(shown, "backward") == [(rank, -1, 0, 9) for rank in (0, 1)]


def test_a_predicted_step_nobody_waits_in_and_it_stands_for_each_rank():
    ideal = cost.ddp_step(1.0, [4.0, 2.0], 0.0, [100, 100], [[1], [0]], 2, 0.5, 100.0)  # a bucket takes 2 s
    shown = overlap.waiting_apart(ideal, ranks=2)
    assert spans(shown, "all_reduce") == [(rank, k, 2 + 2 * k, 4 + 2 * k) for rank in (0, 1) for k in (0, 1)]
    assert spans(shown, "waiting") == [] and shown["end_s"].max() == 6


def test_bytes_are_ready_by_the_times_of_their_gradients():
    assert overlap.bytes_ready([0.3, 0.1, 0.2], [5, 7, 11]) == {0.1: 7, 0.2: 18, 0.3: 23}


def losses(model):
    tokens = torch.arange(512, device=device()).view(8, 64)
    return torch.nn.functional.cross_entropy(model(tokens).logits.mT, tokens)


def gpt2_ways():
    def step(model, finish):
        model.zero_grad()
        with span("backward"):
            (losses(model) * (1 + torch.distributed.get_rank())).backward()
        finish()
        return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])

    torch.manual_seed(0)
    alone, after = overlap.marked_gpt2(), overlap.marked_gpt2()
    after.load_state_dict(alone.state_dict())
    buckets = partial(overlap.average_buckets, after, cap_mb=0.5)
    return {"alone": partial(step, alone, lambda: None), "buckets": partial(step, after, buckets)}


@pytest.fixture(scope="module")
def trained():
    return take_turns(gpt2_ways, rounds=1, backend="gloo")


def test_the_shared_embedding_is_ready_last_and_every_gradient_within_backward(trained):
    ready_s = overlap.ready_s(trained, "alone")
    backward_s = trained.part_s("backward")["alone"].iloc[0]
    names = [name for name, _ in overlap.small_gpt2().named_parameters()]
    assert len(ready_s) == len(names) == 52 and min(ready_s) > 0
    assert names[ready_s.index(max(ready_s))] == "transformer.wte.weight"
    assert max(ready_s) < 2 * backward_s


def test_averaging_buckets_leaves_the_mean_on_all_ranks_and_sends_seven_of_half_a_mib(trained):
    """Rank 1's loss is twice rank 0's, so the mean is 1.5 times rank 0's own gradient."""
    own = trained.returned["alone"][0][-1]
    for rank in (0, 1):
        torch.testing.assert_close(trained.returned["buckets"][rank][-1], 1.5 * own, rtol=1e-4, atol=1e-7)
    (step,) = trained.steps("buckets")
    sent = step[(step["rank"] == 0) & (step["name"] == "all_reduce")]
    sizes = [parameter.nbytes for parameter in overlap.small_gpt2().parameters()]
    assert sent["bytes"].sum() == sum(sizes) and len(sent) == 7
    assert (sent["bytes"].iloc[:-1] >= dp.MIB // 2).all()
