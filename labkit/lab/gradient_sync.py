"""Hold a BERT and the batches whose gradients are agreed on in three ways, and tables of that."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd
import torch
import torch.distributed as dist

from labkit.base.formats import MeasuredTable, loss, measured
from labkit.base.units import MIB
from labkit.lab.published_results import RTE_ACCURACY, RTE_LOSSES
from labkit.launch import device
from labkit.models import bert
from labkit.train.entailment import EntailmentCorpus, collate, count_correct
from labkit.train.glue_task import epoch_order
from labkit.train.trainer import Batch, sum_over_ranks, world


def small_bert(corpus: EntailmentCorpus, seed: int = 0) -> Any:
    """Return a small BERT, on this rank's device: the same for a seed.

    Its two buffers, the numbers of positions and token types, never change. Here they are constants
    of the model, so DDP does not broadcast them before each forward pass.
    """
    model = bert("tiny", seed, vocab_size=corpus.vocab_size, max_position_embeddings=128).to(device())
    for module in model.modules():
        constants, module._buffers = module._buffers, {}
        for name, value in constants.items():
            setattr(module, name, value)
    return model


def torch_buckets(model: torch.nn.Module) -> list[list[int]]:
    """Return the buckets of torch's DDP, by the numbers of their parameters: 1 MiB, then 25 MiB."""
    parameters: list[torch.Tensor] = [*model.parameters()]
    numbers = [*range(len(parameters))]
    found: list[list[int]]
    found, _ = dist._compute_bucket_assignment_by_size(parameters[::-1], [MIB, 25 * MIB], [], numbers[::-1])
    return found


def own_batches(corpus: EntailmentCorpus, batch_size: int = 32) -> Iterator[Batch]:
    """Yield this rank's share of an epoch's batches: rows r, r + N, r + 2 N … of each."""
    rank, n = world()
    order = epoch_order(len(corpus.train), 0, 1)
    for start in range(0, len(order), batch_size):
        rows = [corpus.train[i] for i in order[start : start + batch_size]]
        yield collate(rows[rank::n], max(map(len, rows))).to(device())


@torch.no_grad()
def accuracy(model: Any, corpus: EntailmentCorpus) -> float:
    """Return the accuracy on the validation rows, of which each rank takes its share."""
    rank, n = world()
    correct = count_correct(getattr(model, "module", model), collate(corpus.validation[rank::n]).to(device()))
    return sum_over_ranks(correct)[0] / len(corpus.validation)


# --- tables ---------------------------------------------------------------------------------------

Losses = Mapping[str, Sequence[float]]  # of a rank's iterations, by way


def losses(of_ranks: Sequence[Losses]) -> pd.DataFrame:
    """Return the whole batch's losses, the means over ranks, to read: a row per way."""
    means = pd.concat([pd.DataFrame(own).T for own in of_ranks]).groupby(level=0, sort=False).mean()
    return means.map(loss).rename(columns=lambda i: f"loss {i + 1}")


def losses_and_accuracy(
    one: Sequence[tuple[Losses, Mapping[str, float]]], four: Sequence[tuple[Losses, Mapping[str, float]]]
) -> MeasuredTable:
    """Return the first losses and the accuracy after an epoch, and below the published ones.

    ``one`` is what the only process of its run returned, ``four`` what the ranks of the other did:
    losses and accuracy by way.
    """
    alone = losses([one[0][0]]).loc[["alone"]].set_axis(["one process"])
    table = pd.concat([alone, losses([found for found, _ in four])]).iloc[:, :5]
    table["accuracy"] = [measured(each, width=6) for each in (one[0][1]["alone"], *four[0][1].values())]
    for name, (first_epoch, *_) in RTE_ACCURACY.items():
        published = [f"{each:.3f}" for each in RTE_LOSSES.get(name, ())] or [""] * 5
        table.loc[f"published, on RTE: {name}"] = [*published, f"{first_epoch:.3f}"]
    return MeasuredTable(table)


def bytes_to_read(of_ranks: Sequence[Mapping[tuple[str, int], int]]) -> MeasuredTable:
    """Return the bytes that ranks 0 and 1 send in an iteration, by batch size: a row per way."""
    sizes = dict.fromkeys(size for _, size in of_ranks[0])  # none where the kernel does not count
    columns = {
        f"rank {rank}, {size}": {way: float(n) for (way, its), n in of_ranks[rank].items() if its == size}
        for rank in (0, 1)
        for size in sizes
    }
    return MeasuredTable(columns)


def five_steps_to_read(one_seed: Sequence[Any], four_seeds: Sequence[Any]) -> pd.DataFrame:
    """Return each rank's losses from one seed, and how far ranks are apart, from one and from four.

    Each rank gives its losses, and how far ranks are apart before the first step and after each.
    """
    columns = {f"one seed: loss of rank {rank}": ["", *map(loss, own)] for rank, (own, _) in enumerate(one_seed)}
    columns["one seed: apart"] = [f"{apart:g}" for apart in one_seed[0][1]]
    columns["four seeds: apart"] = [*map(loss, four_seeds[0][1])]
    return pd.DataFrame(columns, index=["at the start", *(f"after step {i}" for i in range(1, 6))])
