"""Start kernels on sockets in Jupyter's private folder, not on TCP ports of the machine."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import TypeVar

from jupyter_client.manager import KernelManager
from jupyter_core.paths import jupyter_runtime_dir

Manager = TypeVar("Manager", bound=KernelManager)


def over_ipc(manager: Manager) -> Manager:
    """Have ``manager``, before it starts its kernel, start one that listens on no port; return it.

    Its sockets lie next to its connection file, which only this user can read.
    """
    folder = Path(jupyter_runtime_dir())
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    manager.transport = "ipc"
    manager.connection_file = str(folder / f"kernel-{uuid.uuid4()}.json")  # it has none yet by default
    return manager
