"""Tell a rank where it stands, and what it takes over from the notebook for each call."""

from __future__ import annotations

import linecache
import os
import sys
import tempfile
from typing import TYPE_CHECKING, NamedTuple

from labkit.base.lab import check_own
from labkit.base.notebook import in_notebook

if TYPE_CHECKING:  # a rank without an emulated link need not wait for this import
    from labkit.cost import Link


class RankConfig(NamedTuple):
    """Where this rank stands among the others, and what it runs on.

    ``device`` is such as ``"cpu"`` or ``"cuda:0"``.
    """

    rank: int
    world_size: int
    backend: str
    device: str
    timeout_s: float  # of each call
    threads: int
    init: bool
    master_port: int
    variables: dict[str, str]  # environment variables that only ranks get
    link: Link | None  # an emulated one
    cells: bool = False  # a call that fails leaves the rank there, see labkit.ranks.cells

    @property
    def environment(self) -> dict[str, str]:
        """Return what torchrun would set, for one machine, and this launch's own variables."""
        rank, world_size = str(self.rank), str(self.world_size)
        return {
            "RANK": rank,
            "LOCAL_RANK": rank,
            "WORLD_SIZE": world_size,
            "LOCAL_WORLD_SIZE": world_size,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self.master_port),
            # As under torchrun: the store at MASTER_PORT is there already, no rank has to open one.
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "OMP_NUM_THREADS": str(self.threads),
            **self.variables,
        }


class GroupNumber(NamedTuple):
    """Which process group a rank is to be in, and the port of the store where it is formed."""

    number: int
    port: int


class CallerEnvironment(NamedTuple):
    """What a rank takes over from the notebook for each call, as it is at that moment."""

    environment: dict[str, str]
    directory: str
    sys_path: list[str]
    argv: list[str]
    cell_sources: dict[str, list[str]]  # file name of a cell -> its lines, for tracebacks
    group: GroupNumber | None = None  # of ranks that run cells: None, go on with the present one

    @classmethod
    def here(cls) -> CallerEnvironment:
        """Return this process's own. FileNotFoundError if its directory has been deleted."""
        cells = {
            name: entry[2]
            for name, entry in linecache.cache.copy().items()  # a copy, as other threads fill it
            if len(entry) == 4 and not os.path.exists(name)
        }
        return cls(environment(), working_directory(), list(sys.path), _arguments(), cells)

    def enter(self, config: RankConfig, last: CallerEnvironment | None = None) -> None:
        """Make them this process's own, with what ``config`` adds to the environment.

        What is as in the ``last`` that was entered stays: a cell may have changed it since.
        """
        if last is None or self.environment != last.environment:
            for name in os.environ.keys() - self.environment.keys():
                del os.environ[name]
            os.environ.update(self.environment)
        os.environ.update(config.environment)
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
