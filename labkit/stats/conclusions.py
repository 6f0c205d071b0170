"""Draw a conclusion from a run: a sentence for each way that the run can decide, and for none.

An entry of ``notebooks/conclusions.toml``:

    [overlap_gains]
    above = "Overlap makes a step {found} times as fast as the same buckets after backward."
    below = "Here the order is reversed: with overlap a step is {found} times as fast."
    unclear = "This run cannot tell whether overlap gains: {found} times as fast."
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from labkit.base.words import words
from labkit.stats.comparison import WITHIN_NOISE, Interval, Verdict, interval

BRANCHES = ("above", "below", "unclear")


def conclusion(name: str, found: Interval | Iterable[float], than: float = 1.0, **numbers: Any) -> Verdict:
    """Return the sentence of that name which the run decides, as a whole a measurement.

    It is *above* or *below* where the interval of ``found`` lies above or below ``than``, and
    *unclear* where it holds ``than``. ``found`` is an interval, or repeats, as a column of ratios.
    The words are in ``notebooks/conclusions.toml``; their fields are ``{found}``, ``{than}`` and
    the ``numbers``. The verdict's ``word`` is "above", "below" or "within noise".

    Raises ValueError for a name that is not there, for words without one of the three sentences,
    and for a field without a number.
    """
    from labkit.base.formats import fact  # here, because it loads pandas

    entry = words("conclusions", name)
    if missing := [branch for branch in BRANCHES if branch not in entry]:
        raise ValueError(
            f"conclusions.toml: {name} lacks {', '.join(missing)}: a run may decide either way, or not at all"
        )
    found = found if isinstance(found, Interval) else interval(found)
    branch = "above" if found.low > than else "below" if found.high < than else "unclear"
    fields = {key: _text_of(value) for key, value in {"found": found, "than": than, **numbers}.items()}
    try:
        text = entry[branch].format_map(fields)
    except KeyError as error:
        raise ValueError(f"conclusions.toml: {name} names {error}, and got {', '.join(fields)}") from None
    return Verdict(fact(text), WITHIN_NOISE if branch == "unclear" else branch, found)


def _text_of(value: Any) -> str:
    match value:
        case Interval():
            return value.text()
        case float():
            return f"{value:.3g}"
    return str(value)
