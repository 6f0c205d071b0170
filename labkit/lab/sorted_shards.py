"""Train with short sentences on one rank and long ones on the other.

A ``train(model, batches, weighted)`` is given by the notebook: with the mean that counts each token
alike, or with the plain mean of the ranks' gradients.
"""

from __future__ import annotations

import contextlib
import io
import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from labkit.dp import DataPartitioner
from labkit.launch import device, workers
from labkit.models import gpt2
from labkit.train import TranslateConfig
from labkit.train import load as load_translation
from labkit.train.trainer import Batch
from labkit.train.translation import Corpus, Example, collate, target_loss

SHUFFLED, SORTED = "shuffled", "sorted by length"
_PER_RANK, _BATCH = 80, 16  # sentences

Train = Callable[[torch.nn.Module, Sequence[Batch], bool], None]


def harm(train: Train, seeds: int = 6) -> list[dict[str, list[float]]]:
    """Return by how much the plain mean is worse: the validation loss less that of the other mean.

    First on the shorter half of the validation sentences, then on the longer: a number for each
    seed, nats per target token, by how the shards were cut. It trains on 640 sentence pairs.
    """
    with contextlib.redirect_stdout(io.StringIO()):
        corpus = load_translation(TranslateConfig(source="shipped", limit=640, limit_eval=64))
    found: list[dict[str, list[float]]] = [{SHUFFLED: [], SORTED: []}, {SHUFFLED: [], SORTED: []}]
    with workers(world_size=2) as ranks:
        for seed in range(seeds):
            for way, shards in _shards(corpus, seed).items():
                values = ranks.run(_train_both, train, corpus, shards, seed).values
                for of_half, difference in zip(found, values, strict=True):
                    of_half[way].append(difference)
    return found


def _halves(examples: Sequence[Example]) -> tuple[list[Example], list[Example]]:
    ordered = sorted(examples, key=lambda each: len(each.target))
    middle = len(ordered) // 2
    return ordered[:middle], ordered[middle:]


def _shards(corpus: Corpus, seed: int) -> dict[str, list[list[Example]]]:
    shuffled = DataPartitioner(corpus.train, [0.5, 0.5], seed).shards
    return {
        SHUFFLED: [[corpus.train[i] for i in shard[:_PER_RANK]] for shard in shuffled],
        SORTED: [random.Random(seed).sample(half, _PER_RANK) for half in _halves(corpus.train)],
    }


def _train_both(train: Train, corpus: Corpus, shards: Sequence[list[Example]], seed: int) -> float:
    """Train both ways; return the difference on the shorter half on rank 0, on the longer on 1."""
    rank, own = dist.get_rank(), shards[dist.get_rank()]
    batches = [collate(own[i : i + _BATCH]).to(device()) for i in range(0, len(own), _BATCH)]
    half = collate(_halves(corpus.validation)[rank]).to(device())
    losses = []
    for weighted in (False, True):
        model: Any = gpt2("nano", seed=seed, vocab_size=corpus.vocab_size, n_positions=128).to(device())
        train(model, batches, weighted)
        with torch.no_grad():
            losses.append(target_loss(model.eval(), half).item() / half.n_targets)
    return losses[0] - losses[1]
