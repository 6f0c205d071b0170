"""Refuse what this machine cannot give ranks: a folder to be in, its loopback, a process more."""

from __future__ import annotations

import socket
import tempfile

from labkit.base.lab import check_own
from labkit.ranks.messages.caller_environment import working_directory


def check_folders() -> None:
    """Raise FileNotFoundError where ranks could not start: nowhere to be, or to put a file.

    ImportError where they would import another labkit than that of the lab.
    """
    __tracebackhide__ = True
    working_directory()
    check_own()
    try:
        tempfile.gettempdir()
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"launch: torch needs a folder for temporary files ({error.strerror}). Set TMPDIR to a folder that you may write to, "
            "before Python starts"
        ) from None


def check_loopback() -> None:
    """Raise ConnectionError if this machine cannot reach itself: ranks talk over its loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("127.0.0.1", 9))  # asks for the way there only, and sends nothing
        except OSError as error:
            raise ConnectionError(
                f"launch: the loopback interface of this machine, by which ranks talk, is down ({error.strerror} to "
                "127.0.0.1). Bring it up first, on Linux with: ip link set lo up"
            ) from None


def explain_refusal(error: OSError, world_size: int) -> None:
    """Say in an error of the system's what it was refused for, and what to do."""
    if error.errno is not None:
        error.strerror = (
            f"{error.strerror}. launch: the system refuses what {world_size} ranks need here. Start fewer ranks, end other "
            "processes, or raise its limits: ulimit -a shows them, and a container has its own"
        )
