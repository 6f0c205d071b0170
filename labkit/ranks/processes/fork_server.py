"""The process that ranks come from: it has imported what takes long, and forks.

Importing third-party packages takes seconds; forking a process that has them takes milliseconds.
The server imports the lab's own modules that every rank needs, and the first package, before it
starts any rank. It imports the others one by one while no rank is in use, or before a launch that
follows: the last one, what models need, only for a notebook that has models. It imports nothing of
the student's. A rank finds the lab as it is on disk: if a file has
changed, the rank imports the lab anew. The server is not the notebook: CUDA may be in use there,
and `__main__` is not imported again, so scripts need no guard.

The server looks after its ranks until the last of them has ended, whatever becomes of the
notebook. It has a session of its own, so it outlives the notebook's process group. For each rank it
has a *control*, a socket whose other end the notebook holds. On it the server sends the rank's
process id, then its exit status; the notebook may send numbers of signals. When the notebook closes
the control, or dies, the rank gets a moment to end by itself.

Server and ranks adopt orphans. So whatever a rank has started stays below it while it runs, in
whatever session, and becomes a child of the server when the rank ends. The server then ends it as
well. (Only Linux has such adoption. Elsewhere the rank's own session is ended.) If the server is
killed, its ranks end with it, and the notebook ends what is left in their sessions.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import pickle
import selectors
import signal
import socket
import struct
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing import resource_tracker

import psutil

from labkit.base.orphans import adopt_orphans
from labkit.ranks.messages.connection import receive_message, send_message
from labkit.ranks.processes.imported_lab import ImportedLab, forget_lab

# On a control: a process id, or -errno if there can be no process; then an exit status, negative
# for a signal. With each the time at which the server noted it (perf_counter_ns).
STATUS = struct.Struct("!qq")
LEAVE_S = 2.0  # how long a rank may take to end by itself
MAX_DESCRIPTORS = 8  # in one request
# What a request begins with: it is for the first rank of a launch, in a notebook with models or
# without, or for another rank.
FIRST_WITH_MODELS, FIRST, NEXT = b"m", b"f", b"n"


def serve(requests_fd: int, tracker: int, packages: list[str], fork: bool) -> None:
    """Start a rank for each request that comes over the socket ``requests_fd``, until it closes.

    ``fork``: ranks are forks of this process. Otherwise each is a new interpreter. ``tracker`` is
    the descriptor of the notebook's resource tracker, which all ranks share.
    """
    adopt_orphans()
    resource_tracker._resource_tracker._fd = tracker  # type: ignore[attr-defined]
    with socket.socket(fileno=requests_fd) as requests:
        _ForkServer(requests, packages, fork).serve()


class _ForkServer:
    """Starts ranks, passes signals on, reports how they ended, and ends those it has to."""

    def __init__(self, requests: socket.socket, packages: list[str], fork: bool):
        self.requests, self.packages, self.fork = requests, packages, fork  # an item's packages are imported together
        self.serving = True  # until the requests are closed
        self.controls: dict[int, socket.socket] = {}  # by process id, of the ranks that run
        self.released: dict[int, float] = {}  # those whose control is closed, and until when they may run
        self.orphans = 0  # that have been killed, and are not reaped yet
        self.selector = selectors.DefaultSelector()
        self.wake_up, self.awake = os.pipe()
        for fd in (self.wake_up, self.awake):
            os.set_blocking(fd, False)
        self.started_ns = time.time_ns()
        if fork:
            importlib.import_module("labkit.ranks.processes.rank_process")
        self.lab = ImportedLab.now(self.started_ns)

    def serve(self) -> None:
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self.awake)
        self.selector.register(self.wake_up, selectors.EVENT_READ, self._reap_children)
        self.selector.register(self.requests, selectors.EVENT_READ, self._handle_request)
        while self.serving or self.controls or self.orphans:
            events = self.selector.select(0 if self._may_import() else self._time_left_s())
            for key, _ in events:
                key.data()
            if self._may_import() and not events:
                self._import_next_packages()
            self._kill_overdue()

    def _may_import(self) -> bool:
        """Return whether there is a package to import, and no rank in use would wait for that."""
        return bool(self.packages) and self.serving and self.controls.keys() <= self.released.keys()

    def _import_for(self, request: bytes) -> None:
        """Import what the ranks of a new launch are to have, or each would import it itself.

        So for a moment nobody looks after ranks that are in use: those of another launch, idle now.
        """
        if request == FIRST and len(self.packages) > 1:
            self._import_next_packages()
        while request == FIRST_WITH_MODELS and self.packages and self.serving:
            self._import_next_packages()

    def _import_next_packages(self) -> None:
        """Import packages. If one opens the GPU, tell the notebook which, and serve no more."""
        gc.disable()  # imports throw nothing away, and looking for it takes a quarter of their time
        for name in self.packages.pop(0).split():
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
            if self.fork and _cuda_is_open():
                with contextlib.suppress(BrokenPipeError):
                    send_message(self.requests, name.encode())
                self._stop_serving()
                break
        if self.fork:  # the lab's modules may be among them
            self.lab = self.lab.and_since(self.started_ns)
        gc.enable()
        gc.collect()
        gc.freeze()  # a collection in a rank would copy every page it looks at
        _take_huge_pages()

    def _stop_serving(self) -> None:
        if self.serving:
            self.serving = False
            self.selector.unregister(self.requests)
            self.requests.close()

    # --- ranks ------------------------------------------------------------------------------------

    def _handle_request(self) -> None:
        self._import_for(self.requests.recv(1, socket.MSG_PEEK))
        fds = socket.recv_fds(self.requests, 1, MAX_DESCRIPTORS)[1] if self.serving else []
        if not fds:
            self._stop_serving()
            return
        control, fds = socket.socket(fileno=fds[0]), fds[1:]
        if _is_closed(control):  # it may have taken long until this server could listen
            control.close()
        else:
            self._start_rank(control, fds)
        for fd in fds:
            os.close(fd)

    def _start_rank(self, control: socket.socket, fds: list[int]) -> None:
        try:
            pid = self._fork(control, fds) if self.fork else _start_fresh(fds)
        except OSError as error:  # there may be no more processes, or no memory for one
            _report(control, -(error.errno or 0))
            control.close()
            return
        self.controls[pid] = control
        _report(control, pid)
        self.selector.register(control, selectors.EVENT_READ, lambda: self._handle_control(pid))

    def _fork(self, control: socket.socket, fds: list[int]) -> int:
        if (pid := os.fork()) == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self.selector.close()
            for mine in (self.requests, control, *self.controls.values()):
                mine.close()
            os.close(self.wake_up)
            os.close(self.awake)
            _leave_process(lambda: become_rank(fds, self.lab))
        return pid

    def _handle_control(self, pid: int) -> None:
        """Send the rank the signals that the notebook asks for, or note that it is released."""
        if (control := self.controls.get(pid)) is None:  # it ended a moment ago
            return
        try:
            signals = control.recv(64)
        except ConnectionResetError:
            signals = b""
        for number in signals:
            _signal(pid, number)
        if not signals:
            self.selector.unregister(control)
            self.released[pid] = time.monotonic() + LEAVE_S

    def _time_left_s(self) -> float | None:
        """Return how long until the next released rank is overdue, None if there is none."""
        return max(0.0, min(self.released.values()) - time.monotonic()) if self.released else None

    def _kill_overdue(self) -> None:
        for pid in [pid for pid, until in self.released.items() if time.monotonic() >= until]:
            _signal(pid, signal.SIGKILL)
            self.released[pid] = time.monotonic() + LEAVE_S

    def _reap_children(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self.wake_up, 4096)
        try:
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                self._note_end(*ended)
        except ChildProcessError:
            self.orphans = 0
            return
        if not self.released:  # or it would look once for each of them
            self._kill_orphans()

    def _note_end(self, pid: int, status: int) -> None:
        """Report the end of a rank, and kill what it has left in its session."""
        if (control := self.controls.pop(pid, None)) is None:
            return  # an orphan
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        _report(control, os.waitstatus_to_exitcode(status))
        if self.released.pop(pid, None) is None:
            self.selector.unregister(control)
        control.close()

    def _kill_orphans(self) -> None:
        """Kill the children that are not ranks: ranks that have ended left them."""
        orphans = [child for child in psutil.Process().children() if child.pid not in self.controls]
        for orphan in orphans:
            with contextlib.suppress(psutil.NoSuchProcess):
                orphan.kill()
        self.orphans = len(orphans)


def _take_huge_pages() -> None:
    """Put the memory of the imported packages into pages of 2 MiB.

    A fork copies an entry for each page: with fewer, launching two ranks takes a quarter less time.
    Linux 6.1 and newer do so when asked; others refuse, which does no harm.
    """
    huge, collapse = 2 << 20, 25  # MADV_COLLAPSE
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    with contextlib.suppress(OSError), open("/proc/self/maps") as maps:
        for line in list(maps):
            addresses, rights, *_, inode_or_name = line.split()
            start, end = (int(address, 16) for address in addresses.split("-"))
            start, end = -(-start // huge) * huge, end // huge * huge
            if rights == "rw-p" and inode_or_name in ("0", "[heap]") and start < end:
                madvise(start, end - start, collapse)


def _signal(pid: int, number: int) -> None:
    """Send a signal to a rank; SIGKILL to every process that it started, too: its session."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
    if number == signal.SIGKILL:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # it has no session yet
            os.killpg(pid, number)


def _report(control: socket.socket, number: int) -> None:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the notebook has released it
        control.sendall(STATUS.pack(number, time.perf_counter_ns()))


def _is_closed(control: socket.socket) -> bool:
    """Return whether the notebook has released the rank already, so that it need not begin."""
    try:
        control.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)  # a signal to end it, or nothing: closed
    except BlockingIOError:
        return False
    return True


def _cuda_is_open() -> bool:
    """Return whether CUDA is in use in this process, which no fork survives.

    The device files tell, whoever opened them.
    """
    with contextlib.suppress(OSError):
        for fd in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/self/fd/{fd}").startswith("/dev/nvidia"):
                    return True
    torch = sys.modules.get("torch")
    return torch is not None and (torch.cuda.is_initialized() or torch.cuda._is_in_bad_fork())


# --- in a new process -----------------------------------------------------------------------------


def _start_fresh(fds: list[int]) -> int:
    """Start a rank as an interpreter of its own. Return its process id."""
    for fd in fds:
        os.set_inheritable(fd, True)
    code = f"from labkit.ranks.processes import fork_server; sys.exit(fork_server.become_rank({fds!r}))"
    return os.posix_spawn(sys.executable, python(code), os.environ)


def python(code: str) -> list[str]:
    """Return the command that runs ``code`` in an interpreter like this one, on its path."""
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return [sys.executable, *flags, "-c", f"import sys; sys.path[:] = {sys.path!r}; {code}"]


def become_rank(fds: list[int], lab: ImportedLab | None = None) -> int:
    """Be a rank, with the lab's code as the notebook would find it now. Return an exit status.

    ``fds`` are those of its connection to the notebook, its output, its stacks, and rank 0's
    listener. The first message on the connection is where the notebook is, and the rank's plan.
    """
    lab = lab or ImportedLab.now(time.time_ns())
    connection = socket.socket(fileno=fds[0])
    location, plan_and_rank = receive_message(connection)
    directory, sys.path[:] = pickle.loads(location)
    with contextlib.suppress(OSError):
        os.chdir(directory)
    if not lab.is_current():
        forget_lab()
    status: int = importlib.import_module("labkit.ranks.processes.rank_process").run(
        plan_and_rank, connection, *fds[1:]
    )
    return status


def _leave_process(last: Callable[[], int]) -> None:
    """Do one last thing, and end this process without the exit handlers that it was forked with."""
    status = 1
    try:
        status = last()
    except (EOFError, ConnectionError):
        pass  # the notebook has gone
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(status)
