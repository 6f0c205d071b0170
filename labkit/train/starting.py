"""How a command of training starts: what its flags and torchrun say of processes and ranks."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any, NamedTuple

from labkit import launch
from labkit.base.network import resolve
from labkit.train.joining import ByHand, process, under_torchrun
from labkit.train.options import seconds

BAD_INPUT = (TypeError, ValueError, OSError)
DAY_S = 86400.0  # for ranks that the command starts itself: as long as training takes


class Start(NamedTuple):
    """Who starts the ``world_size`` ranks: a hand, torchrun, or, if neither, this process."""

    world_size: int
    by_hand: ByHand | None
    torchrun: bool

    @property
    def reads_first(self) -> bool:
        """Whether this process reads the data before ranks meet: bad data then stop it at once."""
        if self.torchrun:
            return os.environ["RANK"] == "0"
        return self.by_hand is None or self.by_hand.rank == 0

    def announce(self) -> None:
        """Print that a rank started by hand waits for the others."""
        if self.by_hand:
            rank = f"rank {self.by_hand.rank} of {self.world_size}"
            print(f"{rank}, {process()}: waiting until all are there", flush=True)


def add_flags(task: argparse.ArgumentParser, *rank_flags: str) -> None:
    """Add what :func:`start_of` reads; ``rank_flags`` are names of the rank of this process."""
    own = ByHand._field_defaults
    add = task.add_argument
    add("-w", "--world-size", type=int, help="processes in all, 2 if not given; torchrun sets its own")
    rank = "which one this process is, started by hand: from 0 on; without it all are started here"
    add(*rank_flags, dest="rank", type=int, help=rank)
    master = "an address of rank 0's machine, for all ranks alike (%(default)s)"
    add("--master-ip", "--master-addr", dest="master_ip", default=own["host"], help=master)
    add("--master-port", type=int, default=own["port"], help="where rank 0 listens (%(default)s)")
    add("--timeout-s", type=seconds, default=300.0, help="to wait for ranks that are started by hand (%(default)g)")
    add("--backend", default="auto", choices=launch.BACKENDS, help="auto: NCCL where each rank has a GPU, else gloo")


def start_of(args: argparse.Namespace, default_world_size: int = 2) -> Start:
    """Return how the ranks start, by the flags of :func:`add_flags` and the environment.

    Raises ValueError for a rank outside the world, a world that torchrun did not start, a host
    without an address, and no port.
    """
    torchrun = under_torchrun()
    if torchrun and args.rank is not None:
        raise ValueError("torchrun tells each process its rank: leave out the flag for it, or torchrun")
    given = default_world_size if args.world_size is None else args.world_size
    world_size = int(os.environ["WORLD_SIZE"]) if torchrun else given
    if torchrun and args.world_size not in (None, world_size):
        raise ValueError(f"--world-size is {args.world_size}, but torchrun started {world_size} ranks; leave it out")
    if world_size < 1:
        raise ValueError(f"world_size is {world_size}, expected 1 or more")
    if args.rank is None:
        return Start(world_size, None, torchrun)
    if not 0 <= args.rank < world_size:
        raise ValueError(f"the rank is {args.rank}, expected 0 to {world_size - 1}: one for each process")
    resolve(args.master_ip)
    if not 0 < args.master_port < 2**16:
        raise ValueError(f"--master-port is {args.master_port}, expected 1 to 65535")
    return Start(world_size, ByHand(args.rank, world_size, args.master_ip, args.master_port), torchrun)


def launched(parser: argparse.ArgumentParser, fn: Callable[..., Any], *args: Any, **options: Any) -> launch.Run:
    """Start own ranks and return their run. A plan that cannot be is a wrong call."""
    try:
        return launch.launch(fn, *args, **options)
    except BAD_INPUT as error:  # no rank has started
        parser.error(str(error))


def check_shares(batch_size: int, world_size: int) -> None:
    """Raise ValueError unless ``world_size`` ranks can share a batch equally."""
    if world_size < 1:
        raise ValueError(f"world_size is {world_size}, expected 1 or more")
    if batch_size % world_size:
        raise ValueError(
            f"batch_size is {batch_size} and world_size {world_size}: the batch is that of all ranks together, "
            f"expected a multiple of {world_size}, such as {-(-batch_size // world_size) * world_size}"
        )
