"""The command line of training: ``python -m labkit.train TASK``, its flags, and how ranks start."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import functools
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch.distributed as dist

from labkit.base import machine
from labkit.base.rendezvous import MeetingError, resolve
from labkit.launch import BACKENDS, RankError, launch
from labkit.todo import missing
from labkit.train import metrics, trainer
from labkit.train.exchange import read_on_rank_0, recorded_on_all
from labkit.train.glue_task import GlueFlags, glue, load_glue
from labkit.train.options import check_options, check_output, option
from labkit.train.rank_start import ByHand, joined, process, under_torchrun
from labkit.train.translation_task import TranslateConfig, load, translate

PROG = "python -m labkit.train"
BAD_INPUT = (TypeError, ValueError, OSError)
MAX_S = 1e8  # three years; a lock takes 292, a date 10,000
DAY_S = 86400.0  # for ranks that the command starts itself: as long as training takes


class Task(NamedTuple):
    """A task of the command.

    - ``in_terminal``: ``train`` where each rank has a terminal of its own.
    - ``folder``: where its results go if no flag says so, followed by date and time.
    """

    description: str
    config: type
    load: Callable[[Any], Any]
    train: Callable[..., metrics.TrainingResult]
    in_terminal: Callable[..., metrics.TrainingResult]
    folder: str = ""


TRANSLATE = "Train GPT-2 to translate German into English."
GLUE = "Train BERT to tell what follows from a text."
GLUE_IN_TERMINAL = functools.partial(glue, every_rank_prints=True)
TASKS = {
    "translate": Task(TRANSLATE, TranslateConfig, load, translate, translate, "runs/translate"),
    "glue": Task(GLUE, GlueFlags, load_glue, glue, GLUE_IN_TERMINAL),
}


@dataclass(frozen=True)
class StartFlags:
    """The flags that say how ranks start: here, by torchrun, or one by one, by hand."""

    world_size: int | None = option(
        None, "ranks, 2 if not given; torchrun sets its own. Devices, where one process drives them"
    )
    local_rank: int | None = option(
        None, "which rank this process is, started by hand; without it all start here", "--rank"
    )
    master_ip: str = option("127.0.0.1", "an address of rank 0's machine, for all ranks", "--master-addr")
    master_port: int = option(11868, "where rank 0 listens")
    timeout_s: float = option(300.0, "seconds that ranks wait for each other, to meet and to agree")
    backend: str = option("auto", "auto: NCCL where each rank has a GPU, else gloo", choices=BACKENDS)

    def __post_init__(self) -> None:
        check_options(self, {"local_rank": (0, 10**6), "master_port": (1, 65535)})
        if self.timeout_s > MAX_S:
            raise ValueError(f"timeout_s is {self.timeout_s}, expected at most {MAX_S:,.0f} seconds")

    def size(self, default: int) -> int:
        """Return the world size, that of a group which is up already if this process is in one.

        Raises ValueError where torchrun and the flags disagree.
        """
        if dist.is_initialized():
            return trainer.world().size
        if not under_torchrun():
            return self.world_size or default
        if self.local_rank is not None:
            raise ValueError("torchrun tells each process its rank: leave out the flag for it, or torchrun")
        started = int(os.environ["WORLD_SIZE"])
        if self.world_size not in (None, started):
            there = f"torchrun started {started} ranks; leave it out"
            raise ValueError(f"--world-size is {self.world_size}, but {there}")
        return started

    def by_hand(self, world_size: int) -> ByHand | None:
        """Return what a process started by hand is told. Raises ValueError for no such rank."""
        if self.local_rank is None or dist.is_initialized():
            return None
        if self.local_rank >= world_size:
            expected = f"expected 0 to {world_size - 1}: one for each process"
            raise ValueError(f"the rank is {self.local_rank}, {expected}")
        resolve(self.master_ip)
        return ByHand(self.local_rank, world_size, self.master_ip, self.master_port)


def main(argv: Sequence[str] | None = None, prog: str = PROG) -> None:
    """Train by command line: own processes, or this process as one rank of those started.

    In a process group that is up already, this process trains in it. ``prog`` is what the reader
    typed before ``argv``, for the help and for errors.
    """
    parser, name, flags = _parser_of(sys.argv[1:] if argv is None else argv, prog)
    try:
        _run(TASKS[name], parser, flags)
    except (FloatingPointError, RankError) as error:  # the loss is nan: here, or on a rank
        if isinstance(error, RankError) and error.error_type != FloatingPointError.__name__:
            raise
        raise SystemExit(str(error)) from None
    except MeetingError as error:
        raise SystemExit(str(error)) from None
    except KeyboardInterrupt:
        print("interrupted: all processes that this one has started are ended", file=sys.stderr)
        raise SystemExit(130) from None


def _parser_of(argv: Sequence[str], prog: str = PROG) -> tuple[Any, str, list[str]]:
    """Return the parser of the task that the first word names, the name, and the flags."""
    from transformers import HfArgumentParser

    about = "Train on real ranks: own processes, or under torchrun."
    flags = "TASK --help lists its flags; hyphens and underscores both work"
    tasks = argparse.ArgumentParser(prog=prog, description=about)
    tasks.add_argument("task", choices=TASKS, help=flags)
    name = tasks.parse_args(argv[:1]).task
    usage = f"{prog} {name} [FLAG ...]    --help lists them"
    configs, about = [TASKS[name].config, StartFlags], TASKS[name].description
    parser = HfArgumentParser(configs, prog=f"{prog} {name}", usage=usage, description=about)
    return parser, name, list(argv[1:])


def parse(argv: Sequence[str]) -> tuple[Any, StartFlags]:
    """Return the task's config and the start that a command line says. Bad flags exit."""
    parser, _, flags = _parser_of(argv)
    return _parse(parser, flags)


def _parse(parser: Any, flags: list[str]) -> tuple[Any, StartFlags]:
    try:
        config, start = parser.parse_args_into_dataclasses(flags, look_for_args_file=False)
        if getattr(config, "one_process", False):  # it drives as many devices as --world-size says
            config = replace(config, n_devices=start.world_size or config.n_devices)
            virtual = start.backend == "auto" and machine.usable_gpus() < config.n_devices
            start = replace(start, world_size=None, backend="gloo" if virtual else start.backend)
        return config, start
    except ValueError as error:
        return parser.error(str(error))


def check_flags(argv: Sequence[str]) -> None:
    """End this process with status 2 and the reason unless ``main(argv)`` can start."""
    parser, name, flags = _parser_of(argv)
    _plan(TASKS[name], parser, flags)


class Plan(NamedTuple):
    """What a command line says: the task's config, and how this process and the ranks start."""

    command: str
    config: Any
    start: StartFlags
    world_size: int
    by_hand: ByHand | None

    @property
    def is_rank(self) -> bool:
        """Whether this process is one of the ranks: by hand, by torchrun, or of a group."""
        return self.by_hand is not None or under_torchrun() or dist.is_initialized()

    @property
    def rank(self) -> int:
        """This process's rank; 0 also where it starts all of them."""
        if self.by_hand:
            return self.by_hand.rank
        if under_torchrun() and not dist.is_initialized():
            return int(os.environ["RANK"])
        return trainer.world().rank


def _plan(task: Task, parser: Any, flags: list[str]) -> Plan:
    """Return what the flags say. Flags that cannot be exit."""
    config, start = _parse(parser, flags)
    try:
        world_size = start.size(config.default_world_size)
        command = f"{parser.prog} {shlex.join(flags)}"
        plan = Plan(command, config, start, world_size, start.by_hand(world_size))
        config.check_world(world_size)
        if plan.rank == 0 and (folder := config.output_dir or os.path.dirname(task.folder)):
            check_output(folder)
        return plan
    except BAD_INPUT as error:
        return parser.error(str(error))


def _run(task: Task, parser: Any, flags: list[str]) -> None:
    """Train as the flags say: start ranks, or be the one that this process is."""
    plan = _plan(task, parser, flags)
    config, start = plan.config, plan.start
    try:
        data = task.load(config) if plan.rank == 0 else None  # before ranks meet: bad data end it now
    except BAD_INPUT as error:
        parser.error(str(error))
    for each in config.tasks(plan.world_size):
        if todo := missing(each):
            raise SystemExit(f"{todo}: this training needs it; fill it in first")
    if plan.is_rank:
        _be_a_rank(task, plan, data)
        return
    how: dict[str, Any] = {"world_size": plan.world_size, "backend": start.backend, "timeout_s": DAY_S}
    try:
        run = launch(task.train, config, data, **how)
    except BAD_INPUT as error:  # a plan that cannot be: no rank has started
        parser.error(str(error))
    _finish(task, plan, run.values, run.events)


def _be_a_rank(task: Task, plan: Plan, data: Any) -> None:
    """Train as one rank on the data that rank 0 has read; rank 0 reports what all ranks found."""
    config, start, by_hand = plan.config, plan.start, plan.by_hand
    if by_hand:
        who = f"rank {by_hand.rank} of {by_hand.world_size}, {process()}"
        print(f"{who}: waiting until all are there", flush=True)
    train = task.in_terminal if by_hand else task.train
    joining = joined(by_hand, start.backend, start.timeout_s)
    with contextlib.nullcontext() if dist.is_initialized() else joining:
        data = read_on_rank_0(lambda: data)
        everything = recorded_on_all(lambda: train(config, data))
    if everything:
        _finish(task, plan, *everything)


def _finish(task: Task, plan: Plan, results: Sequence[metrics.TrainingResult], events: Any) -> None:
    """Print the report, and write the results into the folder for them, if there is one."""
    print(metrics.report(metrics.merge(results)))
    folder = plan.config.output_dir
    if not folder and task.folder:
        folder = f"{task.folder}-{datetime.datetime.now():%Y%m%d-%H%M%S}"
    if folder:
        metrics.save(results, events, Path(folder), plan.command)
        print(f"\nresults in {folder}: {', '.join(sorted(os.listdir(folder)))}")
