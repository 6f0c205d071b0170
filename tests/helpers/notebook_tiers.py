"""Which notebooks the fast tests replay; the others are replayed with SLOW=1, and so in CI."""

from __future__ import annotations

from pathlib import Path

FAST = ("00", "02", "09", "13")


def left_out(fast: tuple[str, ...] = FAST) -> str:
    """Return a line that names the notebooks that the fast tests do not replay, and how to replay
    one. In a student edition they replay none."""
    folder = Path(__file__).resolve().parents[2] / "notebooks"
    numbers = [path.stem[:2] for path in sorted(folder.glob("[0-9]*.ipynb")) if not path.stem.startswith(fast)]
    return (
        f"Left out: the slow tests, and notebooks {', '.join(numbers)}. "
        f'Replay one: make test TESTS="tests/course/test_notebooks.py -k {numbers[0]}"'
    )
