"""What the fork server's child unpickles in order to become a rank. Small, because a rank waits for every import."""

from __future__ import annotations

import os
from multiprocessing import forkserver
from typing import Any

from labkit.ranks import rank


class RankSeed:
    """Stands in for a multiprocessing process; the rank's code is imported with it, as it is on disk now."""

    def _bootstrap(self, parent_sentinel: int) -> int:
        server: Any = forkserver._forkserver
        # Every child holds the pipe that keeps the server alive. Ours must not, or a stuck rank would outlive the notebook.
        if (alive := getattr(server, "_forkserver_alive_fd", None)) is not None:
            os.close(alive)
            server._forkserver_alive_fd = None
        return rank.serve(*server.get_inherited_fds(), life=parent_sentinel)
