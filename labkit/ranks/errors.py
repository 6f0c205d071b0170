"""What launch raises once ranks have started: one has failed, or they did not finish in time."""

from __future__ import annotations

import errno
import resource
import signal
import socket
import sys
import textwrap
from collections.abc import Sequence

NO_CONNECTION = 254  # the exit status of a rank that cannot reach the notebook any more
_GLOO_IS_CLOSED = "gloo/transport/tcp/loop.cc:"  # where gloo aborts if it cannot wait for its connections any more

NCCL_ADVICE = (
    "Has every rank joined it? Then NCCL may not get from one GPU to the other: try os.environ['NCCL_P2P_DISABLE'] = '1' "
    "before the launch; with os.environ['NCCL_DEBUG'] = 'INFO' NCCL says what it does."
)

FILES_A_RANK, FILES = 4, 12  # that a launch keeps open here
PROCESSES_A_RANK, PROCESSES = 6, 4  # that it starts, threads counted


class RankError(RuntimeError):
    """A rank raised, or died.

    ``.rank``, ``.error_type`` (the exception's name, or such as ``"SIGKILL"``), ``.traceback``.

    The message is one line; the rank's traceback, with source lines, is shown below it. For a rank
    that died, so are the last lines that it printed (``.last_lines``), since C++ code gives its
    reason there.
    """

    def __init__(self, rank: int, error_type: str, message: str, traceback: str = "", last_lines: Sequence[str] = ()):
        super().__init__(f"rank {rank} {message}")
        self.rank, self.error_type, self.traceback, self.last_lines = rank, error_type, traceback, list(last_lines)
        if traceback:
            self.add_note(f"\n{traceback}")
        if last_lines:
            self.add_note("\n".join([f"\nThe last that rank {rank} printed:", *last_lines]))

    def _render_traceback_(self) -> list[str]:
        """Return what IPython shows: the rank's traceback, not the path through this file."""
        return [f"{type(self).__name__}: {self}", *getattr(self, "__notes__", [])]


class LaunchTimeout(RuntimeError):
    """The ranks did not finish in time.

    ``.stacks`` is ``{rank: text}``: where each one was when the time was up. ``began`` says whether
    any of them had begun by then; ``advice`` is one more line for the reader.
    """

    def __init__(self, timeout_s: float, stacks: dict[int, str], began: bool = True, advice: str = ""):
        super().__init__(
            f"the ranks did not finish within timeout_s={timeout_s:g} s and were ended. "
            "A collective that not every rank joins waits for ever; below is where each rank was."
            if began
            else f"no rank had begun within timeout_s={timeout_s:g} s, which counts from the call"
        )
        self.stacks = stacks
        if advice and began:
            self.add_note(advice)
        for stack in dict.fromkeys(stacks.values()):
            ranks = ", ".join(str(rank) for rank, other in stacks.items() if other == stack)
            self.add_note(f"\nrank{'s' * (',' in ranks)} {textwrap.shorten(ranks, 60, placeholder=' …')}:\n{stack}")

    _render_traceback_ = RankError._render_traceback_


def check_loopback() -> None:
    """Raise ConnectionError if this machine cannot reach itself: ranks talk by its loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("127.0.0.1", 9))  # asks for the way there only, and sends nothing
        except OSError as error:
            raise ConnectionError(
                f"launch: the loopback interface of this machine, by which ranks talk, is down ({error.strerror} to "
                "127.0.0.1). Bring it up first, on Linux with: ip link set lo up"
            ) from None


def explain_os_error(error: OSError, world_size: int) -> None:
    """Add to an error the limit that a launch ran into, its value, and how much it needs.

    An error about something else stays as it is.
    """
    if error.errno == errno.EMFILE:
        limit, need = resource.getrlimit(resource.RLIMIT_NOFILE)[0], world_size * FILES_A_RANK + FILES
        text = (
            f"this process may have {limit} files open (RLIMIT_NOFILE, ulimit -n), and {world_size} ranks need about {need} "
            "besides those that it has. Start fewer ranks, close files, or raise the limit"
        )
    elif error.errno == errno.EAGAIN:
        limit, need = resource.getrlimit(resource.RLIMIT_NPROC)[0], world_size * PROCESSES_A_RANK + PROCESSES
        named = "no limit" if limit == resource.RLIM_INFINITY else f"a limit of {limit} processes and threads"
        text = (
            f"the system starts no more processes: this user has {named} (RLIMIT_NPROC, ulimit -u), and a container may have "
            f"one of its own. {world_size} ranks need about {need}. Start fewer ranks, end other processes, or raise the limit"
        )
    else:
        return
    error.strerror = f"{error.strerror}. launch: {text}"


def how_it_ended(status: int, last_lines: Sequence[str] = ()) -> tuple[str, str]:
    """Return (error type, sentence) for an exit status as waitpid gives it.

    ``last_lines`` is the last that the rank printed.
    """
    if status == NO_CONNECTION or any(_GLOO_IS_CLOSED in line for line in last_lines):
        return "NoConnection", (
            "could not answer: the code in it has closed its connections, or put another file in their place. Look for "
            "os.close, os.closerange or os.dup2 on file descriptors that are not its own"
        )
    if status < 0:
        try:
            name = signal.Signals(-status).name
        except ValueError:  # a real-time signal has a number only
            name = f"signal {-status}"
        hint = " (out of memory?)" if name == "SIGKILL" and sys.platform == "linux" else ""
        return name, f"was killed by {name}{hint}"
    return f"exit status {status}", f"ended with exit status {status} before its function returned"
