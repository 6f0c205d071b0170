"""The command line of training: every task's flags, and how a task is run."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any

from labkit.launch import BACKENDS, RankError, launch
from labkit.todo import missing
from labkit.train import digits_task, glue_task, trainer, translation_task
from labkit.train.rank_start import ByHand, Start, joined, process, read_on_rank_0, recorded_on_all, start_of
from labkit.train.training_task import TrainingTask, type_of

TASKS = (translation_task.TASK, glue_task.TASK, digits_task.TASK)
BAD_INPUT = (TypeError, ValueError, OSError)
MAY_DIFFER = ("source", "output_dir", "quiet")  # among ranks that somebody starts one by one
MAX_S = 1e8  # three years; a lock takes 292, a date 10,000


def main(argv: Sequence[str] | None = None) -> None:
    """Train by command line: own processes, or this process as one rank of those started."""
    args = parser().parse_args(with_hyphens(sys.argv[1:] if argv is None else argv))
    try:
        run_task(args.task, args.parser, args)
    except (FloatingPointError, RankError) as error:  # the loss is nan: here, or on a rank
        if isinstance(error, RankError) and error.error_type != FloatingPointError.__name__:
            raise
        raise SystemExit(str(error)) from None
    except KeyboardInterrupt:
        print("interrupted: all processes that this one has started are ended", file=sys.stderr)
        raise SystemExit(130) from None


def with_hyphens(argv: Sequence[str]) -> list[str]:
    """Return flags with hyphens, as argparse knows them; the assignment has --world_size=2."""
    split = [arg.partition("=") for arg in argv]
    return [
        name.replace("_", "-") + eq + value if name.startswith("--") else name + eq + value for name, eq, value in split
    ]


def check_flags(argv: Sequence[str]) -> None:
    """End this process with status 2 and the reason unless ``main(argv)`` can start."""
    args = parser().parse_args(with_hyphens(argv))
    try:
        configure(args.task, args)
    except BAD_INPUT as error:
        args.parser.error(str(error))


def configure(task: TrainingTask, args: argparse.Namespace) -> tuple[Any, Start]:
    """Return the task's config, and how the ranks start. Raises one of BAD_INPUT."""
    task.complete(args)
    by_hand = None if args.rank is None else ByHand(args.rank, 0, args.master_ip, args.master_port)
    start = start_of(args.world_size, args.default_world_size, by_hand)
    config = task.config(**{each.name: getattr(args, each.name) for each in fields(task.config)})
    task.check(config, args, start)
    return config, start


def run_task(task: TrainingTask, parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Train as the flags say: start ranks, or be the one that this process is."""
    try:
        config, start = configure(task, args)
        data = task.load(config) if start.reads else None
    except BAD_INPUT as error:
        parser.error(str(error))
    needed, why = task.todos(config, start.world_size)
    for each in needed:
        if todo := missing(each):
            raise SystemExit(f"{todo}: {why} needs it; fill it in first")
    if start.here:
        options = {"world_size": start.world_size, "backend": args.backend, "timeout_s": args.run_s}
        try:
            run = launch(task.train, config, data, **options)
        except BAD_INPUT as error:  # a plan that cannot be: no rank has started
            parser.error(str(error))
        if task.finish:
            task.finish(run.values, run.events, args)
        return
    if start.joined:
        _run_as_rank(task, config, data, args, trainer.device())
        return
    if start.by_hand:
        print(f"rank {args.rank} of {start.world_size}, {process()}: waiting until all are there", flush=True)
    told = {name: value for name, value in asdict(config).items() if name not in MAY_DIFFER}
    try:
        with joined(start.by_hand, args.backend, task.device(args), wait_s=args.wait_s, options=told) as device:
            _run_as_rank(task, config, data, args, device)
    except ConnectionError as error:
        raise SystemExit(str(error)) from None


def _run_as_rank(task: TrainingTask, config: Any, data: Any, args: argparse.Namespace, device: Any) -> None:
    """Train as one rank on the data that rank 0 has read; rank 0 reports what all ranks found."""
    data = read_on_rank_0(lambda: data)
    options = task.rank_options(args, device)
    if task.finish is None:
        task.train(config, data, **options)
    elif everything := recorded_on_all(lambda: task.train(config, data, **options)):
        task.finish(*everything, args)


# --- flags ----------------------------------------------------------------------------------------


def parser() -> argparse.ArgumentParser:
    """Return what understands the command line of all tasks."""
    made = argparse.ArgumentParser(
        prog="python -m labkit.train",
        description="Train on real ranks: own processes, or under torchrun. Hyphens and underscores both work in flags.",
    )
    tasks = made.add_subparsers(dest="name", required=True, metavar="TASK")
    for task in TASKS:
        usage = f"python -m labkit.train {task.name} [FLAG ...]    --help lists them" if task.rank_flags else None
        each = tasks.add_parser(task.name, help=task.help, description=task.description, usage=usage)
        each.set_defaults(task=task, parser=each)
        _add_option_flags(each, task.config)
        task.add_flags(each)
        _add_start_flags(each, task)
        each.set_defaults(**asdict(task.config()) | task.defaults)
    return made


def _add_option_flags(parser: argparse.ArgumentParser, config: type) -> None:
    """Add a flag for each option of ``config``."""
    for each in fields(config):
        about = each.metadata
        if not about.get("help"):
            continue
        flags = about["flags"] or [f"--{each.name.replace('_', '-')}"]
        if type_of(each) is bool:
            action = "store_false" if flags[0].startswith("--no-") else "store_true"
            parser.add_argument(*flags, dest=each.name, action=action, help=about["help"])
        else:
            parse = about["parse"] or type_of(each)
            parser.add_argument(*flags, dest=each.name, type=parse, help=f"{about['help']} (%(default)s)")


DAY_S = 86400.0  # for ranks that the command starts itself: as long as training takes


def _add_start_flags(parser: argparse.ArgumentParser, task: TrainingTask) -> None:
    """Add the flags that say how ranks start: here, by torchrun or, where they can, by hand."""
    add, own = parser.add_argument, ByHand._field_defaults
    parser.set_defaults(rank=None, default_world_size=2, wait_s=300.0, run_s=DAY_S)
    seconds: dict[str, Any] = {"metavar": "SECONDS", "type": _seconds}
    if task.rank_flags:
        add("-w", "--world-size", type=int, help="processes in all, 2 if not given; torchrun sets its own")
        rank = "which one this process is, started by hand: from 0 on; without it all are started here"
        add(*task.rank_flags, dest="rank", type=int, help=rank)
        master = "an address of rank 0's machine, for all ranks alike (%(default)s)"
        add("--master-ip", "--master-addr", dest="master_ip", default=own["host"], help=master)
        add("--master-port", type=int, default=own["port"], help="where rank 0 listens (%(default)s)")
        add("--timeout-s", dest="wait_s", help="to wait for ranks that are started by hand (%(default)g)", **seconds)
    else:
        several = "ranks, 2 if not given; torchrun sets its own. Devices, in the modes in which one process drives all of them"
        add("--world-size", type=int, help=several)
    add(
        "--time-limit-s",
        dest="run_s",
        help="after which ranks that this command starts are ended (%(default)g)",
        **seconds,
    )
    add("--backend", default="auto", choices=BACKENDS, help="auto: NCCL where each rank has a GPU, else gloo")


def _seconds(text: str) -> float:
    """Return the time to wait that a flag gives: a type for argparse."""
    if not 0 < float(text) <= MAX_S:
        raise argparse.ArgumentTypeError(f"{text} is no time, expected seconds above 0, at most {MAX_S:g}")
    return float(text)
