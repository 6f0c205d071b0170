"""Measure an iteration of each way to agree on gradients, and show it: for notebook 05."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import pandas as pd

from labkit.base.formats import MeasuredTable, loss, measured
from labkit.cost import Link, ddp_step
from labkit.lab.published_results import RTE_ACCURACY, RTE_LOSSES
from labkit.launch import Run, device, launch
from labkit.stats import Verdict
from labkit.train.entailment import EntailmentCorpus, collate
from labkit.train.glue_task import GlueConfig, glue
from labkit.train.metrics import TrainingResult
from labkit.train.trainer import Batch, world

Rounds: TypeAlias = Sequence[Mapping[str, Run]]  # of each round, the run of each way


def one_rank_s(config: GlueConfig, corpus: EntailmentCorpus, link: Link | None = None) -> list[float]:
    """Return the seconds of forward, backward and optimizer of one of two ranks, with no other.

    With a ``link`` it computes where ranks do whose link is emulated: on the CPU.
    """
    half = replace(config, sync="none", batch_size=config.batch_size // 2, iterations=12, do_eval=False)
    run = launch(glue, half, corpus, world_size=1, compared_with=2, link=link, threads=1)
    return list(run.timings.set_index("name").median_s[["forward", "backward", "optimizer"]])


def own_batches(corpus: EntailmentCorpus, steps: int, batch_size: int) -> Iterator[Batch]:
    """Yield this rank's share of the first batches: rows r, r + N, r + 2 N … of each."""
    rank, n = world()
    for start in range(0, steps * batch_size, batch_size):
        yield collate(corpus.train[start : start + batch_size][rank::n]).to(device())


def in_turns(ranks: Any, config: GlueConfig, corpus: EntailmentCorpus, ways: Sequence[str], rounds: int = 2) -> Rounds:
    """Train six iterations of each way on warm ``ranks``, the ways taking turns."""
    few = replace(config, iterations=6, do_eval=False)
    return [{way: ranks.run(glue, replace(few, sync=way), corpus) for way in ways} for _ in range(rounds)]


def iterations_s(rounds: Rounds) -> pd.DataFrame:
    """Return the seconds of each iteration, a column per way, without the first of each turn."""
    return pd.DataFrame(
        {way: [s for runs in rounds for s in runs[way].values[0].steps.seconds[1:]] for way in rounds[0]}
    )


def middle_iteration(rounds: Rounds, way: str) -> tuple[Run, int]:
    """Return run and step of the iteration whose length is nearest the median of ``way``."""
    steps = [
        (run, step, s) for run in (runs[way] for runs in rounds) for step, s in enumerate(run.values[0].steps.seconds)
    ]
    median = iterations_s(rounds)[way].median()
    run, step, _ = min((each for each in steps if each[1]), key=lambda each: abs(each[2] - median))
    return run, step


def all_reduce_step(compute_s: Sequence[float], link: Link, host_s: float, sizes_bytes: Sequence[int]) -> pd.DataFrame:
    """Predict a step of two ranks with one all_reduce per parameter, each after the one before.

    What is measured is one span for all of them, which does not tell calls from messages: so here
    both are communication. Columns are those of an event table.
    """
    forward_s, backward_s, optimizer_s = compute_s
    ready_s, each_alone = [backward_s] * len(sizes_bytes), [[i] for i in range(len(sizes_bytes))]
    rates = link.latency_s, link.bytes_per_s, host_s
    step = ddp_step(forward_s, ready_s, optimizer_s, sizes_bytes, each_alone, 2, *rates, overlap=False)
    return step.replace({"lane": {"host": "comm"}})


def terms_to_read(terms: Mapping[str, pd.DataFrame], by_formula: Collection[str]) -> MeasuredTable:
    """Return :func:`labkit.cost.way_terms` of several links, in ms, as one table to read.

    On a link that is given, one of ``by_formula``, latency and bytes are exact. So is what hides
    where nothing is sent during backward.
    """
    table = pd.concat(terms).astype(object)
    given = table.index.isin(list(by_formula), level=0)
    for column, exact in {"latency": given, "bytes": given, "hidden": ~table.index.isin(["ddp"], level=1)}.items():
        table.loc[exact, column] = table.loc[exact, column].map("{:.4g}".format)
    return MeasuredTable(table)


def losses_and_accuracy(found: Mapping[str, TrainingResult]) -> MeasuredTable:
    """Return the first losses and the accuracy after each epoch, and below the published ones."""
    rows = {
        name: [*map(loss, each.steps.loss[:5]), *(measured(share, width=6) for share in each.accuracy)]
        for name, each in found.items()
    }
    for name, accuracy in RTE_ACCURACY.items():
        losses = RTE_LOSSES.get(name, [None] * 5)
        rows[f"published, on RTE: {name}"] = ["" if each is None else f"{each:.3f}" for each in (*losses, *accuracy)]
    columns = [f"loss {i}" for i in range(1, 6)] + [f"accuracy {i}" for i in range(1, 4)]
    return MeasuredTable(rows, index=columns).T


def against_prediction(predicted_ratio: float, found: Verdict) -> str:
    """Say whether a verdict goes with the predicted ratio of the two ways' times, or against it."""
    if found.word == "within noise":
        inside = found.interval.side_of(1 / predicted_ratio) == "inside"
        return "hidden by the noise" if inside else "outside the measured interval"
    expected = "slower" if predicted_ratio > 1 else "faster"
    return "as measured" if found.word == expected else "the measurement says the opposite"
