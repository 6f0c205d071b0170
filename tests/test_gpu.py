"""On real GPUs: NCCL, several ranks on one GPU, CUDA used before, spans on the stream, gradients averaged, pipelines."""

import time

import pytest
import torch
import torch.distributed as dist

from labkit import dp, pipe
from labkit.launch import device, launch
from labkit.trace import record, span

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
        _, done_s = long_multiplication()
    event = recording.events.iloc[0]
    assert event.end_s - event.start_s == pytest.approx(done_s, rel=0.2)


# --- gradients -------------------------------------------------------------------------------------------------------


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
    """The gradients of this rank's shard of a batch, averaged per tensor, through rank 0, around the ring, flat, in buckets."""
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
    """Bytes in use on the device once the gradients are averaged, without the model's own; and the gradients' bytes."""
    model = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048) for _ in range(8))).to(device())
    own = torch.cuda.memory_allocated()
    wrapped = wrap(model)
    wrapped(torch.ones(4, 2048, device=device())).mean().backward()
    if isinstance(wrapped, dp.BucketedDataParallel):
        wrapped.finish_gradient_synchronization()
    torch.cuda.synchronize()
    return torch.cuda.memory_allocated() - own, sum(parameter.nbytes for parameter in model.parameters())


def test_gradients_that_are_views_into_buckets_save_a_copy_of_the_gradients():
    ours, gradients = launch(memory_after_a_step, dp.BucketedDataParallel, world_size=1).values[0]
    theirs, _ = launch(memory_after_a_step, torch.nn.parallel.DistributedDataParallel, world_size=1).values[0]
    print(
        f"beside the model, MiB: ours {ours / 2**20:.0f}, torch's DDP {theirs / 2**20:.0f}, gradients {gradients / 2**20:.0f}"
    )
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


# --- pipelines -------------------------------------------------------------------------------------------------------


def two_stages():
    torch.manual_seed(4)
    stages = [
        torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.Tanh(), torch.nn.Linear(512, 512)) for _ in range(2)
    ]
    return torch.nn.Sequential(*stages).double().cuda()


@pytest.fixture
def both_on_one_gpu(monkeypatch):
    """Have a Pipe take each module of its model as a partition on GPU 0, which split_module would take as one."""

    def split(modules):
        return [torch.nn.Sequential(module) for module in modules], [torch.device("cuda", 0)] * len(modules)

    monkeypatch.setattr(pipe, "split_module", split)


def steps_of(model, count=5):
    """Outputs and gradients of some steps of training, whose optimizer is queued just before the next forward pass."""
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


def test_two_stages_on_one_gpu_have_a_stream_each_and_give_the_plain_modules_gradients(both_on_one_gpu):
    expected, streams = steps_of(two_stages()), [set(), set()]
    model = two_stages()
    for j, stage in enumerate(model):
        stage.register_forward_hook(lambda *_, j=j: streams[j].add(torch.cuda.current_stream().cuda_stream))
    with pipe.Pipe(model, split_size=64) as piped:
        found = steps_of(piped)
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
