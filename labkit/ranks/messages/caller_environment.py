"""Take over from the notebook what a rank needs for each call, as it is at that moment."""

from __future__ import annotations

import linecache
import os
import sys
from collections.abc import Mapping
from typing import NamedTuple

from labkit.base.notebook import in_notebook


class CallerEnvironment(NamedTuple):
    """The notebook's environment variables, directory, path and arguments, for each call."""

    environment: dict[str, str]
    directory: str
    sys_path: list[str]
    argv: list[str]
    cell_sources: dict[str, list[str]]  # file name of a cell -> its lines, for tracebacks

    @classmethod
    def here(cls) -> CallerEnvironment:
        """Return this process's own. FileNotFoundError if its directory has been deleted."""
        cells = {
            name: entry[2]
            for name, entry in linecache.cache.copy().items()  # a copy, as other threads fill it
            if len(entry) == 4 and not os.path.exists(name)
        }
        return cls(environment(), working_directory(), list(sys.path), _arguments(), cells)

    def enter(self, variables: Mapping[str, str], last: CallerEnvironment | None = None) -> None:
        """Make them this process's own, with ``variables`` that this rank gets beside them.

        What is as in the ``last`` that was entered stays: a cell may have changed it since.
        """
        if last is None or self.environment != last.environment:
            for name in os.environ.keys() - self.environment.keys():
                del os.environ[name]
            os.environ.update(self.environment)
        os.environ.update(variables)
        if last is None or self.directory != last.directory:
            os.chdir(self.directory)
        if last is None or self.sys_path != last.sys_path:
            sys.path[:] = self.sys_path
        if last is None or self.argv != last.argv:
            sys.argv[:] = self.argv
        for name, lines in self.cell_sources.items():
            linecache.cache[name] = (sum(map(len, lines)), None, lines, name)


def environment() -> dict[str, str]:
    """Return the environment variables, whatever other threads do to them meanwhile."""
    return {name: value for name in list(os.environ) if (value := os.environ.get(name)) is not None}


def _arguments() -> list[str]:
    """Return the command's arguments; a notebook has none, only its kernel's."""
    kernels = in_notebook() and sys.argv and "kernel" in sys.argv[0]
    return [""] if kernels else list(sys.argv)


def working_directory() -> str:
    """Return this process's working directory. FileNotFoundError if it has been deleted."""
    __tracebackhide__ = True
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise FileNotFoundError(
            "launch: the working directory of this notebook has been deleted, and ranks start in it. "
            "Go to one that exists first: os.chdir(...)"
        ) from None
