"""Launch after launch, nearly each with a fault: all end as promised, and nothing is left.

    python benchmarks/soak.py [--launches 240] [--seed 0]

The kinds of launch come in a drawn order, each about as often as the others; scripts that are
killed, which take seconds each, are one in forty. After each launch its ranks must be gone. At the
end, processes, open descriptors, ports, temporary files and shared memory must be what they were
after the first ones. One row for each kind says how many ended as promised; the exit status is 1
if one did not, or if something is left.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import io
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import psutil
import torch
import torch.distributed as dist

from labkit.launch import LaunchTimeout, RankError, launch, workers
from labkit.ranks.notebook.cells import Ranks
from labkit.ranks.processes import server_handle
from labkit.ranks.processes.plan import decide

GONE_S = 10.0  # ranks promise 2 s; the machine may be busy
IN_SOAK = "LABKIT_SOAK"  # set where the launches are made
SCRIPT = """
import subprocess
from labkit.launch import launch

def fn():
    print("begun")
    subprocess.run(["sleep", "1000"])

launch(fn)
"""


# --- what ranks do -------------------------------------------------------------------------------


def all_reduce() -> float:
    x = torch.ones(1)
    dist.all_reduce(x)
    return x.item()


def raises() -> None:
    if dist.get_rank() == 1:
        raise ValueError("on purpose")
    dist.barrier()


def exits() -> None:
    if dist.get_rank() == 1:
        os._exit(3)
    dist.barrier()


def gets(number: int) -> None:
    if dist.get_rank() == 1:
        os.kill(os.getpid(), number)
    dist.barrier()


def segfaults() -> None:
    ctypes.string_at(0)


def hangs() -> None:
    if dist.get_rank() == 1:
        dist.barrier()


def loops() -> None:
    while True:
        pass


def leaves_a_fork() -> float:
    if os.fork() == 0:
        time.sleep(1000)
    return all_reduce()


def leaves_a_child_of_its_own_session() -> float:
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
    return all_reduce()


def prints() -> float:
    for line in range(3_000):
        print(f"line {line}")
    return all_reduce()


def without_stdout() -> float:
    sys.stdout = None  # type: ignore[assignment]
    return all_reduce()


def interrupts(notebook: int) -> None:
    if dist.get_rank() == 1:
        os.kill(notebook, signal.SIGINT)
    time.sleep(1000)


def returns_a_lock() -> Any:
    return threading.Lock()


def leaves_the_group() -> None:
    dist.destroy_process_group()


# --- how a launch is promised to end -------------------------------------------------------------


def fails(error_type: str, fn: Callable[..., Any], *args: Any) -> Callable[[], str]:
    """Return an attempt: what is wrong if launching ``fn`` raises no RankError of this type."""

    def attempt() -> str:
        try:
            launch(fn, *args)
        except RankError as error:
            return "" if error.error_type == error_type else f"RankError {error.error_type}: {error}"
        return "no error"

    return attempt


def returns(values: list[Any], fn: Callable[..., Any], lines: int = 0) -> Callable[[], str]:
    """Return an attempt: what is wrong if ``fn`` returns or prints something else."""

    def attempt() -> str:
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown):
            found = launch(fn).values
        if found != values:
            return f"values {found}"
        return "" if shown.getvalue().count("\n") == lines else f"{shown.getvalue().count(chr(10))} lines"

    return attempt


def raises_here(
    error_type: type[BaseException], fn: Callable[..., Any], *args: Any, **options: Any
) -> Callable[[], str]:
    """Return an attempt: what is wrong if the launch does not end with this exception."""

    def attempt() -> str:
        try:
            launch(fn, *args, **options)
        except error_type:
            return ""
        return "no error"

    return attempt


def warm() -> str:
    with workers(2) as ranks:
        for attempt in (
            ranks.run(all_reduce).values == [2.0, 2.0],
            _raises(ranks),
            ranks.run(all_reduce).values == [2.0, 2.0],
        ):
            if not attempt:
                return "warm ranks did not go on after one had raised"
    return ""


def _raises(ranks: Any) -> bool:
    try:
        ranks.run(raises)
    except RankError as error:
        return error.error_type == "ValueError"
    return False


CELLS = {
    "nothing wrong": ("kept += 1", None),
    "raises": ("if rank == 1: raise ValueError('on purpose')\ndist.barrier()", RankError),
    "hangs": ("if rank == 1: dist.barrier()", LaunchTimeout),
    "interrupt": (f"if rank == 1: os.kill({os.getpid()}, 2)\ntime.sleep(1000)", KeyboardInterrupt),
    "out of step": ("if rank == 1: dist.all_reduce(torch.ones(1), async_op=True)", None),
}


def cells() -> str:
    """Run a few cells on ranks, nearly each with a fault: variables and the group must survive."""
    ranks = Ranks(decide(2, "gloo", timeout_s=60.0))
    try:
        ranks.run_cell("import os, time, torch, torch.distributed as dist\nrank = kept = dist.get_rank()", "cell")
        for name in random.sample(sorted(CELLS), 3):
            source, expected = CELLS[name]
            error = _error_of(ranks, source)
            if type(error) is not (expected or type(None)):
                return f"{name}: {error!r}"
            if _error_of(ranks, "x = torch.ones(1); dist.all_reduce(x)") or ranks["x"] != [2.0, 2.0]:
                return f"{name}: the next cell does not work"
        return "" if ranks["rank"] == [0, 1] else f"rank is {ranks['rank']}"
    finally:
        ranks.stop()


def _error_of(ranks: Ranks, source: str) -> BaseException | None:
    try:
        ranks.run_cell(source, "cell")
    except BaseException as error:
        return error
    return None


def killed_script() -> str:
    """Kill a script's whole process group while its ranks wait for children."""
    number = random.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
    command = [sys.executable, "-c", SCRIPT]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as script:
        assert script.stdout is not None
        begun = [script.stdout.readline() for _ in range(2)]
        family = psutil.Process(script.pid).children(recursive=True)
        os.killpg(script.pid, number)
    alive = psutil.wait_procs(family, timeout=GONE_S)[1]
    return "" if len(begun) == 2 and not alive else f"{number.name} left {len(alive)} of {len(family)} processes"


OK = [2.0, 2.0]
TRIALS: dict[str, Callable[[], str]] = {
    "nothing wrong": returns(OK, all_reduce),
    "raises": fails("ValueError", raises),
    "exits": fails("exit status 3", exits),
    "SIGKILL": fails("SIGKILL", gets, signal.SIGKILL),
    "SIGABRT": fails("SIGABRT", gets, signal.SIGABRT),
    "signal 40": fails("signal 40", gets, 40),
    "segmentation fault": fails("SIGSEGV", segfaults),
    "returns a lock": fails("TypeError", returns_a_lock),
    "hang": raises_here(LaunchTimeout, hangs, timeout_s=0.5),
    "endless loop": raises_here(LaunchTimeout, loops, timeout_s=0.5),
    "interrupt": raises_here(KeyboardInterrupt, interrupts, os.getpid()),
    "leaves a fork": returns(OK, leaves_a_fork),
    "leaves a child of its own session": returns(OK, leaves_a_child_of_its_own_session),
    "leaves the group": returns([None, None], leaves_the_group),
    "3,000 lines": returns(OK, prints, lines=6_000),
    "sys.stdout = None": returns(OK, without_stdout),
    "warm ranks, one raises": warm,
    "cells with faults": cells,
    "script killed": killed_script,
}


# --- what must be as before ----------------------------------------------------------------------


def processes() -> list[psutil.Process]:
    """Return all processes of this soak, whoever their parents are now: they share its TMPDIR."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("TMPDIR") == os.environ["TMPDIR"]:
                found.append(process)
    return found


def used(folder: str) -> dict[str, Any]:
    """Return what this soak uses of the machine now."""
    all_of_them, me = processes(), psutil.Process()
    ports = 0
    for process in all_of_them:
        with contextlib.suppress(psutil.Error):
            ports += len(process.net_connections("inet"))
    shared = os.listdir("/dev/shm") if os.path.isdir("/dev/shm") else []
    return {
        "processes": len(all_of_them),
        "descriptors": me.num_fds(),
        "threads": me.num_threads(),
        "ports": ports,
        "temporary files": sorted(os.listdir(folder)),
        "shared memory": sorted(name for name in shared if name.startswith(("torch", "sem.", "nccl", "labkit", "pym"))),
    }


def settled(n_processes: int) -> int:
    """Wait until there are no more than so many processes. Return how many there are."""
    until = time.monotonic() + GONE_S
    while (count := len(processes())) > n_processes and time.monotonic() < until:
        time.sleep(0.05)
    return count


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--launches", type=int, default=240)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if IN_SOAK in os.environ:
        random.seed(options.seed)
        return soak(options.launches, os.environ["TMPDIR"])
    with tempfile.TemporaryDirectory(prefix="soak-", ignore_cleanup_errors=True) as folder:
        return subprocess.run([sys.executable, *sys.argv], env=os.environ | {IN_SOAK: "1", "TMPDIR": folder}).returncode


def soak(launches: int, folder: str) -> int:
    rare, *often = sorted(TRIALS, key=lambda name: name != "script killed")
    order = [rare] * (launches // 40) + [often[i % len(often)] for i in range(launches - launches // 40)]
    random.shuffle(order)
    wrong: dict[str, list[str]] = {name: [] for name in TRIALS}
    seconds: dict[str, list[float]] = defaultdict(list)
    for _ in server_handle.PACKAGES:  # before each launch the server imports one; transformers makes a temporary folder
        assert not returns(OK, all_reduce)()
        settled(3)  # this one, the server and multiprocessing's tracker of resources
    before = used(folder)
    for name in order:
        began = time.monotonic()
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                fault = TRIALS[name]()
        except BaseException as error:
            fault = f"{type(error).__name__}: {error}"
        seconds[name].append(time.monotonic() - began)
        if (count := settled(before["processes"])) > before["processes"]:
            fault += f" {count - before['processes']} processes are left"
        wrong[name] += [fault] * bool(fault)
    print(f"{'launch':36}{'count':>6}{'as promised':>13}{'median s':>10}")
    for name, faults in wrong.items():
        n = len(seconds[name])
        if n:
            print(f"{name:36}{n:6}{n - len(faults):13}{statistics.median(seconds[name]):10.2f}")
        for fault in dict.fromkeys(faults):
            print(f"    {faults.count(fault)} ×: {fault[:300]}")
    after = used(folder)
    for thing, was in before.items():
        print(f"{thing:20} before {was}, after {after[thing]}{'' if after[thing] == was else '  LEFT'}")
    n_wrong = sum(map(len, wrong.values()))
    print(
        f"{len(order)} launches, {len(order) - n_wrong} as promised; {'nothing' if before == after else 'something'} is left"
    )
    return int(n_wrong > 0 or before != after)


if __name__ == "__main__":
    sys.exit(main())
