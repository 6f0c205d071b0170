"""Train BERT with several ways to agree on gradients, in turns, and show it: notebook 05.

A way is as in :mod:`labkit.lab.overlap`; ``step`` is the notebook's, with spans named as PARTS.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pandas as pd
import torch
import torch.distributed as dist

from labkit.base.formats import MeasuredTable, fact, loss, measured
from labkit.cost import Link, ddp_step, measure_rising
from labkit.lab.overlap import NO_SYNC, ComputeTimes, InTurns, SyncMethod
from labkit.lab.published_results import RTE_ACCURACY, RTE_LOSSES
from labkit.launch import Run, WarmRanks, device, launch
from labkit.models import bert
from labkit.trace import barrier, span, traffic
from labkit.train.entailment import EntailmentCorpus, collate, count_correct
from labkit.train.glue_task import epoch_order
from labkit.train.trainer import Batch, sum_over_ranks, world

if TYPE_CHECKING:
    from labkit.guess import Guess  # every rank imports this module, and no rank asks

PARTS = "forward", "backward", "agree", "optimizer"  # of a step, its spans
RANKS = 4
_GRADIENTS = 6  # of a model that is averaged without training
_LEARNING_RATE = 1e-3

Seen: TypeAlias = Sequence[tuple[float, float]]  # of each step, the loss and how far ranks are apart
Step: TypeAlias = Callable[[Any, Batch, float, torch.optim.Optimizer, Callable[[], object]], torch.Tensor]


def small_bert(corpus: EntailmentCorpus, seed: int = 0) -> Any:
    """Return the model that notebook 05 trains, on this rank's device: the same for a seed.

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
    found, _ = dist._compute_bucket_assignment_by_size(parameters[::-1], [2**20, 25 * 2**20], [], numbers[::-1])
    return found


def own_batches(corpus: EntailmentCorpus, batch_size: int, epoch: int = 1) -> Iterator[Batch]:
    """Yield this rank's share of an epoch's batches: rows r, r + N, r + 2 N … of each."""
    rank, n = world()
    order = epoch_order(len(corpus.train), 0, epoch)
    for start in range(0, len(order), batch_size):
        rows = [corpus.train[i] for i in order[start : start + batch_size]]
        yield collate(rows[rank::n], max(map(len, rows))).to(device())


# --- agreeing, without training -------------------------------------------------------------------


def agree_s(ranks: WarmRanks, average: Callable[[Any], object]) -> tuple[list[int], list[float]]:
    """Return sizes of a gradient in bytes, and the seconds that ``average(model)`` takes for each.

    A model has six gradients of one size, so they follow each other as in a training step. Sizes
    take turns; the seconds are medians of five turns, without a first one that warms up. On a fast
    link larger sizes are added: see :func:`labkit.cost.measure_rising`.
    """

    def measure(sizes_bytes: Sequence[int]) -> pd.DataFrame:
        return ranks.run(_agree, average, list(sizes_bytes), _GRADIENTS, 1 + 5).repeats(by="bytes")[1:]

    seconds = measure_rising(measure, [2**10, 2**16, 2**22]).median() / _GRADIENTS
    return [*seconds.index], [*seconds]


def _agree(average: Callable[[Any], object], sizes_bytes: Sequence[int], n: int, repeats: int) -> None:
    models = [torch.nn.ParameterList(torch.ones(size // 4, device=device()) for _ in range(n)) for size in sizes_bytes]
    for parameter in (each for model in models for each in model):
        parameter.grad = torch.ones_like(parameter)
    for size, model in [*zip(sizes_bytes, models, strict=True)] * repeats:
        barrier()
        with span("agree", lane="comm", bytes=size):
            average(model)


# --- training in turns ----------------------------------------------------------------------------


def in_turns(
    step: Step,
    ways: Mapping[str, SyncMethod],
    corpus: EntailmentCorpus,
    iterations: int,
    batch_size: int = 32,
    world_size: int = RANKS,
    **options: Any,
) -> SyncTurns:
    """Train a model each way, an iteration in turn; the first of each warms up.

    After each whole epoch each way's accuracy is taken. ``options`` are those of
    :func:`labkit.launch.launch`.
    """
    run = launch(
        _take_turns,
        step,
        dict(ways),
        corpus,
        iterations,
        batch_size,
        world_size=world_size,
        compared_with=RANKS,
        threads=1,
        **options,
    )
    return SyncTurns(run, [*ways])


def _take_turns(
    step: Step, ways: Mapping[str, SyncMethod], corpus: EntailmentCorpus, iterations: int, batch_size: int
) -> dict[str, tuple[list[float], list[float]]]:
    """Return by way this rank's loss of each iteration, and the accuracy after each epoch."""
    trained: list[Any] = []
    found: dict[str, tuple[list[float], list[float]]] = {}
    for name, way in ways.items():
        model, sync = way(small_bert(corpus))
        trained.append((model, torch.optim.Adam(model.parameters(), lr=_LEARNING_RATE), sync))
        found[name] = [], []
    an_epoch = len(corpus.train) // batch_size
    for i in range(iterations):
        if i % an_epoch == 0:
            batches = own_batches(corpus, batch_size, epoch=1 + i // an_epoch)
        batch = next(batches)
        for k, ((losses, accuracy), (model, optimizer, sync)) in enumerate(zip(found.values(), trained, strict=True)):
            barrier()
            with span("step", lane="host", step=i * len(ways) + k):
                last = step(model, batch, batch_size / dist.get_world_size(), optimizer, sync)
            losses.append(last.item())
            if i % an_epoch == an_epoch - 1:
                accuracy.append(_accuracy(model, corpus))
    return found


@torch.no_grad()
def _accuracy(model: Any, corpus: EntailmentCorpus) -> float:
    """Return the accuracy on the validation rows, of which each rank takes its share."""
    rank, n = world()
    correct = count_correct(getattr(model, "module", model), collate(corpus.validation[rank::n]).to(device()))
    return sum_over_ranks(correct)[0] / len(corpus.validation)


class SyncTurns(InTurns):
    """Iterations of several ways that took turns, with their losses and accuracies."""

    def __init__(self, run: Run, ways: Sequence[str]):
        super().__init__(run, ways, PARTS)

    @functools.cached_property
    def losses(self) -> pd.DataFrame:
        """The whole batch's loss of each iteration, a column per way: the mean over ranks."""
        of_rank = [pd.DataFrame({way: found[way][0] for way in self.ways}) for found in self.run.values]
        return sum(of_rank[1:], of_rank[0]) / len(of_rank)

    @property
    def accuracy(self) -> dict[str, list[float]]:
        """The accuracy after each epoch, by way."""
        return {way: self.run.values[0][way][1] for way in self.ways}


def compute_s(turns: SyncTurns) -> tuple[float, float, float]:
    """Return the seconds of forward, backward and optimizer where no rank waits for another."""
    alone: ComputeTimes = turns.compute
    return alone.forward_s, float(turns.part_s("backward")[NO_SYNC].median()), alone.optimizer_s


# --- what a prediction says, and what came --------------------------------------------------------


def all_reduce_step(
    compute_s: Sequence[float], link: Link, sizes_bytes: Sequence[int], host_s: float = 0.0
) -> pd.DataFrame:
    """Predict a step of four ranks with one all_reduce per parameter, each after the one before.

    What is measured is one span for all of them, which does not tell calls from messages: so here
    both are communication. Columns are those of an event table.
    """
    forward_s, backward_s, optimizer_s = compute_s
    ready_s, each_alone = [backward_s] * len(sizes_bytes), [[i] for i in range(len(sizes_bytes))]
    rates = link.latency_s, link.bytes_per_s, host_s
    step = ddp_step(forward_s, ready_s, optimizer_s, sizes_bytes, each_alone, RANKS, *rates, overlap=False)
    return step.replace({"lane": {"host": "comm"}})


def terms_to_read(terms: Mapping[str, pd.DataFrame], by_formula: Collection[str]) -> MeasuredTable:
    """Return :func:`labkit.cost.way_terms` of several links, in ms, as one table to read.

    On a link that is given, one of ``by_formula``, latency and bytes are exact. So is what hides
    where nothing is sent during backward.
    """
    table = (1000 * pd.concat(terms)).astype(object)
    given = table.index.isin(list(by_formula), level=0)
    for column, exact in {"latency": given, "bytes": given, "hidden": ~table.index.isin(["ddp"], level=1)}.items():
        table.loc[exact, column] = table.loc[exact, column].map("{:.4g}".format)
    return MeasuredTable(table)


_PAIRS = ("gather_scatter", "ddp"), ("all_reduce", "ddp"), ("gather_scatter", "all_reduce")


def ratios(
    place: str,
    turns: SyncTurns,
    terms: Mapping[str, pd.DataFrame],
    guesses: Mapping[str, Guess] | None = None,
    published_s: Mapping[str, float] | None = None,
) -> MeasuredTable:
    """Return how many times as long as another way a way takes, as predicted and as measured.

    ``terms`` are by place; ``guesses`` by the way that is compared with DDP.
    """
    predicted_s, pairs = terms[place]["iteration"], {f"{a} ÷ {b}": (a, b) for a, b in _PAIRS}
    found = {name: turns.step_s.ratio(*pair) for name, pair in pairs.items()}
    predicted = {name: predicted_s[a] / predicted_s[b] for name, (a, b) in pairs.items()}
    rows = {
        "predicted": {
            name: fact(f"{predicted[name]:.3g}, {found[name].side_of(predicted[name])}", 25) for name in pairs
        },
        "measured": {name: fact(each.text(), 25) for name, each in found.items()},
    }
    if guesses:
        rows["your guess"] = {f"{way} ÷ ddp": guess.in_words() for way, guess in guesses.items()}
    if published_s:
        rows["published"] = {name: f"{published_s[a] / published_s[b]:.2f}" for name, (a, b) in pairs.items()}
    return MeasuredTable(pd.DataFrame(rows).T.fillna("").rename_axis(place))


def wrong_ratios(terms: pd.DataFrame) -> pd.DataFrame:
    """Return how many times as long as DDP a way would take under wrong models: a column per way.

    Without latencies, and if an iteration were messages alone, or bytes alone.
    """
    iteration_s, latency_s, bytes_s = (terms[term] for term in ("iteration", "latency", "bytes"))
    models = {"no_latency": iteration_s - latency_s, "messages_alone": latency_s, "bytes_alone": bytes_s}
    return pd.DataFrame({name: seconds / seconds["ddp"] for name, seconds in models.items()}).T


def losses_and_accuracy(*turns: SyncTurns) -> MeasuredTable:
    """Return the first losses and the accuracy after each epoch, and below the published ones."""
    n_epochs = min(len(each.accuracy[way]) for each in turns for way in each.ways)
    rows = {
        way: [*map(loss, each.losses[way][:5]), *(measured(share, width=6) for share in each.accuracy[way][:n_epochs])]
        for each in turns
        for way in each.ways
    }
    for name, accuracy in RTE_ACCURACY.items():
        losses = RTE_LOSSES.get(name, [None] * 5)
        rows[f"published, on RTE: {name}"] = [
            "" if each is None else f"{each:.3f}" for each in (*losses, *accuracy[:n_epochs])
        ]
    columns = [f"loss {i}" for i in range(1, 6)] + [f"accuracy {i}" for i in range(1, n_epochs + 1)]
    return MeasuredTable(rows, index=columns).T


def first_losses(turns: SyncTurns) -> pd.DataFrame:
    """Return the first losses as a notebook shows them: a row per way."""
    table = turns.losses[:5].T.map(loss)
    return table.set_axis([f"loss {i}" for i in range(1, 6)], axis="columns")


def five_steps_to_read(one_seed: Sequence[Seen], four_seeds: Sequence[Seen]) -> pd.DataFrame:
    """Return each rank's losses from one seed, and how far ranks are apart, from one and from four.

    A row per step; how far is the greatest difference of any parameter between two ranks.
    """
    columns = {f"loss of rank {rank}": [loss(each) for each, _ in seen] for rank, seen in enumerate(one_seed)}
    columns["apart, one seed"] = [f"{apart:g}" for _, apart in one_seed[0]]
    columns["apart, four seeds"] = [loss(apart) for _, apart in four_seeds[0]]
    return pd.DataFrame(columns, index=pd.RangeIndex(1, len(one_seed[0]) + 1, name="after step"))


# --- traffic --------------------------------------------------------------------------------------


def sent_bytes(
    step: Step, ways: Mapping[str, SyncMethod], corpus: EntailmentCorpus, batch_sizes: Sequence[int]
) -> pd.DataFrame:
    """Return the bytes that each rank sends in an iteration, as the kernel counts them.

    A row per batch size and way, a column for rank 0 and one for the mean of the others; NaN where
    the kernel does not count. Beside them what the arithmetic says: rank 0 scatters to all others,
    and around a ring all send alike.
    """
    run = launch(_count_traffic, step, dict(ways), corpus, batch_sizes, world_size=RANKS, backend="gloo", threads=1)
    first, *others = (pd.Series(found, dtype=float) for found in run.values)
    table = pd.DataFrame({"rank 0": first, "another": sum(others[1:], others[0]) / len(others)})
    table = table.rename_axis(["batch", "way"])
    n_bytes = sum(parameter.nbytes for parameter in small_bert(corpus).parameters())
    gathers = table.index.isin(["gather_scatter"], level="way")
    around_a_ring = 2 * (RANKS - 1) / RANKS * n_bytes
    table["rank 0, predicted"] = np.where(gathers, (RANKS - 1) * n_bytes, around_a_ring)
    table["another, predicted"] = np.where(gathers, n_bytes, around_a_ring)
    return table


def _count_traffic(
    step: Step, ways: Mapping[str, SyncMethod], corpus: EntailmentCorpus, batch_sizes: Sequence[int]
) -> dict[tuple[int, str], float]:
    if not traffic.available():
        return {(size, name): math.nan for size in batch_sizes for name in ways}
    trained = {}
    for name, way in ways.items():
        model, sync = way(small_bert(corpus))
        trained[name] = model, torch.optim.Adam(model.parameters(), lr=_LEARNING_RATE), sync

    def train(name: str, size: int) -> None:
        model, optimizer, sync = trained[name]
        step(model, next(own_batches(corpus, size)), size / dist.get_world_size(), optimizer, sync)

    found: dict[tuple[int, str], float] = {}
    for name in [*ways] * 2:  # these set up what the others use
        train(name, min(batch_sizes))
    for size in batch_sizes:
        for name in ways:
            dist.barrier()
            with traffic.observe() as seen:
                train(name, size)
            dist.barrier()
            found[size, name] = seen.sent_bytes
    return found
