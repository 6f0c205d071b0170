"""Find the lab: the one folder that has the notebooks, runs, figures, reports and archives."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import NamedTuple

import labkit

# The labkit that is imported; in an unpacked submission the folder of its own student files.
PACKAGE = Path(labkit.__path__[0])


class Lab(NamedTuple):
    """A lab's folders. ``package`` is the labkit that is imported, with the student files."""

    folder: Path
    package: Path

    @property
    def notebooks(self) -> Path:
        return self.folder / "notebooks"

    @property
    def notebook_names(self) -> list[str]:
        """The notebooks in order, such as "00_start_here"."""
        return sorted(path.stem for path in self.notebooks.glob("*.ipynb"))

    @property
    def runs(self) -> Path:
        """Training runs and reports."""
        return self.folder / "runs"

    @property
    def figures(self) -> Path:
        """Where figures are saved: ``LABKIT_FIGURES`` if that is set."""
        given = os.environ.get("LABKIT_FIGURES")
        return Path(given) if given else self.folder / "figures"

    @property
    def answers(self) -> Path:
        """Where a reader's guesses are kept, outside the notebooks: ``LABKIT_ANSWERS`` if set.

        It need not exist yet: whatever writes there makes it.
        """
        given = os.environ.get("LABKIT_ANSWERS")
        return Path(given) if given else self.folder / ".labkit"

    def place(self, path: str) -> str:
        """Return a path that somebody typed: ``runs/…`` is in the lab, wherever that is typed."""
        parts = Path(path).parts
        return str(self.folder / path) if parts[:1] == ("runs",) and parts[1:] else path

    def shown(self, path: Path) -> str:
        """Return a path as short as it can be typed here."""
        return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


def lab() -> Lab:
    """Return the lab that the working directory is in, else the one that labkit is imported from.

    A lab is a folder that has ``notebooks`` in it, or labkit's own pyproject.toml. Where there is
    none, the working directory stands for it.
    """
    here = Path.cwd()
    return Lab(next(filter(_is_lab, (here, *here.parents, PACKAGE.parent)), here), PACKAGE)


def outside() -> str:
    """Return a sentence if the working directory is in no lab: what a command is about then."""
    here, found = Path.cwd(), lab().folder
    if here == found and not _is_lab(here):
        return f"{here} is in no lab, and labkit is not imported from one: what is kept stays in {here}"
    if not here.is_relative_to(found):
        return f"{here} is in no lab: this is about {found}, which labkit is imported from"
    return ""


# --- a lab whose labkit is not the imported one, as on a hub or beside a second clone -------------


def check_own() -> None:
    """Raise ImportError where the lab has a labkit of its own, and another one is imported."""
    __tracebackhide__ = True
    if own := _own_beside():
        raise ImportError(
            f"labkit is imported from {PACKAGE}, but this lab has its own in {own}, which is the one to use here. In a notebook: "
            f"restart the kernel, and begin with import sys; sys.path.insert(0, {str(own.parent)!r}). In a terminal: "
            f"export PYTHONPATH={shlex.quote(str(own.parent))}"
        )


def start_again_in_own() -> None:
    """Start this command again with the lab's own labkit if another one is imported, and say so."""
    if own := _own_beside():
        first, _, rest = os.environ.get("PYTHONPATH", "").partition(os.pathsep)
        if first == str(own.parent):  # a Python that does not look there, as with -I
            check_own()
        print(f"labkit: using {own}, which is this lab's own, not {PACKAGE}", file=sys.stderr, flush=True)
        path = os.pathsep.join(filter(None, [str(own.parent), first, rest]))
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | {"PYTHONPATH": path})


def _own_beside() -> Path | None:
    """Return the labkit in the lab's folder where that is not what is imported."""
    own = lab().folder / "labkit"
    imported = {Path(folder).resolve() for folder in (PACKAGE, *map(Path, labkit.__path__))}
    return own if (own / "__init__.py").is_file() and own.resolve() not in imported else None


def _is_lab(folder: Path) -> bool:
    project = folder / "pyproject.toml"
    return (folder / "notebooks").is_dir() or (
        project.is_file() and 'name = "labkit"' in project.read_text(encoding="utf-8", errors="replace")
    )
