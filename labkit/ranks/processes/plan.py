"""Decide about ranks before any starts: how many, where, on which backend and link."""

from __future__ import annotations

import numbers
import operator
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from labkit.base import machine
from labkit.base.notebook import static
from labkit.base.rendezvous import LOOPBACK_INTERFACE

if TYPE_CHECKING:  # a rank without an emulated link need not wait for this import
    from labkit.cost import Link

BACKENDS = ("auto", "gloo", "nccl")

MAX_THREADS = 1024  # of a rank: a system refuses many more, once a rank has started
MIN_BYTES_A_RANK = 12 << 20  # measured with 64 forked ranks and their gloo group (torch 2.13)


@dataclass(frozen=True)
class LaunchPlan:
    """What the options of launch come to, decided before any rank starts; each rank gets it all."""

    world_size: int
    backend: str
    why: str  # this backend
    devices: list[str]  # per rank, such as "cpu" or "cuda:0"
    timeout_s: float  # of each call
    threads: int
    init: bool
    variables: list[dict[str, str]]  # per rank: environment variables that it gets beside the notebook's
    link: Link | None  # an emulated one
    cells: bool = False  # they run cells: a fault costs the cell, not the rank

    @property
    def emulated(self) -> str:
        return f"emulated link: {self.link}" if self.link else ""

    def header(self, seconds: float | None = None) -> str:
        from labkit.base import formats  # here, because it loads pandas

        ranks = "1 rank" if self.world_size == 1 else f"{self.world_size} ranks"
        threads = formats.fact(f"{self.threads} CPU thread{'s' * (self.threads > 1)} each", width=20)
        parts = [
            ranks,
            formats.fact(f"{self.backend}: {self.why}"),
            threads,
            "" if seconds is None else formats.measured(seconds, "s"),
            self.emulated,
        ]
        return (" " if static() else " · ").join(filter(None, parts))  # brackets part them in kept outputs


MAX_RECORDED = "200"  # collectives that torch's flight recorder keeps: see labkit.ranks.faults.work_log


def decide(
    world_size: int = 2,
    backend: str = "auto",
    timeout_s: float = 120.0,
    threads: int | None = None,
    link: Link | None = None,
    share_gpu: bool = False,
    init: bool = True,
    compared_with: int | None = None,
) -> LaunchPlan:
    """Check every option of launch and decide what it comes to.

    ``"auto"`` takes gloo if a link is emulated, even one that takes no time. Otherwise it takes
    NCCL if there is a GPU for each rank here and for each rank of the launch that this one is
    ``compared_with``, so that both have one backend. Otherwise it takes gloo, and ranks see no GPU,
    whatever they ask.

    Raises a TypeError or ValueError that says what was given and what was expected.
    """
    __tracebackhide__ = True
    world_size = _checked_ranks("world_size", world_size)
    if compared_with is not None:
        compared_with = _checked_ranks("compared_with", compared_with)
    _check_memory(world_size)
    if backend not in BACKENDS:
        raise ValueError(f"launch: backend is {backend!r}, expected one of {', '.join(map(repr, BACKENDS))}")
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, numbers.Real) or not timeout_s > 0:
        raise ValueError(f"launch: timeout_s is {timeout_s!r}, expected seconds, more than 0")
    if threads is not None and not 1 <= (_whole(threads) or 0) <= MAX_THREADS:
        raise ValueError(
            f"launch: threads is {threads!r}, expected a whole number of threads per rank, 1 to {MAX_THREADS}, or None"
        )
    if link is not None:
        _check_link(link, backend, init)
    chosen, why, gpus = _choose_backend(world_size, backend, share_gpu, link, compared_with or 1)
    if link is not None and (link.is_free or world_size == 1):
        link, why = None, "CPU, as link= asks for"  # and nothing to emulate
    threads = _whole(threads) or max(1, machine.cores() // world_size)
    here = _torchruns(world_size) | _local(chosen, hidden=backend == "auto") | {"OMP_NUM_THREADS": str(threads)}
    return LaunchPlan(
        world_size=world_size,
        backend=chosen,
        why=why,
        devices=[f"cuda:{rank % gpus}" if chosen == "nccl" else "cpu" for rank in range(world_size)],
        timeout_s=float(timeout_s),
        threads=threads,
        init=bool(init),
        variables=[here | _own(rank, chosen, gpus, gpus < world_size) for rank in range(world_size)],
        link=link,
    )


def _checked_ranks(name: str, number: Any) -> int:
    """Return a number of ranks, such as numpy's, as an int. TypeError or ValueError for others."""
    __tracebackhide__ = True
    ranks = _whole(number)
    if ranks is None:
        raise TypeError(f"launch: {name} is {number!r}, expected a whole number of ranks, 1 or more")
    if ranks < 1:
        raise ValueError(f"launch: {name} is {number}, expected 1 or more")
    return ranks


def _whole(number: Any) -> int | None:
    """Return a whole number as an int, whatever library's it is; None for anything else."""
    try:
        return None if isinstance(number, bool) else operator.index(number)
    except TypeError:
        return None


def _check_memory(world_size: int) -> None:
    """Refuse more ranks than this machine has memory for, whatever they do."""
    __tracebackhide__ = True
    free = machine.free_memory()
    if world_size * MIN_BYTES_A_RANK > free:
        raise ValueError(
            f"launch: world_size is {world_size}, and a rank needs at least {MIN_BYTES_A_RANK >> 20} MiB: the "
            f"{free / 2**30:.1f} GiB that are free here are enough for {free // MIN_BYTES_A_RANK:.0f} ranks"
        )


def _check_link(link: Any, backend: str, init: bool) -> None:
    __tracebackhide__ = True
    from labkit.cost import Link

    if not isinstance(link, Link):
        raise TypeError(
            f"launch: link is {link!r}, expected a labkit.cost.Link, such as ETHERNET_1G or Link(50e-6, 125e6), or None"
        )
    if backend == "nccl":
        raise ValueError("launch: link is emulated over gloo, on the CPU; use backend='auto' or 'gloo' with it")
    if not init:
        raise ValueError("launch: link needs the process group that launch forms; leave out init=False")


def _choose_backend(
    world_size: int, backend: str, share_gpu: bool, link: Link | None, compared_with: int
) -> tuple[str, str, int]:
    """Return (backend, why, number of GPUs), by the rule of :func:`decide`."""
    __tracebackhide__ = True
    if link is not None and backend == "auto":
        return "gloo", "CPU, as a link is emulated over it", 0
    gpus = 0 if backend == "gloo" else _gpu_count()
    have = {0: "no GPU", 1: "1 GPU"}.get(gpus, f"{gpus} GPUs")
    if backend == "gloo":
        return "gloo", "CPU, as asked for", gpus
    if gpus >= world_size and (backend == "nccl" or gpus >= compared_with):
        return "nccl", "each rank has a GPU of its own", gpus
    if share_gpu and gpus:
        return "nccl", f"{have} shared, for correctness only", gpus
    if backend == "nccl":
        raise ValueError(
            f"launch: backend='nccl' needs a GPU for each of the {world_size} ranks, and this machine has {have}. "
            "Use backend='auto', which falls back to gloo on the CPU"
            + (", or share_gpu=True to put several ranks on one GPU (for correctness only: it is slow)" * bool(gpus))
            + (" (share_gpu=True would need at least one GPU)" * (not gpus))
        )
    verb = "is" if gpus < 2 else "are"
    if gpus >= world_size:
        return "gloo", f"CPU, as {compared_with} ranks are, where there {verb} {have}", gpus
    return "gloo", f"CPU, as there {verb} {have} here", gpus


def _gpu_count() -> int:
    import torch.distributed as dist

    return machine.usable_gpus() if dist.is_nccl_available() else 0


def _torchruns(world_size: int) -> dict[str, str]:
    """Return what torchrun would set on every rank of one machine, but for the store's port."""
    return {
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        # As under torchrun: the store at MASTER_PORT is there already, no rank has to open one.
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }


def _local(backend: str, hidden: bool) -> dict[str, str]:
    """Return what keeps traffic on this machine. ``hidden``: ranks on the CPU see no GPU."""
    variables = {"GLOO_SOCKET_IFNAME": LOOPBACK_INTERFACE, "NCCL_SOCKET_IFNAME": LOOPBACK_INTERFACE}
    variables["TORCH_FR_BUFFER_SIZE"] = os.environ.get("TORCH_FR_BUFFER_SIZE", MAX_RECORDED)
    return variables | {"CUDA_VISIBLE_DEVICES": ""} if backend == "gloo" and hidden else variables


def _own(rank: int, backend: str, gpus: int, shared: bool) -> dict[str, str]:
    """Return a rank's numbers, and which GPU is its own; ``shared``: fewer GPUs than ranks."""
    variables = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    if (
        backend == "nccl" and shared
    ):  # NCCL refuses two ranks on one GPU of one host, so let each have a host of its own
        variables |= {"NCCL_HOSTID": f"labkit-{rank}", "NCCL_NET": "Socket"}
        variables |= {"LOCAL_RANK": str(rank % gpus), "LOCAL_WORLD_SIZE": str(gpus)}  # by which libraries take a GPU
    return variables
