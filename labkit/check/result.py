"""The verdict on an answer: which claims hold, what is wrong with the first other, its points.

It is one record from the judge to the table of grades; as JSON by ``to_json`` and ``from_json``.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from labkit.base.measurement_html import as_html
from labkit.base.texts import shorten

COLOURS = {"✓": "#0072b2", "✗": "#d55e00", "!": "#d55e00"}
N_HINTS = 3  # for each task
WIDTH = 100  # of a hint as text, in characters
MAX_SHOWN = 1_500  # characters of what is wrong: an answer may return anything
IS_IMPORTED, ENDS = "It can be imported", "It runs to its end"  # go without saying, and count for nothing


@dataclass(frozen=True)
class Claim:
    """Something that must hold of an answer.

    ``wrong`` is None if it does, else what is wrong; of a long text, head and tail.
    Without its ``core`` claim an answer has no points.
    """

    text: str
    wrong: str | None = None
    core: bool = False

    def __post_init__(self) -> None:
        if self.wrong:
            object.__setattr__(self, "wrong", shorten(self.wrong, MAX_SHOWN))

    @property
    def holds(self) -> bool:
        return self.wrong is None

    @property
    def mark(self) -> str:
        return "✓" if self.holds else "✗"

    @property
    def is_extra(self) -> bool:
        """Whether it is that the answer can be imported, or ends: no claim of its task."""
        return self.text in (IS_IMPORTED, ENDS)


class Remark(Claim):
    """Something that need not hold of a right answer: if it does not, a warning says so."""


@dataclass(frozen=True)
class CheckResult:
    """What :func:`labkit.check.check` found.

    ``claims`` are those that were tried, the last of which may not hold, and ``untried`` the others
    of the task; ``findings`` says what is wrong. An unfilled task has no claims: its only finding
    is ``TODO dp.1: labkit/dp.py, line 42``. ``hints`` are shown under the result. ``warnings`` say
    what the task's file uses and should not (``restrictions.toml``), and which task that it calls
    is not right, and the remarks; they fail nothing. ``worth`` are the points of a right answer,
    ``fault`` is why it could not be judged, ``seconds`` how long that took. A task that the course
    has filled in is ``given``, and is not judged.
    """

    task: str
    claims: tuple[Claim, ...] = ()
    todo: str | None = None
    hints: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    untried: tuple[Claim, ...] = ()
    worth: float = 0.0
    fault: str = ""
    seconds: float = 0.0
    given: bool = False

    @property
    def passed(self) -> bool:
        return self.given or (bool(self.claims) and not self.fault and all(claim.holds for claim in self.claims))

    @property
    def findings(self) -> list[str]:
        if found := self.todo or self.fault:
            return [found]
        return [f"{claim.text}: {claim.wrong}" for claim in self.claims if claim.wrong]

    @property
    def first_finding(self) -> str:
        """The first line of the first finding, or nothing."""
        return next(iter(self.findings), "").partition("\n")[0]

    @property
    def held(self) -> list[str]:
        """The claims that hold."""
        return [claim.text for claim in self.claims if claim.holds]

    @property
    def of_task(self) -> list[str]:
        """All claims of the task, as they are tried."""
        return [claim.text for claim in (*self.claims, *self.untried) if not claim.is_extra]

    @property
    def points(self) -> float:
        """The points: claims have equal shares, and count only if the core one holds."""
        if self.fault or not any(claim.core and claim.holds for claim in self.claims):
            return 0.0
        return round(self.worth * len(self.held) / len(self.of_task), 2)

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data, for :meth:`from_json`."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CheckResult:
        """Return what :meth:`to_json` was called on. Raises TypeError for other data."""
        claims = {name: tuple(Claim(**each) for each in data.get(name, ())) for name in ("claims", "untried")}
        texts = {name: tuple(data.get(name, ())) for name in ("hints", "warnings")}
        return cls(**{**data, **claims, **texts})

    @property
    def _headline(self) -> str:
        if self.given:
            return f"{self.task} is given: your course has it filled in, and does not grade it"
        return self.todo or self.fault or f"{self.task} is {'right' if self.passed else 'not right yet'}"

    def __repr__(self) -> str:
        lines = [self._headline]
        for claim in self.claims:
            lines.append(f"  {claim.mark} {claim.text}")
            lines += [f"      {line}" for line in (claim.wrong or "").splitlines()]
        lines += [f"  ! {warning}" for warning in self.warnings]
        for number, hint in enumerate(self.hints, 1):
            lines += textwrap.wrap(f"hint {number} of {N_HINTS}: {hint}", WIDTH, subsequent_indent="  ")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        items = ""
        for claim in self.claims:
            mark = _coloured(claim.mark)
            why = as_html(claim.wrong or "").replace("\n", "<br>")
            why = why and f'<div style="margin-left: 1.5em">{why}</div>'
            items += f"<li>{mark} {as_html(claim.text)}{why}</li>"
        items += "".join(f"<li>{_coloured('!')} {as_html(warning)}</li>" for warning in self.warnings)
        headline = as_html(self._headline)
        claims = f'<p><b>{headline}</b></p><ul style="list-style: none; padding-left: 1em">{items}</ul>'
        hints = "".join(f"<li>{as_html(hint)}</li>" for hint in self.hints)
        return claims + (f"<p><b>Hints</b> ({len(self.hints)} of {N_HINTS})</p><ol>{hints}</ol>" if hints else "")


def _coloured(mark: str) -> str:
    return f'<span style="color: {COLOURS[mark]}">{mark}</span>'
