"""Training on several ranks is training on one: same gradients, every sample, no rank left waiting,
results on disk."""

from __future__ import annotations

import json
import threading
import traceback
from pathlib import Path
from typing import Any
from unittest import mock

import pandas as pd
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from to_do import task
from train_commands import without_torchrun

from labkit import models, train
from labkit.launch import launch
from labkit.trace import EVENT_COLUMNS
from labkit.train import TranslateConfig, load, metrics, trainer, translate, translation, translation_task
from labkit.train.translation import Example

needs_answers = task("dp.1", "dp.4")
SMALL = ["--source", "shipped", "--size", "nano", "--limit", "120", "--limit-eval", "20", "--batch-size", "16"]
SMALL += ["--languages", "de", "en"]  # a course may have others


def examples(n: int) -> list[Example]:
    """Of very different lengths, so that shards of as many samples have far from as many tokens."""
    return [Example([3 + i % 7] * (1 + i % 3) + [1], [4 + i % 5] * (1 + 3 * (i % 4)) + [2]) for i in range(n)]


def small_model() -> torch.nn.Module:
    return models.gpt2("nano", seed=2, vocab_size=12, n_positions=32)


def flat_gradient(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def gradient_of_whole_batch(batch: list[Example]) -> torch.Tensor:
    """One process, plain torch, one example at a time: the gradient of the mean loss per target
    token."""
    model, losses = small_model(), []
    for example in batch:
        tokens = torch.tensor(example.source + example.target)
        logits = model(tokens[None, :-1]).logits[0, len(example.source) - 1 :]
        losses.append(F.cross_entropy(logits, tokens[len(example.source) :], reduction="none"))
    torch.cat(losses).mean().backward()
    return flat_gradient(model)


def one_step(shards: list[list[Example]]) -> tuple[torch.Tensor, torch.Tensor]:
    """In a rank: this rank's own mean-loss gradient, and what Trainer.gradients makes of all
    ranks'."""
    own, alone = shards[dist.get_rank()], small_model()
    if own:
        batch = translation.collate(own)
        (translation.target_loss(alone, batch) / batch.n_targets).backward()
    else:
        for parameter in alone.parameters():
            parameter.grad = torch.zeros_like(parameter)
    batches = [translation.collate(own)] if own else []
    shared = trainer.Trainer(small_model(), translation.target_loss, 0.1, 1)
    shared.gradients(batches[0] if own else None, trainer.targets_per_step(batches)[0])
    return flat_gradient(alone), flat_gradient(shared.model)


@needs_answers
@pytest.mark.parametrize("cut", [6, 9, 12], ids=["equal shards", "unequal shards", "one rank without a batch"])
def test_averaged_gradients_are_those_of_one_process_on_the_whole_batch(cut: int, ranks: Any) -> None:
    batch = examples(12)
    (local_0, shared_0), (local_1, shared_1) = ranks(2).run(one_step, [batch[:cut], batch[cut:]]).values
    whole = gradient_of_whole_batch(batch)
    assert torch.equal(shared_0, shared_1)
    torch.testing.assert_close(shared_0, whole, rtol=1e-4, atol=1e-6)
    assert not torch.allclose(local_0, local_1, rtol=1e-2)
    # What would be wrong: a mean over ranks that does not know how many targets each had.
    assert not torch.allclose((local_0 + local_1) / 2, whole, rtol=1e-2, atol=1e-4)


def test_the_validation_loss_weighs_every_target_alike_on_any_number_of_ranks(ranks: Any) -> None:
    def validate(data: list[Example]) -> float:
        rank, world_size = trainer.world()
        own = [translation.collate([example]) for example in data[rank::world_size]]
        return trainer.Trainer(small_model(), translation.target_loss, 0.1, 1).validation_loss(own)

    whole = translation.collate(examples(11))
    expected = translation.target_loss(small_model(), whole).item() / whole.n_targets
    assert validate(examples(11)) == pytest.approx(expected, rel=1e-5)
    assert ranks(2).run(validate, examples(11)).values == pytest.approx([expected, expected], rel=1e-5)


@pytest.mark.slow
@needs_answers
def test_training_learns_and_runs_alone_in_a_process_without_a_group() -> None:
    config = TranslateConfig("shipped", "nano", 400, limit=256, limit_eval=32, epochs=8, batch_size=16)
    result = translate(config)
    training_loss = metrics.training_loss(result.steps)
    assert training_loss[8] < 0.5 * training_loss[1]
    assert result.validation_loss[-1] < 0.6 * result.validation_loss[0]
    assert result.bleu is not None and result.bleu > 4  # 0.0 before training
    assert (result.world_size, result.backend, len(result.samples)) == (1, "none", 3)
    assert result.samples[0]["source"] == "Ben wohnt im Haus Nummer dreiunddreißig."
    assert result.samples[0]["reference"] == "Ben lives in house number thirty-three."


@needs_answers
def test_two_ranks_bring_home_one_result_from_a_notebook_cell(ranks: Any) -> None:
    config = TranslateConfig(
        "shipped", "nano", 300, limit=33, limit_eval=9, epochs=2, batch_size=8, save_gradients=True
    )
    run = ranks(2).run(translate, config)
    merged = metrics.merge(run.values)
    targets = metrics.record(run.values).groupby("epoch").targets.sum()
    assert targets.tolist() == [sum(len(example.target) for example in load(config).train)] * 2
    assert run.values[0].bleu == run.values[1].bleu
    first, second = (result.gradients for result in run.values)
    assert first and second
    for name, averaged in first["averaged"].items():
        assert torch.equal(averaged, second["averaged"][name])
        torch.testing.assert_close(averaged, (first["local"][name] + second["local"][name]) / 2)
        assert not torch.equal(first["local"][name], second["local"][name])
    steps = run.events[run.events["name"] == "optimizer"]["step"]
    assert sorted(set(steps)) == list(range(10))  # 17 and 16 samples in fours: 5 steps, twice
    all_reduce = run.events[run.events["name"] == "all_reduce"]
    assert set(all_reduce["lane"]) == {"comm"}
    assert set(all_reduce["bytes"]) == {4 * merged["parameters"]}


def told_in_each_rank(result: Any) -> str:
    """In a rank: what translate raises where reading gives ``result``, or raises it."""
    reading = mock.Mock(side_effect=[result() if isinstance(result, type) else result])
    with mock.patch.object(translation_task, "load", reading), pytest.raises(BaseException) as caught:
        translate(TranslateConfig())
    return "".join(traceback.format_exception_only(caught.value)).strip()


@pytest.mark.parametrize(
    ("result", "says"), [(KeyError("de"), "KeyError: 'de'"), (threading.Event, "TypeError: cannot")]
)
def test_whatever_rank_0_raises_while_it_reads_every_rank_raises(result: Any, says: str, ranks: Any) -> None:
    first, second = ranks(2).run(told_in_each_rank, result).values
    assert first.startswith(says)
    assert second.startswith("RuntimeError: rank 0 could not read the data, so no rank can train: ") and says in second


@needs_answers
def test_the_command_starts_ranks_of_its_own_and_saves_what_they_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    without_torchrun(monkeypatch)
    train.main(["translate", *SMALL, "--world_size=2", "--n_epochs", "2", "--save_gradients", "--out", str(tmp_path)])
    out, merged = capfd.readouterr().out, json.loads((tmp_path / "merged.json").read_text())
    assert "4,000 generated sentence pairs, which ship with the lab" in out
    assert all(line in out for line in metrics.report(merged).splitlines())
    assert len(pd.read_csv(tmp_path / "steps.csv")) == 2 * 16  # of each rank; 120 samples in eights, twice
    events = pd.read_csv(tmp_path / "events.csv")
    assert tuple(events.columns) == EVENT_COLUMNS and set(events["rank"]) == {0, 1}
    reduced = events[events["name"] == "all_reduce"].pivot(index="step", columns="rank", values=["start_s", "end_s"])
    # On one clock, no rank has averaged its gradients before the last rank has begun to.
    assert (reduced["end_s"].min(axis=1) > reduced["start_s"].max(axis=1)).all()
    gradients = [torch.load(tmp_path / f"model{rank}_gradients.pth") for rank in (0, 1)]
    assert all(torch.equal(gradient, gradients[1][name]) for name, gradient in gradients[0].items())


@needs_answers
def test_ranks_that_torchrun_starts_train_by_the_same_flags(tmp_path: Path) -> None:
    launch(train.main, ["translate", *SMALL, "--epochs", "1", "--out", str(tmp_path)], init=False)
    merged = json.loads((tmp_path / "merged.json").read_text())
    assert merged["world_size"] == 2 and merged["steps"] == 8  # 120 samples in sixteens
    assert {path.name for path in tmp_path.iterdir()} == {"merged.json", "steps.csv", "events.csv"}


def test_a_loss_that_is_no_number_ends_the_command_with_the_step_it_began_at_and_without_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    without_torchrun(monkeypatch)
    expected = r"^rank \d raised FloatingPointError: .* the loss is (nan|inf) from step 2 on \(and so did rank \d\); "
    expected += "the run's first step is in "
    with pytest.raises(SystemExit, match=expected):
        train.main(["translate", *SMALL, "--no-bleu", "--lr", "1e30", "--backend", "gloo", "--out", str(tmp_path)])
    assert "Traceback" not in capfd.readouterr().err
