"""Show in a cell what the ranks of a run print, and how far they are, while it goes on."""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import Any

from labkit.base.notebook import in_notebook, static
from labkit.ranks.messages.message import Progress, Shown

# Where it is set, it is told how far the slowest rank has come, in place of a bar in the cell.
on_progress: ContextVar[Callable[[Progress], None] | None] = ContextVar("on_progress", default=None)
# A run ends as by an interrupt once this says so. (An interrupt reaches the main thread only.)
is_stopped: ContextVar[Callable[[], bool]] = ContextVar("is_stopped", default=lambda: False)

MAX_UNFINISHED = 200  # characters of a line that a rank overwrites, while it does
REWRITE_S = 0.1  # no oftener are these shown


def _is_closed(stream: Any) -> bool:
    return stream is None or getattr(stream, "closed", False)


def show(text: str) -> None:
    """Write to ``sys.stdout`` if there is one and it is open; escape what it cannot encode."""
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


class CellDisplay:
    """Shows what the ranks of one run print, and how far they have come, until its block ends.

    Lines are shown as they come; where outputs are for keeping, they are held until the end and
    shown in rank order. If a rank's are more than ``max_characters``, the rest is left out, and a
    line says so. There is a bar for each description, as far as the slowest rank. Those that are
    full are gone when it is over, or a cell with many runs would be full of them.
    """

    def __init__(self, max_characters: int = sys.maxsize):
        self._held = static()
        self._rest: dict[int, int] = defaultdict(lambda: max_characters)
        self._lines: dict[int, list[str]] = defaultdict(list)
        self._bars: dict[tuple[str, int], Any] = {}  # by a loop's description and depth
        self._in_bar: dict[tuple[str, int], int] = {}  # the number of the loop that a bar shows
        self._loops: dict[tuple[str, int], dict[int, Progress]] = defaultdict(dict)  # by rank
        self.bundles: dict[int, list[dict[str, Any]]] = {}  # what cells have shown, by rank
        self._unfinished: dict[int, str] = {}  # the lines that ranks overwrite, as far as they are
        self._below, self._below_s = "", 0.0  # what is shown of those, and since when

    def lines(self, rank: int, lines: Iterable[str], unfinished: str = "") -> None:
        """Show lines that a rank has printed, now or at the end.

        ``unfinished`` is one that it goes on overwriting (with ``\\r``): it stands below all lines.
        """
        self._lines[rank] += self._shortened(rank, lines)
        self._unfinished[rank] = unfinished[:MAX_UNFINISHED]
        if not self._held:
            self._show_lines()

    def _shortened(self, rank: int, lines: Iterable[str]) -> Iterator[str]:
        for line in lines:
            if self._rest[rank] > 0:
                yield line[: self._rest[rank]]
                self._rest[rank] -= len(line) + 1
                if self._rest[rank] <= 0:
                    yield "labkit: further output is left out"

    def _show_lines(self) -> None:
        each = [f"[rank {rank}] {line}\n" for rank in sorted(self._lines) for line in self._lines.pop(rank)]
        now, since_s = time.monotonic(), self._below_s
        if not each and self._below and any(self._unfinished.values()) and now - since_s < REWRITE_S:
            return
        erased = f"\r{' ' * len(self._below)}\r" if self._below else ""
        self._below, self._below_s = self._overwritten(), now
        if text := erased + "".join(each) + self._below:
            show(text)

    def _overwritten(self) -> str:
        """Return the lines that ranks overwrite, as one that can be overwritten in its turn."""
        if not in_notebook() and (_is_closed(sys.stdout) or not getattr(sys.stdout, "isatty", bool)()):
            return ""  # nothing can be overwritten there
        return "  ".join(f"[rank {rank}] {text}" for rank, text in sorted(self._unfinished.items()) if text)

    def shown(self, rank: int, shown: Shown) -> None:
        """Keep what a rank's cell has shown; an update replaces what it is of."""
        bundles = self.bundles.setdefault(rank, [])
        bundle = {"kind": shown.kind, "data": shown.data, "metadata": shown.metadata}
        if shown.kind == "clear":
            bundles.clear()
        elif shown.kind == "update":
            for each in bundles:
                if each.get("display_id") == shown.display_id:
                    each |= {"data": shown.data, "metadata": shown.metadata}
        else:
            bundles.append(bundle | {"display_id": shown.display_id} if shown.display_id else bundle)

    def progress(self, rank: int, progress: Progress) -> None:
        """Move the bar of a loop to where its slowest rank is."""
        key = progress.desc, progress.depth
        ranks = self._loops[key]
        ranks[rank] = progress
        last = max(each.number for each in ranks.values())
        behind = [each for each in ranks.values() if each.number == last or not each.over]
        slowest = min(behind, key=lambda each: (each.number, each.done))
        if show_progress := on_progress.get():
            show_progress(slowest)
            return
        if self._held or _is_closed(sys.stdout) or _is_closed(sys.stderr):
            return
        if key not in self._bars:
            from tqdm.auto import tqdm

            self._bars[key], self._in_bar[key] = tqdm(desc=progress.desc, total=slowest.total), slowest.number
        bar = self._bars[key]
        if self._in_bar[key] != slowest.number:
            self._in_bar[key] = slowest.number
            bar.reset(total=slowest.total)
        bar.n = slowest.done
        bar.refresh()

    def __enter__(self) -> CellDisplay:
        return self

    def __exit__(self, *_: object) -> None:
        for bar in self._bars.values():
            bar.leave = bar.n != bar.total
            bar.close()
        self._unfinished.clear()
        self._show_lines()
