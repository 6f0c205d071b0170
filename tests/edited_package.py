"""A copy of the package with another dp.py in it, for tests of what happens when a student edits that file."""

from __future__ import annotations

from pathlib import Path

import labkit

LABKIT = Path(labkit.__file__).parent


def put(folder: Path, code: str, whole: bool = False) -> Path:
    """Make ``folder``/labkit, whose dp.py ends with ``code``, or is nothing but ``code``; give its path."""
    package = folder / "labkit"
    package.mkdir()
    for entry in LABKIT.iterdir():
        if entry.name not in ("dp.py", "__pycache__"):
            (package / entry.name).symlink_to(entry)
    source = code if whole else f"{(LABKIT / 'dp.py').read_text()}\n\n{code}"
    (package / "dp.py").write_text(source)
    return package
