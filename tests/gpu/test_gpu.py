"""On real GPUs: NCCL, several ranks on one GPU, CUDA used before, spans on the stream, gradients
averaged, pipelines."""

import copy
import gc
import math
import socket
import statistics
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from labkit import dp, models, pipe
from labkit.explore.schedules.measure import run_schedule
from labkit.launch import device, launch
from labkit.parallel.stage import Stage
from labkit.schedule import Op, Schedule, gpipe, interleaved, one_f_one_b, zero_bubble_h1, zero_bubble_v
from labkit.simulate import makespan, simulate
from labkit.simulate.measures import peak_activations
from labkit.trace import record, span
from labkit.train import TranslateConfig, metrics, translate
from labkit.train.digits_task import DigitsConfig, train_digits
from labkit.train.entailment import Example
from labkit.train.glue_task import GlueConfig, glue, load_glue
from labkit.train.translation import EOS_DE_ID, generate

pytestmark = pytest.mark.gpu


def all_reduce():
    x = torch.full((1000,), float(dist.get_rank() + 1), device=device())
    dist.all_reduce(x)
    return x[0].item(), x.device.type


def test_one_rank_runs_on_nccl():
    run = launch(all_reduce, world_size=1)
    assert (run.backend, run.devices, run.values) == ("nccl", ["cuda:0"], [(1.0, "cuda")])


def collectives():
    """all_reduce, broadcast, and a message around the ring, each checked against arithmetic."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    total = torch.full((1 << 20,), float(rank + 1), device=device())
    dist.all_reduce(total)
    sent = torch.full((5,), float(rank), device=device())
    dist.broadcast(sent, src=world_size - 1)
    received = torch.empty(3, device=device())
    mine = torch.full((3,), float(rank), device=device())
    ring = [
        dist.P2POp(dist.isend, mine, (rank + 1) % world_size),
        dist.P2POp(dist.irecv, received, (rank - 1) % world_size),
    ]
    for work in dist.batch_isend_irecv(ring):
        work.wait()
    return total.unique().tolist(), sent.unique().tolist(), received.unique().tolist()


@pytest.mark.parametrize("world_size", [2, 4])
def test_several_nccl_ranks_share_one_gpu_and_compute_what_is_right(world_size):
    run = launch(collectives, world_size=world_size, share_gpu=True, timeout_s=120)
    assert run.backend == "nccl"
    total = world_size * (world_size + 1) / 2
    assert run.values == [([total], [world_size - 1.0], [float((rank - 1) % world_size)]) for rank in range(world_size)]
    if world_size > torch.cuda.device_count():
        assert "shared, for correctness only" in run.header


def test_cuda_used_in_the_notebook_first_is_no_obstacle():
    assert torch.ones(3, device="cuda").sum().item() == 3
    assert launch(all_reduce, world_size=1).values == [(1.0, "cuda")]


def test_tensors_and_modules_come_back_on_the_cpu():
    def make():
        model = torch.nn.Linear(2, 2, device=device())
        return model.weight, model, {"x": torch.ones(2, device=device(), dtype=torch.bfloat16)}

    weight, model, values = launch(make, world_size=1).values[0]
    assert {weight.device.type, next(model.parameters()).device.type, values["x"].device.type} == {"cpu"}
    assert isinstance(weight, torch.nn.Parameter) and values["x"].dtype == torch.bfloat16


def long_multiplication():
    x = torch.randn(4096, 4096, device=device())
    torch.cuda.synchronize()
    begin = time.perf_counter()
    with span("multiply"):
        for _ in range(100):
            x = x @ x / 64
    queued_s = time.perf_counter() - begin
    torch.cuda.synchronize()
    return queued_s, time.perf_counter() - begin


def test_a_span_is_timed_on_the_stream_and_never_synchronises():
    run = launch(long_multiplication, world_size=1)
    (queued_s, done_s), event = run.values[0], run.events.iloc[0]
    assert queued_s < 0.5 * done_s  # the block was left long before the GPU was done
    assert event.end_s - event.start_s == pytest.approx(done_s, rel=0.1)


def test_spans_in_the_notebook_are_timed_on_the_stream_too():
    torch.ones(1, device="cuda")
    with record() as recording:
        queued_s, done_s = long_multiplication()
    event = recording.events.iloc[0]
    assert queued_s < 0.5 * done_s
    assert event.end_s - event.start_s == pytest.approx(done_s, rel=0.2)


def batch_times(sizes, repeats=9):
    """What notebook 00 draws against the size of a batch: the forward pass of two layers."""
    layers = torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512)
    model = torch.nn.Sequential(*layers).to(device())
    for size in sizes:
        rows = torch.randn(size, 512, device=device())
        for _ in range(repeats):
            with span("batch", step=size), torch.no_grad():
                model(rows)


def test_on_a_gpu_a_big_batch_costs_far_less_than_its_rows_one_by_one(measured):
    sizes = [2**i for i in range(16)]
    events = launch(batch_times, sizes, world_size=1).events
    ms = 1e3 * (events.end_s - events.start_s).groupby(events.step).median()
    for size in sizes:
        measured(f"a forward pass of notebook 00's two layers, {size} rows", ms[size], "ms")
    assert ms[sizes[-1]] < 0.1 * sizes[-1] * ms[1]


# --- training -------------------------------------------------------------------------------------


def test_gpt2_124m_trains_on_one_gpu(measured):
    config = TranslateConfig("shipped", "gpt2", limit=512, limit_eval=32, epochs=2, batch_size=64)
    run = launch(translate, config, world_size=1)
    (result,) = run.values
    assert (run.backend, result.device) == ("nccl", "cuda:0")
    assert result.epochs[1].validation_loss < result.epochs[0].validation_loss
    rate = metrics.merge(run.values)["tokens_per_s"]["mean"]
    measured("GPT-2 124M on one rank, batches of 64 sentences", rate, "tokens/s")


def bert_base_steps(precision, sizes, length=128, steps=12):
    """In a rank: seconds of a step and peak MiB of BERT-base, by batch size, every row full."""
    corpus = load_glue(GlueConfig("shipped"))
    row = Example([2, *range(5, length + 3), 3], [0] * length, 0)
    found = {}
    for size in sizes:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        rows = [replace(row, label=i % 2) for i in range(size * steps)]
        config = GlueConfig(
            size="base", batch_size=size, epochs=1, precision=precision, sync="ddp", do_eval=False, quiet=True
        )
        result = glue(config, replace(corpus, train=rows))
        assert all(math.isfinite(loss) for loss in result.losses) and len(result.losses) == steps
        found[size] = statistics.median(result.iteration_s[2:]), torch.cuda.max_memory_allocated() / 2**20
        del result
        gc.collect()
    return found


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_bert_base_trains_on_one_gpu_and_bigger_batches_cost_less_a_row(precision, measured):
    sizes = (8, 16, 32, 64, 128)
    (found,) = launch(bert_base_steps, precision, sizes, world_size=1, timeout_s=240).values
    for size, (seconds, mib) in found.items():
        what = f"BERT-base, {precision}, {size} × 128 tokens"
        measured(f"{what}: a step", 1e3 * seconds, "ms")
        measured(f"{what}: peak memory", mib, "MiB")
    assert found[128][0] / 128 < found[8][0] / 8
    assert found[128][1] > found[8][1]


def test_every_way_to_agree_trains_bert_alike_on_nccl():
    config = GlueConfig("shipped", limit=128, limit_eval=32, epochs=1, batch_size=16, dropout=False, quiet=True)
    corpus = load_glue(config)
    alone = launch(glue, replace(config, sync="none"), corpus, world_size=1).values[0]
    for sync in ("gather_scatter", "all_reduce", "bucketed", "ddp"):
        run = launch(glue, replace(config, sync=sync), corpus, world_size=2, share_gpu=True)
        assert run.backend == "nccl"
        for result in run.values:
            assert result.mean_losses == pytest.approx(alone.mean_losses, rel=1e-3), sync


def test_digits_train_on_one_gpu_over_nccl_as_on_the_cpu_whole_and_spread(measured):
    config = DigitsConfig("shipped", epochs=1)
    on_cpu = launch(train_digits, config, world_size=1, backend="gloo").values[0]
    run = launch(train_digits, config, world_size=1)
    assert (run.backend, run.values[0].device) == ("nccl", "cuda:0")
    spread = launch(train_digits, config, None, [torch.device("cuda", 0)] * 2, world_size=1).values[0]
    for result in (run.values[0], spread):
        assert result.losses[:5] == pytest.approx(on_cpu.losses[:5], rel=0.05)
        assert result.losses[-1] < 0.5 * result.losses[0]
    measured("digits recognised after an epoch on one GPU", run.values[0].accuracy, "of 1")


def test_a_process_started_by_hand_takes_the_gpu_that_it_is_told_and_nccl():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    flags = ["digits", "--source", "shipped", "-w", "1", "-nr", "0", "--epochs", "1", "--master-port", str(port)]
    for more in (["-g", "0"], ["--local-world-size", "1"]):
        command = [sys.executable, "-m", "labkit.train", *flags, *more]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        gpus = 1 if "-g" in more else torch.cuda.device_count()
        assert f"Hello from rank 0 of 1: nccl, {' and '.join(f'cuda:{i}' for i in range(gpus))}, process" in done.stdout
        assert "Accuracy on 297 test pictures: 0." in done.stdout


# --- gradients ------------------------------------------------------------------------------------


def small_model():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 4)).double()


def gradients_of(model, rows, size):
    """The gradients of the mean loss over some rows of a batch of ``size``."""
    inputs, targets = torch.arange(size * 16).view(size, 16) % 7 / 7.0, torch.arange(size * 4).view(size, 4) % 5 / 5.0
    where = next(model.parameters()).device
    outputs = model(inputs[rows].to(where, torch.float64))
    torch.nn.functional.mse_loss(outputs, targets[rows].to(where, torch.float64)).backward()


def averaged_in_every_way():
    """The gradients of this rank's shard of a batch, averaged per tensor, through rank 0, around
    the ring, flat, in buckets."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    mine, size = slice(4 * rank, 4 * rank + 4), 4 * world_size

    def ring(model):
        for parameter in model.parameters():
            dp.ring_all_reduce(parameter.grad)
            parameter.grad /= world_size

    ways = {"per tensor": dp.average_gradients, "through rank 0": dp.gather_scatter_gradients, "ring": ring}
    found = {}
    for name, average in ways.items():
        model = small_model().to(device())
        gradients_of(model, mine, size)
        average(model)
        found[name] = [parameter.grad for parameter in model.parameters()]
    for name, cap_mb in (("flat", 25.0), ("bucketed", 1e-3)):
        model = dp.BucketedDataParallel(small_model().to(device()), cap_mb)
        gradients_of(model, mine, size)
        model.finish_gradient_synchronization()
        found[name] = [parameter.grad for parameter in model.parameters()]
    return found


@pytest.mark.parametrize("world_size", [2, 4])
def test_every_way_to_average_gives_the_gradient_of_the_whole_batch_on_nccl(world_size):
    whole = small_model()
    gradients_of(whole, slice(None), 4 * world_size)
    for found in launch(averaged_in_every_way, world_size=world_size, share_gpu=True).values:
        for name, gradients in found.items():
            for gradient, parameter in zip(gradients, whole.parameters(), strict=True):
                torch.testing.assert_close(gradient, parameter.grad, rtol=1e-9, atol=1e-12, msg=name)


def memory_after_a_step(wrap):
    """Bytes in use on the device once the gradients are averaged, without the model's own; and the
    gradients' bytes."""
    model = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048) for _ in range(8))).to(device())
    own = torch.cuda.memory_allocated()
    wrapped = wrap(model)
    wrapped(torch.ones(4, 2048, device=device())).mean().backward()
    if isinstance(wrapped, dp.BucketedDataParallel):
        wrapped.finish_gradient_synchronization()
    torch.cuda.synchronize()
    return torch.cuda.memory_allocated() - own, sum(parameter.nbytes for parameter in model.parameters())


def test_gradients_that_are_views_into_buckets_save_a_copy_of_the_gradients(measured):
    ours, gradients = launch(memory_after_a_step, dp.BucketedDataParallel, world_size=1).values[0]
    theirs, _ = launch(memory_after_a_step, torch.nn.parallel.DistributedDataParallel, world_size=1).values[0]
    measured("memory beside the model: BucketedDataParallel", ours / 2**20, "MiB")
    measured("memory beside the model: torch's DDP", theirs / 2**20, "MiB")
    measured("memory beside the model: the gradients alone", gradients / 2**20, "MiB")
    assert theirs - ours > 0.9 * gradients


def test_a_buckets_span_lasts_until_its_sum_is_there_on_the_stream():
    def step():
        model = dp.BucketedDataParallel(
            torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(8))).to(device()), 4
        )
        with span("step"):
            model(torch.ones(64, 1024, device=device())).mean().backward()
            model.finish_gradient_synchronization()
        return len(model.buckets)

    run = launch(step, world_size=1)
    sent = run.events[run.events.name == "all_reduce"]
    whole = run.events[run.events.name == "step"].iloc[0]
    assert sent.bucket.tolist() == list(range(run.values[0])) and (sent.end_s >= sent.start_s).all()
    assert sent.start_s.min() >= whole.start_s and sent.end_s.max() <= whole.end_s + 1e-4


# --- pipelines ------------------------------------------------------------------------------------


def two_stages():
    torch.manual_seed(4)
    stages = [
        torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.Tanh(), torch.nn.Linear(512, 512)) for _ in range(2)
    ]
    return torch.nn.Sequential(*stages).double().cuda()


@pytest.fixture
def both_on_one_gpu(monkeypatch):
    """Have a Pipe take each module of its model as a partition on GPU 0, which split_module would
    take as one."""

    def split(modules):
        return [torch.nn.Sequential(module) for module in modules], [torch.device("cuda", 0)] * len(modules)

    monkeypatch.setattr(pipe, "split_module", split)


def steps_of(model, count=5):
    """Outputs and gradients of some steps of training, whose optimizer is queued just before the
    next forward pass."""
    optimizer, found = torch.optim.SGD(model.parameters(), lr=0.1), []
    for step in range(count):
        generator = torch.Generator(device="cuda").manual_seed(step)
        x = torch.randn(512, 512, generator=generator, device="cuda", dtype=torch.float64).requires_grad_()
        optimizer.zero_grad()
        output = model(x * 1)
        output.square().mean().backward()
        found += [output.detach(), x.grad, *(parameter.grad.clone() for parameter in model.parameters())]
        optimizer.step()
    return found


def median_ms(work, repeats=9):
    """The median time of some calls, each until the GPU is done with it."""
    found = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        work()
        torch.cuda.synchronize()
        found.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(found)


def test_two_stages_on_one_gpu_have_a_stream_each_and_give_the_plain_modules_gradients(both_on_one_gpu, measured):
    plain, model, streams = two_stages(), two_stages(), [set(), set()]
    expected = steps_of(plain)
    for j, stage in enumerate(model):
        stage.register_forward_hook(lambda *_, j=j: streams[j].add(torch.cuda.current_stream().cuda_stream))
    with pipe.Pipe(model, split_size=64) as piped:
        found = steps_of(piped)
        measured("5 steps of two stages on one GPU, through a Pipe", median_ms(lambda: steps_of(piped)), "ms")
    measured("5 steps of the plain module", median_ms(lambda: steps_of(plain)), "ms")
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    assert [len(each) for each in streams] == [1, 1]
    assert len({*streams[0], *streams[1], torch.cuda.current_stream().cuda_stream}) == 3


def test_stages_on_cpu_and_gpu_copy_what_goes_between_them_and_back():
    plain, model = two_stages().cpu(), two_stages().cpu()
    x = torch.randn(12, 512, dtype=torch.float64)
    wrapped = torch.nn.Sequential(pipe.WithDevice(model[0], "cpu"), pipe.WithDevice(model[1], "cuda"))
    with pipe.Pipe(wrapped, split_size=5) as piped, record() as recording:
        assert [str(where) for where in piped.devices] == ["cpu", "cuda:0"]
        output = piped(x)
        output.square().sum().backward()
    expected = plain(x)
    expected.square().sum().backward()
    assert output.is_cuda
    torch.testing.assert_close(output.cpu(), expected, rtol=1e-9, atol=1e-12)
    for found, wanted in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(found.grad.cpu(), wanted.grad, rtol=1e-9, atol=1e-12)
    copies = recording.events[recording.events.name == "copy"]
    assert copies.micro_batch.tolist() == [0, 1, 2] and (copies.stage == 1).all()


def test_several_gpus_give_the_plain_modules_gradients():
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    expected, model = steps_of(two_stages()), two_stages()
    wrapped = torch.nn.Sequential(*(pipe.WithDevice(stage, f"cuda:{j}") for j, stage in enumerate(model)))
    with pipe.Pipe(wrapped, split_size=64) as piped:
        found = steps_of(piped)
    torch.testing.assert_close([each.cuda(0) for each in found], expected, rtol=1e-9, atol=1e-12)


def test_autocast_on_the_gpu_holds_in_the_stages(both_on_one_gpu):
    with pipe.Pipe(two_stages().float(), split_size=64) as piped, torch.autocast("cuda", torch.bfloat16):
        assert piped(torch.ones(128, 512, device="cuda")).dtype == torch.bfloat16


# --- GPT-2, model parallel and through a Pipe -----------------------------------------------------


def gpt2_devices():
    """Two real devices wherever there is one GPU, and two GPUs where there are."""
    return [["cpu", "cuda:0"], ["cuda:0", "cpu"], *([["cuda:0", "cuda:1"]] if torch.cuda.device_count() > 1 else [])]


def small_gpt2():
    return models.gpt2("nano", seed=2, vocab_size=40, n_layer=5, n_positions=32).double()


def gpt2_loss_and_gradients(gpt2):
    gpt2.zero_grad()
    tokens = torch.randint(0, 40, (7, 6), generator=torch.Generator().manual_seed(0)).to(gpt2.device)
    loss = gpt2(tokens, labels=tokens, use_cache=False).loss
    loss.backward()
    assert all(parameter.grad.device == parameter.device for parameter in gpt2.parameters())
    return [loss.detach().cpu(), *(parameter.grad.cpu() for parameter in gpt2.parameters())]


@pytest.mark.parametrize("devices", gpt2_devices(), ids="-".join)
def test_gpt2_on_two_real_devices_has_one_devices_loss_gradients_and_translations(devices):
    plain = small_gpt2()
    expected = gpt2_loss_and_gradients(plain)
    prompts = [[5, 6, 7, EOS_DE_ID], [8, EOS_DE_ID], [9, 10, 11, 12, 13, EOS_DE_ID]]
    gpt2 = models.parallelize(small_gpt2(), devices)
    assert (
        str(gpt2.transformer.wte.weight.device) == devices[0] and str(gpt2.transformer.ln_f.weight.device) == devices[1]
    )
    assert gpt2.lm_head.weight is gpt2.transformer.wte.weight
    for prepare in (lambda: None, lambda: pipe.prepare_pipeline_parallel(gpt2, 3)):
        prepare()
        torch.testing.assert_close(gpt2_loss_and_gradients(gpt2), expected, rtol=1e-9, atol=1e-12)
        assert generate(gpt2, prompts, max_length=16) == generate(plain, prompts, max_length=16)
    models.parallelize(gpt2, ["cpu:0", "cpu:1"])  # and back
    assert {parameter.device.type for parameter in gpt2.parameters()} == {"cpu"}
    torch.testing.assert_close(gpt2_loss_and_gradients(gpt2), expected, rtol=1e-9, atol=1e-12)


# --- pipelines of processes -----------------------------------------------------------------------


def four_stages(where):
    torch.manual_seed(5)
    stages = [torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 32)) for _ in range(4)]
    return [stage.double().to(where) for stage in stages]


def batch_of_32(where, rows=13):
    generator = torch.Generator().manual_seed(6)
    return [torch.randn(rows, 32, generator=generator, dtype=torch.float64).to(where) for _ in range(2)]


def scheduled_steps(schedule, where=None, count=3):
    """Some steps with this rank's stages on ``where``, by default its device. Gives the losses, and
    each stage's gradients."""
    where = where or device()
    own = sorted({op.stage for op in schedule.ops[dist.get_rank()]})
    stages, (x, target) = [four_stages(where)[number] for number in own], batch_of_32(where)
    pipeline = pipe.ScheduledPipeline(stages, schedule, torch.nn.functional.mse_loss)
    losses = [pipeline.step(x, target) for _ in range(count)]
    types = {parameter.grad.device.type for stage in stages for parameter in stage.parameters()}
    assert types == {torch.device(where).type}
    return losses, {number: gradients_in(stage) for number, stage in zip(own, stages, strict=True)}


def gradients_in(module):
    return [parameter.grad.cpu() for parameter in module.parameters()]


def check_steps(schedule, values, count=3):
    """Against one process on the CPU. Losses are on the rank of the last stage alone."""
    stages, (x, target) = four_stages("cpu")[: schedule.n_stages], batch_of_32("cpu")
    loss = torch.nn.functional.mse_loss(torch.nn.Sequential(*stages)(x), target)
    (count * loss).backward()  # the gradients of all steps add up
    last = next(rank for rank, ops in enumerate(schedule.ops) if any(op.stage == schedule.n_stages - 1 for op in ops))
    for rank, (losses, gradients) in enumerate(values):
        expected = [loss.detach() if rank == last else None] * count
        torch.testing.assert_close(losses, expected, rtol=1e-9, atol=1e-12)
        for number, found in gradients.items():
            torch.testing.assert_close(found, gradients_in(stages[number]), rtol=1e-9, atol=1e-12)


ALL_KINDS = [gpipe(2, 4), one_f_one_b(2, 4), interleaved(2, 4, 2), zero_bubble_h1(2, 4), zero_bubble_v(2, 4)]


@pytest.mark.parametrize("schedule", ALL_KINDS, ids=lambda schedule: schedule.name)
def test_a_scheduled_pipeline_on_shared_nccl_ranks_has_one_processs_loss_and_gradients(schedule):
    run = launch(scheduled_steps, schedule, share_gpu=True, timeout_s=120)
    assert run.backend == "nccl"
    check_steps(schedule, run.values)


def test_a_scheduled_pipeline_of_four_shared_nccl_ranks_has_one_processs_loss_and_gradients():
    check_steps(schedule := one_f_one_b(4, 6), launch(scheduled_steps, schedule, world_size=4, share_gpu=True).values)


def test_over_gloo_what_stages_on_a_gpu_send_each_other_goes_through_the_cpu():
    run = launch(scheduled_steps, schedule := zero_bubble_v(2, 4), "cuda", backend="gloo")
    check_steps(schedule, run.values)


@pytest.mark.parametrize("schedule", ALL_KINDS, ids=lambda schedule: schedule.name)
def test_a_scheduled_pipeline_on_two_gpus_has_one_processs_loss_and_gradients(schedule):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    run = launch(scheduled_steps, schedule)
    assert (run.backend, run.devices) == ("nccl", ["cuda:0", "cuda:1"])
    check_steps(schedule, run.values)


def passes_of_a_block(rows, tokens, count=12):
    """A GPT-2 block's forward pass, and backward whole and in two parts. Gives the gradients of
    both: input and weights.

    Nothing here waits for the GPU, so what is timed is its work, and not how quickly Python hands
    it out.
    """
    block = models.gpt2("gpt2", n_layer=1).transformer.h[0].to(device())
    whole, split = Stage(block, 1), Stage(copy.deepcopy(block), 1)
    x = torch.randn(rows, tokens, 768, device=device(), requires_grad=True)
    dy = torch.randn_like(x)
    for i in range(count):
        whole.forward(i, x)
        at_once = whole.backward(i, dy)
        split.forward(i, x)
        first = split.input_grad(i, dy)
        split.weight_grad(i)
    return [at_once, *gradients_in(whole.module)], [first, *gradients_in(split.module)]


def test_the_backward_pass_of_a_gpt2_block_costs_hardly_more_in_two_parts(measured, rows=8, tokens=1024):
    run = launch(passes_of_a_block, rows, tokens, world_size=1)
    torch.testing.assert_close(*run.values[0], rtol=1e-3, atol=1e-3)
    f, b, i, w = (run.timings.set_index("name").median_s)[["forward", "backward", "input_grad", "weight_grad"]]
    for name, seconds in {"F": f, "B": b, "I": i, "W": w}.items():
        measured(f"{name} of a GPT-2 block, {rows} × {tokens} tokens", 1e3 * seconds, "ms")
    assert max(i, w) < b
    assert i + w < 1.2 * b


def on_one_rank(schedule):
    """The ops of all ranks on one, in the order in which they start."""
    events = simulate(schedule).sort_values(["start_s", "stage"])
    kinds = {"forward": "F", "backward": "B"}
    return Schedule([[Op(kinds[row.name], int(row.stage), int(row.micro_batch)) for row in events.itertuples()]])


def memory_of_a_step(schedule, width=768, rows=4, tokens=256):
    """What a step takes beside the model and its gradients, and what a stage keeps of a
    micro-batch, in bytes."""
    blocks = models.gpt2("gpt2", n_embd=width, n_layer=schedule.n_stages).transformer.h.to(device())
    pipeline = pipe.ScheduledPipeline(list(blocks), schedule, torch.nn.functional.mse_loss)
    x, target = torch.randn(2, rows * schedule.n_micro, tokens, width, device=device())
    pipeline.step(x, target)  # makes the gradients
    before = torch.cuda.memory_allocated()
    kept = Stage(blocks[1], 1)
    kept.forward(0, x[:rows].clone().requires_grad_())
    activation = torch.cuda.memory_allocated() - before
    del kept
    torch.cuda.reset_peak_memory_stats()
    pipeline.step(x, target)
    return torch.cuda.max_memory_allocated() - before, activation


def test_1f1bs_order_on_one_gpu_saves_the_activations_that_the_simulator_counts(measured, n=4, m=8):
    schedules = {"GPipe": on_one_rank(gpipe(n, m)), "1F1B": on_one_rank(one_f_one_b(n, m))}
    peaks = {name: peak_activations(simulate(schedule))[0] for name, schedule in schedules.items()}
    assert peaks == {"GPipe": n * m, "1F1B": peaks["1F1B"]} and peaks["1F1B"] < n * m / 2
    taken = {}
    for name, schedule in schedules.items():
        taken[name], activation = launch(memory_of_a_step, schedule, world_size=1).values[0]
        measured(
            f"a step of {name}'s order, {n} GPT-2 blocks, m = {m}: memory beside the model", taken[name] / 2**20, "MiB"
        )
    measured("what a stage keeps of a micro-batch", activation / 2**20, "MiB")
    saved = (taken["GPipe"] - taken["1F1B"]) / activation
    assert saved == pytest.approx(peaks["GPipe"] - peaks["1F1B"], rel=0.15)


# --- explorers ------------------------------------------------------------------------------------


def test_what_run_it_does_in_the_explorers_runs_on_the_gpu_and_takes_as_long_as_was_predicted(measured, m=8):
    schedule = one_f_one_b(1, m)
    run = run_schedule(schedule, emulated=False)
    assert len(run.measured) == 2 * m and list(run.measured.columns) == list(run.ideal.columns)
    measured("schedule on one rank: measured ÷ predicted makespan", makespan(run.measured) / makespan(run.ideal), "×")
