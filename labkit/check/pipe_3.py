"""pipe.3: a Pipe of three stages that note what they are given, wait for each other or fail.

A stage appends its digit to a number, 1 for stage 0. Row i of a batch comes as i + 1, so 3123 is
row 2 after all three: a number tells what it has gone through.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from labkit.check.harness import Task

MEET_S = 1.5  # those who run at the same time meet within this time, on a busy machine too
SLOW_S = 0.2  # how long a slow stage takes
TOLD_TO_FAIL = "partition {} was told to fail"
Schedule = list[tuple[int, int]]


class Case(NamedTuple):
    """A clock of compute, where there is a ``schedule``, else forward; and what stages are told."""

    schedule: Schedule | None = None
    rows: int = 4  # for compute, each is a micro-batch
    split_size: int = 1
    fails: tuple[int, ...] = ()  # partitions that raise, in the order of the schedule
    slow: int | None = None  # the partition that takes its time; those that fail do so once it runs
    meets: tuple[Schedule, ...] = ()  # clocks whose tasks wait for each other
    devices: tuple[str, ...] = ("cpu:0", "cpu:1", "cpu:2")
    uneven: bool = False  # whether the last partition gives float64 for the first row

    def __str__(self) -> str:
        rows = f"{self.rows} row{'s' * (self.rows > 1)} with split_size={self.split_size}"
        fails = f"partition{'s' * (len(self.fails) > 1)} {', '.join(map(str, self.fails))} raised a ValueError"
        what = f"compute(batches, {self.schedule})" if self.schedule else rows
        return f"{what}, where {fails}" if self.fails else what

    def numbers(self, shift: int, done: bool) -> list[float]:
        """Return what the micro-batches or rows are, before or after.

        ``shift`` is 1 the second time.
        """
        gone = {i: range(j + done) for i, j in self.schedule or ()}
        others = range(3 if done and not self.schedule else 0)
        return [_number((i + shift) % self.rows, gone.get(i, others)) for i in range(self.rows)]

    def observe(self) -> Any:
        """Return what came of it, what stages noted, and what comes of it again, when none
        fails."""
        from torch import nn

        from labkit import pipe
        from labkit.trace import Recorder

        stages, recorder = Stages(self), Recorder()
        modules = nn.Sequential(*map(pipe.WithDevice, stages.modules, self.devices))
        with pipe.Pipe(modules, self.split_size) as stages.pipe:
            recorder.start()
            try:
                seen = self._tried(stages, bool(self.fails or self.uneven or "meta" in self.devices))
            finally:
                spans = recorder.finish()
            seen["spans"] = sorted((stage, i) for _, name, _, stage, i, *_ in spans if name == "forward")
            seen["calls"] = sorted(stages.calls, key=itemgetter("partition"))
            seen["missed"] = stages.missed
            stages.case = self._replace(fails=(), slow=None)
            return seen | {"again": self._tried(stages, True, shift=1)}

    def _tried(self, stages: Stages, may_raise: bool, shift: int = 0) -> dict[str, Any]:
        try:
            numbers = self.numbers(shift, done=False)
            return self._compute(stages.pipe, numbers) if self.schedule else self._forward(stages, numbers)
        except Exception as error:
            what = {"error": type(error).__name__, "message": str(error), "running": stages.running}
            if not may_raise:
                raise
            frames = traceback.extract_tb(error.__traceback__)
            return what | {"leads to the stage": any(frame.name == Stages.called.__name__ for frame in frames)}

    def _compute(self, pipe: Any, numbers: list[float]) -> dict[str, Any]:
        import torch

        batches = [torch.tensor([[each]]) for each in numbers]
        with torch.no_grad():
            pipe.compute(batches, list(self.schedule or ()))
        kept = any(getattr(batch, "requires_grad", False) for batch in batches)
        return {"error": None, "result": list(map(_value, batches)), "kept": kept}

    def _forward(self, stages: Stages, numbers: list[float]) -> dict[str, Any]:
        import torch

        x = torch.tensor([[each] for each in numbers], requires_grad=True)
        y = stages.pipe(x)
        if not isinstance(y, torch.Tensor):
            return {"error": None, "output": "a list" if isinstance(y, list) else y}
        if y.shape != x.shape or y.is_meta:
            return {"error": None, "output": f"a Tensor of the shape {tuple(y.shape)}"}
        if y.requires_grad:
            (y * torch.arange(1.0, 1.0 + len(y))[:, None]).sum().backward()  # each row has another weight
        leaves = {f"the weight of partition {j}": module.weight for j, module in enumerate(stages.modules)}
        grads = {name: leaf.grad for name, leaf in (leaves | {"the input": x}).items()}
        gradients = {name: None if grad is None else grad.flatten().tolist() for name, grad in grads.items()}
        return {"error": None, "result": y.flatten().tolist(), "gradients": gradients}


class Stages:
    """Three nn.Linear(1, 1), whose hooks note each call and do what the case says."""

    def __init__(self, case: Case):
        import torch

        self.case = case
        self.calls: list[dict[str, Any]] = []
        self.missed: list[Schedule] = []  # clocks whose tasks did not run at the same time
        self.running = 0  # calls of the slow stage that have not come to their end
        self.pipe: Any = None
        self.modules = [torch.nn.Linear(1, 1) for _ in case.devices]
        for j, module in enumerate(self.modules):
            module.weight.data.fill_(10)
            module.bias.data.fill_(j + 1)
            module.to(case.devices[j].partition(":")[0])
            module.register_forward_pre_hook(lambda _, inputs, j=j: self.called(j, *inputs))
        if case.uneven:
            self.modules[-1].register_forward_hook(lambda _, inputs, y: y.double() if inputs[0] < 200 else y)
        self._caller = threading.current_thread()
        self._slow_one_runs = threading.Event()
        barriers = [(clock, threading.Barrier(len(clock))) for clock in case.meets]
        self._meetings = {j: [each for each in barriers if j in [k for _, k in each[0]]] for j in range(3)}

    def called(self, j: int, x: Any) -> None:
        """Note that partition j is called with x, and do as told."""
        places = {self._caller: "the thread that called compute"}
        places |= {worker: f"the worker of partition {k}" for k, worker in enumerate(self.pipe._workers)}
        place = places.get(threading.current_thread(), "a new thread")
        self.calls.append({"partition": j, "given": _value(x), "rows": len(x), "device": x.device.type, "place": place})
        if j in self.case.fails:
            if self.case.slow is not None:
                self._slow_one_runs.wait(MEET_S)
            raise ValueError(TOLD_TO_FAIL.format(j))
        if j == self.case.slow:
            self.running += 1
            self._slow_one_runs.set()
            time.sleep(SLOW_S)
            self.running -= 1
        if self._meetings[j] and not self.missed:
            clock, barrier = self._meetings[j].pop(0)
            try:
                barrier.wait(MEET_S)
            except threading.BrokenBarrierError:
                self.missed.append(clock)


def _number(row: int, partitions: Sequence[int]) -> float:
    return float("".join(str(each + 1) for each in (row, *partitions)))


def _value(x: Any) -> Any:
    return x.item() if hasattr(x, "numel") and x.numel() == 1 and not x.is_meta else x


def _described(value: Any, what: str = "micro-batch") -> str:
    """Return ``micro-batch 2 after partitions 0, 1``: what a number has gone through."""
    digits = f"{value:.0f}" if isinstance(value, float) else "0"
    if not digits.isdigit() or "0" in digits:
        return f"{value}, which no partition gives" if isinstance(value, float) else str(value)
    row, *partitions = (int(digit) - 1 for digit in digits)
    after = f"after partition{'s' * (len(partitions) > 1)} {', '.join(map(str, partitions))}"
    return f"{what} {row} {after if partitions else 'as it came'}"


PAIR, AT_ONCE = [(2, 0), (1, 1)], [(1, 1), (0, 2), (2, 0)]  # in no special order
CLOCKS = [Case(schedule) for schedule in ([(0, 0)], PAIR, AT_ONCE, [(1, 2)])]
BATCHES = [Case(rows=rows, split_size=size) for rows, size in ((8, 2), (7, 3), (2, 5), (3, 1), (1, 1))]
WHOLE = ([(0, 0)], [(1, 0), (0, 1)], [(2, 0), (1, 1), (0, 2)], [(3, 0), (2, 1), (1, 2)], [(3, 1), (2, 2)], [(3, 2)])
FAILS = [
    Case(PAIR, fails=(0,)),
    Case(PAIR, fails=(1,)),
    Case(AT_ONCE, fails=(1,), slow=2),  # neither the one that raises nor the last one is slow
    Case(AT_ONCE, fails=(1, 2, 0)),
    Case(fails=(1,)),
]
TASK = Task(
    given=["_check_open", "_check_clock", "_check_batch", "self._check_clock(batches, schedule)"],
    first=["pipe.1", "pipe.2"],
    waits="a task that you wait for and that no worker has been given",
)

# --- compute --------------------------------------------------------------------------------------


@TASK.claim(CLOCKS)
def compute_does_its_schedule(case: Case, seen: Any) -> str | None:
    """compute calls partition j with micro-batch i in worker j for each (i, j) of its schedule."""
    before = case.numbers(0, done=False)
    expected = [(j, before[i]) for i, j in case.schedule or ()]
    found = sorted((call["partition"], call["given"]) for call in seen["calls"])
    for j, given in found:
        if (j, given) not in expected:
            why = "For each pair (i, j), partition j gets batches[i], and nothing else is to be done"
            return f"it called partition {j} with {_described(given)}. {why}"
    for j, given in expected:
        if (times := found.count((j, given))) != 1:
            return f"it called partition {j} with {_described(given)} {times} times, expected once"
    for call in seen["calls"]:
        if call["place"] != f"the worker of partition {call['partition']}":
            advice = "Hand each task to the worker of its partition: self._workers[j].put(task)"
            return f"it ran partition {call['partition']} in {call['place']}. {advice}"
    return None


@TASK.claim(CLOCKS, after=[compute_does_its_schedule])
def results_take_their_places(case: Case, seen: Any) -> str | bool:
    """compute puts each result in its micro-batch's place, and keeps nothing inside no_grad()."""
    for i, (found, expected) in enumerate(zip(seen["result"], case.numbers(0, done=True), strict=False)):
        if found != expected:
            return f"batches[{i}] is {_described(found)} afterwards, expected {_described(expected)}"
    why = "Grad mode belongs to a thread: a Task takes that of the thread in which it is made along to the worker"
    return seen["kept"] and f"inside torch.no_grad() it gave a result that requires gradients. {why}"


@TASK.claim(CLOCKS, after=[compute_does_its_schedule])
def tasks_have_their_numbers(case: Case, seen: Any) -> str | bool:
    """A task is recorded as what it is: stage j, micro-batch i."""
    found, expected = list(map(tuple, seen["spans"])), sorted((j, i) for i, j in case.schedule or ())
    why = "Timelines are drawn of what is recorded: give run_stage both numbers"
    return found != expected and f"it was recorded as (stage, micro_batch) {found}, expected {expected}. {why}"


# --- forward --------------------------------------------------------------------------------------

CYCLES = "Do all clocks of clock_cycles(number of micro-batches, number of partitions), one after the other"


@TASK.claim(BATCHES, after=[results_take_their_places])
def output_is_that_of_the_module(case: Case, seen: Any) -> str | None:
    """Micro-batches have split_size rows or the rest, and the output is that of the plain
    module."""
    whole, rest = divmod(case.rows, case.split_size)
    sizes = [case.split_size] * whole + [rest] * (rest > 0)
    given = [call["rows"] for call in seen["calls"] if call["partition"] == 0]
    if given != sizes:
        advice = "split_size is the rows of a micro-batch, not how many there are; and no row is left out"
        advice = CYCLES if not rest and given == sizes[: len(given)] else advice
        return f"the first partition was given micro-batches of {given} rows, expected {sizes}. {advice}"
    together = (
        "After the last clock, put the results together in the order of the micro-batches, with concatenate(batches)"
    )
    if "result" not in seen:
        return f"the output is {seen['output']}, expected a Tensor of the shape {(case.rows, 1)}. {together}"
    for row, (found, expected) in enumerate(zip(seen["result"], case.numbers(0, done=True), strict=True)):
        if found != expected:
            what = f"row {row} of the output is {_described(found, 'row')}, expected {_described(expected, 'row')}"
            return f"{what}. {together if f'{found:.0f}'.endswith('123') else CYCLES}"
    return None


OUTPUT = [output_is_that_of_the_module]


@TASK.claim(BATCHES, after=OUTPUT)
def gradients_are_those_of_the_module(case: Case, seen: Any) -> str | None:
    """Backward gives the gradients of the plain module, of its parameters and of the input."""
    rows = range(case.rows)
    expected = {"the input": [1000.0 * (row + 1) for row in rows]}
    for j in range(3):
        given = [10 ** (2 - j) * (row + 1) * _number(row, range(j)) for row in rows]
        expected[f"the weight of partition {j}"] = [sum(given)]
    for name, gradient in expected.items():
        if (found := seen["gradients"][name]) != gradient:
            wrong = "is missing" if found is None else f"is {found}, expected {gradient}"
            return f"the gradient of {name} {wrong}. Autograd has to see everything between the input and the output"
    return None


@TASK.claim([Case(AT_ONCE, meets=(AT_ONCE,)), Case(meets=WHOLE)], after=OUTPUT)
def tasks_of_a_clock_run_at_the_same_time(case: Case, seen: Any) -> str | bool:
    """The tasks of a clock run at the same time, in forward too."""
    in_compute = "Hand out all tasks of the clock before you wait for one of them"
    why = in_compute if case.schedule else "Give each clock of clock_cycles as a whole to compute"
    return bool(seen["missed"]) and f"{list(map(tuple, seen['missed'][0]))} did not run at the same time. {why}"


@TASK.claim([Case(split_size=2, devices=("cpu:0", "cpu:1", "meta"))], after=OUTPUT)
def each_partition_works_on_its_device(case: Case, seen: Any) -> str | bool:
    """A partition is given micro-batches on its device, and the output stays where the last one
    is."""
    for call in seen["calls"]:
        expected = case.devices[call["partition"]].partition(":")[0]
        if call["device"] != expected:
            was = f"partition {call['partition']} is on the {expected} device, and was given a micro-batch on {call['device']}"
            return f"{was}. Give run_stage the device of the partition"
    why = "Leave it where it is: the loss and the backward pass begin there"
    return seen["error"] and f"the last partition is on the meta device, and the output was put on another one. {why}"


@TASK.claim([Case(rows=2, uneven=True)], after=OUTPUT)
def concatenate_puts_the_results_together(case: Case, seen: Any) -> str | bool:
    """The results are put together by concatenate, which sees if they fit, and waits for GPUs."""
    gave = f"results of float32 and of float64 gave {seen['error'] or 'an output'}, expected a ValueError"
    why = "torch.cat does not look, and does not wait: take concatenate(batches)"
    return seen["error"] != "ValueError" and f"{gave}. {why}"


# --- errors ---------------------------------------------------------------------------------------


@TASK.claim(FAILS, after=OUTPUT)
def the_first_error_is_raised(case: Case, seen: Any) -> str | bool:
    """The first error in the schedule is raised itself, once all tasks of the clock have ended."""
    if not seen["error"]:
        return "nothing was raised. Ask every task for its result, which raises what went wrong"
    messages = {TOLD_TO_FAIL.format(j): j for j in case.fails}
    advice = "Let the error itself through, as task.result() raises it, so that everybody sees where it went wrong"
    if seen["error"] != "ValueError" or seen["message"] not in messages:
        return f"{seen['error']} came out instead. {advice}"
    if not seen["leads to the stage"]:
        return f"the traceback of what came out does not lead to the partition. {advice}"
    if (came := messages[seen["message"]]) != case.fails[0]:
        why = "Ask the tasks for their results in the order of the schedule, and let the first error through"
        return f"that of partition {came} came out, expected that of partition {case.fails[0]}, the first. {why}"
    why = "on tensors that the caller may go on to change. Wait for all tasks before you ask for a result"
    return seen["running"] and f"the error came out while partition {case.slow} was still running, {why}"


@TASK.claim([*BATCHES, *FAILS], after=[the_first_error_is_raised])
def all_is_right_the_next_time(case: Case, seen: Any) -> str | None:
    """The next clock and the next forward are right too, also after an error."""
    again = seen["again"]
    what = f"and then {'the same without an error' if case.fails else 'once more'}"
    advice = "Keep nothing of a clock that failed" if case.fails else "Leave the Pipe as it was, to be used again"
    if again["error"]:
        return f"{what}: it raised {again['error']}: {again['message']}. {advice}"
    for i, (found, expected) in enumerate(zip(again["result"], case.numbers(1, done=True), strict=False)):
        if found != expected:
            wrong = f"{_described(found, 'row')}, expected {_described(expected, 'row')}"
            return f"{what}: row {i} was {wrong}. {advice}"
    return None
