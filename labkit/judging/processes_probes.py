"""What runs in ranks to judge dp.2: it calls the student's run_processes and setup and reports what became of the processes.

Imports nothing heavy and nothing of the student's at the top: processes that the student's code starts import this too.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from labkit.judging.evidence import DP, attempt

RANKS = 3
SLEEP_S = 6.0  # how long the rank that does not fail would go on by itself
TOLD_TO_FAIL = "this rank was told to fail"


def probe_processes() -> dict[str, Any]:
    """In three ranks at once: run_processes with ranks that work, with one that fails, and interrupted by the keyboard."""
    import tempfile

    from labkit import dp

    _mute()
    fn, world_size = ((_work, RANKS), (_fail_or_sleep, 2), (_sleep, 1))[int(os.environ["RANK"])]
    os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)  # the processes to come are nobody's ranks yet
    with tempfile.TemporaryDirectory() as folder:
        try:
            returned = threading.Event()
            if fn is _sleep:
                _interrupt_once_started(folder, returned)
            failure = attempt(
                lambda: dp.run_processes(functools.partial(fn, folder, _free_port()), world_size, "gloo"), DP
            )
            returned.set()
            started = len(_process_ids(folder))
            left = [process for process in _process_ids(folder) if _is_running(process)]
            reports = [json.loads(file.read_text()) for file in sorted(Path(folder).glob("*.json"))]
        finally:
            for process in _process_ids(folder):
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
        return {
            "outcome": failure,
            "left": len(left),
            "started": started,
            "reports": reports,
            "own process": os.getpid(),
        }


def _work(folder: str, port: int, rank: int, world_size: int, backend: str) -> None:
    """What a rank that works does: join the group, add something up, take its time, report."""
    import psutil
    import torch
    import torch.distributed as dist

    from labkit import dp

    _note_process(folder)
    torch.set_num_threads(1)
    dp.setup(rank, world_size, backend, master_port=port)
    total = torch.tensor([10**rank])
    dist.all_reduce(total)
    addresses = {c.laddr.ip for c in psutil.Process().net_connections("inet") if c.status == psutil.CONN_LISTEN}
    report = {
        "process": os.getpid(),
        "given": [rank, world_size, backend],
        "group": [dist.get_rank(), dist.get_world_size(), dist.get_backend()],
        "total": total.item(),
        "open to others": any(not a.startswith("127.") and a != "::1" for a in addresses),
    }
    time.sleep(0.3)  # whoever does not wait for the ranks will find no report
    _write(Path(folder, f"{rank}.json"), report)


def _fail_or_sleep(folder: str, port: int, rank: int, world_size: int, backend: str) -> None:
    """The last rank raises, once the first is there; the first would sleep on and then report that nobody ended it."""
    _note_process(folder)
    if rank == world_size - 1:
        while len(_process_ids(folder)) < world_size:
            time.sleep(0.02)
        raise RuntimeError(TOLD_TO_FAIL)
    time.sleep(SLEEP_S)
    _write(Path(folder, f"{rank}.json"), {"slept to the end": True})


def _sleep(folder: str, port: int, rank: int, world_size: int, backend: str) -> None:
    _note_process(folder)
    time.sleep(SLEEP_S)


def _interrupt_once_started(folder: str, returned: threading.Event) -> None:
    """Interrupt this process, and not its children, as soon as one of them runs, unless run_processes has returned."""

    def interrupt() -> None:
        while not _process_ids(folder) and not returned.is_set():
            time.sleep(0.02)
        if not returned.is_set():
            os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()


def _write(file: Path, report: dict[str, Any]) -> None:
    unfinished = file.with_suffix(".part")
    unfinished.write_text(json.dumps(report))
    unfinished.rename(file)


def _note_process(folder: str) -> None:
    Path(folder, f"{os.getpid()}.pid").touch()


def _process_ids(folder: str) -> list[int]:
    return [int(file.stem) for file in Path(folder).glob("*.pid")]


def _is_running(process: int) -> bool:
    import psutil

    try:
        return psutil.Process(process).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def _mute() -> None:
    """torch reports process ids while it ends processes, so what is printed here would differ every time."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    os.close(null)
