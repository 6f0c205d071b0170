"""Keep the best result of each level in a file outside the notebook.

It is ``puzzle.jsonl`` in :func:`labkit.base.files.answers_folder`, with a line for each result that
was the best so far. Lines are only ever added, so two notebooks lose nothing of each other's. A
line that cannot be read is passed over.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from labkit.base.files import answers_folder
from labkit.base.notebook import static

FILE = "puzzle.jsonl"


class Result(NamedTuple):
    """What the goal of a level measures, and with how many hints. Less of both is better."""

    result_s: float
    hints: int

    def in_words(self, par_s: float) -> str:
        """Return ``par, 0 hints``, or ``12, 3 hints`` where par is less."""
        reached = "par" if self.result_s <= par_s else f"{self.result_s:g}"
        return f"{reached}, {counted_hints(self.hints)}"


def counted_hints(hints: int) -> str:
    return f"{hints} hint{'s' * (hints != 1)}"


def best_results() -> dict[int, Result]:
    """Return the best result so far of each level that was finished, by its number."""
    try:
        lines = (answers_folder() / FILE).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # none there
        return {}
    best: dict[int, Result] = {}
    for line in lines:
        try:
            found = json.loads(line)
        except ValueError:
            continue
        match found:
            case {"level": int(number), "result": float(result_s), "hints": int(hints)}:
                result = Result(result_s, hints)
                best[number] = min(result, best.get(number, result))
    return best


def keep(number: int, result: Result) -> None:
    """Add a result of a level if none is as good; in a stored notebook (LABKIT_STATIC=1) do not."""
    best = best_results().get(number)
    if static() or (best and best <= result):
        return
    answers_folder().mkdir(parents=True, exist_ok=True)
    line = json.dumps({"level": number, "result": result.result_s, "hints": result.hints})
    with (answers_folder() / FILE).open("a", encoding="utf-8") as file:
        file.write(f"\n{line}")  # on a line of its own, even after one that was cut off
