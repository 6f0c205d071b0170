"""Emulated data-parallel steps: real sums, never faster than the link, recorded as real steps."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist
from fake_gpus import FakeGpus

from labkit.cost import Link, collective_s
from labkit.parallel import emulated_step
from labkit.parallel.emulated_step import BucketChannel, EmulatedStep
from labkit.simulate import explain_step
from labkit.trace import Recorder

LINK = Link(1e-3, 1e6, "test link")
STEP = EmulatedStep(0.004, 0.006, 0.002, (4000, 8000, 400), LINK)

# --- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make, error, message",
    [
        (lambda: EmulatedStep(forward_s=-1.0), ValueError, "forward_s is -1.0"),
        (lambda: EmulatedStep(backward_s="1"), TypeError, "backward_s is '1'"),
        (lambda: EmulatedStep(bucket_bytes=()), ValueError, "bucket_bytes is empty"),
        (lambda: EmulatedStep(bucket_bytes=(4, 6)), ValueError, r"\[1\] is 6, expected a multiple of 4"),
        (lambda: EmulatedStep(bucket_bytes=(-4,)), ValueError, r"bucket_bytes\[0\] is -4"),
        (lambda: STEP.train(rounds=0), ValueError, "rounds is 0"),
        (lambda: STEP.train(overlaps=()), ValueError, "overlaps is 0"),
    ],
)
def test_a_step_that_cannot_be_and_no_round_are_refused_by_name(make, error, message):
    with pytest.raises(error, match=message):
        make()


# --- the sums are real ----------------------------------------------------------------------------


def sums_of_two_buckets():
    tensors = [torch.arange(5, dtype=torch.float32) + dist.get_rank(), torch.full((2,), 10.0 ** dist.get_rank())]
    with ThreadPoolExecutor(1) as thread:
        channel = BucketChannel(LINK, thread)
        for each in [channel.hand_over(tensor, 0, k) for k, tensor in enumerate(tensors)]:
            each.result()
    return [tensor.tolist() for tensor in tensors]


def test_every_rank_ends_up_with_the_sum_of_all(ranks):
    assert ranks(3).run(sums_of_two_buckets).values == [[[3.0, 6.0, 9.0, 12.0, 15.0], [111.0, 111.0]]] * 3


# --- the times are those of the link --------------------------------------------------------------


@pytest.fixture(scope="module")
def run_of_three(ranks):
    return ranks(3).run(STEP.train, rounds=2)


def test_no_sum_is_done_before_the_link_would_be_and_buckets_go_one_after_the_other(run_of_three):
    events = run_of_three.events
    sent = events[events["name"] == "all_reduce"]
    assert len(sent) == 3 * 2 * 2 * 3 and sent["bytes"].tolist().count(8000) == 12
    handed_over = events[(events["name"] == "hand over") & (events["bucket"] == 0)].groupby("step")["start_s"].max()
    for step, of_step in sent.groupby("step"):
        costs_s = [collective_s("all_reduce", n_bytes, 3, LINK) for n_bytes in STEP.bucket_bytes]
        for k in range(3):
            ended = of_step[of_step["bucket"] == k]["end_s"].min()
            assert ended > handed_over[step] + sum(costs_s[: k + 1])


def test_with_overlap_the_first_bucket_leaves_during_backward_and_without_none_does(run_of_three):
    for (_, step), of_step in run_of_three.events.groupby(["rank", "step"]):
        backward = of_step[of_step["name"] == "backward"].iloc[0]
        calls = of_step[of_step["name"] == "hand over"]
        assert calls["bucket"].tolist() == [0, 1, 2]
        assert (calls["start_s"] < backward["end_s"]).all() == (step % 2 == 1)
        assert (calls["start_s"] > backward["end_s"]).all() == (step % 2 == 0)


def test_what_was_recorded_says_what_was_emulated_and_can_be_explained(run_of_three):
    events = run_of_three.events
    for said in (emulated_step.COMPUTE_NOTE, f"emulated link: {LINK}"):
        assert said in events.attrs["emulated"]
    table = explain_step(STEP.predict(3, overlap=True), events, steps=[1, 3])
    assert table["predicted_s"].sum() == pytest.approx(STEP.predict(3)["end_s"].max())
    assert table.attrs["emulated"] == events.attrs["emulated"]


def test_a_transport_that_is_slower_than_the_link_is_counted(ranks):
    too_fast = EmulatedStep(0.0, 0.0, 0.0, (400,) * 4, Link(0.0, 1e15))
    assert ranks(3).run(too_fast.train, (True,), rounds=1).values == [4, 4, 4]


# --- the prediction -------------------------------------------------------------------------------


def test_the_prediction_has_buckets_that_backward_makes_in_equal_times():
    predicted = STEP.predict(3, overlap=True)
    calls = predicted[predicted["name"] == "all_reduce"]
    assert calls["start_s"].iloc[0] == pytest.approx(0.004 + 0.002)
    assert STEP.ready_s == pytest.approx([0.002, 0.004, 0.006])
    sent_s = sum(collective_s("all_reduce", n_bytes, 3, LINK) for n_bytes in STEP.bucket_bytes)
    assert STEP.predict(3, overlap=False)["end_s"].max() == pytest.approx(0.012 + sent_s)
    assert STEP.predict(1)["end_s"].max() == pytest.approx(0.012)


def test_one_rank_sends_nothing_and_is_timed_by_the_cpus_clock_where_it_has_a_gpu(monkeypatch):
    gpus, recorder = FakeGpus(monkeypatch), Recorder()
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 1)
    recorder.start("cuda")
    before = len(gpus.events)
    assert STEP.train(rounds=1) == 0 and gpus.events[before:] == []
    names = {"forward", "backward", "wait", "optimizer", "hand over", "all_reduce"}
    assert {row[1] for row in recorder.finish()} == names
