"""Starting a rank's process, learning how it ended, and ending it.

Processes come from a fork server of our own: a helper process that has imported torch (and other third-party packages,
never the lab's or the student's code) and forks a rank in milliseconds. It is not the notebook, so CUDA used in the
notebook is no obstacle, and `__main__` is not imported again, so scripts need no guard. Where it cannot serve, the
rank is a fresh interpreter.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from multiprocessing import forkserver, resource_tracker
from typing import Any

from labkit.ranks.seed import RankSeed

PRELOAD = ["cloudpickle", "numpy", "pandas", "torch", "torch.distributed", "transformers.models.gpt2.modeling_gpt2"]

# What the preloaded packages read only once, while they are imported: if one of these changes, so must the server.
_READ_AT_IMPORT = ("HF_", "TRANSFORMERS_", "TORCH_", "PYTORCH_", "OMP_", "MKL_", "KMP_")
_SET_IN_RANKS = ("OMP_NUM_THREADS",)  # each rank gets its own, so the notebook's does not matter

NEVER_STARTED = 255  # the exit status of a rank whose server ended before it could start it


class RankProcess:
    """One rank's process: started, perhaps not yet running. ``sentinel`` is a descriptor that is ready when there is news.

    The news is its process id, then its exit status as `waitpid` would give it to a parent: negative for a signal.
    ``life`` is a pipe that nobody writes to: when the notebook's end of it closes, the rank ends itself.
    """

    def __init__(self, sentinel: int, life: int):
        self.sentinel, self.life = sentinel, life
        self.pid: int | None = None
        self.exit_status: int | None = None

    def poll(self, timeout_s: float = 0.0) -> int | None:
        """The exit status, or None while it runs. Waits at most ``timeout_s`` for it."""
        while self.exit_status is None and select.select([self.sentinel], [], [], timeout_s)[0]:
            try:
                news = forkserver.read_signed(self.sentinel)
            except EOFError:  # the server is gone, and the rank with it
                self.exit_status = -signal.SIGKILL if self.pid else NEVER_STARTED
                break
            if self.pid is None:
                self.pid = news
            else:
                self.exit_status = news
        return self.exit_status

    def kill(self) -> None:
        """End the rank and every process it started (they share its session), now."""
        if self.poll() is None:
            self._signal(os.kill)  # before it has made its session there is no group
        self._signal(os.killpg)

    def _signal(self, kill: Callable[[int, int], None]) -> None:
        if self.pid:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        os.close(self.life)
        os.close(self.sentinel)


class _Server:
    """The fork server, started anew whenever the preloaded packages would have been imported differently."""

    def __init__(self) -> None:
        self._server = forkserver.ForkServer()
        self._server.set_forkserver_preload(PRELOAD)
        self._environment: dict[str, str] = {}
        self._lock = threading.Lock()
        self._deaths = 0
        self.usable = sys.platform == "linux"  # macOS's own libraries do not survive a fork

    def has_died(self) -> None:
        """It ended before it could fork a rank. It gets one more try; a package that breaks it would break it again."""
        self._deaths += 1
        self.usable = self._deaths < 2

    def ensure_running(self) -> None:
        with self._lock:
            environment = {
                k: v for k, v in os.environ.items() if k.startswith(_READ_AT_IMPORT) and k not in _SET_IN_RANKS
            }
            if environment != self._environment:
                self._server._stop()  # type: ignore[attr-defined]
                self._environment = environment
            # The mask is inherited: an interrupt of the notebook's process group must not end the server while it imports.
            resource_tracker.ensure_running()  # first, because its own start clears the mask again
            blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
            try:
                self._server.ensure_running()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    def start(self, fds: list[int]) -> RankProcess:
        self.ensure_running()
        sentinel, data = self._server.connect_to_new_process(fds)
        process = RankProcess(sentinel, life=data)
        with contextlib.suppress(BrokenPipeError):  # the server ended: the sentinel tells
            preparation = {"sys_path": sys.path, "dir": os.getcwd()}
            os.write(data, pickle.dumps(preparation) + pickle.dumps(RankSeed()))
        return process


server = _Server()


def start(fds: list[int], fresh: bool = False) -> RankProcess:
    """Start a process that runs ``rank.serve`` on copies of ``fds``. ``fresh``: a new interpreter, not a fork of the server."""
    return _start_fresh(fds) if fresh or not server.usable else server.start(fds)


def _start_fresh(fds: list[int]) -> RankProcess:
    life_read, life = os.pipe()
    sentinel, status = os.pipe()
    serve = f"from labkit.ranks import rank; sys.exit(rank.serve(*{fds!r}, life={life_read}))"
    code = f"import sys; sys.path[:] = {sys.path!r}; {serve}"
    try:
        child = subprocess.Popen([sys.executable, "-c", code], pass_fds=[*fds, life_read], stdin=subprocess.DEVNULL)
    finally:
        os.close(life_read)
    threading.Thread(target=_report_exit, args=(child, status), daemon=True).start()
    return RankProcess(sentinel, life)


def _report_exit(child: subprocess.Popen[Any], status: int) -> None:
    with contextlib.suppress(BrokenPipeError):
        forkserver.write_signed(status, child.pid)
        forkserver.write_signed(status, child.wait())
    os.close(status)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold a keyboard interrupt back until the block is done, so that nothing half-started or half-ended is left."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[Any] = []
    previous = signal.signal(signal.SIGINT, lambda *signal_and_frame: held.append(signal_and_frame))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
        if held and callable(previous):
            previous(*held[0])
