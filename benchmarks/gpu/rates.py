"""How fast models train on a GPU, and whether the same seed says all.

python3 benchmarks/on_gpu.py runs it, after the tests of tests/gpu, and keeps what it measures.
"""

from __future__ import annotations

import gc
import math
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch import nn

from labkit import dp, models, pipe
from labkit.launch import device, launch
from labkit.schedule import one_f_one_b
from labkit.train import TranslateConfig, metrics, translate
from labkit.train.entailment import SentencePair
from labkit.train.glue_task import GlueConfig, glue, load_glue

pytestmark = pytest.mark.gpu


def test_gpt2_124m_trains_on_one_gpu(measured):
    config = TranslateConfig("shipped", "gpt2", limit=512, limit_eval=32, epochs=2, batch_size=64)
    run = launch(translate, config, world_size=1)
    (result,) = run.values
    assert (run.backend, result.device) == ("nccl", "cuda:0")
    assert result.validation_loss[1] < result.validation_loss[0]
    rate = metrics.merge(run.values)["tokens_per_s"]["mean"]
    measured("GPT-2 124M on one rank, batches of 64 sentences", rate, "tokens/s")


def bert_base_steps(precision, sizes, length=128, steps=12):
    """In a rank: seconds of a step and peak MiB of BERT-base, by batch size, every row full."""
    corpus = load_glue(GlueConfig("shipped"))
    row = SentencePair([2, *range(5, length + 3), 3], [0] * length, 0)
    found = {}
    for size in sizes:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        rows = [replace(row, label=i % 2) for i in range(size * steps)]
        config = GlueConfig(
            size="base", batch_size=size, epochs=1, precision=precision, sync="ddp", do_eval=False, quiet=True
        )
        result = glue(config, replace(corpus, train=rows))
        assert all(map(math.isfinite, result.steps.loss)) and len(result.steps) == steps
        found[size] = result.steps.seconds[2:].median(), torch.cuda.max_memory_allocated() / 2**20
        del result
        gc.collect()
    return found


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_bert_base_trains_on_one_gpu_and_bigger_batches_cost_less_a_row(precision, measured):
    sizes = (8, 16, 32, 64, 128)
    (found,) = launch(bert_base_steps, precision, sizes, world_size=1, timeout_s=120).values
    for size, (seconds, mib) in found.items():
        what = f"BERT-base, {precision}, {size} × 128 tokens"
        measured(f"{what}: a step", 1e3 * seconds, "ms")
        measured(f"{what}: peak memory", mib, "MiB")
    assert found[128][0] / 128 < found[8][0] / 8
    assert found[128][1] > found[8][1]


# --- the same seed twice --------------------------------------------------------------------------


def small_gpt2():
    return models.gpt2("nano", seed=2, vocab_size=40, n_layer=4, n_positions=32)


def loss_of(logits, tokens):
    return nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())


def batch(step, rank):
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randint(0, 40, (8, 16), generator=generator).to(device())


def through_buckets(steps):
    model = dp.BucketedDataParallel(small_gpt2().to(device()), 0.1)
    optimizer, losses = torch.optim.AdamW(model.parameters()), []
    for step in range(steps):
        tokens = batch(step, dist.get_rank())
        loss = loss_of(model(tokens, use_cache=False).logits, tokens)
        loss.backward()
        model.finish_gradient_synchronization()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def through_stages(steps):
    stage = models.stages(small_gpt2(), 2)[dist.get_rank()].to(device())
    pipeline = pipe.ScheduledPipeline([stage], one_f_one_b(2, 4), loss_of)
    optimizer, losses = torch.optim.AdamW(stage.parameters()), []
    for step in range(steps):
        tokens = batch(step, 0)
        loss = pipeline.step(tokens, tokens)
        optimizer.step()
        optimizer.zero_grad()
        losses += [] if loss is None else [loss.item()]
    return losses


def losses_twice(train, in_bf16, steps=8):
    with torch.autocast(device().type, torch.bfloat16, enabled=in_bf16):
        return [train(steps) for _ in range(2)]


def test_the_same_seed_gives_the_same_losses_and_it_is_noted_how_far(rig, noted):
    with rig.workers() as ranks:
        for train in (through_buckets, through_stages):
            for in_bf16 in (False, True):
                first, second = ranks.run(losses_twice, train, in_bf16).values[1]  # the last stage's rank
                equal = sum(a == b for a, b in zip(first, second, strict=True))
                what = f"{train.__name__.replace('_', ' ')}, {'bf16' if in_bf16 else 'fp32'}"
                noted(f"the same seed twice, {what}", f"{equal} of {len(first)} losses agree to the bit")
                assert len(first) == 8 and first == pytest.approx(second, rel=1e-2)
