"""The GLUE task: BERT learns which sentence follows from which, its ranks agreeing in any way.

The data set is RTE (Recognizing Textual Entailment). As in the assignment of Princeton's COS 598D:
one global batch whatever the number of ranks, of which rank r takes rows r, r + W, r + 2 W …; all
that differs between the ways is how the ranks agree.
"""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from labkit import models
from labkit.base.files import write_atomically
from labkit.train import entailment
from labkit.train.entailment import Batch, Corpus, Example
from labkit.train.options import check_losses, check_options
from labkit.train.reading import read_on_rank_0
from labkit.train.starting import check_shares
from labkit.train.synchronization import WAYS
from labkit.train.trainer import Trainer, device, start_sum_over_ranks, sum_over_ranks, world

TIMED_ITERATIONS = 40  # of which the first does not count, as in the assignment
PRECISIONS = ("fp32", "bf16")


@dataclass(frozen=True)
class GlueConfig:
    """Describe one run of the GLUE task.

    - ``source``, ``limit``, ``limit_eval``, ``max_length``, ``vocab_size``: as
      :func:`labkit.train.entailment.load_corpus` takes them.
    - ``model``: a pretrained BERT, a folder or a name on the hub, or ``"auto"``. Without one it is
      :func:`labkit.models.bert` of ``size`` with new weights, and a tokenizer trained on the data.
    - ``batch_size``: rows in a step, of all ranks together; a multiple of the number of ranks.
    - ``sync``: one of :data:`labkit.train.synchronization.WAYS`; ``"none"`` is for one process.
    - ``dropout=False`` turns it off, so that runs can be compared to the last digit. With it, each
      rank draws its own.
    - ``max_grad_norm``: the gradient's norm is clipped to it, and ``clip`` says when: ``"after"``
      the ranks have agreed, or each rank its own ``"before"``, which trains something else.
    - ``precision``: ``"fp32"``, or ``"bf16"`` for a forward pass under autocast.
    - ``iterations``: end after so many, on the way to ``epochs``.
    - ``do_train``, ``do_eval``: train; take the accuracy after each epoch.
    - ``output_dir``: a folder for ``loss_{rank}.txt``, a line ``iteration loss`` each, and the
      trained model. ``quiet``: print no losses.

    Raises ValueError for a value that cannot be.
    """

    source: str = "auto"
    model: str = ""
    size: str = "tiny"
    vocab_size: int = 2000
    max_length: int = 128
    limit: int | None = None
    limit_eval: int | None = None
    epochs: int = 3
    batch_size: int = 64
    learning_rate: float = 2e-5
    seed: int = 0
    sync: str = "all_reduce"
    dropout: bool = True
    max_grad_norm: float = 1.0
    clip: str = "after"
    precision: str = "fp32"
    iterations: int | None = None
    do_train: bool = True
    do_eval: bool = True
    output_dir: str = ""
    quiet: bool = False

    def __post_init__(self) -> None:
        choices = {"sync": WAYS, "clip": ("after", "before"), "precision": PRECISIONS, "size": models.BERT_SIZES}
        check_options(self, {"vocab_size": 100, "max_length": 8}, **choices)
        if self.clip == "before" and not WAYS[self.sync].finish:
            raise ValueError(
                f"clip is 'before' and sync {self.sync!r}, which leaves no moment between backward and synchronisation; "
                "expected gather_scatter, all_reduce or bucketed"
            )

    def check_world(self, world_size: int) -> None:
        """Raise ValueError if ``world_size`` ranks cannot train together so."""
        check_shares(self.batch_size, world_size)
        if world_size > 1 and self.sync == "none":
            raise ValueError(
                f"sync is 'none' and world_size {world_size}: ranks that never agree train {world_size} models; expected "
                f"one process, or one of {', '.join(name for name in WAYS if name != 'none')}"
            )


@dataclass(frozen=True)
class GlueResult:
    """The result of one rank.

    ``losses`` are this rank's own, of its rows in each iteration (NaN where it had none),
    ``mean_losses`` those of the whole batch, and ``iteration_s`` the seconds from the start of the
    forward pass to the end of the optimizer's step. ``accuracy`` is that on the validation rows
    after each epoch, over all ranks. ``fingerprints``: of all parameters, before and after.
    """

    rank: int
    world_size: int
    backend: str
    device: str
    threads: int
    data_source: str
    model: str
    parameters: int
    config: dict[str, Any]
    losses: list[float]
    mean_losses: list[float]
    iteration_s: list[float]
    accuracy: list[float]
    fingerprints: tuple[str, str]

    @property
    def seconds_per_iteration(self) -> float:
        """The mean over the first 40 iterations without the first, as the assignment has it."""
        timed = self.iteration_s[:TIMED_ITERATIONS]
        return statistics.fmean(timed[1:] or timed)


def load_glue(config: GlueConfig) -> Corpus:
    """Load the data that ``config`` asks for.

    Raises ValueError, FileNotFoundError or ConnectionError where it cannot be had.
    """
    return entailment.load_corpus(
        config.source, config.model, config.vocab_size, config.max_length, config.limit, config.limit_eval
    )


def glue(config: GlueConfig, corpus: Corpus | None = None, every_rank_prints: bool = False) -> GlueResult:
    """Train BERT on RTE, on this rank with the others: the function to give to ``launch``.

    Without a ``corpus``, rank 0 loads it and sends it to the others. Also runs alone, without a
    process group. Rank 0 prints the losses, or every rank in a terminal of its own. Raises
    FloatingPointError on all ranks, with the iteration, once the loss is no finite number.
    """
    rank, world_size = world()
    config.check_world(world_size)
    corpus = corpus or read_on_rank_0(lambda: load_glue(config))
    run = GlueRun(config, corpus, prints=not config.quiet and (every_rank_prints or rank == 0))
    first_fingerprint = fingerprint(run.trainer.module)
    if world_size > 1:
        check_same_start(first_fingerprint)
        if run.prints:
            print(f"all {world_size} ranks start with the same parameters: {first_fingerprint}", flush=True)
    torch.manual_seed(config.seed + rank)  # for dropout
    for epoch in range(1, config.epochs + 1) if config.do_train else ():
        run.train_epoch(epoch)
        if config.do_eval:
            run.evaluate(f"after epoch {epoch}")
        if run.is_over:
            break
    if config.do_eval and not config.do_train:
        run.evaluate("of the model as it is")
    if config.output_dir:
        run.save(Path(config.output_dir))
    return GlueResult(
        rank=rank,
        world_size=world_size,
        backend=dist.get_backend() if dist.is_initialized() else "none",
        device=str(run.trainer.device),
        threads=torch.get_num_threads(),
        data_source=corpus.source,
        model=corpus.model or f"BERT {config.size}, new weights",
        parameters=run.trainer.n_parameters,
        config=asdict(config),
        losses=run.losses,
        mean_losses=run.mean_losses,
        iteration_s=run.iteration_s,
        accuracy=run.accuracy,
        fingerprints=(first_fingerprint, fingerprint(run.trainer.module)),
    )


class GlueRun:
    """One rank's training: its loop, and what that has measured so far."""

    def __init__(self, config: GlueConfig, corpus: Corpus, prints: bool = False):
        self.config, self.corpus, self.prints = config, corpus, prints
        self.steps = -(-len(corpus.train) // config.batch_size)
        self.trainer = Trainer(
            _model(config, corpus),
            self._loss,
            config.learning_rate,
            self.steps * config.epochs,
            way=WAYS[config.sync],
            ramp_steps=1,
            clip=lambda parameters: torch.nn.utils.clip_grad_norm_(parameters, config.max_grad_norm),
            clip_local=config.clip == "before",
        )
        self.losses: list[float] = []
        self.mean_losses: list[float] = []
        self.iteration_s: list[float] = []
        self.accuracy: list[float] = []

    @property
    def is_over(self) -> bool:
        return self.config.iterations is not None and len(self.losses) >= self.config.iterations

    def train_epoch(self, epoch: int) -> None:
        """Train on the whole batches of an epoch, each rank on its rows of each batch."""
        trainer = self.trainer
        trainer.model.train()
        order = epoch_order(len(self.corpus.train), self.config.seed, epoch)
        for start in range(0, len(order), self.config.batch_size):
            whole = order[start : start + self.config.batch_size]
            batch = self.own_rows(self.corpus.train, whole)
            began = trainer.now()
            loss = trainer.gradients(batch, targets=len(whole))
            whole_loss = start_sum_over_ranks(loss.view(1))  # now, as no rank is ahead of the others
            trainer.update()
            self.iteration_s.append(trainer.now() - began)
            self.losses.append(loss.item() / batch.n_targets if batch.n_targets else float("nan"))
            self.mean_losses.append(whole_loss()[0] / len(whole))
            check_losses(self.mean_losses[-1:], len(self.mean_losses))
            if self.prints:
                print(f"iter {len(self.losses)} loss {self.mean_losses[-1]:.4f}", flush=True)
            if self.is_over:
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
            print(f"accuracy {self.accuracy[-1]:.4f} {when}, on {len(rows):,} rows", flush=True)

    def own_rows(self, examples: Sequence[Example], whole: Sequence[int]) -> Batch:
        """Return this rank's rows of a batch, padded as the whole batch would be."""
        rank, world_size = world()
        length = max(len(examples[row]) for row in whole)
        return entailment.collate([examples[row] for row in whole[rank::world_size]], length)

    def _loss(self, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        with self._precision():
            return entailment.summed_loss(model, batch)

    def _precision(self) -> Any:
        return torch.autocast(device().type, torch.bfloat16, enabled=self.config.precision == "bf16")

    def save(self, folder: Path) -> None:
        """Write this rank's losses; on rank 0 also the model, as ``from_pretrained`` reads it."""
        rank = world().rank
        folder.mkdir(parents=True, exist_ok=True)
        lines = (f"{i} {loss:.6f}\n" for i, loss in enumerate(self.losses, start=1))
        write_atomically(folder / f"loss_{rank}.txt", "".join(lines).encode())
        if rank == 0 and self.config.do_train:
            with models.quiet_transformers():
                self.trainer.whole_model().save_pretrained(folder)
                self.corpus.tokenizer.save_pretrained(folder)


def epoch_order(n_rows: int, seed: int, epoch: int) -> list[int]:
    """Return the order of the rows in an epoch, the same on every rank."""
    generator = torch.Generator().manual_seed(1000 * seed + epoch)
    return torch.randperm(n_rows, generator=generator).tolist()


def _model(config: GlueConfig, corpus: Corpus) -> torch.nn.Module:
    """Return the model that training starts from, the same on every rank."""
    rate = 0.1 if config.dropout else 0.0
    dropout: dict[str, Any] = {"hidden_dropout_prob": rate, "attention_probs_dropout_prob": rate}
    if corpus.model:
        model = models.pretrained_bert(corpus.model, seed=config.seed, **dropout)
        if (most := model.config.max_position_embeddings) < config.max_length:
            raise ValueError(f"max_length is {config.max_length}, but {corpus.model} takes at most {most} tokens")
        return model
    shape = {"vocab_size": corpus.vocab_size, "max_position_embeddings": max(config.max_length, 8)}
    return models.bert(config.size, config.seed, **shape, **dropout)


def fingerprint(module: torch.nn.Module) -> str:
    """Return 12 characters by which to tell parameters apart, to the last bit."""
    digest = hashlib.sha256()
    for name, parameter in module.named_parameters():
        digest.update(name.encode())
        digest.update(parameter.detach().cpu().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:12]


@torch.no_grad()
def apart(module: torch.nn.Module) -> float:
    """Return how far any parameter differs between two ranks at most; 0 is to the last bit.

    Every rank of the process group has to ask, and gets the same answer.
    """
    own = torch.nn.utils.parameters_to_vector(module.parameters())
    of_ranks = [torch.empty_like(own) for _ in range(world().size)]
    dist.all_gather(of_ranks, own)
    stacked = torch.stack(of_ranks)
    return float((stacked.amax(0) - stacked.amin(0)).max())


def check_same_start(own: str) -> None:
    """Raise RuntimeError on every rank, naming the ranks, unless all have this ``own`` fingerprint.

    Averaged gradients keep equal models equal; they never make different ones equal.
    """
    all_of_them: list[Any] = [None] * world().size
    dist.all_gather_object(all_of_them, own)
    if different := [str(r) for r, each in enumerate(all_of_them) if each != all_of_them[0]]:
        raise RuntimeError(
            f"the ranks start with different parameters: rank 0 has {all_of_them[0]}, and ranks {', '.join(different)} have "
            "others; expected the same model, folder and seed on all of them"
        )
