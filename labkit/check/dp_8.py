"""dp.8: run_processes, with ranks that work, with one that fails, and interrupted.

Imports nothing of the student's at the top: the processes that run_processes starts import it too.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing import context, popen_fork, popen_spawn_posix, reduction
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from labkit.check.harness import Finding, Task

FAILURE = "this rank was told to fail"
SPAWNED = "LABKIT_CHECK_SPAWNED"  # in the environment of a process that was to be spawned
STARTS = {
    "forked": 'was forked, with whatever locks and threads are here. The TODO asks for start_method="spawn"',
    "past": "ran fn past _run_rank, which ends its process group, and it with this process",
}


def work(file: Path, caller: int, rank: int, world_size: int, backend: str) -> None:
    """Report what this rank was given.

    Rank 0 ends first, then the last rank, then the one before: each only after the process of the
    one that ends before it, and once the caller waits again. One that does not wait for all has
    returned by then.
    """
    import psutil
    from torch.distributed import FileStore

    note_start(file)
    if os.getpid() == caller:
        raise RuntimeError(f"rank {rank} ran in the process that called run_processes: start one for it too")
    store = FileStore(f"{file}.store", world_size)
    store.set(f"rank {rank}", str(os.getpid()))
    if 0 < rank < world_size:
        with contextlib.suppress(psutil.Error):  # it has gone already, or stays
            psutil.Process(int(store.get(f"rank {(rank + 1) % world_size}"))).wait(timeout=3)
        until_it_waits(caller)
    with file.open("a") as reports:
        reports.write(json.dumps([rank, world_size, backend]) + "\n")


def note_start(file: Path) -> None:
    """Note how this rank was started, where that is not as it should be."""
    frame, names = sys._getframe(), set[str]()
    while frame := frame.f_back:  # type: ignore[assignment]
        names.add(frame.f_code.co_name)
    if sys.platform == "linux" and SPAWNED not in os.environ:
        Path(f"{file}.forked").touch()
    if "_run_rank" not in names:
        Path(f"{file}.past").touch()


def until_it_waits(caller: int) -> None:
    """Return once a process's main thread sleeps from one look to the next, or after 0.5 s."""
    import psutil

    process, before = psutil.Process(caller), None
    for _ in range(25):
        now = process.status(), process.num_ctx_switches()
        if now == before and now[0] == psutil.STATUS_SLEEPING:
            return
        before = now
        time.sleep(0.02)


def run_until_ended(file: Path, caller: int, rank: int, world_size: int, backend: str) -> None:
    """Run until this rank is ended, or report that it was not.

    Rank 1 fails, and a single rank interrupts the process that called run_processes.
    """
    note_start(file)
    if rank == 1:
        raise RuntimeError(FAILURE)
    if world_size == 1:
        until_it_waits(caller)  # it cannot end a rank that it is still starting
        os.kill(caller, signal.SIGINT)
    time.sleep(6)
    file.write_text(json.dumps("not ended"))


class Case(NamedTuple):
    """``run_processes(fn, ranks, backend)``, which ``raises`` or returns."""

    name: str
    fn: Callable[..., None]
    ranks: int
    raises: bool = True
    backend: str = "gloo"

    def __str__(self) -> str:
        return self.name

    def observe(self) -> Any:
        import psutil

        from labkit import dp

        _prepare()
        this, error = psutil.Process(), None
        before = {*this.children(recursive=True)}
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "reports")
            fn = functools.partial(self.fn, file, this.pid)
            try:
                with mock.patch.object(dp, "_check_backend"):
                    dp.run_processes(fn, self.ranks, self.backend)
            except (Exception, KeyboardInterrupt) as raised:
                if not self.raises:
                    raise
                error = str(raised)
            seen = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
            there = {*this.children(recursive=True)} - before
            _, left = psutil.wait_procs(there, timeout=0.5)
            for process in left:
                process.kill()
            how = [kind for kind in STARTS if Path(f"{file}.{kind}").exists()]
        return {"error": error, "left": len(left), "there": len(there), "reports": seen, "how": how}


class Forked(popen_fork.Popen):
    """A process of what can be pickled, as a spawned one is, but with the torch of this one."""

    def _launch(self, process: Any) -> None:
        context.set_spawning_popen(self)  # type: ignore[arg-type]
        try:
            reduction.dump(process, io.BytesIO())
        finally:
            context.set_spawning_popen(None)
        with mock.patch.dict(os.environ, {SPAWNED: ""}):
            super()._launch(process)  # type: ignore[misc]


def _prepare() -> None:
    """Fork what would be spawned, where that is safe, and have torch log nothing."""
    if sys.platform == "linux":
        popen_spawn_posix.Popen = Forked  # type: ignore
    logging.disable()  # else the numbers of processes that it ends


WORKING = Case("with 3 ranks, of which rank 0 ends first", work, 3, raises=False)
ALONE = Case("with 1 rank and another backend", work, 1, raises=False, backend="nccl")
FAILING = Case("with 2 ranks, of which rank 1 fails", run_until_ended, 2)
INTERRUPTED = Case("with 1 rank, interrupted from the keyboard", run_until_ended, 1)
TASK = Task(
    writes="run_processes",
    minutes=15,
    points=10,
    notebooks="03",
    given=["_run_rank", "_check_backend", "_check_backend(backend)"],
    waits="a rank that is never started, or never ended",
    hints=(
        """What has to happen if one rank fails while another waits for it, or if you are interrupted?""",
        """Start all processes without joining them, and keep what you get back: it can be asked whether all
have ended, and it raises what a rank has raised.""",
        """Asked once, join may come back because one process has ended while others go on, so ask until it
says that all have. You may be interrupted while you wait, so what must happen in any case belongs
in a finally. There, kill each of the context's processes, and then join it, so that it is gone when
you return.""",
    ),
)


@TASK.claim([WORKING], core=True)
def a_process_for_each_rank(case: Case, seen: Any) -> Finding:
    """Each rank runs once, in a process of its own, and is told its rank, world size and
    backend."""
    given = sorted(seen["reports"])
    expected = [[rank, case.ranks, case.backend] for rank in range(case.ranks)]
    if len(given) < case.ranks and all(each in expected for each in given):
        return f"run_processes returned after fn was done on {len(given)} of {case.ranks}, and not on all"
    wrong = f"fn was called with {given}, expected {expected}"
    return given != expected and f"{wrong}: start one process for each rank"


@TASK.claim([WORKING])
def each_process_is_spawned(case: Case, seen: Any) -> Finding:
    """Each process is spawned, a new interpreter, and does _run_rank."""
    for how in seen["how"]:
        return f"a process {STARTS[how]}"


@TASK.claim([FAILING])
def a_failure_ends_all(case: Case, seen: Any) -> Finding:
    """A rank that fails ends the others, at once, and makes run_processes raise what it raised."""
    if seen["reports"]:
        return "rank 0 still ran to its end, though another had failed before"
    if seen["error"] is None:
        return "run_processes returned as if all were well"
    why = "what it raised does not say why: expected what the rank has raised"
    return FAILURE not in seen["error"] and why


@TASK.claim([WORKING, FAILING, INTERRUPTED])
def no_process_is_left(case: Case, seen: Any) -> Finding:
    """However run_processes comes to its end, none of its processes is left."""
    if seen["left"]:
        return f"{seen['left']} of {case.ranks} were still running when run_processes had come to its end"
    ended = f"{seen['there']} of {case.ranks} had been ended, and not waited for: it is there until it is joined"
    return seen["there"] and ended


@TASK.claim([ALONE])
def number_and_backend_are_the_callers(case: Case, seen: Any) -> Finding:
    """Any number of ranks may be asked for, on any backend."""
    return a_process_for_each_rank(case, seen)
