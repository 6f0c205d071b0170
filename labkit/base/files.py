"""Find the lab's folders, and write files whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def lab_folder() -> Path:
    """Return the lab that the working directory is in, else the working directory.

    A lab is a folder that has ``notebooks`` in it, or labkit's own pyproject.toml.
    """
    here = Path.cwd()
    for folder in (here, *here.parents):
        project = folder / "pyproject.toml"
        if (folder / "notebooks").is_dir() or (project.is_file() and 'name = "labkit"' in project.read_text()):
            return folder
    return here


def answers_folder() -> Path:
    """Return where a reader's guesses are kept, outside the notebooks.

    It is ``LABKIT_ANSWERS`` if that is set, else ``.labkit`` of the lab. It need not exist yet:
    whatever writes there makes it.
    """
    given = os.environ.get("LABKIT_ANSWERS")
    return Path(given) if given else lab_folder() / ".labkit"


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file such that no reader ever sees half of it."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(temporary, 0o644)  # mkstemp lets only the owner read
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
