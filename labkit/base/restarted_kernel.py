"""Say in one sentence what the lab's magics need in a kernel that has run no cell above them.

``make setup`` copies ``ipython_kernel_config.json`` into ``etc/ipython`` of its environment, so
each kernel there loads this extension as it starts. The first cell that imports the lab, or
``%load_ext labkit``, brings the magics themselves.
"""

from __future__ import annotations

import sys
from typing import Any

RUN_ABOVE = "this kernel has not run the cells above this one: choose Run, Run All Above Selected Cell"


def load_ipython_extension(shell: Any) -> None:
    """Set ``%%needs``, ``%ranks`` and ``%%ranks`` up to say so until the lab is imported.

    Leaves nothing of labkit imported: a lab may have one of its own.
    """
    for name in ("needs", "ranks"):
        shell.register_magic_function(_refuse, magic_kind="line_cell", magic_name=name)
    for module in [name for name in sys.modules if name.partition(".")[0] == "labkit"]:
        del sys.modules[module]


def _refuse(line: str, cell: str | None = None) -> None:
    from IPython.core.error import UsageError

    raise UsageError(RUN_ABOVE)
