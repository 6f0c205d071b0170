"""pipe.3: a Pipe of a few stages that note what they are given, wait for each other or fail.

A stage appends its digit to a number, 1 for stage 0. Row i of a batch comes as i + 1, so 3123 is
row 2 after all three: a number tells what it has gone through.
"""

from __future__ import annotations

import random
import re
import threading
import time
from contextlib import suppress
from typing import Any, NamedTuple
from unittest import mock

from labkit.check.harness import Finding, Task

MEET_S = 5.0  # tasks that run at the same time meet by then; only wrong answers wait so long
SLOW_S = 0.3  # how long a slow stage takes, unless its task is waited for or compute returns before
RECORDED = ("forward", "queued", "result waits")  # of a task: its call, and its waits before and after
AT_ONCE = [(1, 1), (0, 2), (2, 0)]  # the third clock of forward, in no special order


class Case(NamedTuple):
    """What is done twice in one Pipe: compute where there is a ``schedule``, else forward."""

    schedule: list[tuple[int, int]] | None = None
    rows: int = 4  # for compute, each is a micro-batch
    split_size: int = 1
    fails: tuple[int, ...] = ()  # partitions that raise at first, in the order of the schedule
    meets: bool = False  # whether at first the tasks of AT_ONCE wait for each other
    meta: bool = False  # whether partition 2 is on that device, and at first makes a single row float64
    n_stages: int = 3

    def __str__(self) -> str:
        stages = f" and {self.n_stages} partitions" * (self.n_stages != 3)
        forward = f"two batches of shape ({self.rows}, 1) with split_size={self.split_size}{stages}"
        raised = f", where only at first partitions {list(self.fails)} raised a ValueError"
        return (f"compute(batches, {self.schedule})" if self.schedule else forward) + raised * bool(self.fails)

    @property
    def slow(self) -> int | None:
        """Return the partition that is slow at first: the one next to the only one that fails."""
        return (self.fails[0] + 1) % 3 if len(self.fails) == 1 else None

    @property
    def holds(self) -> bool:
        """Return whether no task begins before one is waited for."""
        return bool(self.schedule) and not self.fails

    def observe(self) -> Any:
        """Return the error if any, what came of it the second time, and the calls of stages."""
        import torch

        from labkit import pipe
        from labkit.parallel.pipe.worker import Task

        x, stages = torch.arange(1.0, self.rows + 1)[:, None], Stages(self.n_stages, self.holds)
        seen: dict[str, Any] = {"error": None}
        if not self.schedule:
            seen["plain"] = self._outcome(torch.nn.Sequential(*stages.modules), x, stages.modules)
        devices = [f"cpu:{j}" for j in range(self.n_stages - 1)] + ["meta" if self.meta else "cpu:9"]
        modules = map(pipe.WithDevice, stages.modules, devices)
        with (
            mock.patch.object(Task, "wait", stages.noting(Task.wait)),
            mock.patch.object(Task, "run", stages.holding(Task.run)),
            pipe.Pipe(torch.nn.Sequential(*modules), self.split_size) as stages.pipe,
        ):
            for stages.case, batch in ((self, x + 1), (Case(), x)):
                stages.calls.clear()
                stages.awaited.clear()
                try:
                    seen |= self._outcome(stages.pipe, batch, stages.modules)
                except Exception as error:
                    if not (stages.case.fails or self.meta):
                        raise
                    origin = [*stages.errors, error].index(error)  # 3 for another one
                    ended = len(stages.calls) >= len(self.schedule or ())
                    seen |= {"error": type(error).__name__, "origin": origin, "ended": ended}
                stages.released.set()
        return seen | {"calls": sorted(stages.calls), "missed": stages.meeting.broken}

    def _outcome(self, model: Any, x: Any, modules: list[Any]) -> dict[str, Any]:
        """Return the micro-batches after compute and what was recorded, or output and gradients."""
        import torch

        from labkit.parallel.pipe.task_waits import watch_queues
        from labkit.trace import Recorder

        if self.schedule:
            batches, recorder = list(x.split(1)), Recorder()
            recorder.start()
            with torch.no_grad(), watch_queues():
                model.compute(batches, list(self.schedule))
            rows = sorted(recorder.finish(), key=lambda row: str(row[3:5]))
            spans = {name: [row[3:5] for row in rows if row[1] == name] for name in RECORDED}
            kept = any(getattr(batch, "requires_grad", False) for batch in batches)
            came = [_described(row) for row in x.split(1)]
            return {"batches": list(map(_described, batches)), "came": came, "kept": kept, "spans": spans}
        y = model(x.requires_grad_())
        if not isinstance(y, torch.Tensor) or y.is_meta:
            return {"form": f"a {type(y).__name__}"}
        leaves = [x, *(module.weight for module in modules)]
        loss = y.cumsum(0).sum()  # to which each row gives another share
        gradients: Any = [None] * len(leaves)
        if y.requires_grad:
            gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
        form = f"a Tensor of the shape {tuple(y.shape)}"
        return {"form": form, "output": [_described(row, "row") for row in y], "gradients": gradients}


class Stages:
    """Some nn.Linear(1, 1), whose hooks note each call and do what the case says."""

    def __init__(self, n_stages: int, holds: bool):
        import torch

        self.case, self.holds = Case(), holds
        self.pipe: Any = None
        self.calls: list[tuple[int, str, int, str, int]] = []  # partition, input, rows, device, worker
        self.errors = [ValueError(f"partition {j} was told to fail") for j in range(n_stages)]
        self.released, self.awaited, self.meeting = threading.Event(), threading.Event(), threading.Barrier(3)
        self.waited_for: set[Any] = set()  # tasks
        self.modules = [torch.nn.Linear(1, 1) for _ in range(n_stages)]
        for j, module in enumerate(self.modules):
            module.load_state_dict({"weight": torch.tensor([[10.0]]), "bias": torch.tensor([j + 1.0])})
            module.register_forward_pre_hook(lambda _, inputs, j=j: self._called(j, *inputs))
        self.modules[-1].register_forward_hook(self._made_double)

    def _made_double(self, _module: Any, _x: Any, y: Any) -> Any:
        return y.double() if self.case.meta and len(y) == 1 else y

    def noting(self, wait: Any) -> Any:
        """Return a Task's ``wait`` that notes which task is waited for."""

        def noted(task: Any) -> None:
            self.waited_for.add(task)
            self.awaited.set()
            wait(task)

        return noted

    def holding(self, run: Any) -> Any:
        """Return a Task's ``run`` that waits, if it is to, until somebody waits for a task.

        By then a loop that hands out tasks is over, so all tasks see what it has left.
        """

        def held(task: Any) -> None:
            if self.holds:
                self.awaited.wait(SLOW_S)
            run(task)

        return held

    def _be_slow(self) -> None:
        """Wait until this thread's task is waited for, or compute has returned."""
        from labkit.parallel.pipe.worker import this_task

        until = time.monotonic() + SLOW_S
        while this_task() not in self.waited_for and not self.released.is_set() and time.monotonic() < until:
            time.sleep(0.002)

    def _called(self, j: int, x: Any) -> None:
        """Note that partition j was called with x, and in which worker; do what the case says."""
        if j == self.case.slow:
            self._be_slow()
        if self.case.meets and (sum(call[0] == j for call in self.calls), j) in AT_ONCE:
            with suppress(threading.BrokenBarrierError):
                self.meeting.wait(MEET_S)
        threads = [*getattr(self.pipe, "_workers", ()), threading.current_thread()]
        self.calls.append((j, _described(x), len(x), x.device.type, threads.index(threads[-1])))
        if j in self.case.fails:
            raise self.errors[j]


def _described(x: Any, what: str = "micro-batch") -> str:
    """Return ``micro-batch 2 after partitions 0, 1`` of [[312.0]], others as they are."""
    text = str(x.tolist()) if hasattr(x, "tolist") and not x.is_meta else f"a {type(x).__name__}"
    digits = re.fullmatch(r"\[+([1-9])([1-9]*)\.0\]+", text)
    if not digits:
        return text
    row, *partitions = (int(digit) - 1 for digit in digits[1] + digits[2])
    after = f"after partition{'s' * (len(partitions) > 1)} {', '.join(map(str, partitions))}"
    return f"{what} {row} {after if partitions else 'as it came'}"


CLOCKS = [Case(schedule) for schedule in ([(0, 0)], [(2, 0), (1, 1)], AT_ONCE, [(1, 2)])]
ROWS_AND_SIZES = (8, 2), (7, 3), (2, 5), (3, 1), (1, 1), (9, 4)


def drawn(draw: random.Random) -> list[Case]:
    """Return other numbers of partitions, and rows that chunk would share out otherwise."""
    rows, size = draw.choice([(9, 4), (7, 4), (5, 3), (9, 5)])
    return [Case(rows=rows, split_size=size, n_stages=n) for n in (2, draw.randint(4, 5))]


BATCHES: list[Any] = [Case(rows=rows, split_size=size) for rows, size in ROWS_AND_SIZES]
BATCHES.append(drawn)
FAILS = [*(Case(AT_ONCE, fails=fails) for fails in ((1,), (2,), (1, 2, 0))), Case(fails=(1,))]
GIVEN = ["_check_open", "_check_clock", "_check_batch"]
GIVEN += ["self._check_open()", "self._check_clock(batches, schedule)"]
WAITS = "a task that you wait for and that no worker has been given"
TASK = Task(
    writes="Pipe.compute, Pipe.forward",
    minutes=30,
    points=15,
    notebooks="09, 10",
    needs=["pipe.1", "pipe.2"],
    given=GIVEN,
    waits=WAITS,
    hints=(
        """If you hand a task to a worker and take its result before you hand out the next one, how many
workers are busy at a time?""",
        """compute has three parts: hand out a task for each pair, wait for all tasks, take all results. A
worker's put comes back at once, a task's wait does not. forward is a list of micro-batches that
compute changes clock by clock, and one tensor made of it.""",
        """It takes three loops. A result that raises must not leave others at work on the batches, so wait for
every task before you ask the first for its result, and ask in the order of the schedule. run_stage
is told the stage before the micro-batch, and it is partition j and device j, but batch i.""",
    ),
)


@TASK.claim(CLOCKS)
def compute_does_its_schedule(case: Case, seen: Any) -> Finding:
    """compute calls partition j with micro-batch i in worker j for each (i, j) of its schedule."""
    expected = {j: f"micro-batch {i} as it came" for i, j in case.schedule or ()}
    if late := _late(case, seen["calls"]):
        return late
    for j, given, *_ in seen["calls"]:
        if given != expected.get(j):
            why = "For each pair (i, j), call partition j with batches[i], and do nothing else"
            return f"it called partition {j} with {given}. {why}"
    if (found := [call[0] for call in seen["calls"]]) != sorted(expected):
        return f"it called partitions {found}, expected {sorted(expected)}, each once"
    for j, *_, worker in seen["calls"]:
        if worker != j:
            others = f"the worker of partition {worker}"
            where = others if worker < 3 else "a thread that is not a worker of this Pipe"
            todo = "A worker runs its own partition, and no other"
            return f"it ran partition {j} in {where}. {todo}"


def _late(case: Case, calls: list[Any]) -> str:
    """Return in what all tasks of several have the numbers of the last one, if they have."""
    *others, (i, j) = case.schedule or [(0, 0)]
    partitions, inputs = {call[0] for call in calls}, {call[1] for call in calls}
    of_last = {"partition": partitions == {j}, "micro-batch": inputs == {f"micro-batch {i} as it came"}}
    if not others or len(calls) != len(others) + 1 or not any(of_last.values()):
        return ""
    which = " and ".join(what for what, is_last in of_last.items() if is_last)
    why = "A lambda or an inner function looks its names up when it runs, and then the loop is over"
    return f"each task has the {which} of the last pair, {(i, j)}. {why}: give each task values of its own"


@TASK.claim(CLOCKS)
def results_take_their_places(case: Case, seen: Any) -> Finding:
    """compute puts each result in its micro-batch's place, and keeps nothing inside no_grad(). What
    was there stays as it is."""
    expected = {i: f"micro-batch {i} after partition {j}" for i, j in case.schedule or ()}
    for i, found in enumerate(seen["batches"]):
        if found != (right := expected.get(i, f"micro-batch {i} as it came")):
            return f"batches[{i}] is {found} afterwards, expected {right}"
    for i, row in enumerate(seen["came"]):
        if row != f"micro-batch {i} as it came":
            return f"what was in batches[{i}] has changed, and is the caller's still: put the result there in its place"
    why = "Grad mode is per thread. A Task takes along to the worker that of the thread that makes it"
    gave = "inside torch.no_grad() it gave a result that requires gradients"
    return seen["kept"] and f"{gave}. {why}"


@TASK.claim(CLOCKS)
def tasks_have_their_numbers(case: Case, seen: Any) -> Finding:
    """A task is recorded as what it is: stage j, micro-batch i."""
    expected = sorted((j, i) for i, j in case.schedule or ())
    todo = "Timelines show these numbers: a pair is (micro_batch, partition)"
    for name in RECORDED:
        if (found := list(map(tuple, seen["spans"][name]))) != expected:
            was = f"its span {name!r} was recorded as (stage, micro_batch) {found}"
            return f"{was}, expected {expected}. {todo}"


@TASK.claim(BATCHES, core=True)
def output_is_that_of_the_module(case: Case, seen: Any) -> Finding:
    """Micro-batches have split_size rows or the rest, and the output is the plain module's."""
    n, size = case.rows, case.split_size
    sizes = [min(size, n - start) for start in range(0, n, size)]
    given = [rows for j, _, rows, _, _ in seen["calls"] if j == 0]
    clocks = "Each micro-batch has to go through all partitions, clock by clock"
    if given != sizes:
        advice = f"split_size is the rows of a micro-batch, and none is left out. {clocks}"
        was = f"the first partition was given micro-batches of {given} rows"
        return f"{was}, expected {sizes}. {advice}"
    together = "The output is that of all micro-batches, in their order, as one tensor"
    if seen["form"] != (expected := seen["plain"]["form"]):
        return f"the output is {seen['form']}, expected {expected}. {together}"
    for row, (found, right) in enumerate(zip(seen["output"], seen["plain"]["output"], strict=True)):
        if found != right:
            all_of_them = ", ".join(map(str, range(case.n_stages)))
            advice = together if found.endswith((f"partitions {all_of_them}", "]")) else clocks
            return f"row {row} of the output is {found}, expected {right}. {advice}"


@TASK.claim(BATCHES)
def gradients_are_those_of_the_module(case: Case, seen: Any) -> Finding:
    """Backward gives the gradients of the plain module, of its parameters and of the input."""
    names = ["the input", *(f"the weight of partition {j}" for j in range(case.n_stages))]
    why = "Autograd has to see everything between the input and the output"
    for name, found, right in zip(names, seen["gradients"], seen["plain"]["gradients"], strict=True):
        if found is None:
            return f"the gradient of {name} is missing. {why}"
        if not found.equal(right):
            return f"the gradient of {name} is {found.tolist()}, expected {right.tolist()}. {why}"


@TASK.claim([Case(meets=True)])
def tasks_of_a_clock_run_at_the_same_time(case: Case, seen: Any) -> Finding:
    """The tasks of a clock run at the same time, in forward too."""
    todo = "One was waited for before another had begun, or compute was given less than a clock"
    return seen["missed"] and f"{AT_ONCE} did not run at the same time. {todo}"


@TASK.claim([Case(rows=3, split_size=2, meta=True)])
def each_partition_works_on_its_device(case: Case, seen: Any) -> Finding:
    """Micro-batches go to each partition's device, and concatenate joins them on the last one."""
    for j, _, _, device, _ in seen["calls"]:
        if device != ("cpu", "cpu", "meta")[j]:
            todo = "Give run_stage the device of the partition"
            return f"partition {j} was given a micro-batch on {device}. {todo}"
    if not seen["error"]:
        why = "torch.cat does not look, and does not wait for GPUs: take concatenate(batches)"
        return f"results of float32 and of float64 gave an output, expected a ValueError. {why}"
    todo = "Leave it where it is: the loss and the backward pass begin there"
    where = "on another device than the last partition"
    return seen["error"] != "ValueError" and f"the output was put {where}. {todo}"


@TASK.claim(FAILS)
def the_first_error_is_raised(case: Case, seen: Any) -> Finding:
    """The first error in the schedule is raised itself, once all tasks of the clock have ended."""
    if not seen["error"]:
        return "nothing was raised, though a partition had failed"
    origin, first = seen["origin"], case.fails[0]
    if origin == 3:
        return f"another {seen['error']} came out, expected the partition's own, which says where things went wrong"
    if origin != first:
        return f"that of partition {origin} came out, expected that of partition {first}, the first of the schedule"
    todo = "They still work on tensors that the caller may change"
    early = "the error came out before all tasks of the clock had ended"
    return not seen["ended"] and f"{early}. {todo}"
