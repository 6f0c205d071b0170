"""BERT on RTE: every way to agree trains what one process trains; what cannot be is refused."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from to_do import task

from labkit import models
from labkit.launch import RankError
from labkit.train import glue_task
from labkit.train.entailment import EntailmentCorpus, SentencePair
from labkit.train.glue_task import GlueConfig, glue, load_glue
from labkit.train.metrics import TrainingResult
from labkit.train.trainer import SYNC_METHODS

AGREEING = [name for name in SYNC_METHODS if name != "none"]
needs_all_ways = task("dp.3", "dp.4", "dp.6", "dp.7")

SMALL = GlueConfig(
    source="shipped", vocab_size=300, limit=40, limit_eval=16, epochs=2, batch_size=16, dropout=False, quiet=True
)


@pytest.fixture(scope="module")
def corpus() -> EntailmentCorpus:
    return load_glue(replace(SMALL, learning_rate=1e-3))


@pytest.fixture(scope="module")
def results(corpus: EntailmentCorpus, ranks: Any) -> Any:
    """results(sync, **changes): the results of both ranks, in rank order."""
    made: dict[Any, list[TrainingResult]] = {}

    def run(sync: str, **changes: Any) -> list[TrainingResult]:
        key = (sync, *sorted(changes.items()))
        if key not in made:
            config = replace(SMALL, sync=sync, learning_rate=1e-3, **changes)
            made[key] = ranks(2).run(glue, config, corpus).values
        return made[key]

    return run


@pytest.fixture(scope="module")
def expected(corpus: EntailmentCorpus) -> tuple[list[float], list[float]]:
    return by_hand(corpus, SMALL.epochs)


def by_hand(corpus: EntailmentCorpus, epochs: int, max_grad_norm: float = 1.0) -> tuple[list[float], list[float]]:
    """One process, plain torch: the losses of whole batches and the accuracies."""
    model = models.bert("tiny", 0, vocab_size=corpus.vocab_size, max_position_embeddings=128)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    n_steps, losses, accuracy = epochs * math.ceil(len(corpus.train) / 16), [], []
    for epoch in range(1, epochs + 1):
        order = glue_task.epoch_order(len(corpus.train), 0, epoch)
        assert sorted(order) == list(range(len(corpus.train)))
        model.train()
        for start in range(0, len(order), 16):
            rows = [corpus.train[row] for row in order[start : start + 16]]
            for group in optimizer.param_groups:
                group["lr"] = 1e-3 * (1 - len(losses) / n_steps)
            loss = F.cross_entropy(logits_one_by_one(model, rows), torch.tensor([row.label for row in rows]))
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
            optimizer.step()
            losses.append(loss.item())
        model.eval()
        with torch.no_grad():
            guessed = logits_one_by_one(model, corpus.validation).argmax(1)
        accuracy.append((guessed == torch.tensor([row.label for row in corpus.validation])).float().mean().item())
    return losses, accuracy


def logits_one_by_one(model: Any, rows: list[SentencePair]) -> torch.Tensor:
    """Without padding, so without a mask."""
    inputs = [
        {"input_ids": torch.tensor([row.input_ids]), "token_type_ids": torch.tensor([row.token_type_ids])}
        for row in rows
    ]
    return torch.cat([model(**each).logits for each in inputs])


@needs_all_ways
@pytest.mark.parametrize("sync", AGREEING)
def test_every_way_trains_what_one_process_trains_on_the_whole_batch(
    sync: str, results: Any, corpus: EntailmentCorpus, expected: Any
) -> None:
    losses, accuracy = expected
    first, second = results(sync)
    for result in (first, second):
        assert result.steps.loss.tolist() == pytest.approx(losses, rel=2e-4)
        assert result.accuracy == pytest.approx(accuracy, abs=1.01 / len(corpus.validation))
    assert first.fingerprints == second.fingerprints and len(set(first.fingerprints)) == 2
    # Each rank has half of every batch, of an epoch's last one too: 40 rows are 2 × 16 and 8.
    own, others = first.steps.local_loss.tolist(), second.steps.local_loss.tolist()
    means = [(a + b) / 2 for a, b in zip(own, others, strict=True)]
    assert own != others and means == pytest.approx(first.steps.loss.tolist(), rel=1e-5)


@needs_all_ways
def test_one_process_alone_does_it_too(corpus: EntailmentCorpus, expected: Any) -> None:
    losses, accuracy = expected
    alone = glue(replace(SMALL, sync="none", learning_rate=1e-3), corpus)
    assert alone.steps.loss.tolist() == alone.steps.local_loss.tolist() == pytest.approx(losses, rel=2e-4)
    assert alone.accuracy == pytest.approx(accuracy, abs=1.01 / len(corpus.validation))
    assert (alone.world_size, alone.backend) == (1, "none")


@needs_all_ways
@pytest.mark.parametrize("sync", AGREEING)
def test_a_last_batch_with_fewer_rows_than_ranks_hangs_nobody_and_loses_no_row(
    sync: str, corpus: EntailmentCorpus, ranks: Any
) -> None:
    few = replace(corpus, train=corpus.train[:17], validation=corpus.validation[:1])
    config = replace(SMALL, sync=sync, learning_rate=1e-3, epochs=2)
    with_rows, without = ranks(2).run(glue, config, few).values
    losses, accuracy = by_hand(few, 2)
    assert with_rows.steps.loss.tolist() == pytest.approx(losses, rel=2e-4) and with_rows.accuracy == accuracy
    assert without.steps.local_loss.isna().tolist() == [False, True, False, True]


@needs_all_ways
def test_the_gradient_is_clipped_once_the_ranks_have_agreed(results: Any, corpus: EntailmentCorpus) -> None:
    tight = results("all_reduce", max_grad_norm=0.01)[0]
    assert tight.steps.loss.tolist() == pytest.approx(by_hand(corpus, SMALL.epochs, 0.01)[0], rel=2e-4)


@pytest.mark.slow
@needs_all_ways
def test_the_first_losses_on_real_rte_are_those_of_one_process(real_data: Path, ranks: Any) -> None:
    config = GlueConfig(str(real_data / "glue"), iterations=5, dropout=False, do_eval=False, quiet=True, max_length=64)
    data = load_glue(config)
    assert (len(data.train), len(data.validation)) == (2490, 277)
    alone = glue(replace(config, sync="none"), data)
    for sync in AGREEING:
        for result in ranks(2).run(glue, replace(config, sync=sync), data).values:
            assert result.steps.loss.tolist() == pytest.approx(alone.steps.loss.tolist(), rel=1e-4), sync


def seed_of_rank(corpus: EntailmentCorpus) -> None:
    glue(replace(SMALL, batch_size=18, seed=dist.get_rank() // 2), corpus)


def weights_of_rank(corpus: EntailmentCorpus) -> None:
    model = models.bert("tiny", dist.get_rank() // 2, vocab_size=20)
    glue_task.check_same_start(glue_task.fingerprint(model), SMALL)


@needs_all_ways
@pytest.mark.parametrize(
    ("start", "says"),
    [
        (seed_of_rank, "the ranks were told different options: seed is 1 on rank 2, and 0 on rank 0"),
        (weights_of_rank, r"different parameters: parameters is '\w{12}' on rank 2, and '\w{12}' on rank 0"),
    ],
)
def test_ranks_that_start_differently_are_told_before_they_train(
    start: Any, says: str, corpus: EntailmentCorpus, ranks: Any
) -> None:
    with pytest.raises(RankError, match=says):
        ranks(3).run(start, corpus)


@needs_all_ways
def test_losses_and_the_trained_model_are_on_disk_and_can_be_judged_again(
    tmp_path: Path, corpus: EntailmentCorpus, ranks: Any
) -> None:
    config = replace(SMALL, learning_rate=1e-3, output_dir=str(tmp_path / "out"))
    first, second = ranks(2).run(glue, config, corpus).values
    for result in (first, second):
        lines = (tmp_path / "out" / f"loss_{result.rank}.txt").read_text().splitlines()
        assert [int(line.split()[0]) for line in lines] == list(range(1, 7))
        assert [float(line.split()[1]) for line in lines] == pytest.approx(result.steps.local_loss.tolist(), abs=1e-6)
    judged = replace(SMALL, model=config.output_dir, do_train=False, output_dir="")
    again = glue(judged, load_glue(judged))
    assert again.accuracy == pytest.approx(first.accuracy[-1:], abs=1.01 / len(corpus.validation))
    assert again.steps.empty
    assert again.fingerprints[0] == first.fingerprints[1]
    longer = replace(judged, max_length=SMALL.max_length + 1)
    with pytest.raises(ValueError, match=r"max_length is 129, but .*out takes at most 128 tokens"):
        glue(longer, load_glue(longer))
