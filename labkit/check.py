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
from labkit.judging.evidence import PIPE, EvidenceMissing, NotTried, fails_on_import, raised, stands_at
from labkit.launch import LaunchTimeout, RankError
from labkit.todo import missing, task_file

TO_ITS_END = "It runs to its end"
IN_RANKS = ("pipe.5",)  # of the tasks in pipe.py, those whose ranks wait for each other


@dataclass(frozen=True)
class Claim:
    """Something that must hold of an answer. ``wrong`` is None if it does, else what is wrong and what to do.

    ``not_tried`` is why it could not be tried, because of something else that is wrong; then ``wrong`` is None too.
    """

    text: str
    wrong: str | None
    not_tried: str | None = None

    @property
    def holds(self) -> bool:
        return self.wrong is None and self.not_tried is None


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
        return bool(self.claims) and all(claim.holds for claim in self.claims)

    @property
    def findings(self) -> list[str]:
        wrong = [f"{claim.text}: {claim.wrong}" for claim in self.claims if claim.wrong]
        not_tried = [f"{claim.text}: {claim.not_tried}" for claim in self.claims if claim.not_tried]
        return [self.todo] if self.todo else wrong or not_tried  # what is not tried follows from what is wrong

    @property
    def _headline(self) -> str:
        if self.passed:
            return f"{self.task} is right"
        right = sum(claim.holds for claim in self.claims)
        not_tried = sum(claim.not_tried is not None for claim in self.claims)
        rest = f", {not_tried} not tried" if not_tried else ""
        return f"{self.task} is not right yet: {right} of {len(self.claims)} claims hold{rest}"

    def __repr__(self) -> str:
        if self.todo:
            return self.todo
        lines = [self._headline]
        for claim in self.claims:
            mark = "✓" if claim.holds else "✗" if claim.wrong else "–"
            lines.append(f"  {mark} {claim.text}")
            lines += [f"      {line}" for line in (claim.wrong or claim.not_tried or "").splitlines()]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        if self.todo:
            return f"<p><b>{html.escape(self.todo)}</b></p>"
        items = "".join(_html_item(claim) for claim in self.claims)
        return f'<p><b>{self._headline}</b></p><ul style="list-style: none; padding-left: 1em">{items}</ul>'


def _html_item(claim: Claim) -> str:
    text = html.escape(claim.text)
    if claim.holds:
        return f'<li><span style="color: #0072b2">✓</span> {text}</li>'
    why = html.escape(claim.wrong or claim.not_tried or "").replace("\n", "<br>")
    below = f'<div style="margin-left: 1.5em">{why}</div>'
    if claim.wrong is None:
        return f'<li style="color: #767676">– {text}{below}</li>'
    return f'<li><span style="color: #d55e00">✗</span> <b>{text}</b>{below}</li>'


def check(task: str) -> CheckResult:
    """Judge ``task``, such as ``"dp.1"``, by its student file on disk, and say what is right and what is wrong.

    Takes a few seconds at most, longer only where the answer does not end by itself. Raises ValueError for an unknown
    task, with the list of those there are.
    """
    if todo := missing(task):
        return CheckResult(task, todo=todo)
    try:
        evidence = trials.TRIALS[task].gather()
    except (RankError, LaunchTimeout) as error:
        return CheckResult(task, (_stopped_by(error, task),))
    judged = tuple(_judge(claim, evidence) for claim in trials.TRIALS[task].claims)
    return CheckResult(task, _said_once(judged))


def text_of(claim: trials.Claim) -> str:
    """What a claim says must hold, in one line without a full stop."""
    return inspect.cleandoc(claim.__doc__ or "").replace("\n", " ").removesuffix(".")


def _judge(claim: trials.Claim, evidence: Any) -> Claim:
    text = text_of(claim)
    try:
        return Claim(text, claim(evidence))
    except NotTried as error:
        return Claim(text, None, not_tried=str(error))
    except EvidenceMissing as error:
        return Claim(text, str(error))


def _said_once(claims: tuple[Claim, ...]) -> tuple[Claim, ...]:
    """The claims; or a single one where all are wrong in the same words, because the answer stopped before any evidence."""
    words = {claim.wrong for claim in claims}
    return (Claim(TO_ITS_END, claims[0].wrong),) if len(words) == 1 and claims[0].wrong else claims


def _stopped_by(error: RankError | LaunchTimeout, task: str) -> Claim:
    file = f"labkit/{task_file(task).name}"
    imported = isinstance(error, LaunchTimeout) or not fails_on_import(error.error_type, error.traceback, file)
    return Claim(TO_ITS_END if imported else "It can be imported", _what_stopped_it(error, task, file))


def _what_stopped_it(error: RankError | LaunchTimeout, task: str, file: str) -> str:
    """Why there is no evidence: the answer raised, never ended, or ended its process."""
    if isinstance(error, LaunchTimeout):
        places = sorted({stands_at(stack, file) for stack in error.stacks.values()} - {""})
        waits = (
            "a task that you wait for and that no worker has been given"
            if file == PIPE and task not in IN_RANKS
            else "a rank that waits for the others while they do something else"
        )
        return (
            f"it did not end in time. It was at {' and at '.join(places) or 'something that it had called'}. Look for a loop "
            f"without an end, or for {waits}"
        )
    if not error.traceback:
        return f"{str(error).partition(chr(10))[0]}. Look for what ends a process: os._exit, a signal, too much memory"
    message = str(error).partition(": ")[2].partition(" (and so did rank")[0]
    return raised(error.error_type, message, error.traceback, file)
