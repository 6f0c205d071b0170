"""The command of the digits task: a process in each of two terminals, own ranks, or torchrun."""

from __future__ import annotations

import argparse
import functools
import os
from dataclasses import asdict, fields
from typing import Any

import torch

from labkit.base import machine
from labkit.parallel.devices import device_ids
from labkit.train import starting
from labkit.train.digits_task import DigitsConfig, load_digits, train_digits
from labkit.train.joining import joined
from labkit.train.reading import read_on_rank_0
from labkit.train.starting import BAD_INPUT, DAY_S, check_shares, launched, start_of


def add_parser(tasks: Any) -> None:
    """Add the task to the subparsers ``tasks``; ``args.run(args)`` then trains."""
    usage = "python -m labkit.train digits [FLAG ...]    --help lists them"
    task = tasks.add_parser(
        "digits", help="a ConvNet on digits", description="Train a ConvNet to read digits.", usage=usage
    )
    _add_flags(task)
    task.set_defaults(run=functools.partial(_train, task))


def _train(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Train as the flags say: start ranks, or be the one that this process is."""
    try:
        start = start_of(args)
        config = DigitsConfig(**{f.name: getattr(args, f.name) for f in fields(DigitsConfig)})
        check_shares(config.batch_size, start.world_size)
        starts_ranks = not (start.by_hand or start.torchrun)
        _check_devices(args, starts_ranks)
        data = load_digits(config) if start.reads_first else None
    except BAD_INPUT as error:
        parser.error(str(error))
    if starts_ranks:
        backend = "gloo" if args.gpu == -1 else args.backend
        launched(parser, train_digits, config, data, world_size=start.world_size, backend=backend, timeout_s=DAY_S)
        return
    start.announce()
    told = {name: value for name, value in asdict(config).items() if name != "source"}
    try:
        with joined(start.by_hand, args.backend, _own_device(args.gpu), wait_s=args.timeout_s, options=told) as own:
            shared = read_on_rank_0(lambda: data or load_digits(config))
            train_digits(config, shared, _devices(args.local_world_size, own), every_rank_prints=args.rank is not None)
    except ConnectionError as error:
        raise SystemExit(str(error)) from None


def _check_devices(args: argparse.Namespace, starts_ranks: bool) -> None:
    """Raise ValueError for GPUs that are not there, or that nobody could share out."""
    n_gpus = machine.usable_gpus()
    if args.gpu is not None and not -1 <= args.gpu < n_gpus:
        raise ValueError(f"--gpu (-g) is {args.gpu}, and this machine has {n_gpus} GPUs, from 0 on; -1 is the CPU")
    if args.gpu is not None and args.gpu >= 0 and starts_ranks:
        raise ValueError("--gpu (-g) names the GPU of one process: give its --rank (-nr) too, or leave it out")
    if args.local_world_size is not None:
        if args.gpu is not None or starts_ranks:
            raise ValueError(
                "--local-world-size shares out the GPUs of a machine among processes that torchrun or you start: give "
                "each its --rank (-nr), and no --gpu (-g)"
            )
        device_ids(0, args.local_world_size, n_gpus)


def _own_device(gpu: int | None) -> torch.device | None:
    """Return the device that a flag names; None stands for the rank's own."""
    return None if gpu is None else torch.device("cpu") if gpu < 0 else torch.device("cuda", gpu)


def _devices(local_world_size: int | None, own: torch.device) -> list[torch.device]:
    """Return the devices that this rank drives: its ``own`` one, or its share of the machine's."""
    if local_world_size is None:
        return [own]
    numbers = device_ids(int(os.environ["LOCAL_RANK"]), local_world_size, machine.usable_gpus())
    torch.cuda.set_device(numbers[0])
    return [torch.device("cuda", number) for number in numbers]


def _add_flags(task: argparse.ArgumentParser) -> None:
    """Add the lecture's flags, by its names and ours, with DigitsConfig's defaults."""
    add = task.add_argument
    starting.add_flags(task, "-nr", "--rank")
    add(
        "-g", "--gpu", type=int, help="the GPU of this process, -1 for the CPU; without it one of its own if it has one"
    )
    share = "processes on this machine, which share out its GPUs: each drives several, and spreads the model over them"
    add("--local-world-size", type=int, help=share)
    add("--source", help="auto, shipped, hub, a folder, or a data set's name on the hub (%(default)s)")
    add("--epochs", type=int, help="times through the training pictures (%(default)s)")
    add("--batch-size", type=int, help="pictures in a step, of all ranks together (%(default)s)")
    add("--learning-rate", "--lr", type=float, help="of SGD with momentum 0.9 (%(default)s)")
    add("--seed", type=int, help="of the first weights and the order of the pictures (%(default)s)")
    task.set_defaults(**asdict(DigitsConfig()))
