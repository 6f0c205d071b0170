"""dp.2: run_processes and setup, with ranks that work, with one that fails, and interrupted.

Imports nothing of the student's at the top: the processes that the student's code starts import
this too.
"""

from __future__ import annotations

import contextlib
import functools
import json
import multiprocessing
import os
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.check.harness import Finding, Task

SLEEP_S = 6.0  # how long a rank goes on that somebody should end
TOLD_TO_FAIL = "this rank was told to fail"

# --- what the ranks do ----------------------------------------------------------------------------


def work(folder: Path, port: int, rank: int, world_size: int, backend: str) -> None:
    """Join the group, meet all ranks, report.

    Rank 0 ends first; the others follow from the last one on.
    """
    import psutil
    import torch.distributed as dist

    from labkit import dp

    (folder / f"{os.getpid()}.pid").write_text(str(rank))
    dp.setup(rank, world_size, backend, master_port=port)
    dist.barrier()
    listening = {c.laddr.ip for c in psutil.Process().net_connections("inet") if c.status == psutil.CONN_LISTEN}
    report = {
        "given": [rank, world_size, backend],
        "group": [dist.get_rank(), dist.get_world_size(), dist.get_backend()],
        "open to others": any(not ip.startswith("127.") and ip != "::1" for ip in listening),
    }
    if rank:
        _wait_for(lambda: not any(map(_is_running, _process_ids(folder, "0"))))
        time.sleep(0.3)  # whoever does not wait for all ranks has had the time to go on
        _wait_for(lambda: rank == world_size - 1 or (folder / f"{rank + 1}.json").exists())
    _report(folder, rank, report)


def sleep(folder: Path, port: int, rank: int, world_size: int, backend: str) -> None:
    """Go on until somebody ends this rank, or report that nobody did.

    Rank 1 fails once all are there.
    """
    (folder / f"{os.getpid()}.pid").write_text(str(rank))
    if rank == 1:
        _wait_for(lambda: len(_process_ids(folder)) == world_size)
        raise RuntimeError(TOLD_TO_FAIL)
    time.sleep(SLEEP_S)
    _report(folder, rank, {"slept to the end": True})


def _report(folder: Path, rank: int, report: dict[str, Any]) -> None:
    unfinished = folder / f"{rank}.part"
    unfinished.write_text(json.dumps(report))
    unfinished.rename(folder / f"{rank}.json")


def _wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + SLEEP_S
    while not condition() and time.monotonic() < until:
        time.sleep(0.02)


def _process_ids(folder: Path, rank: str = "") -> list[int]:
    """Return the processes that have come to life, or those of one rank."""
    files = [file for file in folder.glob("*.pid") if not rank or file.read_text() == rank]
    return [int(file.stem) for file in files if file.stem.isdigit() and int(file.stem) > 1]


def _is_running(process: int) -> bool:
    import psutil

    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(process).status() != psutil.STATUS_ZOMBIE
    return False


# --- what is seen of them -------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """``run_processes(fn, ranks, "gloo")``, and whether it is interrupted from the keyboard
    meanwhile."""

    name: str
    fn: Callable[..., None]
    ranks: int
    interrupted: bool = False

    def __str__(self) -> str:
        return self.name

    def observe(self) -> Any:
        from labkit import dp

        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        with _quick_and_mute(), tempfile.TemporaryDirectory() as name:
            folder, error, returned = Path(name), None, threading.Event()
            if self.interrupted:
                threading.Thread(target=_interrupt, args=(folder, returned), daemon=True).start()
            try:
                dp.run_processes(functools.partial(self.fn, folder, port), self.ranks, "gloo")
            except (Exception, KeyboardInterrupt) as raised:
                if self.fn is work:
                    raise
                error = str(raised)
            finally:
                returned.set()
                started = {*_process_ids(folder)} - {os.getpid()}
                left = [process for process in started if _is_running(process)]
                reports = [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]
                for process in left:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(process, signal.SIGKILL)
        return {"error": error, "processes": len(started), "left": len(left), "reports": reports}


def _interrupt(folder: Path, returned: threading.Event) -> None:
    """Interrupt this process, and not its children, as soon as one of them runs, unless
    run_processes has returned."""
    _wait_for(lambda: bool(_process_ids(folder)) or returned.is_set())
    if _process_ids(folder) and not returned.is_set():
        os.kill(os.getpid(), signal.SIGINT)


@contextlib.contextmanager
def _quick_and_mute() -> Iterator[None]:
    """Inside, have what asks for spawned processes get new ones that need not import torch, and
    print nothing.

    Both pickle what they are given. torch prints process ids as it ends them, other ones each time.
    """
    os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)  # the processes to come are nobody's ranks yet
    import torch.multiprocessing

    context = multiprocessing.get_context
    multiprocessing.set_forkserver_preload(["torch", "torch.distributed.nn"])
    null, *copies = os.open(os.devnull, os.O_WRONLY), os.dup(1), os.dup(2)
    for module in (multiprocessing, torch.multiprocessing):
        module.get_context = lambda method=None: context("forkserver" if method == "spawn" else method)  # type: ignore
    try:
        os.dup2(null, 1)
        os.dup2(null, 2)
        yield
    finally:
        multiprocessing.get_context = torch.multiprocessing.get_context = context
        for output, copy in enumerate(copies, 1):
            os.dup2(copy, output)
        for opened in (null, *copies):
            os.close(opened)


# --- what must hold -------------------------------------------------------------------------------

RANKS = 3
WORKING = Case(f"with {RANKS} ranks, of which rank 0 ends first", work, RANKS)
FAILING = Case("with 2 ranks, of which rank 1 fails", sleep, 2)
INTERRUPTED = Case("with 1 rank, interrupted from the keyboard", sleep, 1, interrupted=True)
CALLS = ["_check_backend(backend)", "_check_rank(rank, world_size)"]
TASK = Task(given=["_run_rank", "_check_backend", "_check_rank", *CALLS], waits="a process that nobody ends")


@TASK.claim([WORKING])
def a_process_for_each_rank(case: Case, seen: Any) -> Finding:
    """Each rank runs once, in a process of its own, and is told its rank, world size and
    backend."""
    given = sorted(report["given"] for report in seen["reports"])
    expected = [[rank, RANKS, "gloo"] for rank in range(RANKS)]
    if given == expected[: len(given)] and len(given) < RANKS:
        return (
            f"run_processes returned after fn was done on {len(given)} of them. Wait for all: context.join() returns as soon "
            "as one has ended, and True only once all have"
        )
    if given != expected:
        return f"fn was called with {given}, expected {expected}: start one process for each rank"
    return seen["processes"] < RANKS and "two ranks ran in the same process: each needs one of its own"


@TASK.claim([WORKING], after=[a_process_for_each_rank])
def ranks_form_a_group(case: Case, seen: Any) -> Finding:
    """setup makes one process group of all ranks, in which each has its rank, within this
    machine."""
    for report in seen["reports"]:
        if report["group"] != report["given"]:
            return (
                f"a rank told (rank, world size, backend) = {tuple(report['given'])} found itself {tuple(report['group'])} in "
                "the process group: pass on what setup is given"
            )
    return any(report["open to others"] for report in seen["reports"]) and (
        "a rank accepted connections from other machines: form the group through a loopback_store"
    )


@TASK.claim([FAILING], after=[a_process_for_each_rank])
def a_failure_ends_all(case: Case, seen: Any) -> Finding:
    """A rank that fails ends the others, at once, and makes run_processes raise what it raised."""
    if seen["reports"]:
        return (
            "rank 0 went on to its end all the same. Joined one after the other, rank 0 is waited for first: wait for "
            "whichever ends first (context.join does), then end the rest"
        )
    if seen["error"] is None:
        return "run_processes returned as if all were well: look at how each process ended"
    return TOLD_TO_FAIL not in seen["error"] and (
        "what run_processes raised does not say why: let the error of context.join() through, it has the traceback"
    )


@TASK.claim([WORKING, FAILING, INTERRUPTED], after=[a_process_for_each_rank])
def no_process_is_left(case: Case, seen: Any) -> Finding:
    """However run_processes comes to its end, none of its processes is left."""
    return seen["left"] and (
        f"{seen['left']} of {case.ranks} were still running. Wait in a try block, and end and join every process in its "
        "finally block, which is carried out whatever happens"
    )
