"""Make this process a rank of training that torchrun started, or a hand in a terminal.

In order: who starts the ranks, how they meet and form a group, what rank 0 reads for all of them,
and what each of them found and when.
"""

from __future__ import annotations

import contextlib
import datetime
import gc
import itertools
import json
import os
import pickle
import platform
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist

from labkit import launch, trace
from labkit.base import machine
from labkit.base.consequence import as_consequence
from labkit.base.rendezvous import GRACE_S, POLL_S, MeetingError, meet, resolve, without_name_server
from labkit.parallel.devices import gpu_mask, gpu_uuid
from labkit.train import trainer
from labkit.train.failure_watch import HANG, FailureWatch, end_after

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")

GROUP_TIMEOUT_S = 1800.0  # torch's own, for each collective
VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")

# gloo's words, and NCCL's, for a rank whose process is gone.
_PEER_IS_GONE = re.compile(r"Connection (closed|reset) by peer|Read error|Broken pipe|remote process exited")


# --- who starts the ranks -------------------------------------------------------------------------


class ByHand(NamedTuple):
    """What each process is told that somebody starts by hand.

    ``host`` and ``port`` are where rank 0 listens; all ranks are told the same.
    """

    rank: int
    world_size: int
    host: str = "127.0.0.1"
    port: int = 11868


def process() -> str:
    """Return who this is: its process id and machine."""
    return f"process {os.getpid()} on {platform.node()}"


def under_torchrun() -> bool:
    """Return whether torchrun, or launch, has made this process a rank."""
    return {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= os.environ.keys()


class Start(NamedTuple):
    """Who starts the ``world_size`` ranks: a hand, torchrun, or, if neither, this process.

    If ``joined``, they have started, and this process is one of the group's.
    """

    world_size: int
    by_hand: ByHand | None = None
    torchrun: bool = False
    joined: bool = False

    @property
    def here(self) -> bool:
        """Whether this process starts the ranks."""
        return not (self.by_hand or self.torchrun or self.joined)

    @property
    def reads(self) -> bool:
        """Whether this process reads the data, before ranks meet: bad data then stop it at once."""
        rank = int(os.environ["RANK"]) if self.torchrun else self.by_hand.rank if self.by_hand else trainer.world().rank
        return rank == 0


def start_of(world_size: int | None, default: int, by_hand: ByHand | None = None) -> Start:
    """Return how the ranks start, by what flags and torchrun say, unless this is a rank already.

    ``world_size`` is None, which stands for torchrun's or for ``default``, unless a flag gives it.
    ``by_hand`` is what this process is told if somebody starts it; its world size does not count.

    Raises ValueError for a rank outside the world, a world that torchrun did not start, a host
    without an address, and no port.
    """
    if dist.is_initialized():
        return Start(trainer.world().size, joined=True)
    torchrun = under_torchrun()
    if torchrun and by_hand:
        raise ValueError("torchrun tells each process its rank: leave out the flag for it, or torchrun")
    given = default if world_size is None else world_size
    size = int(os.environ["WORLD_SIZE"]) if torchrun else given
    if torchrun and world_size not in (None, size):
        raise ValueError(f"--world-size is {world_size}, but torchrun started {size} ranks; leave it out")
    if size < 1:
        raise ValueError(f"world_size is {size}, expected 1 or more")
    if by_hand is None:
        return Start(size, torchrun=torchrun)
    if not 0 <= by_hand.rank < size:
        raise ValueError(f"the rank is {by_hand.rank}, expected 0 to {size - 1}: one for each process")
    resolve(by_hand.host)
    if not 0 < by_hand.port < 2**16:
        raise ValueError(f"--master-port is {by_hand.port}, expected 1 to 65535")
    return Start(size, by_hand._replace(world_size=size))


# --- how they meet, and form a group --------------------------------------------------------------


@contextlib.contextmanager
def joined(
    by_hand: ByHand | None = None,
    backend: str = "auto",
    device: torch.device | None = None,
    wait_s: float = 300.0,
    timeout_s: float = GROUP_TIMEOUT_S,
    options: Mapping[str, Any] | None = None,
) -> Iterator[torch.device]:
    """Inside, this process is a rank, and the process group is up. Give the rank's device.

        with joined(ByHand(rank=0, world_size=2)) as device:
            result = train(device)

    - ``by_hand``: None under torchrun. Otherwise the processes find each other as
      :func:`labkit.base.rendezvous.meet` has it, for at most ``wait_s`` seconds, and inside
      RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set.
    - ``device``: None stands for a GPU of this rank's own where there is one, else the CPU.
    - ``backend``: ``"auto"`` is NCCL for a GPU, gloo for the CPU.
    - ``timeout_s``: of each collective.
    - ``options``: what ranks started by hand must have been told alike, as JSON has it.

    Raises what ``meet`` raises, and MeetingError, on all ranks, where they were told different
    options, would take different backends, NCCL without a GPU or one GPU twice; also where one of
    them is gone while another waits for it, or where all wait for what cannot come. After an error
    on one rank the others end within 10 s, as :class:`labkit.train.failure_watch.FailureWatch` has
    it.

    Caveats: ending a group can hang for ever while a DistributedDataParallel model on it is alive
    (pytorch issue 56297: gloo's threads wait for the GIL). So have a function make the model, train
    it, and return numbers or plain tensors, as ``train`` does above: what is local to it is gone by
    the end. After an error its frames are cleared for the same reason.
    """
    before = {name: os.environ.get(name) for name in (*VARIABLES, *INTERFACES)}
    limit = datetime.timedelta(seconds=timeout_s)
    try:
        store, rank, world_size = _meet(by_hand, wait_s, limit)
        with _watch(store, rank, world_size, by_hand) as watch:
            masks = _find_place(store, rank, world_size, by_hand)
            device = device or (_own_device(masks) if backend != "gloo" else torch.device("cpu"))
            if backend == "auto":
                backend = "nccl" if device.type == "cuda" else "gloo"
            if device.type == "cuda":
                torch.cuda.set_device(device)
            _check_ranks(store, rank, world_size, backend, device, options)
            try:
                dist.init_process_group(backend, timeout=limit, store=store, rank=rank, world_size=world_size)
                if backend == "gloo":
                    dist.barrier()  # a rank still reads addresses in the store when others are through
                watch.look_for_hangs(dist.GroupMember.WORLD)
                yield device
            except BaseException as error:
                shown = _lost(error, watch.failure()) or error
                failure = watch.tell(shown)
                _clear_frames(error)
                if backend == "nccl":  # whose own watchdog may end the process before Python shows the error
                    print(failure, file=sys.stderr, flush=True)
                end_after(shown, _end_of_group(backend))
                if shown is not error:
                    raise shown from error
                raise
            gc.collect()  # a model that is part of a circle lives until here
            dist.destroy_process_group()
    finally:
        _restore(before)


_meetings = itertools.count()  # torchrun's store outlives them, with what was told before


def _meet(by_hand: ByHand | None, wait_s: float, limit: datetime.timedelta) -> tuple[Any, int, int]:
    """Meet the others. Return a store for this meeting alone, the rank, and the world size."""
    if by_hand is None:
        store, rank, world_size = next(dist.rendezvous("env://", timeout=limit))
    else:
        store, rank, world_size = meet(*by_hand, timeout_s=wait_s), by_hand.rank, by_hand.world_size
    return dist.PrefixStore(f"labkit/{next(_meetings)}", store), rank, world_size


def _watch(store: Any, rank: int, world_size: int, by_hand: ByHand | None) -> FailureWatch:
    host, port = (by_hand.host, by_hand.port) if by_hand else (os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"])
    address = resolve(host), int(port)
    with without_name_server() if by_hand else contextlib.nullcontext():  # torchrun may have told a name
        return FailureWatch(store, rank, world_size, address)


def _find_place(store: Any, rank: int, world_size: int, by_hand: ByHand | None) -> list[str]:
    """Set the environment as torchrun does, where it does not say it all.

    Return what tells this machine's ranks which GPUs they see.
    """
    told = _told_by_all(store, rank, world_size, "machine", (machine.name(), gpu_mask()))
    local_rank, local_world_size = local_place([name for name, _ in told], rank)
    places: dict[str, Any] = {"LOCAL_RANK": local_rank, "LOCAL_WORLD_SIZE": local_world_size}
    if by_hand:
        values = (rank, local_rank, world_size, local_world_size, by_hand.host, by_hand.port)
        places = dict(zip(VARIABLES, values, strict=True))
    elif places.keys() <= os.environ.keys():
        places = {}  # torchrun knows
    os.environ.update({name: str(value) for name, value in places.items()})
    return [mask for name, mask in told if name == machine.name()]


def _own_device(masks: Sequence[str]) -> torch.device:
    """Return this rank's device: also the one GPU that it sees if the others see other ones."""
    device = launch.device()
    if device.type == "cpu" and len(set(masks)) == len(masks) > 1 and machine.usable_gpus():
        return torch.device("cuda", 0)
    return device


def _lost(error: BaseException, failure: str) -> MeetingError | None:
    """Return what to raise in place of a backend's error for a rank that is gone."""
    if not (isinstance(error, RuntimeError) and _PEER_IS_GONE.search(str(error))):
        return None
    if failure.startswith(HANG):
        return MeetingError(failure)
    what = f"{failure}," if failure else "another rank ended"
    return MeetingError(f"{what} while this one waited for it: its own terminal says why")


def _end_of_group(backend: str) -> Callable[[], None]:
    """Return what ends a group after an error: on NCCL, whose end waits for its kernels, abort."""
    abort = getattr(dist.distributed_c10d, "_abort_process_group", None)
    return abort if backend == "nccl" and abort is not None else dist.destroy_process_group


def local_place(machines: Sequence[str], rank: int) -> tuple[int, int]:
    """Return which of the ranks on its machine ``rank`` is, and how many those are.

    ``machines`` has the machine of each rank.
    """
    here = [each for each, machine in enumerate(machines) if machine == machines[rank]]
    return here.index(rank), len(here)


def _told_by_all(store: Any, rank: int, world_size: int, name: str, mine: Any) -> list[Any]:
    """Tell all ranks ``mine``, and return what each of them tells.

    Rank 0, which has the store, waits until all have read it: it may be the last thing they do.
    """
    store.set(f"{name}/{rank}", json.dumps(mine))
    told = [json.loads(store.get(f"{name}/{each}")) for each in range(world_size)]
    read, until = store.add(f"{name}/read", 1), time.monotonic() + GRACE_S
    while rank == 0 and read < world_size and time.monotonic() < until:
        time.sleep(POLL_S)
        read = store.add(f"{name}/read", 0)
    return told


def _check_ranks(
    store: Any, rank: int, world_size: int, backend: str, device: torch.device, options: Mapping[str, Any] | None
) -> None:
    """Raise MeetingError, on every rank, where the ranks cannot work together."""
    plan, gpu = backend, None
    if backend == "nccl":
        plan, gpu = ("nccl", gpu_uuid(device)) if device.type == "cuda" else ("nccl without a GPU", None)
    told = _told_by_all(store, rank, world_size, "plan", (dict(options or {}), plan, gpu))
    _check_options([options for options, _, _ in told])
    _check_plans({rank: plan for rank, (_, plan, _) in enumerate(told)})
    _check_gpus([gpu for _, _, gpu in told])


def _check_options(told: Sequence[Mapping[str, Any]]) -> None:
    """Raise MeetingError where a rank was ``told`` other options than rank 0."""
    for rank, options in enumerate(told):
        for name in sorted(told[0].keys() | options.keys()):
            if options.get(name) != told[0].get(name):
                raise MeetingError(
                    f"the ranks were told different options: {name} is {options.get(name)!r} on rank {rank}, and "
                    f"{told[0].get(name)!r} on rank 0. Start all of them with the same"
                )


def _check_plans(plans: dict[int, str]) -> None:
    """Raise MeetingError where the ``plans`` of ranks, each a backend, make no group."""
    if set(plans.values()) not in ({"gloo"}, {"nccl"}):
        listed = ", ".join(f"rank {rank}: {plan}" for rank, plan in plans.items())
        raise MeetingError(
            f"the ranks can form no group ({listed}): expected NCCL with a GPU for each of them, or gloo on all, which works "
            "everywhere (--backend gloo)"
        )


def _check_gpus(gpus: Sequence[str | None]) -> None:
    """Raise MeetingError where two ranks have the same one of the ``gpus``; NCCL allows none."""
    for rank, gpu in enumerate(gpus):
        if gpu is not None and (first := gpus.index(gpu)) != rank:
            raise MeetingError(
                f"rank {first} and rank {rank} both have GPU {gpu}: over NCCL each rank needs a GPU of its own. Give each "
                "another one (--gpu, or CUDA_VISIBLE_DEVICES), or use gloo on the CPU (--gpu -1, or --backend gloo)"
            )


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


# --- what rank 0 reads, and what all of them found ------------------------------------------------


class _Sent(NamedTuple):
    """What rank 0 tells the others: the data, pickled, or why it has none."""

    data: bytes = b""
    failure: str = ""


def read_on_rank_0(read: Callable[[], T]) -> T:
    """Return what ``read()`` gives on rank 0, on every rank.

    Whatever rank 0 raises, every rank raises, so that none waits for it: rank 0 the exception
    itself, the others a RuntimeError that quotes it. An exception that pickle cannot carry is
    quoted as well as any other.
    """
    rank, world_size = trainer.world()
    if world_size == 1:
        return read()
    message: list[Any] = [None]
    mistake: BaseException | None = None
    if rank == 0:
        try:
            data = read()
            message = [_Sent(data=pickle.dumps(data))]
        except BaseException as error:
            mistake = error
            message = [_Sent(failure="".join(traceback.format_exception_only(error)).strip())]
    dist.broadcast_object_list(message, src=0, device=trainer.device())
    if mistake is not None:
        raise mistake
    (sent,) = message
    if sent.failure:
        text = f"rank 0 could not read the data, so no rank can train: {sent.failure}"
        raise as_consequence(RuntimeError(text))
    return data if rank == 0 else pickle.loads(sent.data)


class Recorded(NamedTuple):
    """Every rank's value, in rank order, and the event table of all of them."""

    values: list[Any]
    events: pd.DataFrame


def recorded_on_all(fn: Callable[[], Any]) -> Recorded | None:
    """Run ``fn()`` on every rank, its spans recorded. Return everything on rank 0, else None."""
    rank, world_size = trainer.world()
    recorder = trace.Recorder()
    recorder.start(trainer.device().type)
    origin = common_origin_ns()
    value = fn()
    rows = trace.rank_events(recorder.finish(), rank, origin)
    gathered: list[Any] = [None] * world_size
    dist.all_gather_object(gathered, (value, rows))
    if rank:
        return None
    events = trace.event_table((row for _, rows in gathered for row in rows), measured=True)
    return Recorded([value for value, _ in gathered], events)


def common_origin_ns() -> int:
    """Return the moment from which all ranks count, as a reading of this machine's clock.

    All ranks have come this far by then. The processes of a machine have one clock, so they take
    the reading of the first of them.
    """
    dist.barrier()
    readings: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(readings, (machine.name(), time.perf_counter_ns()))
    return next(reading for name, reading in readings if name == machine.name())
