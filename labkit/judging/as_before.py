"""Judge the tasks that have no file in labkit/check yet, as before. It goes once they have."""

from __future__ import annotations

import inspect
from typing import Any

from labkit.check.result import CheckResult, Claim
from labkit.judging import trials
from labkit.judging.evidence import PIPE, EvidenceMissing, NotTried, fails_on_import, raised, stands_at
from labkit.launch import LaunchTimeout, RankError
from labkit.todo import task_file

TO_ITS_END = "It runs to its end"
IN_RANKS = ("pipe.5",)  # of the tasks in pipe.py, those whose ranks wait for each other


def check_as_before(task: str) -> CheckResult:
    """Judge ``task``, such as ``"dp.1"``, by its student file on disk, and say what is right and what is wrong.

    Takes a few seconds at most, longer only where the answer does not end by itself. Raises ValueError for an unknown
    task, with the list of those there are.
    """
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
