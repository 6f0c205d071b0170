"""The processes that ranks come from: they have imported what takes long, and fork.

There are two, one behind the other. The *package server* imports third-party packages, which takes
seconds. It is kept for as long as they would be imported in the same way. The *rank server*, forked
by it, imports the lab's own modules that every rank needs, as they are on disk at that moment,
which takes a tenth of a second. Once they have changed, a new one takes its place. Neither imports
anything of the student's code. Neither is the notebook: CUDA may be in use there, and `__main__` is
not imported again, so scripts need no guard.

The rank server looks after its ranks until the last of them has ended, whatever becomes of the
notebook. It has a session of its own, so it outlives the notebook's process group. For each rank it
has a *control*, a socket whose other end the notebook holds. On it the server sends the rank's
process id, then its exit status; the notebook may send numbers of signals. When the notebook closes
the control, or dies, the rank gets a moment to end by itself.

Servers and ranks adopt orphans. So whatever a rank has started stays below it while it runs, in
whatever session, and becomes a child of the server when the rank ends. The server then ends it as
well. (Only Linux has such adoption. Elsewhere the rank's own session is ended.)
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
from collections.abc import Callable, Container
from multiprocessing import resource_tracker
from typing import Any, NamedTuple

import psutil

from labkit.ranks import messages

# On a control: a process id, or -errno if there can be no process; then an exit status, negative
# for a signal.
STATUS = struct.Struct("!q")
LEAVE_S = 2.0  # how long a rank may take to end by itself
MOST_DESCRIPTORS = 8  # in one request


class Setup(NamedTuple):
    """What a rank server is told: where the lab is found, and whether to fork ranks."""

    sys_path: list[str]
    directory: str
    fork: bool


class Report(NamedTuple):
    """What a rank server tells: what it has imported of the lab, and whether it may not fork."""

    files: dict[str, tuple[int, int]]  # path -> stamp()
    opened_cuda: str  # the package that has, which no fork survives; "" if none has


def stamp(path: str) -> tuple[int, int]:
    """Return what changes when a file is changed: its time of modification and its size.

    Zeros if it is not there.
    """
    try:
        status = os.stat(path)
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_size


def adopt_orphans() -> None:
    """Adopt what a descendant of this process leaves behind: it becomes this process's child."""
    if sys.platform == "linux":
        pr_set_child_subreaper = 36
        ctypes.CDLL(None).prctl(pr_set_child_subreaper, 1)


def end_children(but: Container[int]) -> int:
    """Kill this process's children, except those with these process ids. Return how many."""
    orphans = [child for child in psutil.Process().children() if child.pid not in but]
    for orphan in orphans:
        with contextlib.suppress(psutil.NoSuchProcess):
            orphan.kill()
    return len(orphans)


# --- the package server ---------------------------------------------------------------------------


def serve_packages(requests_fd: int, tracker: int, preload: list[str]) -> None:
    """Import ``preload``, then fork a rank server for every socket that comes through.

    They come over the socket ``requests_fd``.
    """
    adopt_orphans()
    resource_tracker._resource_tracker._fd = tracker  # type: ignore[attr-defined]  # the notebook's, for all ranks
    opened_cuda = ""
    for name in preload:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
        if not opened_cuda and _cuda_is_open():
            opened_cuda = name
    gc.collect()
    gc.freeze()  # a collection in a rank would copy every page it looks at
    _take_huge_pages()
    rank_servers: set[int] = set()
    signal.signal(signal.SIGCHLD, lambda *_: _reap(rank_servers))
    with socket.socket(fileno=requests_fd) as requests:
        while fds := _request(requests):
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])  # until the new one is known
            if (pid := os.fork()) == 0:
                requests.close()
                _leave_process(lambda: _become_rank_server(socket.socket(fileno=fds[0]), opened_cuda))
            rank_servers.add(pid)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
            os.close(fds[0])
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    while not _reap(rank_servers):
        signal.sigwait([signal.SIGCHLD])


def _reap(rank_servers: set[int]) -> bool:
    """Reap rank servers that have ended, and kill what they left. Return whether that was all.

    A rank server that is killed takes its ranks along, but not what these have started.
    """
    with contextlib.suppress(ChildProcessError):
        while pid := os.waitpid(-1, os.WNOHANG)[0]:
            rank_servers.discard(pid)
        return end_children(but=rank_servers) == 0 and not rank_servers
    return True


def _take_huge_pages() -> None:
    """Put the memory of the imported packages into pages of 2 MiB.

    A fork copies an entry for each page, so it takes less time with fewer of them. Linux 6.1 and
    newer do so when asked; others refuse, which does no harm.
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


def _request(requests: socket.socket) -> list[int]:
    """Return the descriptors of the next request, or none if there will be no other."""
    try:
        return socket.recv_fds(requests, 1, MOST_DESCRIPTORS)[1]
    except ConnectionResetError:  # closed without having read our report
        return []


def _leave_process(last: Callable[[], Any]) -> None:
    """Do one last thing, and end this process without the exit handlers that it was forked with."""
    status = 1
    try:
        status = last() or 0
    except (EOFError, ConnectionError):
        pass  # whoever asked has gone
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(status)


def _become_rank_server(requests: socket.socket, opened_cuda: str) -> None:
    setup = Setup(*pickle.loads(messages.receive(requests)[0]))
    sys.path[:] = setup.sys_path
    with contextlib.suppress(OSError):
        os.chdir(setup.directory)
    for name in [name for name in sys.modules if name.partition(".")[0] == "labkit"]:
        del sys.modules[name]
    importlib.invalidate_caches()
    importlib.import_module(__name__).serve_ranks(
        requests, setup.fork, opened_cuda
    )  # this file, too, as it is on disk now


# --- the rank server ------------------------------------------------------------------------------


def serve_ranks(requests: socket.socket, fork: bool, opened_cuda: str) -> None:
    """Start ranks until ``requests`` is closed, and look after them until the last has gone."""
    started_ns = time.time_ns()
    adopt_orphans()
    if fork:
        importlib.import_module("labkit.ranks.rank_process")
    gc.freeze()
    report = Report(_lab_files(started_ns), opened_cuda * fork)
    with contextlib.suppress(BrokenPipeError):  # nobody waits for it any more
        messages.send(requests, pickle.dumps(tuple(report)))
    if not report.opened_cuda:
        _RankServer(requests, fork).serve()


def _lab_files(started_ns: int) -> dict[str, tuple[int, int]]:
    """Return the stamps of the lab's imported files; a wrong one if a file changed meanwhile."""
    files = {
        module.__file__: stamp(module.__file__)
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] == "labkit" and module.__file__
    }
    return {path: (changed_ns, size * (changed_ns < started_ns)) for path, (changed_ns, size) in files.items()}


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


class _RankServer:
    """Starts ranks, passes signals on, tells how they ended, and ends those that were let go of."""

    def __init__(self, requests: socket.socket, fork: bool):
        self.requests, self.fork = requests, fork
        self.controls: dict[int, socket.socket] = {}  # by process id, of the ranks that run
        self.let_go: dict[int, float] = {}  # those whose control is closed, and until when they may run
        self.orphans = 0  # that have been killed, and are not taken away yet
        self.selector = selectors.DefaultSelector()
        self.wake_up, self.awake = os.pipe()
        for fd in (self.wake_up, self.awake):
            os.set_blocking(fd, False)

    def serve(self) -> None:
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self.awake)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
        self.selector.register(self.wake_up, selectors.EVENT_READ, self._reap_children)
        self.selector.register(self.requests, selectors.EVENT_READ, self._start)
        asked = True
        while asked or self.controls or self.orphans:
            until = min(self.let_go.values(), default=None)
            for key, _ in self.selector.select(None if until is None else max(0.0, until - time.monotonic())):
                asked = key.data() and asked
            for pid in [pid for pid, end in self.let_go.items() if time.monotonic() >= end]:
                self._signal(pid, signal.SIGKILL)
                self.let_go[pid] = time.monotonic() + LEAVE_S

    def _start(self) -> bool:
        """Start the rank that is asked for. Return False if none will be asked for any more."""
        if not (fds := _request(self.requests)):
            self.selector.unregister(self.requests)
            return False
        control, fds = socket.socket(fileno=fds[0]), fds[1:]
        if _is_hung_up(control):  # it may have taken long until this server could listen
            control.close()
        else:
            self._start_rank(control, fds)
        for fd in fds:
            os.close(fd)
        return True

    def _start_rank(self, control: socket.socket, fds: list[int]) -> None:
        try:
            pid = self._fork(control, fds) if self.fork else _start_fresh(fds)
        except OSError as error:  # there may be no more processes, or no memory for one
            _tell(control, -(error.errno or 0))
            control.close()
            return
        self.controls[pid] = control
        _tell(control, pid)
        self.selector.register(control, selectors.EVENT_READ, lambda: self._obey(pid))

    def _fork(self, control: socket.socket, fds: list[int]) -> int:
        if (pid := os.fork()) == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self.selector.close()
            for mine in (self.requests, control, *self.controls.values()):
                mine.close()
            os.close(self.wake_up)
            os.close(self.awake)
            _leave_process(lambda: sys.modules["labkit.ranks.rank_process"].run(*fds))
        return pid

    def _obey(self, pid: int) -> bool:
        """Send the rank the signals that the notebook asks for, or note that it has let go."""
        if (control := self.controls.get(pid)) is None:  # it ended a moment ago
            return True
        try:
            signals = control.recv(64)
        except ConnectionResetError:
            signals = b""
        for number in signals:
            self._signal(pid, number)
        if not signals:
            self.selector.unregister(control)
            self.let_go[pid] = time.monotonic() + LEAVE_S
        return True

    def _signal(self, pid: int, number: int) -> None:
        """Send a signal to a rank; SIGKILL to every process that it started, too: its session."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        if number == signal.SIGKILL:
            with contextlib.suppress(ProcessLookupError, PermissionError):  # it has no session yet
                os.killpg(pid, number)

    def _reap_children(self) -> bool:
        with contextlib.suppress(BlockingIOError):
            os.read(self.wake_up, 4096)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self.orphans = 0
                return True
            if pid == 0:  # the others run: ranks, and what ranks have left
                if not self.let_go:  # or it would look once for each of them
                    self.orphans = end_children(but=self.controls)
                return True
            if (control := self.controls.pop(pid, None)) is None:
                continue  # an orphan
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)  # what it has left behind in its session
            _tell(control, os.waitstatus_to_exitcode(status))
            if self.let_go.pop(pid, None) is None:
                self.selector.unregister(control)
            control.close()


def _tell(control: socket.socket, news: int) -> None:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # nobody wants to know any more
        control.sendall(STATUS.pack(news))


def _is_hung_up(control: socket.socket) -> bool:
    """Return whether nobody waits for the rank any more, so that it need not begin."""
    try:
        control.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)  # a signal to end it, or nothing: closed
    except BlockingIOError:
        return False
    return True


def _start_fresh(fds: list[int]) -> int:
    """Start a rank as an interpreter of its own. Return its process id."""
    for fd in fds:
        os.set_inheritable(fd, True)
    code = f"from labkit.ranks import rank_process; sys.exit(rank_process.run(*{fds!r}))"
    return os.posix_spawn(sys.executable, python(code, sys.path), os.environ)


def python(code: str, path: list[str]) -> list[str]:
    """Return the command that runs ``code`` in an interpreter like this one, on this path."""
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return [sys.executable, *flags, "-c", f"import sys; sys.path[:] = {path!r}; {code}"]
