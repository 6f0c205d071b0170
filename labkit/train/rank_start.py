"""Make this process a rank of training that torchrun started, or a hand in a terminal.

In order: how ranks meet and form a group, and which device each has.
"""

from __future__ import annotations

import contextlib
import datetime
import gc
import itertools
import json
import os
import platform
import socket
import time
import traceback
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from labkit.base import machine
from labkit.base.rendezvous import (
    LOOPBACK_INTERFACE,
    PORT,
    MeetingError,
    interface_towards,
    is_loopback,
    keep_on,
    listen,
    resolve,
    without_name_server,
)
from labkit.base.texts import listed

POLL_S = 0.05
VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


class ByHand(NamedTuple):
    """What a process has to know that is started by hand.

    ``host`` and ``port`` are where rank 0 listens; the same for all ranks.
    """

    rank: int
    world_size: int
    host: str = "127.0.0.1"
    port: int = PORT

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.world_size}"


def under_torchrun() -> bool:
    """Return whether torchrun, or launch, has made this process a rank."""
    return {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= os.environ.keys()


def process() -> str:
    """Return who this is: its process id and machine."""
    return f"process {os.getpid()} on {platform.node()}"


# --- how they meet, and form a group --------------------------------------------------------------


@contextlib.contextmanager
def joined(by_hand: ByHand | None = None, backend: str = "auto", timeout_s: float = 300.0) -> Iterator[torch.device]:
    """Inside, this process is a rank, and the process group is up. Give the rank's device.

        with joined(ByHand(rank=0, world_size=2)) as device:
            result = train(device)

    - ``by_hand``: None under torchrun, or with its variables. Inside, those are set.
    - ``backend``: that of rank 0 counts. ``"auto"`` is NCCL where each rank has a GPU of its own,
      else gloo and the CPU.
    - ``timeout_s``: for which a rank waits for the others, to meet and in each collective.

    Raises MeetingError where rank 0 cannot listen, and where the ranks do not meet in time.

    Caveats: ending a group can hang for ever while a DistributedDataParallel model on it is alive
    (pytorch issue 56297: gloo's threads wait for the GIL). So have a function make the model, train
    it, and return numbers or plain tensors, as ``train`` does above: what is local to it is gone by
    the end. After an error its frames are cleared for the same reason.
    """
    before = {name: os.environ.get(name) for name in (*VARIABLES, *INTERFACES)}
    how, limit = by_hand or _by_torchrun(), datetime.timedelta(seconds=timeout_s)
    try:
        store = _meet(how, timeout_s) if by_hand else _torchruns_store(limit)
        ranks = _facts_of_all(store, how, backend, timeout_s)
        _set_variables(how, ranks)
        backend = _agreed_backend(ranks)
        device = torch.device("cpu")
        if backend == "nccl":
            device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
            torch.cuda.set_device(device)
        dist.init_process_group(backend, timeout=limit, store=store, rank=how.rank, world_size=how.world_size)
        try:
            yield device
            dist.barrier()  # rank 0, which has the store, is the last to leave
        except BaseException as error:
            _clear_frames(error)
            gc.collect()
            if backend == "nccl":  # whose kernels may wait for what never comes
                dist.distributed_c10d._abort_process_group()
            else:
                dist.destroy_process_group()
            raise
        gc.collect()  # a model that is part of a circle lives until here
        dist.destroy_process_group()
    finally:
        _restore(before)


def _by_torchrun() -> ByHand:
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return ByHand(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), host, port)


_meetings = itertools.count()  # torchrun's store outlives them, with what was told before


def _torchruns_store(limit: datetime.timedelta) -> Any:
    """Return torchrun's store, with room for this meeting alone."""
    store, _, _ = next(dist.rendezvous("env://", timeout=limit))
    return dist.PrefixStore(f"labkit/{next(_meetings)}", store)


def _meet(how: ByHand, timeout_s: float) -> Any:
    """Return a store that all ranks share. Rank 0 opens it, and listens at that address alone.

    gloo and NCCL take the interface on the route to it, unless their variables say otherwise.
    """
    address = resolve(how.host)
    if interface := interface_towards(address):
        keep_on(LOOPBACK_INTERFACE if is_loopback(address) else interface)
    options: dict[str, Any] = {"wait_for_workers": False, "timeout": datetime.timedelta(seconds=timeout_s)}
    if how.rank == 0:
        options |= {"is_master": True, "master_listen_fd": listen(address, how.port)}
    else:
        _wait_for_rank_0(how, address, timeout_s)
    with without_name_server():
        return dist.TCPStore(address, how.port, **options)


def _wait_for_rank_0(how: ByHand, address: str, timeout_s: float) -> None:
    """Wait until somebody listens. An interrupt ends the waiting, which torch would not notice."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return socket.create_connection((address, how.port), timeout=timeout_s).close()
        except OSError as error:
            if time.monotonic() > deadline:
                raise MeetingError(
                    f"{how} found nobody at {address}:{how.port} within {timeout_s:g} s ({error.strerror or error}): start "
                    "rank 0 on the machine with that address (--master-ip), and see that its port (--master-port) is open"
                ) from None
        time.sleep(POLL_S)


class RankFacts(NamedTuple):
    """What a rank tells the others: where it is, how many GPUs it sees there, and its backend.

    Ranks at one ``place`` share those GPUs.
    """

    place: str
    n_gpus: int
    backend: str


def _facts_of_all(store: Any, how: ByHand, backend: str, timeout_s: float) -> list[RankFacts]:
    """Return what each rank tells, once all have come. An interrupt ends the waiting."""
    names = [f"rank {rank}" for rank in range(how.world_size)]
    place = f"{machine.name()}, {os.environ.get('CUDA_VISIBLE_DEVICES')}"
    deadline = time.monotonic() + timeout_s
    try:
        store.set(names[how.rank], json.dumps(RankFacts(place, machine.usable_gpus(), backend)))
        while not store.check(names):
            if time.monotonic() > deadline:
                raise MeetingError(
                    f"{how} waited {timeout_s:g} s at {how.host}:{how.port}, and not all ranks came: start a process for "
                    "each, all with the same world size, address and port"
                )
            time.sleep(POLL_S)
        return [RankFacts(*json.loads(store.get(name))) for name in names]
    except RuntimeError:  # of a store that is not there any more
        raise MeetingError(
            f"rank 0 at {how.host}:{how.port} ended before {how} had met all: its terminal says why"
        ) from None


def _clear_frames(error: BaseException | None) -> None:
    """Have the frames that ``error`` and its causes came through let go of their variables."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def _restore(before: dict[str, str | None]) -> None:
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


# --- which device each has ------------------------------------------------------------------------


def local_place(ranks: Sequence[RankFacts], rank: int) -> tuple[int, int]:
    """Return which of the ranks at its place one is, and of how many."""
    here = [each for each, facts in enumerate(ranks) if facts.place == ranks[rank].place]
    return here.index(rank), len(here)


def _agreed_backend(ranks: Sequence[RankFacts]) -> str:
    """Return the backend for all ranks. Raises MeetingError for NCCL where a rank has no GPU."""
    without = [rank for rank, facts in enumerate(ranks) if facts.n_gpus < local_place(ranks, rank)[1]]
    backend = ranks[0].backend
    if backend == "nccl" and without:
        lacks = f"rank {listed(without)} has no GPU of its own, as NCCL needs"
        raise MeetingError(f"{lacks}: use --backend gloo")
    return backend if backend != "auto" else "gloo" if without else "nccl"


def _set_variables(how: ByHand, ranks: Sequence[RankFacts]) -> None:
    """Set the environment as torchrun does."""
    local_rank, local_world_size = local_place(ranks, how.rank)
    values = (how.rank, local_rank, how.world_size, local_world_size, how.host, how.port)
    os.environ.update(zip(VARIABLES, map(str, values), strict=True))
