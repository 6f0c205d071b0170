"""The translation task: GPT-2 learns to translate, in every mode."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import torch
import torch.distributed as dist

from labkit import dp, launch, models, pipe
from labkit.parallel.devices import is_virtual, training_devices
from labkit.train import translation
from labkit.train.exchange import read_on_rank_0
from labkit.train.metrics import TrainingResult
from labkit.train.options import check_options, option
from labkit.train.steps_file import open_steps_file
from labkit.train.trainer import RAMP_STEPS, Trainer, targets_per_step, world
from labkit.train.translation import Corpus

MODES = "data_parallel", "model_parallel", "pipeline_parallel"
DATA_PARALLEL, MODEL_PARALLEL, PIPELINE_PARALLEL = MODES
LEARNING_RATES = {"nano": 5e-3, "mini": 3e-3}  # the bigger the model, the lower; else 3e-4
SAMPLES = 3  # test sentences shown with their translations
_BOUNDS = {
    "vocab_size": (259, 10**6),
    "max_length": (4, 10**5),
    "seed": (0, 2**32 - 1),
    **dict.fromkeys(("n_micro", "n_devices", "n_layer"), (1, 1000)),
}


@dataclass(frozen=True)
class TranslateConfig:
    """Describe one run of the translation task.

    - ``mode``: ``"data_parallel"``, on one rank or more; ``"model_parallel"`` or
      ``"pipeline_parallel"``, in which one process drives ``n_devices`` devices. The training is
      the same in all of them.
    - ``batch_size``: the global one, of all ranks together. ``n_micro``: how many micro-batches a
      pipeline cuts a batch into.
    - ``source``, ``languages``, ``limit``, ``limit_eval``, ``max_length``, ``vocab_size``: as
      :func:`labkit.train.translation.load_corpus` takes them.
    - ``size``: as :func:`labkit.models.gpt2` takes it, with ``n_layer`` blocks instead of its own.
    - ``learning_rate``: the highest; None stands for one that suits the size. ``ramp_steps``: the
      steps in which it rises.
    - ``bleu=False`` leaves out the translations; ``save_gradients`` keeps those of the first batch.
    - ``output_dir``: where each step's row goes once it is taken, and the command writes the rest.

    Raises ValueError for a value that cannot be.
    """

    source: str = option("auto", "auto, shipped, hub, a folder, or a data set's name on the hub")
    size: str = option("mini", "of the model", choices=models.GPT2_SIZES)
    vocab_size: int = option(1000, "tokens of the byte-level BPE")
    max_length: int = option(128, "tokens of a pair, at most", "--model-max-length")
    limit: int | None = option(None, "training pairs to use; None: all of them")
    limit_eval: int = option(256, "validation and test pairs to use")
    epochs: int = option(5, "times through the training pairs", "--n-epochs")
    batch_size: int = option(64, "pairs in a step, of all ranks together")
    learning_rate: float | None = option(None, "the highest; None: what suits the size", "--lr")
    ramp_steps: int = option(RAMP_STEPS, "first steps, in which the learning rate rises to it")
    seed: int = option(0, "of the model's first weights")
    bleu: bool = option(True, "translate the test sentences")
    save_gradients: bool = option(False, "store each rank's gradients of the first batch")
    mode: str = option(DATA_PARALLEL, "how devices share the work", "--model-parallel-mode", choices=MODES)
    n_micro: int = option(4, "micro-batches of a batch, where there is a pipeline", "--n-chunk")
    n_devices: int = option(2, "devices that one process drives; --world-size says it, too")
    n_layer: int | None = option(None, "blocks of the model; None: as many as its size has")
    output_dir: str = option("", "folder for the results; runs/translate-DATE-TIME without this", "--out")
    languages: list[str] = option(  # noqa: RUF009  (it is a field)
        ["de", "en"], "from which and into which, as the data's files or columns are named"
    )

    def __post_init__(self) -> None:
        check_options(self, _BOUNDS)

    @property
    def one_process(self) -> bool:
        """Whether one process drives all devices."""
        return self.mode != DATA_PARALLEL

    @property
    def default_world_size(self) -> int:
        return 1 if self.one_process else 2

    def tasks(self, world_size: int) -> tuple[str, ...]:
        """Return the students' tasks that training needs."""
        if self.mode == DATA_PARALLEL:
            return ("dp.1", "dp.4") if world_size > 1 else ("dp.1",)
        pipe = ("pipe.1", "pipe.2", "pipe.3", "pipe.4")
        return ("dp.1", *pipe) if self.mode == PIPELINE_PARALLEL else ("dp.1",)

    def check_world(self, world_size: int) -> None:
        """Raise ValueError if ``world_size`` processes cannot train together in this mode."""
        n_blocks = self.n_layer or models.GPT2_SIZES[self.size]["n_layer"]
        if self.mode == DATA_PARALLEL and self.batch_size < world_size:
            raise ValueError(
                f"batch_size is {self.batch_size} and world_size {world_size}: the batch is that of "
                "all ranks together, and each of them needs a sample of it"
            )
        if self.one_process and world_size > 1:
            raise ValueError(
                f"mode is {self.mode}, in which one process drives all devices, and there are "
                f"{world_size} processes: start 1. How many devices it drives is n_devices, on the "
                "command line --world-size"
            )
        if self.mode == PIPELINE_PARALLEL and self.batch_size < self.n_micro:
            raise ValueError(
                f"batch_size is {self.batch_size} and n_micro {self.n_micro}: a batch is cut into "
                "n_micro micro-batches, and each of them needs a sample of it"
            )
        if self.one_process and self.n_devices > n_blocks:
            n = self.n_devices
            raise ValueError(
                f"the model has {n_blocks} blocks and mode {self.mode} puts it on {n} devices, "
                "expected at least a block for each: "
                f"take n_layer={n} (--n-layer {n}), a bigger size, or fewer devices"
            )


def translate(config: TranslateConfig, corpus: Corpus | None = None) -> TrainingResult:
    """Train GPT-2 to translate, on this rank with the others: the function to give to ``launch``.

    Without a ``corpus``, rank 0 loads it and sends it to the others. Also runs alone, without a
    process group. Raises FloatingPointError on all ranks, with the step, once the loss is not a
    finite number.
    """
    rank, world_size = world()
    config.check_world(world_size)
    corpus = corpus or read_on_rank_0(lambda: load(config))
    if rank == 0 and (left := config.batch_size % world_size):
        share = f"{config.batch_size - left} samples in a step"
        print(f"batch size {config.batch_size} over {world_size} ranks: {share}")
    loader = dp.partition_dataset(rank, world_size, corpus.train, config.batch_size, translation.collate)
    batches = list(loader)
    validation = [translation.collate(part) for part in _cut(corpus.validation[rank::world_size], 64)]
    steps = list(zip_longest(batches, targets_per_step(batches)))
    trainer = _trainer(config, corpus, len(steps) * config.epochs)
    trainer.steps_file = open_steps_file(config.output_dir)
    losses = []
    with share_of_threads(trainer.devices):
        for epoch in range(1, config.epochs + 1):
            for _ in trainer.train_epoch(launch.progress(steps, desc=f"epoch {epoch}"), epoch):
                pass
            losses.append(trainer.validation_loss(validation))
        bleu, samples = _bleu(trainer.module, corpus, config.max_length) if config.bleu else (None, [])
        return TrainingResult(
            **trainer.facts(corpus.source, config),
            model=f"GPT-2 {config.size}",
            layout=_layout(config, trainer.devices),
            steps_per_epoch=len(steps),
            validation_loss=losses,
            bleu=bleu,
            samples=samples,
            gradients=trainer.kept_gradients,
        )


def _trainer(config: TranslateConfig, corpus: Corpus, total_steps: int) -> Trainer:
    """Return the trainer of this mode, with a model of new weights."""
    shape = {"n_layer": config.n_layer} if config.n_layer else {}
    shape |= {"vocab_size": corpus.vocab_size, "n_positions": config.max_length}
    model = models.gpt2(config.size, config.seed, **shape)
    devices, piped = None, config.mode == PIPELINE_PARALLEL
    if config.one_process:
        devices = training_devices(launch.device(), config.n_devices)
        models.parallelize(model, devices)
    if piped:
        rows = min(config.batch_size, len(corpus.train))
        pipe.prepare_pipeline_parallel(model, split_size=-(-rows // config.n_micro))
    return Trainer(
        model,
        translation.target_loss,
        config.learning_rate or LEARNING_RATES.get(config.size, 3e-4),
        total_steps,
        keep_gradients=config.save_gradients,
        devices=devices,
        spans=not piped,
        ramp_steps=config.ramp_steps,
    )


def _layout(config: TranslateConfig, devices: Sequence[torch.device]) -> str:
    """Return what runs where, in a line. ``devices`` are those of one process."""
    if config.mode == DATA_PARALLEL:
        return f"{config.mode}: each rank has the whole model and a share of every batch"
    kind = "virtual device" if is_virtual(devices[0]) else "GPU"
    how = f"{config.n_micro} micro-batches a batch"
    if config.mode == MODEL_PARALLEL:
        how = "one after the other"
    return f"{config.mode}: {len(devices)} {kind}{'s' * (len(devices) > 1)} in one process, {how}"


@contextlib.contextmanager
def share_of_threads(devices: Sequence[torch.device]) -> Iterator[None]:
    """Compute in the block with one virtual device's share of this process's threads."""
    threads = torch.get_num_threads()
    if is_virtual(devices[0]):
        torch.set_num_threads(max(1, threads // len(devices)))
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def load(config: TranslateConfig) -> Corpus:
    """Load the data that ``config`` asks for.

    Raises ValueError, FileNotFoundError or ConnectionError where it cannot be had.
    """
    limits = config.max_length, config.limit, config.limit_eval
    return translation.load_corpus(config.source, config.vocab_size, *limits, config.languages)


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
