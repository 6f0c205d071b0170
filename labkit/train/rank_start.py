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
import re
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import psutil
import torch
import torch.distributed as dist

from labkit.base import machine
from labkit.base.interrupts import uninterrupted
from labkit.base.rendezvous import (
    LOOPBACK_INTERFACE,
    PORT,
    MeetingError,
    interface_towards,
    is_loopback,
    keep_on,
    listen,
    own_addresses,
    resolve,
    taken,
    without_name_server,
)
from labkit.base.texts import listed
from labkit.parallel.devices import gpu_mask
from labkit.train.failure_watch import FailureWatch, end_after, is_gone

POLL_S = 0.05
CONNECT_S = 2.0  # for which torch tries to connect to a store that listens
VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")

# gloo's words, and NCCL's, for a rank whose process is gone.
_PEER_IS_GONE = re.compile(r"Connection (closed|reset) by peer|Read error|Broken pipe|remote process exited")


class ByHand(NamedTuple):
    """What each process is told that somebody starts by hand.

    ``host`` and ``port`` are where rank 0 listens; all ranks are told the same.
    """

    rank: int
    world_size: int
    host: str = "127.0.0.1"
    port: int = PORT


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

    Raises MeetingError for an address that is not rank 0's or where nobody listens, and where some
    ranks do not come. Also where a rank is gone while this one waits for it. The others end within
    10 s of an error on one rank, or of waiting for one that was killed: see
    :class:`labkit.train.failure_watch.FailureWatch`.

    Caveats: ending a group can hang for ever while a DistributedDataParallel model on it is alive
    (pytorch issue 56297: gloo's threads wait for the GIL). So have a function make the model, train
    it, and return numbers or plain tensors, as ``train`` does above: what is local to it is gone by
    the end. After an error its frames are cleared for the same reason.
    """
    before = {name: os.environ.get(name) for name in (*VARIABLES, *INTERFACES)}
    limit = datetime.timedelta(seconds=timeout_s)
    how = by_hand or _by_torchrun()
    try:
        store, line = _meet(how, limit) if by_hand else _meet_by_torchrun(how, limit)
        ranks = _wait_for_all(store, line, how, timeout_s, backend)
        places = [place(ranks, rank) for rank in range(how.world_size)]
        if by_hand or not {"LOCAL_RANK", "LOCAL_WORLD_SIZE"} <= os.environ.keys():  # as Slurm has it
            _set_variables(how, places[how.rank])
        watch = FailureWatch(store, how.rank, how.world_size, line)
        try:
            backend = _agreed_backend(ranks[0].backend, [each.gpu for each in places])
            device = torch.device("cpu")
            if backend == "nccl":
                device = torch.device("cuda", places[how.rank].gpu or 0)
                torch.cuda.set_device(device)
            who: dict[str, Any] = {"rank": how.rank, "world_size": how.world_size}
            dist.init_process_group(backend, timeout=limit, store=store, **who)
            yield device
            dist.barrier()  # none leaves while another may still fail
        except BaseException as error:
            lost = _lost(error, watch)
            waited = f"{lost}, while this one waited for it: its terminal says why"
            shown = MeetingError(waited) if lost else error
            failure = watch.tell(error, lost)
            if backend == "nccl":  # whose own watchdog may end the process before Python shows the error
                print(failure, file=sys.stderr, flush=True)
            _clear_frames(error)
            gc.collect()
            end_after(shown, _end_of_group(backend), watch.left_s())
            if shown is not error:
                raise shown from error
            raise
        finally:
            watch.stop()
        gc.collect()  # a model that is part of a circle lives until here
        dist.destroy_process_group()
    finally:
        _restore(before)


def _by_torchrun() -> ByHand:
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return ByHand(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), host, port)


_meetings = itertools.count()  # torchrun's store outlives them, with what was told before


def _meet_by_torchrun(how: ByHand, limit: datetime.timedelta) -> tuple[Any, socket.socket]:
    """Return torchrun's store, with room for this meeting alone, and a connection to its server."""
    store, _, _ = next(dist.rendezvous("env://", timeout=limit))
    line = socket.create_connection((how.host, how.port))
    return dist.PrefixStore(f"labkit/{next(_meetings)}", store), line


def _meet(how: ByHand, limit: datetime.timedelta) -> tuple[Any, socket.socket]:
    """Return a store that all ranks share, opened by rank 0, and a connection to its server.

    On a loopback host nobody outside can connect; for another one gloo and NCCL take the interface
    on the route to it, unless their variables say otherwise.
    """
    address = resolve(how.host)
    if interface := interface_towards(address):
        keep_on(LOOPBACK_INTERFACE if is_loopback(address) else interface)
    listener = None
    if how.rank == 0:
        _check_own(how.host, address)
        listener = listen(address, how.port)
    line = _find_rank_0(how.rank, address, how.port, limit.total_seconds())
    store = _open_store(address, how.port, listener, limit.total_seconds())
    store.set_timeout(limit)
    return store, line


def _check_own(host: str, address: str) -> None:
    """Raise MeetingError unless the other ranks reach this machine at ``host``."""
    own = {each: name for each, name in own_addresses().items() if not is_loopback(each)}
    if address not in own and not is_loopback(host):  # to some machines their own name is 127.0.1.1
        there = listed(f"{each} ({name})" for each, name in own.items()) or "none but loopback"
        raise MeetingError(
            f"rank 0 cannot listen at {host}, which is {address} here: give all ranks (--master-ip) "
            f"an address of rank 0's machine; this one has {there}"
        )


def _find_rank_0(rank: int, address: str, port: int, timeout_s: float) -> socket.socket:
    """Connect to ``address:port`` once somebody listens there. An interrupt ends the waiting."""
    deadline = time.monotonic() + timeout_s
    why: object = "no time to try"
    while (left := deadline - time.monotonic()) > 0:
        try:
            line = socket.create_connection((address, port), timeout=left)
            line.settimeout(None)
            return line
        except OSError as error:
            why = error.strerror or error
        time.sleep(POLL_S)
    raise MeetingError(
        f"rank {rank} found nobody at {address}:{port} within {timeout_s:g} s ({why}): start rank 0 on the "
        "machine with that address (--master-ip), and see that its port (--master-port) is open"
    )


def _open_store(address: str, port: int, listener: int | None, timeout_s: float) -> Any:
    """Return the store at ``address:port``: rank 0's over its ``listener``, another by connecting.

    In a thread, because torch waits for ever, deaf to interrupts, if what answers there is not a
    store. The thread has ended when this returns or raises: in torch's code it aborts Python's end.
    """
    options: dict[str, Any] = {"is_master": listener is not None, "wait_for_workers": False}
    stores: list[Any] = []

    def connect() -> None:
        limit = datetime.timedelta(seconds=CONNECT_S)
        with without_name_server(), _without_stderr(), contextlib.suppress(RuntimeError):
            stores.append(dist.TCPStore(address, port, timeout=limit, master_listen_fd=listener, **options))

    thread = threading.Thread(target=connect, daemon=True)
    deadline = time.monotonic() + timeout_s
    try:
        with uninterrupted():  # an interrupted start would leave the thread at work
            thread.start()
        while thread.is_alive() and time.monotonic() < deadline:
            time.sleep(POLL_S / 10)  # an interrupted join would take the thread for ended (bpo-45274)
    finally:
        while thread.is_alive():
            _hang_up(address, port)
            time.sleep(POLL_S)
    if not stores:
        raise MeetingError(
            f"what answers at {address}:{port} is not rank 0. {taken(port)}Another program may have this port: "
            "give all ranks another one (--master-port)"
        )
    return stores[0]


@contextlib.contextmanager
def _without_stderr() -> Iterator[None]:
    """Inside, leave out what this process prints on stderr: torch prints a screen of C++ stacks."""
    stderr = os.dup(2)
    try:
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)


def _hang_up(address: str, port: int) -> None:
    """End this process's connections to ``address:port``, whichever thread opened them."""
    for each in psutil.Process().net_connections("tcp"):
        if each.raddr and each.raddr.port == port and each.raddr.ip.removeprefix("::ffff:") == address:
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(each.fd)) as connection:
                connection.shutdown(socket.SHUT_RDWR)


class RankFacts(NamedTuple):
    """What a rank tells the others: its machine, the GPUs that it sees there, and its backend."""

    machine: str
    gpu_mask: str
    n_gpus: int
    backend: str


def _wait_for_all(store: Any, line: socket.socket, how: ByHand, timeout_s: float, backend: str) -> list[RankFacts]:
    """Return what each rank tells, once all have come. An interrupt ends the waiting."""
    rank, world_size, host, port = how
    names = [f"rank {each} of {world_size}" for each in range(world_size)]
    deadline = time.monotonic() + timeout_s
    rank_0_ended = f"rank 0 at {host}:{port} ended before all ranks were there: its terminal says why"
    try:
        if store.add(f"processes of {names[rank]}", 1) > 1:
            another = f"another process at {host}:{port} is {names[rank]}, too"
            raise MeetingError(f"{another}: give each a rank of its own")
        facts = RankFacts(machine.name(), gpu_mask(), machine.usable_gpus(), backend)
        store.set(names[rank], json.dumps(facts))
        while missing := [each for each, name in enumerate(names) if not store.check([name])]:
            if time.monotonic() > deadline:
                there = f"{world_size - len(missing)} of {world_size} ranks were at {host}:{port}"
                raise MeetingError(
                    f"{there} within {timeout_s:g} s, without rank {listed(missing)}: "
                    "start a process for each rank, all with the same world size, address and port"
                )
            time.sleep(POLL_S)
            if is_gone(line):
                raise MeetingError(rank_0_ended)
        return [RankFacts(*json.loads(store.get(name))) for name in names]
    except RuntimeError:  # it ended after the last look
        raise MeetingError(rank_0_ended) from None


def _lost(error: BaseException, watch: FailureWatch) -> str:
    """Return what is known of the rank that is gone, if a backend's error says that one is."""
    if not (isinstance(error, RuntimeError) and _PEER_IS_GONE.search(str(error))):
        return ""
    return watch.failure() or f"rank {listed(watch.gone()) or 'unknown'} ended"


def _end_of_group(backend: str) -> Callable[[], None]:
    """Return what ends a group after an error: on NCCL, whose end waits for its kernels, abort."""
    abort = getattr(dist.distributed_c10d, "_abort_process_group", None)
    return abort if backend == "nccl" and abort is not None else dist.destroy_process_group


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


class Place(NamedTuple):
    """Which of its machine's ranks one is, of how many, and the number of its own GPU, if any."""

    local_rank: int
    local_world_size: int
    gpu: int | None


def place(ranks: Sequence[RankFacts], rank: int) -> Place:
    """Return the place of a rank: a GPU of its own if it has one, or if only it sees its one."""
    own = ranks[rank]
    here = [each for each, facts in enumerate(ranks) if facts.machine == own.machine]
    local_rank, n = here.index(rank), len(here)
    if own.n_gpus >= n:
        return Place(local_rank, n, local_rank)
    alone = len({ranks[each].gpu_mask for each in here}) == n
    return Place(local_rank, n, 0 if own.n_gpus and alone else None)


def _agreed_backend(backend: str, gpus: Sequence[int | None]) -> str:
    """Return the backend for all ranks. Raises MeetingError for NCCL where a rank has no GPU."""
    without = [rank for rank, gpu in enumerate(gpus) if gpu is None]
    if backend == "nccl" and without:
        lacks = f"rank {listed(without)} has no GPU of its own, as NCCL needs"
        raise MeetingError(f"{lacks}: use --backend gloo")
    return backend if backend != "auto" else "gloo" if without else "nccl"


def _set_variables(how: ByHand, own: Place) -> None:
    """Set the environment as torchrun does."""
    values = (how.rank, own.local_rank, how.world_size, own.local_world_size, how.host, how.port)
    os.environ.update(zip(VARIABLES, map(str, values), strict=True))
