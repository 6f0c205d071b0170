"""Judge a student's answer as it stands on disk, and say what is right, what is wrong and what to do about it.

    check("dp.1")

The answer runs in new ranks (see :func:`labkit.launch.launch`), so an edit counts at once, and an endless loop or a
crash in it is survived. What it did there comes back as evidence, and the claims are held against it here, away from
the answer.
Which evidence and which claims: ``labkit/judging/trials.py``.
"""

from __future__ import annotations

import html
import inspect
from dataclasses import dataclass
from typing import Any

from labkit.judging import trials
from labkit.judging.evidence import EvidenceMissing, raised, stands_at
from labkit.launch import LaunchTimeout, RankError
from labkit.todo import missing, task_file


@dataclass(frozen=True)
class Claim:
    """Something that must hold of an answer. ``wrong`` is None if it does, else what is wrong and what to do."""

    text: str
    wrong: str | None


@dataclass(frozen=True)
class CheckResult:
    """What :func:`check` found. ``claims`` are all that was judged; ``findings`` says what is wrong, nothing if all is right.

    An unfilled task has no claims: its only finding is ``TODO dp.1: labkit/dp.py, line 42``.
    """

    task: str
    claims: tuple[Claim, ...] = ()
    todo: str | None = None

    @property
    def passed(self) -> bool:
        return bool(self.claims) and all(claim.wrong is None for claim in self.claims)

    @property
    def findings(self) -> list[str]:
        wrong = [f"{claim.text}: {claim.wrong}" for claim in self.claims if claim.wrong]
        return [self.todo, *wrong] if self.todo else wrong

    @property
    def _headline(self) -> str:
        if self.passed:
            return f"{self.task} is right"
        right = sum(claim.wrong is None for claim in self.claims)
        return f"{self.task} is not right yet: {right} of {len(self.claims)} claims hold"

    def __repr__(self) -> str:
        if self.todo:
            return self.todo
        lines = [self._headline]
        for claim in self.claims:
            lines.append(f"  ✗ {claim.text}" if claim.wrong else f"  ✓ {claim.text}")
            lines += [f"      {line}" for line in (claim.wrong or "").splitlines()]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        if self.todo:
            return f"<p><b>{html.escape(self.todo)}</b></p>"
        items = "".join(_html_item(claim) for claim in self.claims)
        return f'<p><b>{self._headline}</b></p><ul style="list-style: none; padding-left: 1em">{items}</ul>'


def _html_item(claim: Claim) -> str:
    if claim.wrong is None:
        return f'<li><span style="color: #0072b2">✓</span> {html.escape(claim.text)}</li>'
    advice = html.escape(claim.wrong).replace("\n", "<br>")
    return (
        f'<li><span style="color: #d55e00">✗</span> <b>{html.escape(claim.text)}</b>'
        f'<div style="margin-left: 1.5em">{advice}</div></li>'
    )


def check(task: str) -> CheckResult:
    """Judge ``task``, such as ``"dp.1"``, by the student file on disk, and say what is right and what is wrong.

    Takes a few seconds at most, longer only where the answer does not end by itself. Raises ValueError for an unknown
    task, with the list of those there are.
    """
    if todo := missing(task):
        return CheckResult(task, todo=todo)
    try:
        evidence = trials.TRIALS[task].gather()
    except (RankError, LaunchTimeout) as error:
        return CheckResult(
            task, (Claim("It runs to its end", _what_stopped_it(error, f"labkit/{task_file(task).name}")),)
        )
    return CheckResult(task, tuple(_judge(claim, evidence) for claim in trials.TRIALS[task].claims))


def text_of(claim: trials.Claim) -> str:
    """What a claim says must hold, in one line without a full stop."""
    return inspect.cleandoc(claim.__doc__ or "").replace("\n", " ").removesuffix(".")


def _judge(claim: trials.Claim, evidence: Any) -> Claim:
    text = text_of(claim)
    try:
        return Claim(text, claim(evidence))
    except EvidenceMissing as error:
        return Claim(text, str(error))


def _what_stopped_it(error: RankError | LaunchTimeout, file: str) -> str:
    """Why there is no evidence: the answer raised, never ended, or ended its process."""
    if isinstance(error, LaunchTimeout):
        places = sorted({stands_at(stack, file) for stack in error.stacks.values()} - {""})
        return (
            f"it did not end in time. It was at {' and at '.join(places) or 'something that it had called'}. Look for a loop "
            "without an end, or for a rank that waits for the others while they do something else"
        )
    if not error.traceback:
        return f"{str(error).partition(chr(10))[0]}. Look for what ends a process: os._exit, a signal, too much memory"
    message = str(error).partition(": ")[2].partition(" (and so did rank")[0]
    return raised(error.error_type, message, error.traceback, file)
