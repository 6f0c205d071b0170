"""The GLUE task: BERT learns which sentence follows from which, its ranks agreeing in any way.

The data set is RTE (Recognizing Textual Entailment). As in the assignment of Princeton's COS 598D:
one global batch whatever the number of ranks, of which rank r takes rows r, r + W, r + 2 W …; all
that differs between the ways is how the ranks agree.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import shlex
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from labkit import models
from labkit.base.files import write_atomically
from labkit.train import entailment
from labkit.train.entailment import EntailmentCorpus, SentencePair
from labkit.train.metrics import TrainingResult, write_json
from labkit.train.rank_start import Start, read_on_rank_0
from labkit.train.trainer import SYNC_METHODS, Batch, Trainer, device, sum_over_ranks, world
from labkit.train.training_task import TrainingTask, check_options, check_output, check_shares, option

TIMED_ITERATIONS = 40  # of which the first does not count, as in the assignment
PRECISIONS = ("fp32", "bf16")
MODEL_TYPES, TASKS = ("bert",), ("RTE",)


def _whole(text: str) -> int:
    """Return a whole number; the assignment writes three epochs as 3.0."""
    if not float(text).is_integer():
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number")
    return int(float(text))


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
    - ``max_grad_norm``: the gradient's norm is clipped to it, and ``clip`` says when: ``"after"``
      the ranks have agreed, or each rank its own ``"before"``, which trains something else.
    - ``precision``: ``"fp32"``, or ``"bf16"`` for a forward pass under autocast.
    - ``iterations``: end after so many, on the way to ``epochs``.
    - ``do_train``, ``do_eval``: train; take the accuracy after each epoch.
    - ``output_dir``: a folder for ``loss_{rank}.txt``, a line ``iteration loss`` each, and the
      trained model. ``quiet``: print no losses.

    Raises ValueError for a value that cannot be.
    """

    source: str = option("auto", "a folder with train.tsv and dev.tsv; shipped; hub; auto", "--data-dir", "--source")
    model: str = option(
        "",
        "a folder with a pretrained BERT, or a name on the hub; auto: bert-base-cased where it can be had, else a small one",
        "--model-name-or-path",
        "--model",
    )
    size: str = option("tiny", f"of a BERT with new weights: {', '.join(models.BERT_SIZES)}", choices=models.BERT_SIZES)
    vocab_size: int = option(2000, "tokens of a vocabulary that is trained on the data, at most", least=100)
    max_length: int = option(
        128, "tokens of a pair of sentences, at most", "--max-seq-length", "--max-length", least=8, most=10**5
    )
    limit: int | None = option(None, "training rows to use; None: all of them", most=10**9)
    limit_eval: int | None = option(None, "validation rows to use; None: all of them", most=10**9)
    epochs: int = option(3, "times through the training rows", "--num-train-epochs", "--epochs", parse=_whole)
    batch_size: int = option(
        64,
        "rows in a step, of all ranks together",
        "--per-gpu-train-batch-size",
        "--per-device-train-batch-size",
        "--batch-size",
    )
    learning_rate: float = option(2e-5, "the highest; it falls to 0", "--learning-rate", "--lr")
    seed: int = option(0, "of new weights, the order of rows, and dropout", least=0, most=2**32 - 1)
    sync: str = option("all_reduce", f"how the ranks agree: {', '.join(SYNC_METHODS)}", choices=SYNC_METHODS)
    dropout: bool = option(True, "compare runs to the last digit", "--no-dropout")
    max_grad_norm: float = option(1.0, "norm to which the gradient is clipped", most=math.inf)
    clip: str = option("after", "after the ranks have agreed, or before", choices=("after", "before"))
    precision: str = option("fp32", f"of the forward pass: {', '.join(PRECISIONS)}", choices=PRECISIONS)
    iterations: int | None = option(None, "end after so many; None: after all epochs", most=10**9)
    do_train: bool = option(True, "train; with neither this nor --do-eval: both")
    do_eval: bool = option(True, "take the accuracy, after each epoch if it trains")
    output_dir: str = ""
    quiet: bool = False

    def __post_init__(self) -> None:
        check_options(self)
        if self.clip == "before" and not SYNC_METHODS[self.sync].finish:
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
                f"one process, or one of {', '.join(name for name in SYNC_METHODS if name != 'none')}"
            )


@dataclass(frozen=True)
class GlueResult(TrainingResult):
    """The result of one rank.

    ``losses`` are this rank's own, of its rows in each iteration (NaN where it had none),
    ``mean_losses`` those of the whole batch, and ``iteration_s`` the seconds from the start of the
    forward pass to the end of the optimizer's step. ``accuracy`` is that on the validation rows
    after each epoch, over all ranks. ``fingerprints``: of all parameters, before and after.
    """

    model: str
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


def load_glue(config: GlueConfig) -> EntailmentCorpus:
    """Load the data that ``config`` asks for.

    Raises ValueError, FileNotFoundError or ConnectionError where it cannot be had.
    """
    return entailment.load_corpus(
        config.source, config.model, config.vocab_size, config.max_length, config.limit, config.limit_eval
    )


def glue(config: GlueConfig, corpus: EntailmentCorpus | None = None, every_rank_prints: bool = False) -> GlueResult:
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
        **run.trainer.facts(corpus.source, config),
        model=corpus.model or f"BERT {config.size}, new weights",
        losses=run.losses,
        mean_losses=run.mean_losses,
        iteration_s=run.iteration_s,
        accuracy=run.accuracy,
        fingerprints=(first_fingerprint, fingerprint(run.trainer.module)),
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
            self.steps * config.epochs,
            way=SYNC_METHODS[config.sync],
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
        rows = self.corpus.train
        order = epoch_order(len(rows), self.config.seed, epoch)
        cut = (order[i : i + self.config.batch_size] for i in range(0, len(order), self.config.batch_size))
        batches = ((self.own_rows(rows, whole), len(whole)) for whole in cut)
        for step in self.trainer.steps(batches, look=True):
            self.iteration_s.append(step.seconds)
            self.losses.append(step.loss.item() / step.targets if step.targets else math.nan)
            self.mean_losses.append(step.mean_loss)
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

    def own_rows(self, examples: Sequence[SentencePair], whole: Sequence[int]) -> Batch:
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


def _model(config: GlueConfig, corpus: EntailmentCorpus) -> torch.nn.Module:
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
def max_parameter_difference(module: torch.nn.Module) -> float:
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


# --- what comes out -------------------------------------------------------------------------------


def summary(results: Sequence[GlueResult], command: str) -> dict[str, Any]:
    """Return the ranks' results as one: what was run, on what, and what came of it."""
    ranks = sorted(results, key=lambda result: result.rank)
    first = ranks[0]
    seconds = [rank.seconds_per_iteration for rank in ranks] if first.iteration_s else []
    return {
        "command": command,
        "data_source": first.data_source,
        "model": first.model,
        "parameters": first.parameters,
        "world_size": first.world_size,
        "backend": first.backend,
        "devices": [rank.device for rank in ranks],
        "threads_per_rank": first.threads,
        "config": first.config,
        "mean_losses": first.mean_losses,
        "losses": [rank.losses for rank in ranks],
        "seconds_per_iteration": statistics.fmean(seconds) if seconds else None,
        "accuracy": first.accuracy,
    }


def report(summed: dict[str, Any]) -> str:
    """Return the summary in a few lines, for a terminal."""
    sync, seconds = summed["config"]["sync"], summed["seconds_per_iteration"]
    lines = [
        ("source", summed["data_source"]),
        ("model", f"{summed['model']}, {summed['parameters']:,} parameters"),
        ("ranks", f"{summed['world_size']} on {summed['backend']}: {', '.join(summed['devices'])}; sync {sync}"),
    ]
    if seconds is not None:
        n = min(len(summed["mean_losses"]), TIMED_ITERATIONS)
        timed = f"the mean of iterations 2 to {n}" if n > 1 else "the first iteration"
        lines.append(("per iteration", f"{seconds:.4g} s, {timed}"))
    if summed["accuracy"]:
        lines.append(("accuracy", ", ".join(f"{accuracy:.4f}" for accuracy in summed["accuracy"])))
    return "\n".join(f"{name:<14} {value}" for name, value in lines)


def _finish(results: Sequence[GlueResult], events: Any, args: argparse.Namespace) -> None:
    summed = summary(results, shlex.join(["python", "-m", "labkit.train", *sys.argv[1:]]))
    print(report(summed))
    if args.output_dir:
        folder = Path(args.output_dir)
        write_json(folder / "merged.json", summed)
        events.to_csv(folder / "events.csv", index=False)
        print(f"\nresults in {args.output_dir}: {', '.join(sorted(path.name for path in folder.iterdir()))}")


# --- its command ----------------------------------------------------------------------------------


def _add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the assignment's flags that are no option of training."""
    add = parser.add_argument
    add("--model-type", default=MODEL_TYPES[0], help=f"{' or '.join(MODEL_TYPES)} (%(default)s)")
    add("--task-name", default=TASKS[0], help=f"{' or '.join(TASKS)} (%(default)s)")
    add("--output-dir", help="folder for losses, results and the trained model; nothing is kept without")
    add("--overwrite-output-dir", action="store_true", help="the folder may have something in it")


def _complete(args: argparse.Namespace) -> None:
    if not (args.do_train or args.do_eval):
        args.do_train = args.do_eval = True
    if args.sync == "none":
        args.default_world_size = 1


def _check(config: GlueConfig, args: argparse.Namespace, start: Start) -> None:
    for flag, given, known in (
        ("--model-type", args.model_type, MODEL_TYPES),
        ("--task-name", args.task_name, TASKS),
    ):
        if given.lower() not in map(str.lower, known):
            raise ValueError(f"{flag} is {given!r}, expected {' or '.join(known)}: the lab knows no other")
    if folder := config.output_dir:
        if Path(folder).is_dir() and any(Path(folder).iterdir()) and not args.overwrite_output_dir:
            raise ValueError(
                f"--output-dir {folder} has something in it; name another folder, or say --overwrite-output-dir"
            )
        check_output("--output-dir", folder)
    config.check_world(start.world_size)


TASK = TrainingTask(
    name="glue",
    help="BERT on RTE",
    description="Train BERT to tell what follows from a text.",
    config=GlueConfig,
    load=load_glue,
    train=glue,
    rank_flags=("--local-rank", "--rank"),
    defaults={"model": "auto", "do_train": False, "do_eval": False},
    add_flags=_add_flags,
    complete=_complete,
    check=_check,
    todos=lambda config, n: (SYNC_METHODS[config.sync].tasks if n > 1 else (), f"--sync {config.sync}"),
    rank_options=lambda args, device: {"every_rank_prints": args.rank is not None},
    finish=_finish,
)
