"""What training costs on top of its arithmetic: reading RTE, tokenising it, and the loop itself.

    python benchmarks/bench_train.py [--data FOLDER] [--pairs 12] [--size mini]

1. Reading RTE's two labelled splits and tokenising them, imports left out. Wanted: at most 2 s.
   RTE is in FOLDER; without one it is the lab's generated pairs, and the line says so.
2. The loop of ``labkit.train.glue_task`` beside the bare forward, backward, synchronisation,
   clipping and optimizer's step, for one rank and for two. The loop takes its rows, adds up the
   mean loss over ranks, and reads clocks. A pair is some steps with each of them, one right after
   the other, in turns first. Wanted: a median ratio of at most 1.02.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import statistics
import time

import numpy as np
import torch

from labkit.data.sources import source_in_words
from labkit.dp import average_gradients
from labkit.launch import launch
from labkit.trace import barrier
from labkit.train import entailment
from labkit.train.entailment import EntailmentCorpus
from labkit.train.glue_task import GlueConfig, GlueRun, epoch_order, load_glue
from labkit.train.trainer import world

MAX_READING_S, MAX_RATIO = 2.0, 1.02
STEPS, BATCH_SIZE, TOKENS = 4, 32, 128
WARM_UP = 1


def reading(source: str, repeats: int = 5) -> list[float]:
    """Return the seconds of reading and tokenising, a number for each repeat."""
    seconds = []
    for _ in range(1 + repeats):
        began = time.perf_counter()
        with contextlib.redirect_stdout(io.StringIO()):
            load_glue(GlueConfig(source, vocab_size=8000, max_length=TOKENS))
        seconds.append(time.perf_counter() - began)
    return seconds[1:]  # the first one imports


# --- in the ranks ---------------------------------------------------------------------------------


def pairs(config: GlueConfig, corpus: EntailmentCorpus, count: int) -> dict[str, list[float]]:
    """Return the seconds of an epoch by the task's loop, and of its bare steps, in turns."""
    torch.set_num_threads(1)
    run = GlueRun(config, corpus)
    order = epoch_order(len(corpus.train), config.seed, 1)
    cut = [order[start : start + config.batch_size] for start in range(0, len(order), config.batch_size)]
    batches = [run.own_rows(corpus.train, whole) for whole in cut]

    def bare() -> None:
        model = run.trainer.module
        for whole, batch in zip(cut, batches, strict=True):
            model.zero_grad()
            (entailment.summed_loss(model, batch) * (world().size / len(whole))).backward()
            if world().size > 1:
                average_gradients(model)
            torch.nn.utils.clip_grad_norm_(model.parameters(), config.max_grad_norm)
            run.trainer.optimizer.step()

    ways = {"bare": bare, "loop": lambda: run.train_epoch(1)}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    run.trainer.model.train()
    for number in range(WARM_UP + count):
        for name in sorted(ways, reverse=bool(number % 2)):
            if world().size > 1:
                barrier()
            began = time.perf_counter()
            ways[name]()
            seconds[name].append(time.perf_counter() - began)
    return {name: values[WARM_UP:] for name, values in seconds.items()}


# --- the table ------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", default="shipped", help="a folder with RTE; generated pairs if not given")
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--size", default="mini", help="of the BERT whose steps are timed")
    options = parser.parse_args()
    median, source = statistics.median(reading(options.data)), source_in_words(options.data)
    print(f"reading and tokenising {source}: {median:.2f} s (wanted: at most {MAX_READING_S:g} s)\n")

    rows = STEPS * BATCH_SIZE
    config = GlueConfig(options.data, size=options.size, limit=rows, limit_eval=1, batch_size=BATCH_SIZE, quiet=True)
    corpus = load_glue(config)
    print(f"\nBERT {options.size}, {BATCH_SIZE} rows a step, {STEPS} steps a pair, {options.pairs} pairs")
    print(
        f"wanted: loop ÷ bare at most {MAX_RATIO}\n\n| ranks | bare, s a step | loop ÷ bare | quartiles |\n|---|---|---|---|"
    )
    for world_size in (1, 2):
        run = launch(pairs, config, corpus, options.pairs, world_size=world_size, backend="gloo", timeout_s=3600)
        bare, loop = (np.mean([value[name] for value in run.values], axis=0) for name in ("bare", "loop"))
        low, middle, high = np.quantile(loop / bare, [0.25, 0.5, 0.75])
        print(f"| {world_size} | {np.median(bare) / STEPS:.3f} | {middle:.3f} | {low:.3f} to {high:.3f} |", flush=True)


if __name__ == "__main__":
    main()
