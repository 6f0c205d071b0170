"""Observe an answer case by case, in other processes, and test a task's claims against that.

A task is one file, such as ``dp_6.py``. It holds cases, the record of the task, and claims:

    @dataclass(frozen=True)
    class Case:
        sizes: list[int]

        def __str__(self):              # its name, in front of each finding about it
            return f"assign_buckets({self.sizes}, 8)"

        def observe(self):              # runs in another process (observer.py)
                                        # returns plain data (plain.py)
            from labkit import dp

            return dp.assign_buckets(self.sizes, 8)

    CASES = [Case([4, 4]), Case([1, 9, 1])]
    TASK = Task(writes="assign_buckets", minutes=15, points=10, notebooks="04, 05", hints=(…))

    @TASK.claim(CASES)
    def each_parameter_is_in_one_bucket(case, seen):
        \"""Every parameter is in exactly one bucket.\"""
        lost = set(range(len(case.sizes))) - set(sum(seen, []))
        return lost and f"it gave {seen}: no bucket has parameter {min(lost)}. Forgot the last?"

    @TASK.claim(CASES, core=True)
    def …

The docstring says what must hold. The claim is called for one case after the other: it returns what
is wrong, or something falsy where it holds; how to do it is for the hints. The first case in which
it does not hold makes its finding. Claims stand in the order in which they are tried, causes before
consequences, and the first that does not hold is the last. Without its ``core`` claim an answer has
no points.

What fails an answer is a wrong result, a missing rank, a leak, or what its TODO asks for in
words. Everything else is a ``@TASK.remark(CASES)``, written like a claim: where it does not hold,
a right answer has a warning.

Among the cases may be functions, each of which draws some from a random.Random. Then they differ
from one check to the next, and findings name the seed. What decides, such as a
remainder or a third rank, is in every draw or in a case that is written down.

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
import random
import time
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from itertools import chain
from typing import Any, NamedTuple

from labkit.base.course import Course, course
from labkit.base.lab import check_own
from labkit.check import restrictions
from labkit.check.failure import Source
from labkit.check.observer import Observer
from labkit.check.result import IS_IMPORTED, N_HINTS, CheckResult, Claim, Remark
from labkit.todo import missing, task_file

Finding = Any  # of a claim: what is wrong, or something falsy
Holds = Callable[[Any, Any], Finding]  # a claim: given a case, and what was seen of it
Draws = Callable[[random.Random], Sequence[Any]]  # cases
N_SEEDS = 10_000


class _Check(NamedTuple):
    holds: Holds
    cases: Sequence[Any | Draws]
    claim: Claim  # before it is tried


class Task:
    """The record of a task, and its claims, each a function, in the order in which they are tried.

    - ``writes``: what is to be written, by name; ``minutes``: for how long; ``points``: what it is
      worth; ``notebooks``: which ask for it.
    - ``needs``: tasks whose code this one calls.
    - ``hints``: three, each longer than the one before: the idea, the shape of the solution, the
      order of its steps. They are words, never code, of at most three sentences. ValueError for
      more hints, or fewer, and for one that is shorter than the one before.
    - ``given``: functions, classes and lines of the student's file that the student did not write,
      so no finding names them.
    - ``waits``: what an answer that does not end may be waiting for, in words.
    - ``known``: by a regular expression for what may be raised, what that means here.
    """

    def __init__(
        self,
        writes: str,
        minutes: int,
        points: float,
        notebooks: str,
        hints: Sequence[str],
        needs: Sequence[str] = (),
        given: Sequence[str] = (),
        waits: str = "",
        known: Mapping[str, str] | None = None,
    ):
        self.writes, self.minutes, self.points, self.notebooks = writes, minutes, points, notebooks
        self.hints = tuple(" ".join(hint.split()) for hint in hints)
        if len(hints) != N_HINTS or sorted(self.hints, key=len) != list(self.hints):
            lengths = ", ".join(str(len(hint)) for hint in self.hints)
            raise ValueError(
                f"the hints for {writes} have {lengths} characters, expected {N_HINTS} hints, each longer than the last"
            )
        self.needs, self.given, self.waits, self.known = needs, given, waits, dict(known or {})
        self.checks: list[_Check] = []
        self.remarks: list[_Check] = []
        self.seeds: dict[int, int] = {}  # by the id of a case that was drawn

    @property
    def claims(self) -> list[Claim]:
        """The claims, none of them tried."""
        return [each.claim for each in self.checks]

    def claim(self, cases: Sequence[Any | Draws], core: bool = False) -> Callable[[Any], Any]:
        """Add the decorated function as a claim, to be tried on ``cases``."""
        return functools.partial(self._add, self.checks, cases, functools.partial(Claim, core=core))

    def remark(self, cases: Sequence[Any | Draws]) -> Callable[[Any], Any]:
        """Add the decorated function as a remark, to be tried on ``cases`` of a right answer."""
        return functools.partial(self._add, self.remarks, cases, Remark)

    def _add(self, to: list[_Check], cases: Sequence[Any | Draws], kind: Callable[[str], Claim], holds: Holds) -> Holds:
        to.append(_Check(holds, cases, kind(" ".join((holds.__doc__ or "").split()).removesuffix("."))))
        return holds

    def drawn(self, seed: int) -> Task:
        """Return the task with cases drawn from ``seed`` in place of functions that draw some."""
        task, made = copy(self), dict[Any, Sequence[Any]]()

        def cases(each: Any) -> Sequence[Any]:
            if not callable(each):
                return [each]
            if each not in made:
                made[each] = each(random.Random(seed))
            return made[each]

        def all_drawn(checks: list[_Check]) -> list[_Check]:
            return [check._replace(cases=[*chain(*map(cases, check.cases))]) for check in checks]

        task.checks, task.remarks = all_drawn(self.checks), all_drawn(self.remarks)
        task.seeds = {id(case): seed for case in chain(*made.values())}
        return task


@functools.cache
def record(task: str) -> Task:
    """Return the record of ``"dp.1"``. Raises ValueError for an unknown task."""
    task_file(task)
    found: Task = importlib.import_module(f"labkit.check.{task.replace('.', '_')}").TASK
    return found


def points_of(taught: Course) -> dict[str, float]:
    """Return what each task of a course is worth: as the course says, else as its record does."""
    return {task: record(task).points if worth is None else worth for task, worth in taught.points.items()}


_right: dict[str, bytes] = {}  # by task, its file as it was when the answer was right


def check(task: str, hint: int | None = None, seed: int | None = None) -> CheckResult:
    """Judge ``task``, such as ``"dp.1"``, by its file on disk: what is right, what is first wrong.

    The answer runs in new processes, so an edit counts at once, and check survives an endless loop
    or a crash. It takes a few seconds at most, longer only where the answer does not end by
    itself. ``hint`` is 1, 2 or 3: that many hints stand under the result, each bigger than the one
    before. Some cases are drawn; ``seed``, which a finding names, draws the same ones again.

    Raises ValueError for an unknown task, with the list of known ones, for another ``hint``, and
    for a course.toml that cannot be used, and ImportError in a lab that has a labkit of its own,
    which is not this one, before anything is judged.
    """
    check_own()
    task_file(task)  # raises for an unknown task
    if hint is not None and (type(hint) is not int or not 1 <= hint <= N_HINTS):
        raise ValueError(f"hint is {hint!r}, expected 1, 2 or 3: start with 1, the others say more")
    result = _checked(task, new_seed() if seed is None else seed)
    return result if hint is None else replace(result, hints=record(task).hints[:hint])


def new_seed() -> int:
    """Return a seed that nobody can know before."""
    return random.SystemRandom().randrange(N_SEEDS)


def _checked(task: str, seed: int) -> CheckResult:
    began, of, taught = time.monotonic(), record(task), course()
    if taught.gives(task):
        return CheckResult(task, given=True)
    result = CheckResult(task, worth=points_of(taught)[task])
    if todo := missing(task):
        return replace(result, todo=todo, untried=tuple(of.claims))
    file = task_file(task)
    code = file.read_bytes()
    found = _judge(task, of.drawn(seed))
    tried = [claim for claim in found if not isinstance(claim, Remark)]
    untried = of.claims[sum(not claim.is_extra for claim in tried) :]
    warnings = restrictions.broken(f"labkit/{file.name}", code)
    warnings += tuple(str(claim.wrong) for claim in found if isinstance(claim, Remark) and claim.wrong)
    result = replace(result, claims=tuple(tried), untried=tuple(untried), warnings=warnings)
    if result.passed:
        _right[task] = code
    elif tried[-1].text != IS_IMPORTED:
        warnings += tuple(remark for other in of.needs if (remark := _not_right_yet(other, seed)))
    return replace(result, warnings=warnings, seconds=round(time.monotonic() - began, 2))


def _not_right_yet(task: str, seed: int) -> str:
    """Return what to say of a task whose code the judged answer calls, if it is not right."""
    if missing(task) or _right.get(task) == task_file(task).read_bytes() or _checked(task, seed).passed:
        return ""  # of one that is missing, the answer's own finding tells
    return f'{task} ({record(task).writes}), which this one calls, is not right yet: check("{task}") says what is wrong'


def _judge(name: str, task: Task) -> list[Claim]:
    """Return the claims that were tried; the last may not hold. If all do, remarks follow."""
    found: list[Claim] = []
    with Observer(Source(task_file(name), task.given), task.waits, task.known, task.seeds) as observer:
        for each in [*task.checks, *task.remarks]:
            found.append(_try(each, observer))
            if not found[-1].holds and not isinstance(found[-1], Remark):
                break
    return found


def _try(check: _Check, observer: Observer) -> Claim:
    """Return whether a claim holds in all its cases, or what keeps one from being observed."""
    for case in check.cases:
        if failure := observer.observe(case):
            return failure
        try:
            wrong: Any = check.holds(case, observer.observations[id(case)])
        except Exception as error:  # what the answer gave has a form that nobody thought of
            wrong = f"what it gave does not have the expected form: {type(error).__name__}: {error}"
        if wrong:
            return replace(check.claim, wrong=observer.named(case, wrong))
    return check.claim
