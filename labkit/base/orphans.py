"""Adopt orphans: the children of a process that has ended."""

from __future__ import annotations

import ctypes
import sys


def adopt_orphans() -> None:
    """Adopt what a descendant of this process leaves behind: it becomes this process's child."""
    if sys.platform == "linux":
        pr_set_child_subreaper = 36
        ctypes.CDLL(None).prctl(pr_set_child_subreaper, 1)
