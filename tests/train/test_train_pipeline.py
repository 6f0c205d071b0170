"""In every mode the training is that of one process: same batches, losses, gradients and weights,
each token counted once."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from to_do import task
from train_commands import by_torchrun, without_torchrun

from labkit import dp, launch, models, train
from labkit.parallel.devices import training_devices
from labkit.train import (
    TranslateConfig,
    metrics,
    modes,
    pipeline_trainer,
    translate,
    translation,
    translation_task,
)
from labkit.train.translation import Corpus, Example

needs_answers = task("dp.1", "pipe.5")
needs_pipe = task("dp.1", "pipe.1", "pipe.2", "pipe.3", "pipe.4")
RANKS = {"gpipe": 2, "1f1b": 3, "interleaved": 2, "zb_h1": 2, "zb_v": 2}


def examples(n: int) -> list[Example]:
    """Of different lengths, and as many targets: a mean over rows is far from a mean over
    targets."""
    return [Example([3 + i % 7] * (1 + i % 3) + [1], [4 + i % 5] * (1 + 3 * (i % 4)) + [2]) for i in range(n)]


# Batches of 8 and of 3, which has fewer rows than there are micro-batches; so has validation.
CORPUS = Corpus("made up", "", 12, examples(11), examples(14)[11:], [], [])
SETTINGS: dict[str, Any] = {"size": "nano", "n_layer": 4, "max_length": 32, "batch_size": 8, "bleu": False}


def config(mode: str = "data_parallel", **settings: Any) -> TranslateConfig:
    return TranslateConfig(**(SETTINGS | {"mode": mode, "epochs": 3, "learning_rate": 0.05} | settings))


@pytest.fixture(scope="module")
def alone() -> metrics.RankResult:
    """The same training in one process, on one device."""
    return translate(config(save_gradients=True), CORPUS)


@pytest.fixture(scope="module")
def trained(ranks: Callable[..., Any]) -> Callable[[str], Any]:
    """trained(mode): the run of that mode on warm ranks."""
    runs: dict[str, Any] = {}

    def run(mode: str) -> Any:
        if mode not in runs:
            runs[mode] = ranks(RANKS[mode]).run(translate, config(mode, save_gradients=True), CORPUS)
        return runs[mode]

    return run


def assert_same_losses(result: metrics.RankResult, alone: metrics.RankResult) -> None:
    for name in ("training_loss", "validation_loss"):
        ours, expected = ([getattr(epoch, name) for epoch in each.epochs] for each in (result, alone))
        assert ours == pytest.approx(expected, rel=1e-4), name


# --- the same training ----------------------------------------------------------------------------


@needs_answers
@pytest.mark.parametrize("mode", modes.SCHEDULED)
def test_a_scheduled_pipeline_trains_as_one_process_does(mode: str, trained: Any, alone: metrics.RankResult) -> None:
    assert alone.epochs[-1].training_loss < 0.8 * alone.epochs[0].training_loss  # or a lost gradient would not be seen
    run = trained(mode)
    for result in run.values:
        assert_same_losses(result, alone)
    merged = metrics.merge(run.values)
    assert merged["parameters"] == alone.parameters
    assert merged["samples_per_epoch"] == [11, 11, 11]
    assert (
        sum(result.epochs[0].tokens for result in run.values) == sum(map(len, CORPUS.train)) == alone.epochs[0].tokens
    )
    assert {result.epochs[0].steps for result in run.values} == {2}


@pytest.mark.parametrize(
    "mode", [pytest.param("model_parallel", marks=task("dp.1")), pytest.param("pipeline_parallel", marks=needs_pipe)]
)
def test_one_process_with_three_devices_trains_as_with_one(mode: str, alone: metrics.RankResult) -> None:
    result = translate(config(mode, n_devices=3, save_gradients=True), CORPUS)
    assert_same_losses(result, alone)
    assert result.device == "cpu:0, cpu:1, cpu:2" and f"{mode}: 3 virtual devices in one process" in result.layout
    assert result.epochs[0].tokens == alone.epochs[0].tokens
    assert result.gradients and alone.gradients
    averaged = (each.gradients["averaged"].values() for each in (result, alone))
    for ours, expected in zip(*averaged, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-6)


@needs_answers
@pytest.mark.parametrize("mode", modes.SCHEDULED)
def test_each_rank_keeps_the_gradients_of_its_own_stages(mode: str, trained: Any, alone: metrics.RankResult) -> None:
    gpt2 = models.gpt2("nano", n_layer=4, vocab_size=12, n_positions=32)
    assert alone.gradients
    whole = dict(zip(map(id, gpt2.parameters()), alone.gradients["averaged"].values(), strict=True))
    schedule = modes.schedule_for_mode(mode, RANKS[mode], 4, 2)
    stages = models.stages(gpt2, schedule.n_stages)
    for result, ops in zip(trained(mode).values, schedule.ops, strict=True):
        own = [stages[number] for number in sorted({op.stage for op in ops})]
        expected = [whole[id(parameter)] for parameter in torch.nn.ModuleList(own).parameters()]
        for ours, theirs in zip(result.gradients["averaged"].values(), expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def train_and_put_together(mode: str) -> tuple[dict[str, torch.Tensor], int, int]:
    """In a rank: the whole model after two steps, the numbers in this rank's stages, and those in
    all parameters alive."""
    settings = config(mode)
    batches = list(dp.partition_dataset(0, 1, CORPUS.train, settings.batch_size, translation.collate))
    gc.collect()
    before = {id(each) for each in gc.get_objects() if type(each) is torch.nn.Parameter}
    learner = translation_task._trainer(settings, CORPUS, len(batches))
    # Adam divides a gradient by its size: rounding in one that is nearly 0 would be a whole step.
    learner.optimizer.param_groups[0]["eps"] = 1e-4
    for batch in batches:
        learner.train_step(batch, batch.n_targets)
    gc.collect()
    alive = sum(p.numel() for p in gc.get_objects() if type(p) is torch.nn.Parameter and id(p) not in before)
    state = learner.whole_model().state_dict()
    learner.close()
    return state, models.parameter_count(learner.model), alive


@needs_answers
@pytest.mark.parametrize("mode", ["1f1b", "zb_v"])
def test_ranks_hold_their_stages_only_and_put_them_together_as_the_model_that_one_process_trains(
    mode: str, ranks: Any
) -> None:
    expected, n_parameters, _ = train_and_put_together("data_parallel")
    values = ranks(RANKS[mode]).run(train_and_put_together, mode).values
    for state, own, alive in values:
        assert own == alive
        assert state.keys() == expected.keys()
        for name, weight in state.items():
            torch.testing.assert_close(weight, expected[name], rtol=1e-3, atol=1e-4)
            assert torch.equal(weight, values[0][0][name])
    twice = 12 * 64 if mode == "1f1b" else 0  # the weight that the first stage shares with the last
    assert sum(own for _, own, _ in values) == n_parameters + twice


# --- what is recorded -----------------------------------------------------------------------------


@needs_answers
@pytest.mark.parametrize("mode", modes.SCHEDULED)
def test_spans_are_those_of_training_step_by_step(mode: str, trained: Any) -> None:
    events, n_stages = trained(mode).events, modes.schedule_for_mode(mode, RANKS[mode], 4, 2).n_stages
    forwards = events[events["name"] == "forward"]
    expected = [(step, stage, i) for step in range(6) for stage in range(n_stages) for i in range(4)]
    assert sorted(zip(forwards["step"], forwards["stage"], forwards["micro_batch"], strict=True)) == expected
    assert sorted(events[events["name"] == "optimizer"]["step"]) == sorted([*range(6)] * RANKS[mode])
    summed = events[events["name"] == "all_reduce"]
    assert set(summed["rank"]) == (set() if mode == "zb_v" else {0, RANKS[mode] - 1})
    assert set(summed["lane"]) <= {"comm"} and set(summed["bytes"]) <= {12 * 64 * 4}


@needs_answers
def test_the_rank_of_the_last_stage_counts(trained: Any) -> None:
    for mode, rank in (("1f1b", 2), ("zb_v", 0)):
        counted = [result.epochs[0].tokens for result in trained(mode).values]
        assert [r for r, tokens in enumerate(counted) if tokens] == [rank]


@needs_pipe
def test_the_spans_of_pipeline_parallel_are_those_of_its_pipe() -> None:
    run = launch.launch(translate, config("pipeline_parallel", epochs=1), CORPUS, world_size=1, backend="gloo")
    forwards = run.events[run.events["name"] == "forward"]
    labels = sorted(zip(forwards["stage"], forwards["micro_batch"], strict=True))
    assert labels == sorted([(stage, i) for stage in range(2) for i in [*range(4), *range(2)]])  # 8 rows and 3, in twos
    assert len(run.events[run.events["name"] == "optimizer"]) == 2


def test_a_virtual_device_has_its_share_of_the_threads_and_they_come_back() -> None:
    threads, cpu = torch.get_num_threads(), torch.device("cpu")
    try:
        torch.set_num_threads(4)
        with pytest.raises(KeyError), pipeline_trainer.share_of_threads(training_devices(cpu, 2)):
            assert torch.get_num_threads() == 2
            raise KeyError
        with pipeline_trainer.share_of_threads(training_devices(cpu, 8)):
            assert torch.get_num_threads() == 1
        with pipeline_trainer.share_of_threads([cpu]):
            assert torch.get_num_threads() == 4
        assert torch.get_num_threads() == 4
    finally:
        torch.set_num_threads(threads)


# --- the command line -----------------------------------------------------------------------------

SMALL = "--source shipped --size nano --limit 120 --limit-eval 20 --batch-size 16 --epochs 2"


@pytest.mark.slow
@needs_answers
def test_under_torchrun_a_pipeline_trains_and_translates_as_one_process(tmp_path: Path) -> None:
    flags = [*SMALL.split(), "--model_parallel_mode", "zb-h1", "--n_chunk=2", "--out", str(tmp_path)]
    done = by_torchrun("translate", *flags)
    merged = json.loads((tmp_path / "merged.json").read_text())
    small = TranslateConfig("shipped", "nano", limit=120, limit_eval=20, epochs=2, batch_size=16)
    expected = translate(small)
    assert merged["training_loss"] == pytest.approx([e.training_loss for e in expected.epochs], rel=1e-4)
    assert merged["validation_loss"] == pytest.approx([e.validation_loss for e in expected.epochs], rel=1e-4)
    assert merged["samples"] == expected.samples and merged["bleu"] == pytest.approx(expected.bleu)
    assert "zb_h1: 2 stages on 2 ranks, 2 micro-batches a batch" in done.stdout
    assert {path.name for path in tmp_path.iterdir()} == {"merged.json", "rank0.json", "rank1.json", "events.csv"}


@needs_pipe
def test_one_process_drives_as_many_devices_as_world_size_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    without_torchrun(monkeypatch)
    mode = "--mode pipeline_parallel --n-micro 2 --n-layer 3 --world-size 3 --no-bleu --out"
    train.main(["translate", *SMALL.split(), *mode.split(), str(tmp_path)])
    out = capfd.readouterr().out
    assert "pipeline_parallel: 3 virtual devices in one process, 2 micro-batches a batch" in out
    assert "1 on gloo: cpu:0, cpu:1, cpu:2" in out
    assert {path.name for path in tmp_path.iterdir()} == {"merged.json", "rank0.json", "events.csv"}
