"""Write files and folders whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path


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


def check_new(target: Path) -> None:
    """Raise FileExistsError where something is at ``target``, but for an empty folder."""
    if target.is_dir() and any(target.iterdir()):
        raise FileExistsError(f"{target} is not empty: give a new directory, or empty this one first")
    if target.exists() and not target.is_dir():
        raise FileExistsError(f"{target} is a file: give a new directory")


@contextlib.contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Give a folder to fill, which is ``target`` after the block: whole, or not there at all.

    Raises as :func:`check_new` does, and PermissionError where nothing can be written.
    """
    check_new(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    except OSError as error:
        raise PermissionError(
            f"nothing can be written in {target.parent} ({error.strerror}): give another directory"
        ) from None
    try:
        unfinished.chmod(0o755)
        yield unfinished
        unfinished.rename(target)  # takes the place of an empty folder
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
