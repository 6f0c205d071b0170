"""What each notebook ends on, if no other test says so: nbval compares no number that stands in
brackets.

Bytes, counts and orders of events. Where times are compared (04, 09, 10) ranks sleep instead of
computing, and the quickest step of each way counts.
"""

from __future__ import annotations

import time
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from labkit import cost, dp, shard
from labkit.guess import calibration, guess
from labkit.guesses import store
from labkit.guesses.calibration import terms_left_out
from labkit.lab import sharding
from labkit.lab.turns import take_turns
from labkit.launch import launch
from labkit.parallel.emulated import EmulatedStage
from labkit.pipe import ScheduledPipeline
from labkit.schedule import Schedule, gpipe, one_f_one_b, zero_bubble_h1
from labkit.simulate import bubble_fraction, makespan, simulate, steps_of
from labkit.trace import set_step, span, traffic

counts_bytes = pytest.mark.skipif(not traffic.available(), reason="needs Linux 4.19 or newer")


@pytest.fixture(scope="module")
def four(ranks):
    return ranks(4)


@pytest.fixture(scope="module")
def two(ranks):
    return ranks(2)


# --- 00 -------------------------------------------------------------------------------------------


def joins_late(late: int) -> None:
    if dist.get_rank() == late:
        time.sleep(0.05)
    with span("all_reduce"):
        dist.all_reduce(torch.ones(1))


@pytest.mark.parametrize("late", [0, 3])
def test_00_all_reduce_returns_on_no_rank_until_every_rank_has_joined(four, late):
    calls = four.run(joins_late, late).events
    assert len(calls) == 4 and calls.end_s.min() >= calls.start_s.max()


# --- 02, 05 ---------------------------------------------------------------------------------------

NUMBERS = 240_000  # float32: of a tensor, or of a model's gradients


def sent(sync_gradients) -> int:
    model = nn.Linear(NUMBERS, 1, bias=False)
    model.weight.grad = torch.ones_like(model.weight)
    sync_gradients(model)  # connects, which sends something too
    dist.barrier()
    with traffic.observe() as seen:
        sync_gradients(model)
    return seen.sent_bytes


def around_the_ring(model: nn.Module) -> None:
    dp.ring_all_reduce(model.weight.grad)


@counts_bytes
def test_02_around_a_ring_each_rank_sends_twice_three_quarters_of_the_tensor(four):
    each = four.run(sent, around_the_ring).values
    assert each == pytest.approx([2 * 3 / 4 * 4 * NUMBERS] * 4, rel=0.02)


@counts_bytes
def test_05_gather_and_scatter_send_three_gradients_from_rank_0_an_all_reduce_one_and_a_half_from_each(four):
    through_rank_0 = four.run(sent, dp.gather_scatter_gradients).values
    with_all_reduce = four.run(sent, dp.average_gradients).values
    assert through_rank_0 == pytest.approx([3 * 4 * NUMBERS, *[4 * NUMBERS] * 3], rel=0.02)
    assert with_all_reduce == pytest.approx([1.5 * 4 * NUMBERS] * 4, rel=0.05)


# --- 04 -------------------------------------------------------------------------------------------

LAYERS, LAYER_S, BUCKET_S = 4, 0.03, 0.03
LINK = cost.Link(0.001, 4 * 10_000 / (BUCKET_S - 2 * 0.001))  # two latencies and a layer's bytes take BUCKET_S


class SlowBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        return x + weight.sum()

    @staticmethod
    def backward(ctx, dy):
        time.sleep(LAYER_S)
        return dy, torch.ones(10_000)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(10_000))

    def forward(self, x):
        return SlowBackward.apply(x, self.weight)


def quickest_steps_s(steps: int = 4) -> dict[str, float]:
    """Return the seconds of backward and wait, with overlap and with the same buckets after it."""
    times: dict[str, list[float]] = {"overlap": [], "after backward": []}
    model = nn.Sequential(*(Layer() for _ in range(LAYERS)))
    wrapped = dp.BucketedDataParallel(model, bucket_cap_mb=0.03)
    later = nn.Sequential(*(Layer() for _ in range(LAYERS)))
    for _ in range(steps):
        for way, trained, sync_gradients in (
            ("overlap", wrapped, wrapped.finish_gradient_synchronization),
            ("after backward", later, lambda: dp.average_gradients(later)),
        ):
            dist.barrier()
            began = time.perf_counter()
            trained(torch.zeros(1, requires_grad=True)).sum().backward()
            sync_gradients()
            times[way].append(time.perf_counter() - began)
    return {way: min(each) for way, each in times.items()}


def test_04_overlap_is_quicker_than_the_same_buckets_after_backward_by_what_is_predicted():
    measured = launch(quickest_steps_s, world_size=2, link=LINK, threads=1, timeout_s=60).values[0]
    ready_s, sizes, alone = [LAYER_S * (i + 1) for i in range(LAYERS)], [40_000] * LAYERS, [[i] for i in range(LAYERS)]
    link = LINK.latency_s, LINK.bytes_per_s
    predicted = {
        way: makespan(cost.ddp_step(0.0, ready_s, 0.0, sizes, alone, 2, *link, overlap=way == "overlap"))
        for way in measured
    }
    assert predicted == pytest.approx({"overlap": 5 * 0.03, "after backward": 8 * 0.03})
    assert measured["overlap"] / measured["after backward"] == pytest.approx(5 / 8, rel=0.15)


# --- 06 -------------------------------------------------------------------------------------------


def kept_and_sent(shares: bool) -> tuple[int, int]:
    """Return the parameter bytes that a rank keeps between steps, and what it sends in a step."""
    from torch.distributed.fsdp import fully_shard

    model = nn.Sequential(nn.Linear(200, 300), nn.ReLU(), nn.Linear(300, 200))
    wrapped = fully_shard(model) if shares else nn.parallel.DistributedDataParallel(model)

    def step() -> None:
        wrapped(torch.ones(2, 200)).sum().backward()

    step(), step()
    dist.barrier()
    with traffic.observe() as seen:
        step()
    local = [getattr(p, "to_local", lambda p=p: p)() for p in wrapped.parameters()]
    return sum(each.nbytes for each in local), seen.sent_bytes


@counts_bytes
def test_06_fsdp2_keeps_a_share_of_what_ddp_keeps_on_all_ranks_and_pays_by_sending_parameters(four):
    replicated, replicated_sent = four.run(kept_and_sent, False).values[0]
    kept, sharded_sent = zip(*four.run(kept_and_sent, True).values, strict=True)
    assert sum(kept) == replicated and max(kept) == replicated / 4
    # 3 halves of an all_reduce over NCCL, 4 over gloo, whose reduce_scatter is a whole all_reduce
    assert 1.45 < min(sharded_sent) / replicated_sent < 2.05


# --- 07 -------------------------------------------------------------------------------------------

PSI = 8 * (256 * 256 + 256)  # parameters of the network
STEPS_TAKEN = 4 * 16  # bytes: Adam counts the steps of each parameter


def step(model, optimizer, sync, rows) -> None:
    model(rows).square().mean().backward()
    sync()
    optimizer.step()
    optimizer.zero_grad()


def data_parallel(model):
    model = DistributedDataParallel(model, bucket_cap_mb=0.25)
    return model, torch.optim.AdamW(model.parameters()), lambda: None


def shard_1(model):
    model = DistributedDataParallel(model, bucket_cap_mb=0.25)
    return model, shard.ShardedOptimizer(model.parameters(), torch.optim.AdamW), lambda: None


def shard_2(model, kind=shard.ShardedModel, **options):
    model = kind(model, **options)
    return model, torch.optim.AdamW(model.parameters()), model.finish_gradient_synchronization


def torch_zero(model):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = DistributedDataParallel(model, bucket_cap_mb=0.25)
    return model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW), lambda: None


def torch_fsdp(model):
    from torch.distributed.fsdp import fully_shard

    for part in (*model, model):
        fully_shard(part)
    return model, torch.optim.AdamW(model.parameters()), lambda: None


def tensor_parallel(mlp):
    first, relu, second = mlp
    model = nn.Sequential(shard.ColumnParallelLinear(first), relu, shard.RowParallelLinear(second))
    return model, torch.optim.AdamW(model.parameters()), lambda: None


class NeverFreed(shard.ShardedModel):
    def _let_go(self, unit):
        unit.use_shard()


class KeptAfterForward(shard.ShardedModel):
    def _let_go(self, unit):
        if self._backward_ran:
            super()._let_go(unit)


def peak(run) -> int:
    return max(moments.alive.max() for moments in run.values)


def test_07_at_the_peak_live_16_bytes_per_parameter_10_with_a_sharded_optimizer_and_a_third_with_fsdp(four):
    plain = 16 * PSI + STEPS_TAKEN
    assert peak(four.run(sharding.two_steps, step, data_parallel)) == plain
    assert peak(four.run(sharding.two_steps, step, shard_1)) == pytest.approx(10 * PSI, rel=0.001)
    assert 1 / 4 < peak(four.run(sharding.two_steps, step, shard_2)) / plain < 0.36


def test_07_with_many_rows_14_mib_last_for_the_first_step_alone_and_for_both_with_a_sharded_optimizer(four):
    plain, sharded = (four.run(sharding.two_steps, step, way, 1024).values[0].alive for way in (data_parallel, shard_1))
    assert plain[:2.9].max() < 14 * 2**20 < plain.max() and sharded.max() < 14 * 2**20


@counts_bytes
@pytest.mark.parametrize(("way", "times"), [(data_parallel, 2), (shard_1, 3), (shard_2, 4)])
def test_07_sharding_the_optimizer_behind_an_all_reduce_sends_half_as_much_again(four, way, times):
    # with shard.2 gloo's reduce_scatter counts twice
    assert sum(four.run(sharding.sent_bytes, step, way).values) == pytest.approx(times * 3 * 4 * PSI, rel=0.02)


def test_07_memory_that_is_never_freed_shows_in_the_memory_alone_and_layers_kept_after_forward_save_gathers(two):
    ways = {kind.__name__: partial(shard_2, kind=kind) for kind in (shard.ShardedModel, NeverFreed, KeptAfterForward)}
    runs = {name: two.run(sharding.two_steps, step, way) for name, way in ways.items()}
    right, never_freed, kept = runs.values()
    assert min(peak(never_freed), peak(kept)) > 1.3 * peak(right)
    mib = sharding.travelling_mib(runs).to_numpy().tolist()
    weights = round(4 * PSI / 2**20, 2)
    assert [gathered for gathered, _ in mib] == pytest.approx([2 * weights, 2 * weights, weights], abs=0.01)
    assert [scattered for _, scattered in mib] == [weights] * 3


def prefetching(forward_s):
    ways = {"FSDP": shard_2, "prefetching": partial(shard_2, prefetch=True)}
    rows = sharding.own_rows(8)
    return {name: partial(step, *way(sharding.sleeping_network(forward_s)), rows) for name, way in ways.items()}


def test_07_a_gather_begins_after_the_pass_before_it_and_with_prefetching_with_it(two):
    steps = sharding.gathers(take_turns(partial(prefetching, 0.02), rounds=1, ranks=two), "FSDP", "prefetching")
    for way, events in steps.items():
        passes = events[events["lane"] == "compute"].sort_values("start_s")
        gathers = events[events["lane"] == "comm"].sort_values("start_s")
        assert passes["bucket"].tolist() == gathers["bucket"].tolist() == [0, 1, 2, 3, 3, 2, 1, 0]
        meanwhile = (gathers["start_s"].to_numpy()[1:] < passes["end_s"].to_numpy()[:-1]).tolist()
        turn = 3  # the layer that is last in forward is first in backward
        assert meanwhile == [way == "prefetching" and place != turn for place in range(7)]


def test_07_torchs_own_compute_the_same_and_have_no_lower_a_peak(two):
    ways = data_parallel, shard_1, torch_zero, shard_2, torch_fsdp
    peaks, outputs = zip(
        *(two.run(sharding.peak_and_output, step, way).values[0].values() for way in ways), strict=True
    )
    assert outputs == pytest.approx([outputs[0]] * 5, rel=1e-5)
    plain, own_zero, zero, own_fsdp, fsdp = peaks
    assert own_zero <= zero < plain and own_fsdp < 1.1 * fsdp < own_zero


def moved(way, n_rows):
    step(*way(sharding.mlp()), torch.ones(n_rows, 128, requires_grad=True))


def test_07_fsdp_and_tensor_parallelism_send_the_same_at_six_times_the_width_of_tokens(two):
    bytes_of = {}
    for way, rows in {tensor_parallel: 6 * 128, shard_2: 6 * 128 // 2}.items():
        events = two.run(moved, way, rows).events
        bytes_of[way] = events[(events["rank"] == 0) & (events["lane"] == "comm")].groupby("name").bytes.sum()
    tensor = 2 * bytes_of[tensor_parallel]["all_reduce"]  # a reduce_scatter and an all_gather each
    assert tensor == pytest.approx(bytes_of[shard_2].sum(), rel=0.01)


# --- 08 -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "m"), [(2, 4), (4, 8), (8, 8)])
def test_08_the_bubble_is_what_n_and_m_make_it_and_a_split_backward_pass_fills_a_part_of_it(n, m):
    plain, one_f, split = (bubble_fraction(simulate(made(n, m))) for made in (gpipe, one_f_one_b, zero_bubble_h1))
    assert plain == one_f == pytest.approx((n - 1) / (m + n - 1)) and split < one_f


# --- 09, 10 ---------------------------------------------------------------------------------------


def sleeping_steps(schedule: Schedule, steps: int = 5) -> float | None:
    """Train stages that sleep 40 ms a batch for each of F, I and W; return the last rank's loss."""
    quarter_s = 0.01 * 4 / schedule.n_micro
    pipeline = ScheduledPipeline([EmulatedStage(*[quarter_s] * 3)], schedule, nn.functional.mse_loss)
    for number in range(steps):
        set_step(number)
        loss = pipeline.step(torch.ones(8, 2), torch.zeros(8, 2))
    return None if loss is None else loss.item()


def ran(ranks, schedule: Schedule) -> tuple[float, list]:
    run = ranks.run(sleeping_steps, schedule)
    return run.values[-1], steps_of(run.events)


def test_09_a_schedule_with_less_bubble_is_done_sooner(four):
    zero_bubble, plain = zero_bubble_h1(4, 4), one_f_one_b(4, 4)
    drawn = makespan(simulate(zero_bubble)) / makespan(simulate(plain))
    quickest_s = [min(map(makespan, ran(four, each)[1])) for each in (zero_bubble, plain)]
    assert drawn < 0.75 and 0.9 * drawn < quickest_s[0] / quickest_s[1] < 1


def test_10_model_parallel_gains_no_time_and_a_pipeline_is_the_same_training_with_both_devices_at_work(two):
    (loss, uncut), (same_loss, in_quarters) = (ran(two, gpipe(2, m)) for m in (1, 4))
    assert same_loss == pytest.approx(loss)
    assert min(map(bubble_fraction, uncut)) >= 0.5  # one device always waits
    assert min(map(bubble_fraction, in_quarters)) < 0.4  # drawn: 1 of 5


# --- 13 -------------------------------------------------------------------------------------------


def test_13_a_guess_that_is_far_off_is_told_which_term_it_left_out(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("LABKIT_ANSWERS", str(tmp_path))
    monkeypatch.delenv(store.KEPT, raising=False)
    monkeypatch.delenv("LABKIT_STATIC", raising=False)
    hidden = guess("hidden", "What fraction hides?", low=0.0, high=1.0)
    hidden.give(0.0)
    hidden.feedback(0.72, as_if={"if nothing overlapped": (0.0, "overlap")})
    assert "if nothing overlapped" in capsys.readouterr().out
    counts = terms_left_out(calibration())
    assert counts[counts.guesses > 0].to_numpy().tolist() == [["what goes on at the same time", 1.0]]
