"""The command of the GLUE task: one process a node as in the assignment, own ranks, or torchrun."""

from __future__ import annotations

import argparse
import functools
import json
import shlex
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from labkit import models
from labkit.base.files import write_atomically
from labkit.todo import missing
from labkit.train import glue_task, starting
from labkit.train.entailment import Corpus
from labkit.train.glue_task import GlueConfig, GlueResult, glue, load_glue
from labkit.train.joining import joined
from labkit.train.options import check_output
from labkit.train.reading import read_on_rank_0
from labkit.train.recording import recorded_on_all
from labkit.train.starting import BAD_INPUT, DAY_S, launched, start_of
from labkit.train.synchronization import WAYS

MODEL_TYPES, TASKS = ("bert",), ("RTE",)


def add_parser(tasks: Any) -> None:
    """Add the task to the subparsers ``tasks``; ``args.run(args)`` then trains."""
    usage = "python -m labkit.train glue [FLAG ...]    --help lists them"
    task = tasks.add_parser(
        "glue", help="BERT on RTE", description="Train BERT to tell what follows from a text.", usage=usage
    )
    _add_flags(task)
    task.set_defaults(run=functools.partial(_train, task))


def _train(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Train as the flags say: start ranks, or be the one that this process is."""
    if not (args.do_train or args.do_eval):
        args.do_train = args.do_eval = True
    try:
        start = start_of(args, default_world_size=1 if args.sync == "none" else 2)
        config = GlueConfig(**{f.name: getattr(args, f.name) for f in fields(GlueConfig)})
        _check_names(args.model_type, args.task_name)
        _check_output(config.output_dir, args.overwrite_output_dir)
        config.check_world(start.world_size)
        corpus = load_glue(config) if start.reads_first else None
    except BAD_INPUT as error:
        parser.error(str(error))
    for task in WAYS[config.sync].tasks if start.world_size > 1 else ():
        if todo := missing(task):
            raise SystemExit(f"{todo}: --sync {config.sync} needs it; fill it in first")
    if not (start.by_hand or start.torchrun):
        run = launched(parser, glue, config, corpus, world_size=start.world_size, backend=args.backend, timeout_s=DAY_S)
        _finish(run.values, run.events, config.output_dir)
        return
    start.announce()
    told = {name: value for name, value in asdict(config).items() if name not in ("source", "output_dir", "quiet")}
    try:
        with joined(start.by_hand, args.backend, wait_s=args.timeout_s, options=told):
            _run_as_rank(config, corpus, every_rank_prints=start.by_hand is not None)
    except ConnectionError as error:
        raise SystemExit(str(error)) from None


def _run_as_rank(config: GlueConfig, corpus: Corpus | None, every_rank_prints: bool) -> None:
    """Train as one rank on the data that rank 0 has read; rank 0 writes what all ranks found."""
    data = read_on_rank_0(lambda: corpus or load_glue(config))
    if everything := recorded_on_all(lambda: glue(config, data, every_rank_prints)):
        _finish(*everything, config.output_dir)


def _check_names(model_type: str, task_name: str) -> None:
    for flag, given, known in (("--model-type", model_type, MODEL_TYPES), ("--task-name", task_name, TASKS)):
        if given.lower() not in map(str.lower, known):
            raise ValueError(f"{flag} is {given!r}, expected {' or '.join(known)}: the lab knows no other")


def _check_output(folder: str, overwrite: bool) -> None:
    """Make the folder. Raise ValueError where it cannot be, or results would be lost."""
    if folder and Path(folder).is_dir() and any(Path(folder).iterdir()) and not overwrite:
        raise ValueError(
            f"--output-dir {folder} has something in it; name another folder, or say --overwrite-output-dir"
        )
    if folder:
        check_output("--output-dir", folder)


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
        n = min(len(summed["mean_losses"]), glue_task.TIMED_ITERATIONS)
        timed = f"the mean of iterations 2 to {n}" if n > 1 else "the first iteration"
        lines.append(("per iteration", f"{seconds:.4g} s, {timed}"))
    if summed["accuracy"]:
        lines.append(("accuracy", ", ".join(f"{accuracy:.4f}" for accuracy in summed["accuracy"])))
    return "\n".join(f"{name:<14} {value}" for name, value in lines)


def _finish(results: Sequence[GlueResult], events: Any, output_dir: str) -> None:
    summed = summary(results, shlex.join(["python", "-m", "labkit.train", *sys.argv[1:]]))
    print(report(summed))
    if output_dir:
        path = Path(output_dir) / "merged.json"
        write_atomically(path, (json.dumps(summed, indent=2, ensure_ascii=False) + "\n").encode())
        events.to_csv(path.with_name("events.csv"), index=False)
        print(f"\nresults in {output_dir}: {', '.join(sorted(path.name for path in path.parent.iterdir()))}")


# --- flags ----------------------------------------------------------------------------------------


def _whole(text: str) -> int:
    """Return a whole number; the assignment writes three epochs as 3.0."""
    if not float(text).is_integer():
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number")
    return int(float(text))


def _add_flags(task: argparse.ArgumentParser) -> None:
    """Add the assignment's flags, by its names and ours, with GlueConfig's defaults."""

    def add(*flags: str, dest: str, help: str, type: Callable[[str], Any] = int) -> None:
        task.add_argument(*flags, dest=dest, type=type, help=f"{help} (%(default)s)")

    add("--model-type", dest="model_type", type=str, help=" or ".join(MODEL_TYPES))
    model = "a folder with a pretrained BERT, or a name on the hub; auto: bert-base-cased where it can be had, else a small one"
    add("--model-name-or-path", "--model", dest="model", type=str, help=model)
    add("--size", dest="size", type=str, help=f"of a BERT with new weights: {', '.join(models.BERT_SIZES)}")
    add("--vocab-size", dest="vocab_size", help="tokens of a vocabulary that is trained on the data, at most")
    add("--task-name", dest="task_name", type=str, help=" or ".join(TASKS))
    add(
        "--data-dir",
        "--source",
        dest="source",
        type=str,
        help="a folder with train.tsv and dev.tsv; shipped; hub; auto",
    )
    add("--max-seq-length", "--max-length", dest="max_length", help="tokens of a pair of sentences, at most")
    add("--limit", dest="limit", help="training rows to use; None: all of them")
    add("--limit-eval", dest="limit_eval", help="validation rows to use; None: all of them")
    batch = ("--per-gpu-train-batch-size", "--per-device-train-batch-size", "--batch-size")
    add(*batch, dest="batch_size", help="rows in a step, of all ranks together")
    add("--num-train-epochs", "--epochs", dest="epochs", type=_whole, help="times through the training rows")
    add("--learning-rate", "--lr", dest="learning_rate", type=float, help="the highest; it falls to 0")
    add("--max-grad-norm", dest="max_grad_norm", type=float, help="norm to which the gradient is clipped")
    add("--clip", dest="clip", type=str, help="after the ranks have agreed, or before")
    add("--sync", dest="sync", type=str, help=f"how the ranks agree: {', '.join(WAYS)}")
    add("--precision", dest="precision", type=str, help=f"of the forward pass: {', '.join(glue_task.PRECISIONS)}")
    add("--iterations", dest="iterations", help="end after so many; None: after all epochs")
    add("--seed", dest="seed", help="of new weights, the order of rows, and dropout")
    task.add_argument("--no-dropout", dest="dropout", action="store_false", help="compare runs to the last digit")
    task.add_argument("--do-train", action="store_true", help="train; with neither this nor --do-eval: both")
    task.add_argument("--do-eval", action="store_true", help="take the accuracy, after each epoch if it trains")
    task.add_argument("--output-dir", help="folder for losses, results and the trained model; nothing is kept without")
    task.add_argument("--overwrite-output-dir", action="store_true", help="the folder may have something in it")
    starting.add_flags(task, "--local-rank", "--rank")
    task.set_defaults(**asdict(GlueConfig()) | {"model_type": MODEL_TYPES[0], "task_name": TASKS[0], "model": "auto"})
    task.set_defaults(do_train=False, do_eval=False)
