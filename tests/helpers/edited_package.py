"""A copy of the package with another student file in it, for tests of what happens when a student
edits that file."""

from __future__ import annotations

from pathlib import Path

import labkit

LABKIT = Path(labkit.__file__).parent


def put(folder: Path, code: str, file: str = "dp.py", whole: bool = False) -> Path:
    """Make ``folder``/labkit, whose ``file`` ends with ``code``, or is nothing but ``code``; give
    its path."""
    package = folder / "labkit"
    package.mkdir()
    for entry in LABKIT.iterdir():
        if entry.name not in (file, "__pycache__"):
            (package / entry.name).symlink_to(entry)
    source = code if whole else f"{(LABKIT / file).read_text()}\n\n{code}"
    (package / file).write_text(source)
    return package
