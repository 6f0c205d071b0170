"""The commands of training as their users start them: by torchrun, or by hand in terminals."""

from __future__ import annotations

import os
import subprocess
import sys

from warm_python import Program

ENVIRONMENT = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo" if sys.platform == "linux" else "lo0"}


def without_torchrun(monkeypatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)


def by_torchrun(*flags: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Two ranks of a command that have ended well."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    env = os.environ | ENVIRONMENT | environment
    done = subprocess.run([*torchrun, "labkit.train", *flags], env=env, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return done


def terminal(*flags: str) -> Program:
    """A process that is one rank of a command, as in a terminal of its own."""
    return Program("-m", "labkit.train", *flags, **ENVIRONMENT)
