"""Training on one GPU, and on two ranks that share it: alike in every way."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from labkit.base.rendezvous import free_port
from labkit.launch import launch
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
    port = free_port()
    flags = ["--data-dir", "shipped", "--model=", "--limit", "64", "--limit-eval", "16", "--epochs", "1"]
    flags += ["--world-size", "1", "--local-rank", "0"]
    command = [sys.executable, "-m", "labkit.train", "glue", *flags, "--master-port", str(port)]
    done = subprocess.run([*command, "--output-dir", str(tmp_path)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    merged = json.loads((tmp_path / "merged.json").read_text())
    assert (merged["backend"], merged["devices"]) == ("nccl", ["cuda:0"])
