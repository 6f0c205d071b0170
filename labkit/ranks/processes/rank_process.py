"""Turn a process into a rank whose life is tied to its server: session, signals, output, stacks."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import multiprocessing.util
import os
import signal
import socket
import sys

from labkit.base.orphans import adopt_orphans
from labkit.base.parent import end_with_parent
from labkit.ranks.processes import rank

STUCK_SIGNAL = signal.SIGUSR1  # which a server blocks, and a rank lets through once it is ready for it


def run(plan_and_rank: bytes | bytearray, connection: socket.socket, output: int, stacks: int, listener: int) -> int:
    """Be a rank of a plan, both pickled, until the notebook closes the connection.

    ``output``, ``stacks`` and ``listener`` are file descriptors. Return an exit status.
    """
    with contextlib.suppress(PermissionError):  # leads a session already
        os.setsid()  # an interrupt of the notebook's process group must not reach the ranks
    end_with_parent()  # that is its server
    adopt_orphans()
    _die_before_the_notebook()
    _keep_freed_memory()
    _draw_seeds()
    atexit._clear()  # what the preloaded packages have registered is the server's to run
    atexit.register(multiprocessing.util._exit_function)  # type: ignore[attr-defined]
    _redirect_output(output)
    faulthandler.enable(stacks)
    # Written whatever holds Python's lock: asked only of a rank whose watch does not get it.
    faulthandler.register(STUCK_SIGNAL, file=stacks, all_threads=True)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [STUCK_SIGNAL])
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        rank.serve(plan_and_rank, connection, listener, stacks)
    atexit._run_exitfuncs()
    return 0


def _die_before_the_notebook() -> None:
    """Have Linux end this process, not the notebook, where memory runs out."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("1000")  # the maximum


def _draw_seeds() -> None:
    """Seed the generators that were forked, which would give every rank the same numbers.

    A new process draws its seeds, too. Python's module does so by itself.
    """
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.seed()  # a GPU's is made in the rank
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()


def _keep_freed_memory() -> None:
    """Have the C library keep what is freed, as it does by itself once a large tensor was freed.

    Until then a freed tensor goes back to the system, above all in autograd's threads, and the
    pages of the next one have to be zeroed again: a cost of the first steps that no prediction has.
    """
    if hasattr(_libc, "mallopt"):  # glibc
        mmap_threshold, trim_threshold = -3, -1  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD
        _libc.mallopt(mmap_threshold, 32 << 20)  # glibc's maximum
        _libc.mallopt(trim_threshold, 64 << 20)  # twice that is its own choice


_libc = ctypes.CDLL(None)


def _redirect_output(output: int) -> None:
    """Send what Python and C code print to the notebook, a line at a time."""
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    sys.stdout = open(1, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    line_buffered = 1  # C's _IOLBF, in glibc and on macOS
    stdout = ctypes.c_void_p.in_dll(_libc, "stdout" if sys.platform == "linux" else "__stdoutp")
    _libc.setvbuf(stdout, None, line_buffered, 0)
