"""Tell whether the lab has changed on disk since a process imported it, and forget it."""

from __future__ import annotations

import importlib
import os
import sys
from typing import NamedTuple


class ImportedLab(NamedTuple):
    """The lab as a process has imported it: from where, and its files as they were then."""

    origin: str | None
    stamps: dict[str, tuple[int, int]]  # by path

    @classmethod
    def now(cls, started_ns: int) -> ImportedLab:
        """Return the lab of this process; a file that changed after ``started_ns`` has changed."""
        stamps = {file: stamp(file) for name in _lab_modules() if (file := sys.modules[name].__file__)}
        for file, (changed_ns, _) in stamps.items():
            if changed_ns >= started_ns:  # perhaps not what was imported
                stamps[file] = (0, 0)
        return cls(sys.modules["labkit"].__file__, stamps)

    def and_since(self, started_ns: int) -> ImportedLab:
        """Return it with what this process has imported of the lab since then."""
        return self._replace(stamps=ImportedLab.now(started_ns).stamps | self.stamps)

    def is_current(self) -> bool:
        """Return whether this process would import the same from ``sys.path``."""
        specs = (finder.find_spec("labkit", None) for finder in sys.meta_path if hasattr(finder, "find_spec"))
        found = next(filter(None, specs), None)
        origin = found.origin if found else None
        return origin == self.origin and all(stamp(file) == was for file, was in self.stamps.items())


def stamp(path: str) -> tuple[int, int]:
    """Return what changes when a file is changed: its time of modification and its size.

    Zeros if it is not there.
    """
    try:
        status = os.stat(path)
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_size


def forget_lab() -> None:
    """Forget the lab's modules: what is imported from here on is as it is on disk."""
    for name in _lab_modules():
        del sys.modules[name]
    importlib.invalidate_caches()


def _lab_modules() -> list[str]:
    return [name for name in sys.modules if name.partition(".")[0] == "labkit"]
