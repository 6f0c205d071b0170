"""Observe an answer case by case, in other processes, and test a task's claims against that.

A task is one file, such as ``dp_6.py``. It holds cases, and claims:

    @dataclass(frozen=True)
    class Case:
        sizes: list[int]

        def __str__(self):              # its name, in front of each finding about it
            return f"assign_buckets({self.sizes}, 8)"

        def observe(self):              # runs in another process, as if typed in a cell
                                        # (observer.py); returns plain data (plain.py)
            from labkit import dp

            return dp.assign_buckets(self.sizes, 8)

    CASES = [Case([4, 4]), Case([1, 9, 1])]
    TASK = TaskClaims()

    @TASK.claim(CASES)
    def each_parameter_is_in_one_bucket(case, seen):
        \"""Every parameter is in exactly one bucket.\"""
        lost = set(range(len(case.sizes))) - set(sum(seen, []))
        return lost and f"it gave {seen}: no bucket has parameter {min(lost)}. Forgot the last?"

    @TASK.claim(CASES)
    def …

The docstring says what must hold. The claim is called for one case after the other: it returns what
is wrong and what to do, or something falsy where it holds. The first case in which it does not hold
makes its finding. Claims stand in the order in which they are tried, causes before consequences,
and the first that does not hold is the last.

A case is observed once, when a claim first needs it. So a claim may have cases that are only safe,
or only mean something, where the earlier claims hold. A case with a ``world_size``
(a field or a class attribute) is observed in that many ranks, in a process group on gloo; then
``seen`` is a list in rank order. Ranks stay from one case to the next, so a case puts back what it
changes in them.

A case that raises, does not end, or ends its process or process group ends the check, and is its
finding.
"""

from __future__ import annotations

import functools
import importlib
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from labkit.check import restrictions
from labkit.check.failure import Source
from labkit.check.observer import ENDS, IS_IMPORTED, Observer, named
from labkit.check.result import N_HINTS, CheckResult, Claim
from labkit.todo import missing, task_file

Finding = Any  # of a claim: what is wrong and what to do, or something falsy
Holds = Callable[[Any, Any], Finding]  # a claim: given a case, and what was seen of it


class _Check(NamedTuple):
    holds: Holds
    cases: Sequence[Any]


class TaskClaims:
    """The claims of one task, each a function, in the order in which they are tried.

    ``given``: functions, classes and lines of the student's file that the student did not write,
    so no finding names them. ``first``: tasks that have to be right before this one is tried.
    ``waits``: what an answer that does not end may be waiting for, in words.
    """

    def __init__(self, given: Sequence[str] = (), first: Sequence[str] = (), waits: str = ""):
        self.given, self.first, self.waits = given, first, waits
        self.checks: list[_Check] = []

    def claim(self, cases: Sequence[Any]) -> Callable[[Any], Any]:
        """Add the decorated function as a claim, to be tried on ``cases``."""

        def add(holds: Holds) -> Holds:
            self.checks.append(_Check(holds, cases))
            return holds

        return add


_right: dict[str, bytes] = {}  # by task, its file as it was when the answer was right


def check(task: str, hint: int | None = None) -> CheckResult:
    """Judge ``task``, such as ``"dp.1"``, by its file on disk: what is right, what is first wrong.

    The answer runs in new processes, so an edit counts at once, and check survives an endless loop
    or a crash. It takes a few seconds at most, longer only where the answer does not end by
    itself. ``hint`` is 1, 2 or 3: that many hints stand under the result, each bigger than the one
    before.

    Raises ValueError for an unknown task, with the list of known ones, and for another ``hint``,
    before anything is judged.
    """
    task_file(task)  # raises for an unknown task
    if hint is None:
        return _checked(task)
    if type(hint) is not int or not 1 <= hint <= N_HINTS:
        raise ValueError(f"hint is {hint!r}, expected 1, 2 or 3: start with 1, the others say more")
    return replace(_checked(task), hints=hints()[task][:hint])


@functools.cache  # and not where this is imported, as each rank imports it
def hints() -> dict[str, tuple[str, ...]]:
    """Return the hints for each task, each bigger than the one before."""
    texts = tomllib.loads(Path(__file__).with_name("hints.toml").read_text(encoding="utf-8"))
    return {task: tuple(" ".join(each.split()) for each in of.values()) for task, of in texts.items()}


def _checked(task: str) -> CheckResult:
    if todo := missing(task):
        return CheckResult(task, todo=todo)
    file = task_file(task)
    code = file.read_bytes()
    module = importlib.import_module(f"labkit.check.{task.replace('.', '_')}")
    for other in module.TASK.first:
        if claim := _has_to_come_first(other):
            return CheckResult(task, (claim,))
    warnings = restrictions.broken(f"labkit/{file.name}", code)
    result = replace(_judge(task, module.TASK), warnings=warnings)
    if result.passed:
        _right[task] = code
    return result


def sentence(claim: Holds) -> str:
    """Return what a claim says must hold, in one line without a full stop."""
    return " ".join((claim.__doc__ or "").split()).removesuffix(".")


def _has_to_come_first(task: str) -> Claim | None:
    if _right.get(task) == task_file(task).read_bytes() or (result := _checked(task)).passed:
        return None
    if result.todo:
        return Claim(ENDS, f"{task} has to be done first ({result.todo.partition(': ')[2]})")
    if result.claims[-1].text == IS_IMPORTED:
        return result.claims[-1]
    return Claim(ENDS, f'{task} has to be right first: check("{task}") says what is wrong')


def _judge(name: str, task: TaskClaims) -> CheckResult:
    claims: list[Claim] = []
    with Observer(Source(task_file(name), task.given), task.waits) as observer:
        for each in task.checks:
            claims.append(_try(each, observer))
            if not claims[-1].holds:
                break
    return CheckResult(name, tuple(claims))


def _try(check: _Check, observer: Observer) -> Claim:
    """Return whether a claim holds in all its cases, or what keeps one from being observed."""
    text = sentence(check.holds)
    for case in check.cases:
        if failure := observer.observe(case):
            return failure
        try:
            wrong: Any = check.holds(case, observer.observations[id(case)])
        except Exception as error:  # what the answer gave has a form that nobody thought of
            wrong = f"what it gave does not have the expected form: {type(error).__name__}: {error}"
        if wrong:
            return Claim(text, named(case, wrong))
    return Claim(text, None)
