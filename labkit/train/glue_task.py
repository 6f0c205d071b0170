"""The GLUE task: BERT learns which sentence follows from which, its ranks agreeing in any way.

The data set is RTE (Recognizing Textual Entailment). As in the assignment of Princeton's COS 598D:
one global batch whatever the number of ranks, of which rank r takes rows r, r + W, r + 2 W …; all
that differs between the ways is how the ranks agree.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from labkit import models
from labkit.base.files import write_atomically
from labkit.base.rendezvous import MeetingError
from labkit.base.tensors import as_bytes, laid_out
from labkit.base.texts import listed
from labkit.data.sources import source_in_words
from labkit.train import entailment
from labkit.train.entailment import EntailmentCorpus, SentencePair
from labkit.train.exchange import read_on_rank_0
from labkit.train.metrics import TrainingResult
from labkit.train.options import check_options, check_shares, option
from labkit.train.steps_file import open_steps_file
from labkit.train.trainer import SYNC_METHODS, Batch, Trainer, device, sum_over_ranks, world

_BOUNDS = {"vocab_size": (100, 10**6), "max_length": (8, 10**5), "seed": (0, 2**32 - 1), "weight_decay": (0, 1)}
BATCH_SIZE = "rows in a step, of all ranks together"
_MAY_DIFFER = ("source", "output_dir", "quiet")  # among ranks that somebody starts one by one


@dataclass(frozen=True)
class GlueConfig:
    """Describe one run of the GLUE task.

    - ``source``, ``limit``, ``limit_eval``, ``max_length``, ``vocab_size``: as
      :func:`labkit.train.entailment.load_corpus` takes them.
    - ``model``: a pretrained BERT, a folder or a name on the hub, or ``"auto"``. Without one it is
      :func:`labkit.models.bert` of ``size`` with new weights, and a tokenizer trained on the data.
    - ``batch_size``: rows in a step, of all ranks together; a multiple of the number of ranks.
    - ``sync``: one of :data:`labkit.train.trainer.SYNC_METHODS`; ``"none"`` is for one process.
    - ``dropout=False`` turns it off, so that runs can be compared to the last digit. With it, each
      rank draws its own.
    - ``weight_decay``, ``adam_epsilon``: of AdamW. Biases and the weights of norms do not decay.
    - ``max_grad_norm``: the gradient's norm is clipped to it, once the ranks have agreed.
    - ``precision``: ``"fp32"``, or ``"bf16"`` for a forward pass under autocast.
    - ``iterations``: end after this many, on the way to ``epochs``.
    - ``do_train``, ``do_eval``: train; take the accuracy after each epoch.
    - ``output_dir``: a folder for ``steps.csv``, a line for each step as it is taken, for
      ``loss_{rank}.txt``, a line ``iteration loss`` each, and for the trained model. ``quiet``:
      print no losses.

    Raises ValueError for a value that cannot be.
    """

    source: str = option("auto", "a folder with train.tsv and dev.tsv; shipped; hub; auto", "--data-dir")
    model: str = option("", "a folder with a pretrained BERT, a name on the hub, or auto", "--model-name-or-path")
    size: str = option("tiny", "of a BERT with new weights", choices=models.BERT_SIZES)
    vocab_size: int = option(2000, "tokens of a vocabulary that is trained on the data, at most")
    max_length: int = option(128, "tokens of a pair of sentences, at most", "--max-seq-length")
    limit: int | None = option(None, "training rows to use; None: all of them")
    limit_eval: int | None = option(None, "validation rows to use; None: all of them")
    epochs: float = option(3, "times through the training rows", "--num-train-epochs")
    batch_size: int = option(64, BATCH_SIZE, "--total-batch-size")
    learning_rate: float = option(2e-5, "the highest; it falls to 0", "--lr")
    seed: int = option(0, "of new weights, the order of rows, and dropout")
    sync: str = option("all_reduce", "how the ranks agree on gradients", choices=SYNC_METHODS)
    weight_decay: float = option(0.0, "of all parameters but biases and the weights of norms")
    adam_epsilon: float = option(1e-8, "added to the denominator of AdamW's steps")
    dropout: bool = option(True, "without it, runs can be compared to the last digit")
    max_grad_norm: float = option(1.0, "norm to which the gradient is clipped")
    precision: str = option("fp32", "of the forward pass", choices=("fp32", "bf16"))
    iterations: int | None = option(None, "end after this many; None: after all epochs")
    do_train: bool = option(True, "train; with neither this nor --do-eval: both")
    do_eval: bool = option(True, "take the accuracy, after each epoch if it trains")
    output_dir: str = option("", "folder for losses, results and the trained model; nothing is kept without")
    quiet: bool = option(False, "print no losses")

    def __post_init__(self) -> None:
        check_options(self, _BOUNDS)
        if self.epochs % 1:  # the assignment writes 3.0
            raise ValueError(f"epochs is {self.epochs!r}, expected a whole number")

    @property
    def default_world_size(self) -> int:
        return 1 if self.sync == "none" else 2

    def tasks(self, world_size: int) -> tuple[str, ...]:
        """Return the students' tasks that training needs."""
        return SYNC_METHODS[self.sync].tasks if world_size > 1 else ()

    def check_world(self, world_size: int) -> None:
        """Raise ValueError if ``world_size`` ranks cannot train together so."""
        check_shares(self.batch_size, world_size)
        if world_size > 1 and self.sync == "none":
            ways = ", ".join(name for name in SYNC_METHODS if name != "none")
            raise ValueError(
                f"sync is 'none' and world_size {world_size}: ranks that never agree train "
                f"{world_size} models; expected one process, or one of {ways}"
            )


@dataclass(frozen=True)
class GlueFlags(GlueConfig):
    """The assignment's flags: those of a GlueConfig, with other defaults, and some more.

    ``per_device_train_batch_size`` is a rank's, as in the assignment; :meth:`for_ranks` makes the
    batch of all ranks of it.
    """

    batch_size: int = option(None, f"{BATCH_SIZE}; 64 if not given", "--total-batch-size")
    per_device_train_batch_size: int | None = option(None, "rows in a step of each rank", "--per-gpu-train-batch-size")
    model: str = option(
        "auto",
        "a folder with a pretrained BERT, or a name on the hub; auto: bert-base-cased, or a small one",
        "--model-name-or-path",
    )
    do_train: bool = option(False, "train; with neither this nor --do-eval: both")
    do_eval: bool = option(False, "take the accuracy, after each epoch if it trains")
    model_type: str = option("bert", "the lab knows no other", choices=("bert",))
    task_name: str = option("RTE", "the lab knows no other", choices=("RTE", "rte"))
    overwrite_output_dir: bool = option(False, "the folder may have something in it")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.do_train or self.do_eval):
            for name in ("do_train", "do_eval"):
                object.__setattr__(self, name, True)
        if (folder := self.output_dir) and not self.overwrite_output_dir and any(Path(folder).glob("*")):
            other = "name another folder, or say --overwrite-output-dir"
            raise ValueError(f"--output-dir {folder} has something in it; {other}")

    def for_ranks(self, world_size: int) -> GlueFlags:
        """Return the flags with both batch sizes, that of a rank and that of all ``world_size``.

        Raises ValueError where they contradict each other, or the ranks cannot share the batch.
        """
        of_a_rank = self.per_device_train_batch_size
        total = self.batch_size or (64 if of_a_rank is None else of_a_rank * world_size)
        if of_a_rank is not None and total != of_a_rank * world_size:
            raise ValueError(
                f"batch_size is {total} and per_device_train_batch_size {of_a_rank}: the first counts the "
                f"rows of all {world_size} ranks, {of_a_rank * world_size} by the second; leave out one"
            )
        check_shares(total, world_size)
        return replace(self, batch_size=total, per_device_train_batch_size=total // world_size)


def load_glue(config: GlueConfig) -> EntailmentCorpus:
    """Load the data that ``config`` asks for.

    Raises ValueError, FileNotFoundError or ConnectionError where it cannot be had.
    """
    return entailment.load_corpus(
        config.source, config.model, config.vocab_size, config.max_length, config.limit, config.limit_eval
    )


def glue(config: GlueConfig, corpus: EntailmentCorpus | None = None, every_rank_prints: bool = False) -> TrainingResult:
    """Train BERT on RTE, on this rank with the others: the function to give to ``launch``.

    Without a ``corpus``, rank 0 loads it and sends it to the others. Also runs alone, without a
    process group. Rank 0 prints the losses, or every rank in a terminal of its own. Raises
    FloatingPointError on all ranks, with the iteration, once the loss is not a finite number.
    """
    rank, world_size = world()
    config.check_world(world_size)
    corpus = corpus or read_on_rank_0(lambda: load_glue(config))
    run = GlueRun(config, corpus, prints=not config.quiet and (every_rank_prints or rank == 0))
    before = fingerprint(run.trainer.module)
    if world_size > 1:
        check_same_start(before, config)
        if run.prints:
            print(f"all {world_size} ranks start with the same parameters: {before}", flush=True)
    if config.do_train:
        run.trainer.steps_file = open_steps_file(config.output_dir)
    torch.manual_seed(config.seed + rank)  # for dropout
    for epoch in range(1, int(config.epochs) + 1) if config.do_train else ():
        run.train_epoch(epoch)
        if config.do_eval:
            run.evaluate(f"after epoch {epoch}")
        if run.stopped:
            break
    if config.do_eval and not config.do_train:
        run.evaluate("of the model as it is")
    if config.output_dir:
        run.save(Path(config.output_dir))
    return TrainingResult(
        **run.trainer.facts(corpus.source, config),
        model=corpus.model or f"BERT {config.size}, new weights",
        layout=f"the ranks agree by {config.sync}" if world_size > 1 else "one process",
        steps_per_epoch=run.steps,
        accuracy=run.accuracy,
        fingerprints=(before, fingerprint(run.trainer.module)),
    )


class GlueRun:
    """One rank's training: its loop, and what that has measured so far."""

    def __init__(self, config: GlueConfig, corpus: EntailmentCorpus, prints: bool = False):
        self.config, self.corpus, self.prints = config, corpus, prints
        self.steps = -(-len(corpus.train) // config.batch_size)
        self.trainer = Trainer(
            _model(config, corpus),
            self._loss,
            config.learning_rate,
            self.steps * int(config.epochs),
            sync=SYNC_METHODS[config.sync],
            ramp_steps=1,
            max_grad_norm=config.max_grad_norm,
            optimizer=self._optimizer,
        )
        self.accuracy: list[float] = []

    @property
    def stopped(self) -> bool:
        limit = self.config.iterations
        return limit is not None and len(self.trainer.record) >= limit

    def train_epoch(self, epoch: int) -> None:
        """Train on the whole batches of an epoch, each rank on its rows of each batch."""
        rows = self.corpus.train
        order, size = epoch_order(len(rows), self.config.seed, epoch), self.config.batch_size
        cut = (order[i : i + size] for i in range(0, len(order), size))
        batches = ((self.own_rows(rows, whole), len(whole)) for whole in cut)
        for step in self.trainer.train_epoch(batches, epoch):
            if self.prints:
                print(f"iter {step.step} loss {step.loss:.4f}", flush=True)
            if self.stopped:
                return

    @torch.no_grad()
    def evaluate(self, when: str) -> None:
        """Take the accuracy on the validation rows, each rank on its share of them."""
        self.trainer.module.eval()
        rows, correct = self.corpus.validation, 0
        for start in range(0, len(rows), self.config.batch_size):
            whole = range(start, min(start + self.config.batch_size, len(rows)))
            batch = self.own_rows(rows, whole).to(self.trainer.device)
            with self._precision():
                correct += entailment.count_correct(self.trainer.module, batch)
        self.accuracy.append(sum_over_ranks(correct)[0] / len(rows))
        if self.prints:
            source = source_in_words(self.corpus.source)
            where = f"{when}, on {len(rows):,} rows of {source}"
            print(f"accuracy {self.accuracy[-1]:.4f} {where}", flush=True)

    def own_rows(self, examples: Sequence[SentencePair], whole: Sequence[int]) -> Batch:
        """Return this rank's rows of a batch, padded as the whole batch would be."""
        rank, world_size = world()
        length = max(len(examples[row]) for row in whole)
        return entailment.collate([examples[row] for row in whole[rank::world_size]], length)

    def _loss(self, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        with self._precision():
            return entailment.summed_loss(model, batch)

    def _optimizer(self, parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.Optimizer:
        everything, decay = list(parameters), self.config.weight_decay
        matrices = {"params": [each for each in everything if each.ndim > 1], "weight_decay": decay}
        vectors = {"params": [each for each in everything if each.ndim < 2], "weight_decay": 0.0}
        return torch.optim.AdamW([matrices, vectors], lr=lr, eps=self.config.adam_epsilon)

    def _precision(self) -> Any:
        return torch.autocast(device().type, torch.bfloat16, enabled=self.config.precision == "bf16")

    def save(self, folder: Path) -> None:
        """Write this rank's losses; on rank 0 also the model, as ``from_pretrained`` reads it."""
        rank = world().rank
        folder.mkdir(parents=True, exist_ok=True)
        lines = (f"{step.step} {step.local_loss:.6f}\n" for step in self.trainer.record)
        write_atomically(folder / f"loss_{rank}.txt", "".join(lines).encode())
        if rank == 0 and self.config.do_train:
            model: Any = self.trainer.module
            with models.quiet_transformers():
                model.save_pretrained(folder)
                self.corpus.tokenizer.save_pretrained(folder)


def epoch_order(n_rows: int, seed: int, epoch: int) -> list[int]:
    """Return the order of the rows in an epoch, the same on every rank."""
    generator = torch.Generator().manual_seed(1000 * seed + epoch)
    return torch.randperm(n_rows, generator=generator).tolist()


def _model(config: GlueConfig, corpus: EntailmentCorpus) -> torch.nn.Module:
    """Return the model that training starts from, the same on every rank."""
    rate = 0.1 if config.dropout else 0.0
    dropout: dict[str, Any] = {"hidden_dropout_prob": rate, "attention_probs_dropout_prob": rate}
    if corpus.model:
        model = models.pretrained_bert(corpus.model, seed=config.seed, **dropout)
        if (max_length := model.config.max_position_embeddings) < config.max_length:
            takes = f"{corpus.model} takes at most {max_length} tokens"
            raise ValueError(f"max_length is {config.max_length}, but {takes}")
        return model
    shape = {"vocab_size": corpus.vocab_size, "max_position_embeddings": max(config.max_length, 8)}
    return models.bert(config.size, config.seed, **shape, **dropout)


def fingerprint(module: torch.nn.Module) -> str:
    """Return 12 characters by which to tell parameters apart, to the last bit."""
    digest = hashlib.sha256()
    for name, parameter in module.named_parameters():
        digest.update(name.encode())
        digest.update(as_bytes(laid_out(parameter.cpu())).numpy().tobytes())
    return digest.hexdigest()[:12]


@torch.no_grad()
def max_parameter_difference(module: torch.nn.Module) -> float:
    """Return how far any parameter differs between two ranks at most; 0 is to the last bit.

    Every rank of the process group has to ask, and gets the same answer.
    """
    own = torch.nn.utils.parameters_to_vector(module.parameters())
    of_ranks = [torch.empty_like(own) for _ in range(world().size)]
    dist.all_gather(of_ranks, own)
    stacked = torch.stack(of_ranks)
    return float((stacked.amax(0) - stacked.amin(0)).max())


def check_same_start(fingerprint: str, config: GlueConfig) -> None:
    """Raise MeetingError on every rank, naming the ranks, unless all start alike.

    Averaged gradients keep equal models equal; they never make different ones equal. Nor do ranks
    that were told different options, each in a terminal of its own, train one model.
    """
    own = {name: value for name, value in asdict(config).items() if name not in _MAY_DIFFER}
    starts: list[Any] = [None] * world().size
    dist.all_gather_object(starts, own | {"parameters": fingerprint})
    for name, expected in starts[0].items():
        if different := [rank for rank, start in enumerate(starts) if start[name] != expected]:
            what = "have different parameters" if name == "parameters" else "were told different options"
            other = f"{starts[different[0]][name]!r} on rank {listed(different)}"
            raise MeetingError(
                f"the ranks {what}: {name} is {other}, and {expected!r} on rank 0; "
                "expected the same model, folder, seed and options on all of them"
            )
