"""Pipelines on GPUs, with a thread or a process a stage, give what one process gives."""

from __future__ import annotations

import pytest
import torch
from stage_steps import check_steps, scheduled_steps

from labkit import models, pipe
from labkit.launch import launch
from labkit.schedule import gpipe, interleaved, one_f_one_b, zero_bubble_h1, zero_bubble_v
from labkit.trace import record
from labkit.train.translation import EOS_DE_ID, generate

pytestmark = pytest.mark.gpu


# --- a thread a stage -----------------------------------------------------------------------------


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


def test_two_stages_on_one_gpu_have_a_stream_each_and_give_the_plain_modules_gradients(both_on_one_gpu):
    plain, model, streams = two_stages(), two_stages(), [set(), set()]
    expected = steps_of(plain)
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


# --- GPT-2, model parallel and through a Pipe -----------------------------------------------------


def gpt2_devices():
    """Two real devices wherever there is one GPU, and two GPUs where there are."""
    return [["cpu", "cuda:0"], ["cuda:0", "cpu"], *([["cuda:0", "cuda:1"]] if torch.cuda.device_count() > 1 else [])]


def small_gpt2():
    return models.gpt2("nano", seed=2, vocab_size=40, n_layer=5, n_positions=32).double()


def gpt2_loss_and_gradients(gpt2):
    """In float64 throughout: transformers takes its own loss in float32, of which GPUs and CPUs
    round the last bits differently."""
    gpt2.zero_grad()
    tokens = torch.randint(0, 40, (7, 6), generator=torch.Generator().manual_seed(0)).to(gpt2.device)
    logits = gpt2(tokens, use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
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


# --- a process a stage ----------------------------------------------------------------------------

ALL_KINDS = [gpipe(2, 4), one_f_one_b(2, 4), interleaved(2, 4, 2), zero_bubble_h1(2, 4), zero_bubble_v(2, 4)]


@pytest.mark.parametrize("schedule", ALL_KINDS, ids=lambda schedule: schedule.name)
def test_a_scheduled_pipeline_on_shared_nccl_ranks_has_one_processs_loss_and_gradients(schedule):
    run = launch(scheduled_steps, schedule, share_gpu=True, timeout_s=120)
    assert run.backend == "nccl"
    check_steps(schedule, run.values)


def test_over_gloo_what_stages_on_a_gpu_send_each_other_goes_through_the_cpu():
    run = launch(scheduled_steps, schedule := zero_bubble_v(2, 4), "cuda", backend="gloo")
    check_steps(schedule, run.values)
