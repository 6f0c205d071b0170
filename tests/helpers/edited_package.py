"""A copy of the package with another student file in it, as if a student had edited that file."""

from __future__ import annotations

from pathlib import Path

import labkit

LABKIT = Path(labkit.__file__).parent


def put(folder: Path, code: str, file: str = "dp.py", whole: bool = False) -> Path:
    """Make ``folder``/labkit, whose ``file`` ends with ``code`` or is ``code``; return its path."""
    package = folder / "labkit"
    (package / "__pycache__").mkdir(parents=True)
    for compiled in (LABKIT / "__pycache__").glob("*.pyc"):  # or each rank would compile the package again
        if not compiled.name.startswith(f"{Path(file).stem}."):
            (package / "__pycache__" / compiled.name).symlink_to(compiled)
    for entry in LABKIT.iterdir():
        if entry.name not in (file, "__pycache__"):
            (package / entry.name).symlink_to(entry)
    source = code if whole else f"{(LABKIT / file).read_text()}\n\n{code}"
    (package / file).write_text(source)
    return package
