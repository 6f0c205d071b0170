"""Training on one GPU, and on two ranks that share it: it learns, alike in every way; how fast."""

from __future__ import annotations

import gc
import json
import math
import socket
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from labkit.launch import launch
from labkit.train import TranslateConfig, metrics, translate
from labkit.train.entailment import SentencePair
from labkit.train.glue_task import GlueConfig, glue, load_glue

pytestmark = pytest.mark.gpu


def test_every_way_to_agree_trains_bert_alike_on_nccl():
    config = GlueConfig("shipped", limit=128, limit_eval=32, epochs=1, batch_size=16, dropout=False, quiet=True)
    corpus = load_glue(config)
    alone = launch(glue, replace(config, sync="none"), corpus, world_size=1).values[0]
    for sync in ("gather_scatter", "all_reduce", "bucketed", "ddp"):
        run = launch(glue, replace(config, sync=sync), corpus, world_size=2, share_gpu=True)
        assert run.backend == "nccl"
        for result in run.values:
            assert result.steps.loss.tolist() == pytest.approx(alone.steps.loss.tolist(), rel=1e-3), sync


def test_a_process_started_by_hand_takes_its_gpu_and_nccl(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    flags = [
        "--data-dir",
        "shipped",
        "--model=",
        "--limit",
        "64",
        "--limit-eval",
        "16",
        "--epochs",
        "1",
        "--world-size",
        "1",
        "--local-rank",
        "0",
    ]
    command = [sys.executable, "-m", "labkit.train", "glue", *flags, "--master-port", str(port)]
    done = subprocess.run([*command, "--output-dir", str(tmp_path)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    merged = json.loads((tmp_path / "merged.json").read_text())
    assert (merged["backend"], merged["devices"]) == ("nccl", ["cuda:0"])


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
