"""The commands of training as their users start them: by torchrun, or by hand in terminals."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

ENVIRONMENT = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo" if sys.platform == "linux" else "lo0"}


def without_torchrun(monkeypatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def by_torchrun(*flags: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Two ranks of a command that have ended well."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    env = os.environ | ENVIRONMENT | environment
    done = subprocess.run([*torchrun, "labkit.train", *flags], env=env, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return done


def terminal(*flags: str) -> subprocess.Popen[str]:
    """A process that is one rank of a command, as in a terminal of its own."""
    command = [sys.executable, "-m", "labkit.train", *flags]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=os.environ | ENVIRONMENT)


def ended(processes: list[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    """Exit status, stdout and stderr of processes, once they have ended."""
    try:
        printed = [process.communicate(timeout=200) for process in processes]
        return [(process.returncode, *both) for process, both in zip(processes, printed, strict=True)]
    finally:
        for process in processes:
            process.kill()
