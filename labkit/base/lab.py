"""Find the lab's own folder."""

from __future__ import annotations

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
