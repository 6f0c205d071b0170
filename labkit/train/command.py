"""The command line of training: ``python -m labkit.train TASK``, its flags, and how ranks start."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import functools
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from labkit.base import machine
from labkit.base.course import CourseError, course
from labkit.base.lab import lab, outside
from labkit.base.rendezvous import PORT, MeetingError, is_loopback, own_port, resolve
from labkit.launch import BACKENDS, RankError, launch
from labkit.todo import missing
from labkit.train import metrics, trainer
from labkit.train.assignment_flags import without_assignment_flags
from labkit.train.exchange import read_on_rank_0, recorded_on_all
from labkit.train.glue_task import GlueFlags, glue, load_glue
from labkit.train.options import check_options, check_output, option
from labkit.train.rank_start import ByHand, joined, process, under_torchrun
from labkit.train.steps_file import steps_kept
from labkit.train.translation_task import TranslateConfig, load, translate

PROG = "python -m labkit.train"
BAD_INPUT = (TypeError, ValueError, OSError)
MAX_S = 1e8  # three years; a lock takes 292, a date 10,000
DAY_S = 86400.0  # for ranks that the command starts itself: as long as training takes


class TrainTask(NamedTuple):
    """A task of the command.

    - ``in_terminal``: ``train`` where each rank has a terminal of its own.
    - ``folder``: of the lab's runs, where its results go if no flag says so; date and time follow.
    - ``own_flags``: gives the flags that are the lab's own, of all that somebody may type.
    - ``defaults``: gives options that the lab's course decides.
    """

    description: str
    config: type
    load: Callable[[Any], Any]
    train: Callable[..., metrics.TrainingResult]
    in_terminal: Callable[..., metrics.TrainingResult]
    folder: str = ""
    own_flags: Callable[[Sequence[str]], list[str]] = list
    defaults: Callable[[], dict[str, Any]] = dict


TRANSLATE = "Train GPT-2 to translate, German into English or what --languages says."
GLUE = "Train BERT to tell what follows from a text."
GLUE_IN_TERMINAL = functools.partial(glue, every_rank_prints=True)
TASKS = {
    "translate": TrainTask(
        *(TRANSLATE, TranslateConfig, load, translate, translate, "translate"),
        defaults=lambda: {"languages": [*course().languages]},
    ),
    "glue": TrainTask(GLUE, GlueFlags, load_glue, glue, GLUE_IN_TERMINAL, own_flags=without_assignment_flags),
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
    master_port: int | None = option(
        None, f"where rank 0 listens; {PORT} if not given, and on one machine a port of your own, by your user id"
    )
    timeout_s: float = option(300.0, "seconds that ranks wait for each other, to meet and to agree")
    backend: str = option("auto", "auto: NCCL where each rank has a GPU, else gloo", choices=BACKENDS)
    threads: int | None = option(
        None, "CPU threads of a device; None: the devices share the cores, one alone gets as many as each of two"
    )

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

    def threads_of_a_process(self, world_size: int, n_devices: int = 1) -> int:
        """Return the CPU threads of each of ``world_size`` processes with ``n_devices`` devices.

        One device alone has as many as each of two, so that their times can be compared.
        """
        share = machine.cores() // max(2, world_size * n_devices)
        return n_devices * (self.threads or max(1, share))

    def by_hand(self, world_size: int) -> ByHand | None:
        """Return what a process started by hand has to know. Raises ValueError for no such rank."""
        if self.local_rank is None or dist.is_initialized():
            return None
        if self.local_rank >= world_size:
            expected = f"expected 0 to {world_size - 1}: one for each process"
            raise ValueError(f"the rank is {self.local_rank}, {expected}")
        default = own_port() if is_loopback(resolve(self.master_ip)) else PORT
        return ByHand(self.local_rank, world_size, self.master_ip, self.master_port or default)


def main(argv: Sequence[str] | None = None, prog: str = PROG) -> None:
    """Train by command line: own processes, or this process as one rank of those started.

    In a process group that is up already, this process trains in it. ``prog`` is what the reader
    typed before ``argv``, for the help and for errors.
    """
    parser, name, flags = _parser_of(sys.argv[1:] if argv is None else argv, prog)
    began_s, task, plan = time.time(), TASKS[name], _plan(TASKS[name], parser, flags)
    if plan.rank == 0 and (sentence := outside()):
        print(f"labkit: {sentence}", file=sys.stderr)
    try:
        with contextlib.nullcontext() if plan.is_rank else _termination_interrupts():
            _run(task, parser, plan)
    except (FloatingPointError, RankError, MeetingError) as error:
        kept = steps_kept(plan.config.output_dir, began_s)
        if isinstance(error, RankError) and error.traceback and error.error_type != FloatingPointError.__name__:
            error.add_note(kept.removeprefix("; "))
            raise
        raise SystemExit(f"{error}{kept}") from None
    except KeyboardInterrupt:
        ended = "all processes that this one has started are ended"
        print(f"interrupted: {ended}{steps_kept(plan.config.output_dir, began_s)}", file=sys.stderr)
        raise SystemExit(130) from None


@contextlib.contextmanager
def _termination_interrupts() -> Iterator[None]:
    """Inside, SIGTERM interrupts this process as Ctrl-C does: it says what is left."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


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
    try:
        parser.set_defaults(**TASKS[name].defaults())
    except CourseError as error:
        parser.error(str(error))
    return parser, name, list(argv[1:])


def parse(argv: Sequence[str]) -> tuple[Any, StartFlags]:
    """Return the task's config and the start that a command line says. Bad flags exit."""
    parser, name, flags = _parser_of(argv)
    return _parse(TASKS[name], parser, flags)


def _parse(task: TrainTask, parser: Any, flags: list[str]) -> tuple[Any, StartFlags]:
    try:
        config, start = parser.parse_args_into_dataclasses(task.own_flags(flags), look_for_args_file=False)
        if getattr(config, "one_process", False):  # it drives as many devices as --world-size says
            config = replace(config, n_devices=start.world_size or config.n_devices)
            virtual = start.backend == "auto" and machine.usable_gpus() < config.n_devices
            start = replace(start, world_size=None, backend="gloo" if virtual else start.backend)
        return config, start
    except (ValueError, argparse.ArgumentError) as error:
        return parser.error(str(error))


def check_flags(argv: Sequence[str]) -> None:
    """End this process with status 2 and the reason unless ``main(argv)`` can start."""
    parser, name, flags = _parser_of(argv)
    _plan(TASKS[name], parser, flags)


class TrainPlan(NamedTuple):
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
    def n_devices(self) -> int:
        """The devices that each process drives."""
        return self.config.n_devices if getattr(self.config, "one_process", False) else 1

    @property
    def rank(self) -> int:
        """This process's rank; 0 also where it starts all of them."""
        if self.by_hand:
            return self.by_hand.rank
        if under_torchrun() and not dist.is_initialized():
            return int(os.environ["RANK"])
        return trainer.world().rank


def _plan(task: TrainTask, parser: Any, flags: list[str]) -> TrainPlan:
    """Return what the flags say. Flags that cannot be exit."""
    config, start = _parse(task, parser, flags)
    try:
        world_size = start.size(config.default_world_size)
        if isinstance(config, GlueFlags):
            config = config.for_ranks(world_size)
        config = replace(config, output_dir=lab().place(config.output_dir))
        checked = config.output_dir or (task.folder and str(lab().runs))
        if task.folder and not config.output_dir:
            folder = lab().runs / f"{task.folder}-{datetime.datetime.now():%Y%m%d-%H%M%S}"
            config = replace(config, output_dir=lab().shown(folder))
        command = f"{parser.prog} {shlex.join(flags)}"
        plan = TrainPlan(command, config, start, world_size, start.by_hand(world_size))
        config.check_world(world_size)
        if plan.rank == 0 and checked:
            check_output(checked)
        return plan
    except BAD_INPUT as error:
        return parser.error(str(error))


def _run(task: TrainTask, parser: Any, plan: TrainPlan) -> None:
    """Train as the plan says: start ranks, or be the one that this process is."""
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
    threads = start.threads_of_a_process(plan.world_size, plan.n_devices)
    how: dict[str, Any] = {"world_size": plan.world_size, "backend": start.backend, "timeout_s": DAY_S}
    try:
        run = launch(task.train, config, data, threads=threads, **how)
    except BAD_INPUT as error:  # a plan that cannot be: no rank has started
        parser.error(str(error))
    _finish(task, plan, run.values, run.events)


def _be_a_rank(task: TrainTask, plan: TrainPlan, data: Any) -> None:
    """Train as one rank on the data that rank 0 has read; rank 0 reports what all ranks found."""
    config, start, by_hand = plan.config, plan.start, plan.by_hand
    if by_hand:
        who = f"rank {by_hand.rank} of {by_hand.world_size}, {process()}"
        print(f"{who}: waiting until all are there", flush=True)
    if start.threads:
        torch.set_num_threads(start.threads * plan.n_devices)
    elif "TORCHELASTIC_RUN_ID" in os.environ and "OMP_NUM_THREADS" not in os.environ:  # 1 for each of several
        torch.set_num_threads(plan.n_devices)
    train = task.in_terminal if by_hand else task.train
    joining = joined(by_hand, start.backend, start.timeout_s)
    with contextlib.nullcontext() if dist.is_initialized() else joining:
        data = read_on_rank_0(lambda: data)
        everything = recorded_on_all(lambda: train(config, data))
    if everything:
        _finish(task, plan, *everything)


def _finish(task: TrainTask, plan: TrainPlan, results: Sequence[metrics.TrainingResult], events: Any) -> None:
    """Print the report, and write the results into the folder for them, if there is one."""
    print(metrics.report(metrics.merge(results)))
    if folder := plan.config.output_dir:
        metrics.save(results, events, Path(folder), plan.command)
        print(f"\nresults in {folder}: {', '.join(sorted(os.listdir(folder)))}")
