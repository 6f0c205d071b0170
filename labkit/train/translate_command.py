"""The command of the translation task: own processes, or one rank that torchrun started."""

from __future__ import annotations

import argparse
import datetime
import functools
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from labkit import launch, models
from labkit.base import machine
from labkit.base.rendezvous import MeetingError
from labkit.todo import missing
from labkit.train import metrics, modes
from labkit.train.joining import joined, under_torchrun
from labkit.train.metrics import RankResult
from labkit.train.options import check_output, seconds
from labkit.train.recording import recorded_on_all
from labkit.train.starting import BAD_INPUT, DAY_S, launched
from labkit.train.translation_task import TranslateConfig, load, translate


def add_parser(tasks: Any) -> None:
    """Add the task to the subparsers ``tasks``; ``args.run(args)`` then trains."""
    task = tasks.add_parser("translate", help="GPT-2 on German to English", description="Train GPT-2 to translate.")
    _add_config_flags(task)
    add = task.add_argument
    several = (
        "ranks, 2 if not given; torchrun sets its own. Devices, in the modes in which one process drives all of them"
    )
    add("--world-size", type=int, help=several)
    add("--backend", default="auto", choices=launch.BACKENDS, help="auto: NCCL where each rank has a GPU, else gloo")
    add("--timeout-s", type=seconds, default=DAY_S, help="seconds after which unfinished ranks are ended (%(default)g)")
    add("--out", help="folder for the results; runs/translate-DATE-TIME without this")
    task.set_defaults(run=functools.partial(_train, task))


def _train(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Train as the flags say: start ranks, or be one of those that torchrun started."""
    started = under_torchrun()
    given = 2 if args.world_size is None else args.world_size
    drives_all = args.mode in modes.ONE_PROCESS
    world_size = int(os.environ["WORLD_SIZE"]) if started else 1 if drives_all else given
    args.n_devices = given if drives_all else TranslateConfig.n_devices
    try:
        config = TranslateConfig(**{f.name: getattr(args, f.name) for f in fields(TranslateConfig)})
        config.check_world(world_size)
        if started and not drives_all and args.world_size not in (None, world_size):
            raise ValueError(
                f"--world-size is {args.world_size}, but torchrun started {world_size} ranks; leave it out"
            )
        if not started or os.environ["RANK"] == "0":
            check_output("--out", args.out or "runs")
        corpus = None if started else load(config)
    except BAD_INPUT as error:
        parser.error(str(error))
    for task in modes.tasks_for_mode(config.mode, world_size):
        if todo := missing(task):
            raise SystemExit(f"{todo}: training needs it; fill it in first")
    if drives_all and args.backend == "auto" and machine.usable_gpus() < config.n_devices:
        args.backend = "gloo"  # as it computes on virtual devices
    if started:
        _run_as_rank(config, args)
        return
    options = {"world_size": world_size, "backend": args.backend, "timeout_s": args.timeout_s}
    run = launched(parser, translate, config, corpus, **options)
    _finish(run.values, run.events, args.out)


def _run_as_rank(config: TranslateConfig, args: argparse.Namespace) -> None:
    """Train as one rank under torchrun; rank 0 gathers all ranks' results and writes them."""
    try:
        with joined(backend=args.backend):
            if everything := recorded_on_all(lambda: translate(config)):
                _finish(*everything, args.out)
    except MeetingError as error:
        raise SystemExit(str(error)) from None


def _finish(results: Sequence[RankResult], events: Any, out: str | None) -> None:
    folder = Path(out or f"runs/translate-{datetime.datetime.now():%Y%m%d-%H%M%S}")
    print(metrics.report(metrics.save(results, events, folder)))
    print(f"\nresults in {folder}: {', '.join(sorted(path.name for path in folder.iterdir()))}")


def _with_underscores(mode: str) -> str:
    return mode.replace("-", "_").lower()  # 1F1B and ZB-H1, as the papers write them


def _add_config_flags(task: argparse.ArgumentParser) -> None:
    """Add a flag for each field of TranslateConfig, with the field's default."""

    def add(*flags: str, help: str, type: Callable[[str], Any] = int) -> None:
        task.add_argument(*flags, type=type, help=f"{help} (%(default)s)")

    add("--source", type=str, help="auto, shipped, hub, a folder, or a data set's name on the hub")
    add("--size", type=str, help=f"of the model: {', '.join(models.GPT2_SIZES)}")
    add("--n-layer", help="blocks of the model; None: as many as its size has")
    add("--mode", "--model-parallel-mode", type=_with_underscores, help=", ".join(modes.MODES))
    add("--n-micro", "--n-chunk", help="micro-batches of a batch, where there is a pipeline")
    add("--stages-per-rank", help="in the mode interleaved")
    add("--vocab-size", help="tokens of the byte-level BPE")
    add("--max-length", "--model-max-length", help="tokens of a pair, at most")
    add("--limit", help="training pairs to use; None: all of them")
    add("--limit-eval", help="validation and test pairs to use")
    add("--epochs", "--n-epochs", help="times through the training pairs")
    add("--batch-size", help="pairs in a step, of all ranks together")
    add("--learning-rate", "--lr", type=float, help="the highest; None: what suits the size")
    add("--seed", help="of the model's first weights")
    add("--warmup-epochs", help="first epochs that the averages leave out")
    add("--warmup-steps", help="first steps left out where no epoch can be")
    task.add_argument("--no-bleu", dest="bleu", action="store_false", help="do not translate the test sentences")
    task.add_argument("--save-gradients", action="store_true", help="store each rank's gradients of the first batch")
    task.set_defaults(**asdict(TranslateConfig()))
