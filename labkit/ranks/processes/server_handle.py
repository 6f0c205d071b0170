"""A fork server as the notebook sees it: keep it running and up to date, ask it for ranks."""

from __future__ import annotations

import atexit
import contextlib
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from multiprocessing import resource_tracker

from labkit.ranks.faults.rank_watch import STACKS_SIGNAL
from labkit.ranks.messages.caller_environment import environment
from labkit.ranks.messages.connection import receive_message
from labkit.ranks.processes import fork_server
from labkit.ranks.processes.rank_process import STUCK_SIGNAL
from labkit.ranks.processes.refusals import check_folders

# torch first, and the lab's modules that need it: ranks can start once the server has them. Next
# comes what most runs import (a first optimizer or DDP imports torch._dynamo: 1.5 s in each rank
# that has not got it), and last, for models, what takes longest.
PACKAGES = [
    "torch labkit.ranks.faults.work_log labkit.ranks.faults.tensor_gaps",
    "torch.distributed cloudpickle numpy pandas torch._dynamo IPython.core.interactiveshell",
    "transformers.models.gpt2.modeling_gpt2",
]

# What the packages read only once, while they are imported: if one of these changes, so must the
# server.
_READ_AT_IMPORT = ("HF_", "TRANSFORMERS_", "TORCH_", "PYTORCH_", "OMP_", "MKL_", "KMP_")
_SET_IN_RANKS = ("OMP_NUM_THREADS",)  # each rank gets its own, so the notebook's does not matter
_SEND_S = 10.0  # how long a server may take to take a request

CUDA_IS_OPEN = (
    "importing {} opens the GPU (/dev/nvidia*), which a forked process cannot use. So each rank starts as "
    "a new interpreter, which imports torch again: a launch takes a few seconds longer"
)


class ServerHandle:
    """A fork server, started with the first rank, and anew where it would import something else.

    ``packages`` are what it imports, an item at a time; ``fork=False``: its ranks are interpreters
    of their own. One that is replaced lives until the last of its ranks has ended.
    """

    def __init__(self, packages: list[str], fork: bool):
        self.packages, self.fork = packages, fork
        self.usable = not fork or sys.platform == "linux"  # macOS's own libraries do not survive a fork
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._requests: socket.socket | None = None
        self._environment: Mapping[str, str] = {}
        self._replaced: list[subprocess.Popen[bytes]] = []  # servers that wait for their last rank
        self._deaths = 0

    @property
    def pid(self) -> int | None:
        """The server's process id, None if there is none."""
        return self._process.pid if self._process is not None else None

    def start_rank(self, fds: list[int], is_first: bool) -> socket.socket:
        """Ask for a rank that has copies of ``fds``, without waiting for it. Return its control.

        ``is_first``: of its launch, so that the server imports what it has yet to, if it may.
        """
        control, servers_end = socket.socketpair()
        try:
            with servers_end, self._lock:
                self._keep_running()
                assert self._requests is not None
                with contextlib.suppress(OSError):  # the server has ended: the control tells
                    uses_models = not sys.modules.keys().isdisjoint(("labkit.models", "transformers"))
                    first = fork_server.FIRST_WITH_MODELS if uses_models else fork_server.FIRST
                    kind = first if is_first else fork_server.NEXT
                    socket.send_fds(self._requests, [kind], [servers_end.fileno(), *fds])
        except BaseException:
            control.close()
            raise
        return control

    def start_ahead(self) -> None:
        """Start the server, if it can be, before a rank is asked for, without waiting for it."""
        if self.usable:
            with self._lock, contextlib.suppress(OSError):  # which the first rank will meet again
                self._keep_running()

    def note_death(self) -> str:
        """Note that it ended before it could start a rank. Return why, if that is known.

        It gets one more try, but none if a package has opened the GPU: it would do so again.
        """
        with self._lock:
            package = ""
            with contextlib.suppress(EOFError, OSError):
                if self._requests is not None:
                    package = receive_message(self._requests)[0].decode()
            self._deaths += 1
            self.usable = not self.fork or (self._deaths < 2 and not package)
            self._stop()
        return CUDA_IS_OPEN.format(package) if package else ""

    def stop(self) -> None:
        """Ask it for no more ranks; it ends with the last one that it has."""
        with self._lock:
            self._stop()

    def leave(self) -> None:
        """Stop it as this process ends, which Popen would complain of, as the server still runs."""
        self.stop()
        for process in self._replaced:
            process.returncode = 0

    def _keep_running(self) -> None:
        environment = self._environment_at_import()
        if self._process is None or self._process.poll() is not None or environment != self._environment:
            self._stop()
            self._start()
            self._environment = environment

    def _environment_at_import(self) -> Mapping[str, str]:
        if not self.fork:  # a fresh interpreter starts with all of it
            return environment()
        return {k: v for k, v in environment().items() if k.startswith(_READ_AT_IMPORT) and k not in _SET_IN_RANKS}

    def _start(self) -> None:
        check_folders()  # MKL ends a process that imports torch where it has been deleted
        requests, servers_end = socket.socketpair()
        requests.settimeout(_SEND_S)
        try:
            with servers_end:
                resource_tracker.ensure_running()  # first, because its own start clears the mask again
                tracker = resource_tracker.getfd() or 0
                call = f"fork_server.serve({servers_end.fileno()}, {tracker}, {self.packages!r}, {self.fork})"
                # The mask is inherited: a rank may be asked for its stack before it can answer.
                mask = signal.pthread_sigmask(signal.SIG_BLOCK, [STACKS_SIGNAL, STUCK_SIGNAL])
                try:
                    self._process = subprocess.Popen(
                        fork_server.python(f"from labkit.ranks.processes import fork_server; {call}"),
                        pass_fds=[servers_end.fileno(), tracker],
                        stdin=subprocess.DEVNULL,
                        start_new_session=True,  # what ends the notebook's process group must not end the server
                    )
                finally:
                    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        except BaseException:
            requests.close()
            raise
        self._requests = requests

    def _stop(self) -> None:
        self._replaced = [process for process in self._replaced if process.poll() is None]
        if self._process is not None and self._requests is not None:
            self._requests.close()
            self._replaced.append(self._process)
        self._process = self._requests = None


forks = ServerHandle(PACKAGES, fork=True)
fresh = ServerHandle([], fork=False)
atexit.register(forks.leave)
atexit.register(fresh.leave)
