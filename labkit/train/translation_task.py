"""The translation task: GPT-2 learns to translate German into English, in every mode."""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from labkit import dp, launch, models, pipe
from labkit.base import machine
from labkit.parallel.devices import training_devices
from labkit.train import metrics, modes, pipeline_trainer, translation
from labkit.train.metrics import RankResult
from labkit.train.pipeline_trainer import PipelineTrainer
from labkit.train.rank_start import Start, read_on_rank_0
from labkit.train.trainer import RAMP_STEPS, Trainer, targets_per_step, world
from labkit.train.training_task import TrainingTask, check_options, check_output, option
from labkit.train.translation import Corpus

LEARNING_RATES = {"nano": 5e-3, "mini": 3e-3}  # the bigger the model, the lower; 3e-4 for OpenAI's sizes

SAMPLES = 3  # test sentences shown with their translations


def _with_underscores(mode: str) -> str:
    return mode.replace("-", "_").lower()  # 1F1B and ZB-H1, as the papers write them


@dataclass(frozen=True)
class TranslateConfig:
    """Describe one run of the translation task.

    - ``mode``: one of :data:`labkit.train.modes.MODES`: ``"data_parallel"``; ``"model_parallel"``
      and ``"pipeline_parallel"``, in which one process drives ``n_devices`` devices; or a schedule,
      with a process for each rank. The training is the same in all of them.
    - ``batch_size``: the global one, of all ranks together. ``n_micro``: how many micro-batches a
      batch is cut into, where there is a pipeline. ``stages_per_rank``: of the mode
      ``"interleaved"``.
    - ``source``, ``limit``, ``limit_eval``, ``max_length``, ``vocab_size``: as
      :func:`labkit.train.translation.load_corpus` takes them.
    - ``size``: as :func:`labkit.models.gpt2` takes it, with ``n_layer`` blocks instead of its own.
    - ``learning_rate``: the highest; None stands for one that suits the size. ``ramp_steps``: the
      steps in which it rises.
    - ``warmup_epochs``, ``warmup_steps``: as :mod:`labkit.train.metrics` says.
    - ``bleu=False`` leaves out the translations; ``save_gradients`` keeps those of the first batch.

    Raises ValueError for a value that cannot be.
    """

    source: str = option("auto", "auto, shipped, hub, a folder, or a data set's name on the hub")
    size: str = option("mini", f"of the model: {', '.join(models.GPT2_SIZES)}", choices=models.GPT2_SIZES)
    vocab_size: int = option(1000, "tokens of the byte-level BPE", least=259)
    max_length: int = option(
        128, "tokens of a pair, at most", "--max-length", "--model-max-length", least=4, most=10**5
    )
    limit: int | None = option(None, "training pairs to use; None: all of them", most=10**9)
    limit_eval: int = option(256, "validation and test pairs to use", most=10**9)
    epochs: int = option(5, "times through the training pairs", "--epochs", "--n-epochs")
    batch_size: int = option(64, "pairs in a step, of all ranks together")
    learning_rate: float | None = option(None, "the highest; None: what suits the size", "--learning-rate", "--lr")
    ramp_steps: int = option(RAMP_STEPS, "first steps, in which the learning rate rises to it")
    seed: int = option(0, "of the model's first weights", least=0, most=2**32 - 1)
    warmup_epochs: int = option(1, "first epochs that the averages leave out", least=0)
    warmup_steps: int = option(3, "first steps left out where no epoch can be", least=0)
    bleu: bool = option(True, "do not translate the test sentences", "--no-bleu")
    save_gradients: bool = option(False, "store each rank's gradients of the first batch")
    mode: str = option(
        modes.DATA_PARALLEL,
        ", ".join(modes.MODES),
        "--mode",
        "--model-parallel-mode",
        choices=modes.MODES,
        parse=_with_underscores,
    )
    n_micro: int = option(4, "micro-batches of a batch, where there is a pipeline", "--n-micro", "--n-chunk", most=1000)
    n_devices: int = option(2, most=1000)
    stages_per_rank: int = option(2, "in the mode interleaved", most=1000)
    n_layer: int | None = option(None, "blocks of the model; None: as many as its size has", most=1000)

    def __post_init__(self) -> None:
        check_options(self)

    def check_world(self, world_size: int) -> None:
        """Raise ValueError if ``world_size`` processes cannot train together in this mode."""
        n_blocks = self.n_layer or models.GPT2_SIZES[self.size]["n_layer"]
        modes.check_stages(
            self.mode, world_size, self.n_devices, self.batch_size, self.n_micro, self.stages_per_rank, n_blocks
        )


def translate(config: TranslateConfig, corpus: Corpus | None = None) -> RankResult:
    """Train GPT-2 to translate, on this rank with the others: the function to give to ``launch``.

    Without a ``corpus``, rank 0 loads it and sends it to the others. Also runs alone, without a
    process group. Raises FloatingPointError on all ranks, with the step, at the end of an epoch in
    which the loss was no finite number: looking at it in each step would have a GPU wait.
    """
    rank, world_size = world()
    config.check_world(world_size)
    corpus = corpus or read_on_rank_0(lambda: load(config))
    shard, n_shards = (rank, world_size) if config.mode == modes.DATA_PARALLEL else (0, 1)
    if rank == 0 and (left := config.batch_size % n_shards):
        print(f"batch size {config.batch_size} over {n_shards} ranks: {config.batch_size - left} samples in a step")
    batches = list(dp.partition_dataset(shard, n_shards, corpus.train, config.batch_size, translation.collate))
    validation = [translation.collate(part) for part in _cut(corpus.validation[shard::n_shards], 64)]
    trainer = _trainer(config, corpus, len(targets_per_step(batches)) * config.epochs)
    skip = 0 if metrics.dropped_epochs(config.epochs, config.warmup_epochs) else config.warmup_steps
    with pipeline_trainer.share_of_threads(trainer.devices):
        epochs = [trainer.train_epoch(batches, validation, epoch, skip) for epoch in range(1, config.epochs + 1)]
        bleu, samples = _bleu(trainer.whole_model(), corpus, config.max_length) if config.bleu else (None, [])
        trainer.close()
        return RankResult(
            **trainer.facts(corpus.source, config),
            epochs=epochs,
            bleu=bleu,
            samples=samples,
            gradients=trainer.kept_gradients,
            layout=modes.describe(config.mode, world_size, trainer.devices, config.n_micro, config.stages_per_rank),
        )


def _trainer(config: TranslateConfig, corpus: Corpus, total_steps: int) -> Trainer:
    """Return the trainer of this mode, with a model of new weights."""
    shape = {"n_layer": config.n_layer} if config.n_layer else {}
    shape |= {"vocab_size": corpus.vocab_size, "n_positions": config.max_length}
    model = models.gpt2(config.size, config.seed, **shape)
    rate = config.learning_rate or LEARNING_RATES.get(config.size, 3e-4)
    if config.mode in modes.SCHEDULED:
        schedule = modes.schedule_for_mode(config.mode, world().size, config.n_micro, config.stages_per_rank)
        return PipelineTrainer(model, schedule, rate, total_steps, config.save_gradients, config.ramp_steps)
    devices, piped = None, config.mode == modes.PIPELINE_PARALLEL
    if config.mode in modes.ONE_PROCESS:
        devices = training_devices(launch.device(), config.n_devices)
        models.parallelize(model, devices)
    if piped:
        rows = min(config.batch_size, len(corpus.train))
        pipe.prepare_pipeline_parallel(model, split_size=-(-rows // config.n_micro))
    keep, ramp = config.save_gradients, config.ramp_steps
    loss, spans = translation.target_loss, not piped
    return Trainer(model, loss, rate, total_steps, keep_gradients=keep, devices=devices, spans=spans, ramp_steps=ramp)


def load(config: TranslateConfig) -> Corpus:
    """Load the data that ``config`` asks for.

    Raises ValueError, FileNotFoundError or ConnectionError where it cannot be had.
    """
    return translation.load_corpus(config.source, config.vocab_size, config.max_length, config.limit, config.limit_eval)


def _bleu(model: torch.nn.Module, corpus: Corpus, max_length: int) -> tuple[float, list[dict[str, str]]]:
    """Return BLEU on the test sentences, and some of them. Every rank translates its share."""
    rank, world_size = world()
    own = [example.source for example in corpus.test[rank::world_size]]
    shares = [translation.generate(model, own, max_length)] * world_size
    if world_size > 1:
        dist.all_gather_object(shares, shares[rank])
    written: list[list[int]] = [[] for _ in corpus.test]
    for r, share in enumerate(shares):
        written[r::world_size] = share
    texts = corpus.decode(written)
    sources = corpus.decode([example.source for example in corpus.test[:SAMPLES]])
    samples = [
        {"source": de, "reference": en, "translation": out}
        for de, en, out in zip(sources, corpus.references, texts, strict=False)
    ]
    return translation.bleu(texts, corpus.references), samples


def _cut(items: list[Any], size: int) -> list[list[Any]]:
    return [items[i : i + size] for i in range(0, len(items), size)]


# --- its command ----------------------------------------------------------------------------------


def _add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", help="folder for the results; runs/translate-DATE-TIME without this")


def _complete(args: argparse.Namespace) -> None:
    """Where one process drives all devices, ``--world-size`` says how many."""
    if args.mode in modes.ONE_PROCESS:
        args.n_devices, args.world_size = 2 if args.world_size is None else args.world_size, None
        args.default_world_size = 1


def _check(config: TranslateConfig, args: argparse.Namespace, start: Start) -> None:
    config.check_world(start.world_size)
    if start.reads:
        check_output("--out", args.out or "runs")
    if config.mode in modes.ONE_PROCESS and args.backend == "auto" and machine.usable_gpus() < config.n_devices:
        args.backend = "gloo"  # as it computes on virtual devices


def _finish(results: Sequence[RankResult], events: Any, args: argparse.Namespace) -> None:
    folder = Path(args.out or f"runs/translate-{datetime.datetime.now():%Y%m%d-%H%M%S}")
    print(metrics.report(metrics.save(results, events, folder)))
    print(f"\nresults in {folder}: {', '.join(sorted(path.name for path in folder.iterdir()))}")


TASK = TrainingTask(
    name="translate",
    help="GPT-2 on German to English",
    description="Train GPT-2 to translate.",
    config=TranslateConfig,
    load=load,
    train=translate,
    add_flags=_add_flags,
    complete=_complete,
    check=_check,
    todos=lambda config, world_size: (modes.tasks_for_mode(config.mode, world_size), "training"),
    finish=_finish,
)
