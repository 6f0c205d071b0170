"""The notebook's side of the fork servers: keep them running and up to date, ask for ranks."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from multiprocessing import resource_tracker

import psutil

from labkit.ranks import fork_server, messages
from labkit.ranks.fork_server import STATUS, Report, Setup
from labkit.ranks.rank_config import check_folders, working_directory
from labkit.ranks.rank_process import STACKS_SIGNAL

PRELOAD = ["cloudpickle", "numpy", "pandas", "torch", "torch.distributed", "transformers.models.gpt2.modeling_gpt2"]

# What the preloaded packages read only once, while they are imported: if one of these changes, so
# must the server.
_READ_AT_IMPORT = ("HF_", "TRANSFORMERS_", "TORCH_", "PYTORCH_", "OMP_", "MKL_", "KMP_")
_SET_IN_RANKS = ("OMP_NUM_THREADS",)  # each rank gets its own, so the notebook's does not matter
_SEND_S = 10.0  # how long a server may take to take a request

CUDA_IS_OPEN = (
    "importing {} opens the GPU (/dev/nvidia*), which a forked process cannot use. So ranks are started as interpreters of "
    "their own, which import torch anew: each launch takes some seconds longer"
)
NEVER_STARTED = 255  # the exit status of a rank whose server ended before it could start it


class RankProcess:
    """One rank's process: asked for, perhaps not yet running.

    A selector finds it readable when there is news; see :meth:`poll`.
    """

    def __init__(self, control: socket.socket):
        self._control = control
        self.pid: int | None = None
        self.exit_status: int | None = None
        self.refused: OSError | None = None  # why the system made no process for it

    def fileno(self) -> int:
        return self._control.fileno()

    def poll(self, timeout_s: float = 0.0) -> int | None:
        """Return the exit status, or None while it runs. Waits at most ``timeout_s`` for it."""
        self._control.settimeout(timeout_s)
        while self.exit_status is None:
            try:
                news = self._control.recv(STATUS.size)
            except (BlockingIOError, TimeoutError):
                return None
            except ConnectionResetError:
                news = b""
            if not news:  # the server is gone, and the rank with it
                self.exit_status = -signal.SIGKILL if self.pid else NEVER_STARTED
            elif self.pid is not None:
                (self.exit_status,) = STATUS.unpack(news)
            elif (number := STATUS.unpack(news)[0]) > 0:
                self.pid = number
            else:
                self.refused, self.exit_status = OSError(-number, os.strerror(-number)), NEVER_STARTED
        return self.exit_status

    def signal(self, number: int) -> None:
        """Send the rank a signal, through its server, which knows whether it is still there."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._control.send(bytes([number]))

    def close(self) -> None:
        """Let go of the rank: its server ends it, with all that it has started."""
        messages.hang_up(self._control)


class Server:
    """A package server and its rank server, replaced as soon as they would import something else.

    ``start`` asks for a rank and waits for nothing. A server that is replaced lives until the last
    of its ranks has ended.
    """

    def __init__(self, preload: list[str], fork: bool):
        self.preload, self.fork = preload, fork
        self.usable = not fork or sys.platform == "linux"  # macOS's own libraries do not survive a fork
        self._lock = threading.Lock()
        self._packages: subprocess.Popen[bytes] | None = None
        self._to_packages: socket.socket | None = None
        self._to_ranks: socket.socket | None = None
        self._environment: Mapping[str, str] = {}
        self._lab: str | None = None  # where the rank server finds the lab
        self._report: Report | None = None
        self._old: list[subprocess.Popen[bytes]] = []  # package servers that wait for their last rank
        self._deaths = 0

    def start(self, fds: list[int]) -> RankProcess:
        """Ask for a process that runs ``rank_process.run`` on copies of ``fds``."""
        mine, theirs = socket.socketpair()
        try:
            with theirs, self._lock:
                self._keep_running()
                assert self._to_ranks is not None
                with contextlib.suppress(OSError):  # the server has ended: the control tells
                    socket.send_fds(self._to_ranks, [b"r"], [theirs.fileno(), *fds])
        except BaseException:
            mine.close()
            raise
        return RankProcess(mine)

    def ensure_running(self) -> None:
        """Start what is not running, or is out of date, without waiting for it."""
        with self._lock:
            self._keep_running()

    def has_died(self) -> str:
        """Note that it ended before it could start a rank. Return why, if that is known.

        It gets one more try, but none if a package has opened the GPU: it would do so again.
        """
        with self._lock:
            self._deaths += 1
            self._listen()
            package = self._report.opened_cuda if self._report is not None else ""
            self.usable = not self.fork or (self._deaths < 2 and not package)
            self._stop()
        return CUDA_IS_OPEN.format(package) if package else ""

    def stop(self) -> None:
        """Ask it for no more ranks; it ends with the last one that it has."""
        with self._lock:
            self._stop()

    def _keep_running(self) -> None:
        environment = self._environment_at_import()
        if self._packages is None or self._packages.poll() is not None or environment != self._environment:
            self._stop()
            self._start_packages()
            self._environment = environment
        if not self._is_current():
            self._start_rank_server()

    def _environment_at_import(self) -> Mapping[str, str]:
        if not self.fork:  # a fresh interpreter starts with all of it
            return dict(os.environ)
        return {k: v for k, v in os.environ.items() if k.startswith(_READ_AT_IMPORT) and k not in _SET_IN_RANKS}

    def _start_packages(self) -> None:
        check_folders()  # MKL ends a process that imports torch where it has been deleted
        mine, theirs = socket.socketpair()
        mine.settimeout(_SEND_S)
        try:
            with theirs:
                resource_tracker.ensure_running()  # first, because its own start clears the mask again
                tracker = resource_tracker.getfd() or 0
                call = f"fork_server.serve_packages({theirs.fileno()}, {tracker}, {self.preload!r})"
                # The mask is inherited: a rank may be asked for its stack before it can answer.
                mask = signal.pthread_sigmask(signal.SIG_BLOCK, [STACKS_SIGNAL])
                try:
                    self._packages = subprocess.Popen(
                        fork_server.python(f"from labkit.ranks import fork_server; {call}", sys.path),
                        pass_fds=[theirs.fileno(), tracker],
                        stdin=subprocess.DEVNULL,
                        start_new_session=True,  # what ends the notebook's process group must not end the server
                    )
                finally:
                    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        except BaseException:
            mine.close()
            raise
        self._to_packages = mine

    def _start_rank_server(self) -> None:
        self._stop_rank_server()
        setup = Setup(list(sys.path), working_directory(), self.fork)
        mine, theirs = socket.socketpair()
        mine.settimeout(_SEND_S)
        with theirs, contextlib.suppress(OSError):  # the package server has ended: whoever asks for a rank will notice
            assert self._to_packages is not None
            socket.send_fds(self._to_packages, [b"s"], [theirs.fileno()])
            messages.send(mine, pickle.dumps(tuple(setup)))
        self._to_ranks, self._lab = mine, _lab()

    def _is_current(self) -> bool:
        """Return whether the rank server has imported, or will, the lab's files as they are now."""
        self._listen()
        if self._to_ranks is None or self._lab != _lab():
            return False
        return self._report is None or all(fork_server.stamp(f) == was for f, was in self._report.files.items())

    def _listen(self) -> None:
        """Take what the rank server has reported so far, or that it has ended."""
        if self._to_ranks is None:
            return
        self._to_ranks.settimeout(0)
        try:
            said = self._to_ranks.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return
        except ConnectionResetError:
            said = b""
        finally:
            self._to_ranks.settimeout(_SEND_S)
        if said:
            self._report = Report(*pickle.loads(messages.receive(self._to_ranks)[0]))
            self._listen()
        else:
            self._to_ranks.close()
            self._to_ranks = None

    def _stop_rank_server(self) -> None:
        if self._to_ranks is not None:
            self._to_ranks.close()
        self._to_ranks = self._report = None

    def _stop(self) -> None:
        self._stop_rank_server()
        self._old = [packages for packages in self._old if packages.poll() is None]
        if self._packages is not None and self._to_packages is not None:
            self._to_packages.close()
            self._old.append(self._packages)
        self._packages = self._to_packages = None


def _lab() -> str | None:
    """Return where a rank would find the lab now: sys.path may have changed."""
    for finder in sys.meta_path:
        if (find := getattr(finder, "find_spec", None)) and (spec := find("labkit", None)):
            return spec.origin
    return None


# --- what the system says of processes that do not answer -----------------------------------------


def is_stopped(pid: int) -> bool:
    """Return whether a process is held by a signal such as SIGSTOP."""
    try:
        return psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
    except psutil.Error:  # it has ended
        return False


def stopped_servers() -> list[int]:
    """Return which of the processes that ranks come from are held by a signal."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if any("fork_server.serve_packages" in word for word in process.cmdline()) and is_stopped(process.pid):
                found.append(process.pid)
    return found


forks = Server(PRELOAD, fork=True)
fresh = Server([], fork=False)
