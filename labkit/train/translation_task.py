"""The translation task: GPT-2 learns to translate German into English, in every mode."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.distributed as dist

from labkit import dp, launch, models, pipe
from labkit.parallel.devices import training_devices
from labkit.train import metrics, modes, pipeline_trainer, translation
from labkit.train.metrics import RankResult
from labkit.train.options import check_options
from labkit.train.pipeline_trainer import PipelineTrainer
from labkit.train.reading import read_on_rank_0
from labkit.train.trainer import Trainer, targets_per_step, world
from labkit.train.translation import Corpus

LEARNING_RATES = {"nano": 5e-3, "mini": 3e-3}  # the bigger the model, the lower; 3e-4 for OpenAI's sizes

SAMPLES = 3  # test sentences shown with their translations


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
    - ``learning_rate``: the highest; None stands for one that suits the size.
    - ``warmup_epochs``, ``warmup_steps``: as :mod:`labkit.train.metrics` says.
    - ``bleu=False`` leaves out the translations; ``save_gradients`` keeps those of the first batch.

    Raises ValueError for a value that cannot be.
    """

    source: str = "auto"
    size: str = "mini"
    vocab_size: int = 1000
    max_length: int = 128
    limit: int | None = None
    limit_eval: int = 256
    epochs: int = 5
    batch_size: int = 64
    learning_rate: float | None = None
    seed: int = 0
    warmup_epochs: int = 1
    warmup_steps: int = 3
    bleu: bool = True
    save_gradients: bool = False
    mode: str = modes.DATA_PARALLEL
    n_micro: int = 4
    n_devices: int = 2
    stages_per_rank: int = 2
    n_layer: int | None = None

    def __post_init__(self) -> None:
        check_options(self, {"vocab_size": 259, "max_length": 4}, size=models.GPT2_SIZES, mode=modes.MODES)

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
            rank=rank,
            world_size=world_size,
            backend=dist.get_backend() if dist.is_initialized() else "none",
            device=", ".join(map(str, trainer.devices)),
            threads=torch.get_num_threads(),
            data_source=corpus.source,
            parameters=trainer.n_parameters,
            config=asdict(config),
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
        return PipelineTrainer(model, schedule, rate, total_steps, config.save_gradients)
    devices, piped = None, config.mode == modes.PIPELINE_PARALLEL
    if config.mode in modes.ONE_PROCESS:
        devices = training_devices(launch.device(), config.n_devices)
        models.parallelize(model, devices)
    if piped:
        rows = min(config.batch_size, len(corpus.train))
        pipe.prepare_pipeline_parallel(model, split_size=-(-rows // config.n_micro))
    loss, keep = translation.target_loss, config.save_gradients
    return Trainer(model, loss, rate, total_steps, keep_gradients=keep, devices=devices, spans=not piped)


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
