"""The assignment's command: started by hand, by torchrun or here, it trains the same; bad flags
stop it before anything starts."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from to_do import task
from train_commands import by_torchrun, terminal, without_torchrun
from warm_python import Program

from labkit import models, train
from labkit.base.rendezvous import free_port
from labkit.trace import EVENT_COLUMNS
from labkit.train import command, metrics
from labkit.train.glue_task import GlueConfig, GlueRun, glue, load_glue

needs_all_reduce = task("dp.4")
WITHOUT_BATCH = ["--data-dir", "shipped", "--vocab-size", "300", "--limit", "48", "--limit-eval", "20"]
WITHOUT_BATCH += ["--no-dropout", "--lr", "1e-3", "--model", ""]
SMALL = [*WITHOUT_BATCH, "--batch-size", "16"]
ALONE: dict[str, Any] = {"source": "shipped", "limit": 48, "limit_eval": 20, "vocab_size": 300, "batch_size": 16}
ALONE |= {"epochs": 1, "dropout": False, "sync": "none", "learning_rate": 1e-3}


def rank(number: int, port: int, *flags: str) -> Program:
    where = ["--master-ip", "127.0.0.1", "--master-port", str(port)]
    return terminal("glue", *flags, *where, "--local-rank", str(number))


@pytest.mark.slow
@needs_all_reduce
def test_by_hand_by_torchrun_and_on_own_processes_it_trains_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    without_torchrun(monkeypatch)
    flags = [*SMALL, "--model_type", "bert", "--task_name=RTE", "--num_train_epochs", "2.0", "--do_train", "--do_eval"]
    train.main(["glue", *flags, "--world-size", "2", "--output_dir", str(tmp_path / "own")])
    own_out = capfd.readouterr().out
    port, by_hand = free_port(), [*flags, "--output-dir", str(tmp_path / "hand"), "--world-size", "2"]
    second, first = (each.ended() for each in [rank(number, port, *by_hand) for number in (1, 0)])
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    by_torchrun("glue", *flags, "--output-dir", str(tmp_path / "torchrun"))

    own, hand, torchrun_s = (
        json.loads((tmp_path / name / "merged.json").read_text()) for name in ("own", "hand", "torchrun")
    )
    local = [pd.read_csv(tmp_path / name / "steps.csv").local_loss.tolist() for name in ("own", "hand", "torchrun")]
    assert local[1] == pytest.approx(local[0], rel=1e-4) and local[2] == pytest.approx(local[0], rel=1e-4)
    for other in (hand, torchrun_s):
        assert other["mean_losses"] == pytest.approx(own["mean_losses"], rel=1e-4)
        assert other["accuracy"] == pytest.approx(own["accuracy"], abs=0.051)
    assert len(own["mean_losses"]) == 6 and len(own["accuracy"]) == 2
    printed = [f"iter {i} loss {loss:.4f}" for i, loss in enumerate(hand["mean_losses"], start=1)]
    for text in (first.stdout, second.stdout):  # each terminal shows the losses
        assert [line for line in text.splitlines() if line.startswith("iter ")] == printed
    assert own_out.count("iter 1 loss ") == 1 and "2 ranks start with the same parameters" in own_out
    assert metrics.report(hand) in first.stdout and "results in" not in second.stdout
    for name in ("own", "hand", "torchrun"):
        files = {path.name for path in (tmp_path / name).iterdir()}
        assert files >= {"merged.json", "steps.csv", "events.csv", "loss_0.txt", "loss_1.txt", "model.safetensors"}
        events = pd.read_csv(tmp_path / name / "events.csv")
        assert tuple(events.columns) == EVENT_COLUMNS and set(events["rank"]) == {0, 1}
    assert "glue" in hand["command"] and "--local-rank 0" in hand["command"]


def test_results_of_an_earlier_run_are_not_lost_unless_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    without_torchrun(monkeypatch)
    (tmp_path / "loss_0.txt").write_text("1 0.7\n")
    flags = ["glue", *SMALL, "--sync", "none", "--iterations", "1", "--output-dir", str(tmp_path)]
    with pytest.raises(SystemExit):
        train.main(flags)
    assert "has something in it; name another folder, or say --overwrite-output-dir" in capsys.readouterr().err
    assert (tmp_path / "loss_0.txt").read_text() == "1 0.7\n"
    train.main([*flags, "--overwrite-output-dir"])
    assert (tmp_path / "loss_0.txt").read_text() != "1 0.7\n"


@pytest.mark.parametrize("number", [0, 1], ids=["rank 0, for the others", "rank 1, for rank 0"])
def test_an_interrupt_while_ranks_wait_ends_in_a_word(number: int) -> None:
    waiting = rank(number, free_port(), *SMALL, "--world-size", "2")
    assert waiting.prints("waiting until all are there")
    os.kill(waiting.process.pid, signal.SIGINT)
    done = waiting.ended()
    assert done.returncode == 130 and done.stderr.startswith("interrupted") and "Traceback" not in done.stderr


@needs_all_reduce
def test_the_assignments_batch_size_is_each_ranks_and_the_labs_own_is_that_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    without_torchrun(monkeypatch)
    flags = [*WITHOUT_BATCH, "--epochs", "1", "--per_device_train_batch_size", "8", "--output-dir", str(tmp_path)]
    train.main(["glue", *flags, "--sync", "all_reduce", "--world-size", "2"])
    assert "batch              16 in a step: 8 on each of 2 ranks" in capfd.readouterr().out
    alone = glue(GlueConfig(**ALONE))
    merged = json.loads((tmp_path / "merged.json").read_text())
    assert len(merged["mean_losses"]) == 3 and merged["steps_per_epoch"] == 3  # 48 rows in sixteens
    assert merged["mean_losses"] == pytest.approx(alone.steps.loss.tolist(), rel=1e-4)
    assert merged["config"]["batch_size"] == 16 and merged["config"]["per_device_train_batch_size"] == 8


@pytest.mark.parametrize(
    ("flags", "of_a_rank", "total"),
    [
        ("--per_gpu_train_batch_size 16", 16, 64),
        ("--per-device-train-batch-size=16", 16, 64),
        ("--per_device_train_batch_size 16 --total_batch_size 64", 16, 64),
        ("--batch_size 128", 32, 128),
        ("", 16, 64),
    ],
)
def test_four_ranks_take_as_many_rows_as_a_flag_says(
    flags: str, of_a_rank: int, total: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_torchrun(monkeypatch)
    config, _ = command.parse(["glue", *flags.split()])
    of_ranks = config.for_ranks(4)
    assert (of_ranks.per_device_train_batch_size, of_ranks.batch_size) == (of_a_rank, total)


def test_what_the_assignments_other_flags_ask_for_is_what_is_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    without_torchrun(monkeypatch)
    flags = """--seed 42 --max_steps -1 --warmup_steps 0 --weight_decay 0.5 --adam_epsilon 1e-6 --overwrite_cache
        --gradient_accumulation_steps 1 --per_device_eval_batch_size 8 --no_cuda --fp16_opt_level O1 --cache_dir="""
    config, start = command.parse(["glue", *flags.split()])
    assert (config.seed, start.backend) == (42, "gloo")
    config = GlueConfig(**ALONE | {"weight_decay": config.weight_decay, "adam_epsilon": config.adam_epsilon})
    optimizer = GlueRun(config, load_glue(config)).trainer.optimizer
    decays = {p.ndim > 1: group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert decays == {True: 0.5, False: 0.0} and {group["eps"] for group in optimizer.param_groups} == {1e-6}
    n_parameters = len([*models.bert("tiny", 0, vocab_size=300).parameters()])
    assert sum(len(group["params"]) for group in optimizer.param_groups) == n_parameters
    assert GlueConfig().weight_decay == 0.0  # as in the assignment


def test_all_flags_of_the_assignment_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    without_torchrun(monkeypatch)
    flags = """--model_type bert --model_name_or_path folder --task_name RTE --do_train --do_eval --data_dir shipped
        --max_seq_length 128 --per_gpu_train_batch_size 64 --learning_rate 2e-5 --num_train_epochs 3 --output_dir out
        --overwrite_output_dir --sync ddp --master_ip 10.10.1.1 --master_port 23456 --world_size 4 --local_rank 0
        --iterations 5 --precision bf16"""
    for spelled in (flags, re.sub(r"(?<=[a-z])_(?=[a-z])", "-", flags), flags.replace(" 4 ", "=4 ")):
        config, start = command.parse(["glue", *spelled.split()])
        config = config.for_ranks(4)
        assert (config.model, config.source, config.max_length, config.batch_size) == ("folder", "shipped", 128, 256)
        assert (config.learning_rate, config.epochs, config.output_dir, config.sync) == (2e-5, 3, "out", "ddp")
        assert (config.iterations, config.precision, config.do_train, config.do_eval) == (5, "bf16", True, True)
        assert start.by_hand(4) == (0, 4, "10.10.1.1", 23456)


@pytest.mark.slow
@needs_all_reduce
def test_four_nodes_with_addresses_of_their_own_train_what_one_process_trains(tmp_path: Path, four_hosts: Any) -> None:
    master, out = four_hosts[2].address, tmp_path / "out"  # to the other three it is another host's
    flags = [*SMALL, "--epochs", "1", "--sync", "all_reduce", "--world-size", "4", "--master-ip", master]
    flags += ["--master-port", "23456", "--output-dir", str(out)]
    ranks = {0: four_hosts[2], 1: four_hosts[0], 2: four_hosts[1], 3: four_hosts[3]}
    nodes = {
        rank: host.start("labkit.train", "glue", *flags, "--local-rank", str(rank), OMP_NUM_THREADS="1")
        for rank, host in ranks.items()
    }
    ended = {rank: node.ended() for rank, node in nodes.items()}
    printed = {rank: node.stdout + node.stderr for rank, node in ended.items()}
    assert [node.returncode for node in ended.values()] == [0] * 4, printed
    alone = glue(GlueConfig(**ALONE))
    merged = json.loads((out / "merged.json").read_text())
    assert merged["mean_losses"] == pytest.approx(alone.steps.loss.tolist(), rel=1e-4)
    assert merged["world_size"] == 4 and merged["backend"] == "gloo"
    for rank, text in printed.items():
        assert "iter 1 loss " in text and (out / f"loss_{rank}.txt").is_file()
