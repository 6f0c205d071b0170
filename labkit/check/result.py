"""Show the claims about an answer: which of them hold, and what is wrong with the first other."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

from labkit.base.measurement_html import as_html
from labkit.base.texts import shorten

COLOURS = {"✓": "#0072b2", "✗": "#d55e00", "!": "#d55e00"}
N_HINTS = 3  # for each task
WIDTH = 100  # of a hint as text, in characters
MAX_SHOWN = 1_500  # characters of what is wrong: an answer may return anything


@dataclass(frozen=True)
class Claim:
    """Something that must hold of an answer.

    ``wrong`` is None if it does, else what is wrong and what to do; of a long text, head and tail.
    """

    text: str
    wrong: str | None

    def __post_init__(self) -> None:
        if self.wrong:
            object.__setattr__(self, "wrong", shorten(self.wrong, MAX_SHOWN))

    @property
    def holds(self) -> bool:
        return self.wrong is None

    @property
    def mark(self) -> str:
        return "✓" if self.holds else "✗"


@dataclass(frozen=True)
class CheckResult:
    """What :func:`labkit.check.check` found.

    ``claims`` are those that were tried, the last of which may not hold; ``findings`` says what is
    wrong. An unfilled task has no claims: its only finding is ``TODO dp.1: labkit/dp.py, line 42``.
    ``hints`` are shown under the result. ``warnings`` say what the task's file uses and should not
    (``restrictions.toml``); they fail nothing.
    """

    task: str
    claims: tuple[Claim, ...] = ()
    todo: str | None = None
    hints: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return bool(self.claims) and all(claim.holds for claim in self.claims)

    @property
    def findings(self) -> list[str]:
        if self.todo:
            return [self.todo]
        return [f"{claim.text}: {claim.wrong}" for claim in self.claims if claim.wrong]

    @property
    def _headline(self) -> str:
        return self.todo or f"{self.task} is {'right' if self.passed else 'not right yet'}"

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
