"""What a run shows in its cell while it goes on: the lines its ranks print, and their progress."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from labkit.base.notebook import static


def _is_closed(stream: Any) -> bool:
    return stream is None or getattr(stream, "closed", False)


def show(text: str) -> None:
    """Write to ``sys.stdout`` as much as it can take.

    What it cannot encode is escaped. Nothing is shown where there is no stdout, or a closed one.
    """
    out = sys.stdout
    if _is_closed(out):
        return
    try:
        out.write(text)
    except UnicodeEncodeError:
        encoding = getattr(out, "encoding", None) or "ascii"
        out.write(text.encode(encoding, "backslashreplace").decode(encoding))
    if hasattr(out, "flush"):
        out.flush()


class CellOutput:
    """What ranks print: shown as it comes, or held until the end and shown in rank order.

    Of more than ``most`` characters the rest is left out, and a line says so.
    """

    def __init__(self, held: bool, most: int = sys.maxsize):
        self.held, self._rest = held, most
        self.lines: dict[int, list[str]] = defaultdict(list)

    def __call__(self, rank: int, lines: Iterable[str]) -> None:
        if self.held:
            self.lines[rank] += self._shortened(lines)
        else:
            self._write(rank, self._shortened(lines))

    def _shortened(self, lines: Iterable[str]) -> Iterator[str]:
        for line in lines:
            if self._rest > 0:
                yield line[: self._rest]
                self._rest -= len(line) + 1
                if self._rest <= 0:
                    yield "labkit: what is printed beyond this is left out"

    def _write(self, rank: int, lines: Iterable[str]) -> None:
        show("".join(f"[rank {rank}] {line}\n" for line in lines))

    def show(self) -> None:
        for rank in sorted(self.lines):
            self._write(rank, self.lines[rank])


class CellBars:
    """The progress bars of one run: one for each description, as far as the slowest rank.

    Those that are full are gone when it is over, or a cell with many runs would be full of them.
    """

    def __init__(self) -> None:
        self._bars: dict[str, Any] = {}
        self._counts: dict[str, dict[int, int]] = {}

    def __call__(self, rank: int, desc: str, done: int, total: int | None) -> None:
        if static() or _is_closed(sys.stdout) or _is_closed(sys.stderr):
            return
        counts = self._counts.setdefault(desc, {})
        counts[rank] = done
        if desc not in self._bars:
            from tqdm.auto import tqdm

            self._bars[desc] = tqdm(desc=desc, total=total)
        bar = self._bars[desc]
        bar.n = min(counts.values())
        bar.refresh()

    def __enter__(self) -> CellBars:
        return self

    def __exit__(self, *_: object) -> None:
        for bar in self._bars.values():
            bar.leave = bar.n != bar.total
            bar.close()
