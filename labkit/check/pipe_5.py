"""pipe.5: what a rank receives, runs and sends, call by call, held against its schedule."""

from __future__ import annotations

import copy
import random
import traceback
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple
from unittest import mock

from labkit.check.failure import Source, raised
from labkit.check.harness import Finding, Task
from labkit.schedule import EVENT_NAMES, Op, Schedule, find_dependencies, papers
from labkit.todo import task_file

NONE, ALONE, NO_MORE = "None", "that of one process", "nothing more"
TOLD_TO_FAIL = "the ArithmeticError that this stage raised"
NO_GRADIENT = Op("B", 1, 3)  # gives None to the stage before, as where nothing depends on the input


class StepCall(NamedTuple):
    """A call, its tensor in words, and what else to say where this call is expected."""

    name: str
    tensor: str = ""
    reason: str = ""


@dataclass
class Case:
    """One rank of a schedule by itself. ``fails`` is an op whose stage raises."""

    schedule: Schedule
    rank: int
    fails: Op | None = None

    def __str__(self) -> str:
        where = f"stages {self.stages} on rank {self.rank} of {self.schedule.n_ranks}"
        return f"{self.schedule.name or 'another order'}, {where}"

    @property
    def stages(self) -> list[int]:
        return sorted({op.stage for op in self.schedule.ops[self.rank]})

    @cached_property
    def givers(self) -> dict[Op, Op]:
        """Return for each op that takes something from another stage the op that gives it."""
        found = find_dependencies(self.schedule)
        inputs = {op: found.ops[n] for op, n in zip(found.ops, found.input_op, strict=True) if n is not None}
        return {op: giver for op, giver in inputs.items() if op.stage != giver.stage}

    def takes(self, op: Op) -> str:
        """Return in words what the stage should be given for ``op``."""
        if op in self.givers:
            return f"what {self.givers[op]} gives"
        return f"inputs[{op.micro_batch}]" if op.kind == "F" else NONE

    def expected(self, found: list[StepCall]) -> list[StepCall]:
        """Return the calls of a step, in the one order that is right.

        What stays on the rank need not go through P2P, if it is neither sent nor received there.
        """
        ops, calls = self.schedule.ops[self.rank], list[StepCall]()
        consumers = {giver: op for op, giver in self.givers.items()}
        for op in ops:
            if op in self.givers:
                calls.append(StepCall(f"receive({op})", reason=f" of {self.takes(op)}"))
            at_the_loss = ", as it begins at the loss" * (op.kind in "BI" and op not in self.givers)
            calls.append(StepCall(f"{EVENT_NAMES[op.kind]}({op})", self.takes(op), at_the_loss))
            if op == self.fails:
                return [*calls, StepCall(TOLD_TO_FAIL)]
            if op in consumers:
                calls.append(StepCall(f"send({op})", f"what {op} gives", f", for which {consumers[op]} waits"))
        for op, giver in self.givers.items():
            handed_over = {f"send({giver})", f"receive({op})"}
            if {op, giver} <= {*ops} and handed_over.isdisjoint(call.name for call in found):
                calls = [call for call in calls if call.name not in handed_over]
        return [*calls, StepCall("finish()"), StepCall(NO_MORE)]

    def observe(self) -> list[dict[str, Any]]:
        """Return what is seen in two steps, or in one that does not come to its end."""
        from torch.nn.functional import mse_loss

        from labkit import pipe

        p2p, seen = FakeP2P(self), list[dict[str, Any]]()
        own = {n: copy.deepcopy(p2p.modules[n]) for n in self.stages}
        with mock.patch.multiple(pipe, assign_stages=lambda *_: (self.rank, own), P2P=lambda *_: p2p):
            pipeline = pipe.ScheduledPipeline([*own.values()], self.schedule, mse_loss)
        for stage in pipeline._stages.values():
            for kind, name in EVENT_NAMES.items():
                setattr(stage, name, p2p.noting(kind, stage.number, getattr(stage, name)))
        while len(seen) < 2 and not (seen and seen[-1]["error"]):
            p2p.calls = []
            loss, error = _tried(pipeline, p2p.batch)
            results = {"the loss": _words(loss, ALONE, {ALONE: p2p.loss})}
            for n, module in own.items():
                alone = {ALONE: p2p.modules[n].weight.grad * (len(seen) + 1)}
                results[f"the gradient of stage {n}"] = _words(module.weight.grad, ALONE, alone)
            seen.append({"calls": p2p.calls, "error": error, "results": results})
        return seen


class FakeP2P:
    """Stands in for a rank's P2P: gives what one process computes, and notes all calls."""

    def __init__(self, case: Case):
        import torch

        torch.manual_seed(5)
        self.case, self.calls, n_micro = case, list[StepCall](), case.schedule.n_micro
        self.modules: list[Any] = [torch.nn.Linear(2, 2).double() for _ in range(case.schedule.n_stages)]
        x, target = torch.randn(2, n_micro + 2, 2, dtype=torch.float64)  # uneven parts
        self.batch, ys = [x.clone(), target], x.tensor_split(n_micro)
        self.tensors = {f"inputs[{i}]": y for i, y in enumerate(ys)}
        self.tensors[NONE] = x.new_ones(())  # where backward begins
        outputs = [ys := [module(y) for y in ys] for module in self.modules]
        for y in chain(*outputs):
            y.retain_grad()
        loss = torch.nn.functional.mse_loss(torch.cat(ys), target)
        loss.backward()
        self.loss = loss.detach()
        for op, giver in case.givers.items():
            y = outputs[min(op.stage, giver.stage)][op.micro_batch]
            self.tensors[f"what {giver} gives"] = y if op.kind == "F" else y.grad
        if NO_GRADIENT in case.schedule.ops[case.rank]:
            self.tensors[f"what {NO_GRADIENT} gives"].zero_()

    def receive(self, op: Op) -> Any:
        if op not in self.case.givers:
            raise ValueError(f"{op.stage}{op.kind}{op.micro_batch} takes nothing from another stage")
        self.calls.append(StepCall(f"receive({op})"))
        tensor = self.tensors[self.case.takes(op)]
        return tensor.detach().clone().requires_grad_(tensor.requires_grad)

    def send(self, op: Op, tensor: Any) -> None:
        if op not in self.case.givers.values():
            raise ValueError(f"{op.stage}{op.kind}{op.micro_batch} gives nothing to another stage")
        right = f"what {op} gives"
        if tensor is None and op == NO_GRADIENT:
            tensor = self.tensors[right]  # zeros, which will do as well
        self.calls.append(StepCall(f"send({op})", _words(tensor, right, self.tensors)))

    def finish(self) -> None:
        self.calls.append(StepCall("finish()"))

    def noting(self, kind: str, stage: int, method: Any) -> Any:
        def call(micro_batch: Any, *args: Any, **options: Any) -> Any:
            op = Op(kind, stage, micro_batch)
            tensor = next(iter([*args, *options.values()]), None)
            given = _words(tensor, self.case.takes(op), self.tensors)
            self.calls.append(StepCall(f"{EVENT_NAMES[kind]}({op})", given))
            if op == self.case.fails:
                raise ArithmeticError(TOLD_TO_FAIL)
            result = method(micro_batch, *args, **options)
            return None if op == NO_GRADIENT else result

        return call


def _words(tensor: Any, right: str, known: dict[str, Any]) -> str:
    """Return what ``tensor`` is of what is ``known``, where ``right`` is expected."""
    if not hasattr(tensor, "allclose"):
        return NONE if tensor is None else f"a {type(tensor).__name__}"
    form = tensor.shape, tensor.dtype
    alike = {name: one for name, one in known.items() if (one.shape, one.dtype) == form}
    for name, one in alike.items():
        if tensor.allclose(one):
            return name + ", cut off by detach or no_grad" * (one.requires_grad and not tensor.requires_grad)
    if right in alike and right != NONE:
        ratio = (tensor.sum() / alike[right].sum()).item()
        if tensor.allclose(ratio * alike[right]):
            return f"{ratio:.3g} times {right}"
    return f"another tensor, of shape {tuple(tensor.shape)}"


def _tried(pipeline: Any, batch: list[Any]) -> tuple[Any, str]:
    """Return what a step gives, or what it raises."""
    try:
        return pipeline.step(*batch), ""
    except Exception as error:
        text, source = "".join(traceback.format_exception(error)), Source(task_file("pipe.5"))
        if "process group has not been initialized" in str(error):
            return None, f"torch.distributed was called past self._p2p ({source.place(text)})"
        named = raised(type(error).__name__, str(error), text, source)
        return None, TOLD_TO_FAIL if str(error) == TOLD_TO_FAIL else named


# --- what must hold -------------------------------------------------------------------------------


def _cases(*schedules: Schedule) -> list[Case]:
    return [Case(schedule, rank) for schedule in schedules for rank in range(schedule.n_ranks)]


ANY_ORDER = Schedule.from_csv("0F1,0F2,0F0,0B2,0B0,0B1\n1F1,1F2,1F0,1B2,1B0,1B1")
NEIGHBOURS = Schedule.from_csv("0F0,1F0,0F1,1F1,1B0,0B0,1B1,0B1\n2F0,3F0,2F1,3F1,3B0,2B0,3B1,2B1")
ONE_STAGE = _cases(papers.gpipe(3, 3), papers.one_f_one_b(3, 4), papers.gpipe(1, 2), ANY_ORDER)


def drawn(draw: random.Random) -> list[Case]:
    """Return more stages and more micro-batches than are written down, seen from three ranks."""
    schedule = papers.one_f_one_b(draw.randint(5, 6), draw.randint(6, 9))
    return [Case(schedule, rank) for rank in (0, draw.randint(1, schedule.n_ranks - 2), schedule.n_ranks - 1)]


SPLIT = _cases(papers.zero_bubble_h1(3, 4))
SEVERAL = _cases(papers.interleaved(2, 4, 2), papers.zero_bubble_v(2, 4), NEIGHBOURS)
FAILING = [Case(papers.one_f_one_b(3, 4), 1, fails=Op("F", 1, 1))]
TASK = Task(
    writes="ScheduledPipeline.step",
    minutes=30,
    points=15,
    notebooks="08 to 10",
    hints=(
        """Take a rank in the middle of a 1F1B schedule, and one forward and one backward on it. What does each
need, who has it, and who waits for what comes of it?""",
        """Every op is the same three steps: get the input, call the stage's method for this kind of op, send
what came out. A forward gets an activation and gives one; a backward gets a gradient and gives one.
I is to messages what B is, and W has no messages at all.""",
        """The ends differ: stage 0 takes its input from the micro-batches and sends no gradient; the last
stage's forward gives the loss, which is not sent, and its backward receives nothing. Ask that of
the op's stage and not of the rank, which may have several. Send at once, before the next op, and
send a gradient also where it is None.""",
    ),
)


@TASK.claim([*ONE_STAGE, drawn], core=True)
def each_op_is_received_run_and_sent(case: Case, seen: Any) -> Finding:
    """A rank takes its ops in turn: receives what an op takes, runs it, sends what it gives."""
    todo = "Each op gets what it needs, and what others wait for is sent, as it is"
    return _first_difference(case, seen, todo)


@TASK.claim(SPLIT)
def a_split_backward_pass_is_two_ops(case: Case, seen: Any) -> Finding:
    """Where backward is split, I computes the input's gradient, and W, later, the weights'."""
    todo = "Here I and W are in place of B: labkit/parallel/pipe/scheduled_stage.py says what each computes"
    return _first_difference(case, seen, todo)


@TASK.claim(SEVERAL)
def a_rank_may_have_several_stages(case: Case, seen: Any) -> Finding:
    """A rank may have several stages, the first and the last among them."""
    return _first_difference(case, seen, "Here a rank has several stages, and an op is about one of them")


@TASK.claim(FAILING)
def an_error_of_a_stage_ends_the_step(case: Case, seen: Any) -> Finding:
    """Where a stage raises, the step ends with that error, and runs and sends nothing more."""
    return _first_difference(case, seen, "Let it through: so all ranks end, and none waits")


@TASK.claim([*ONE_STAGE, *SPLIT, *SEVERAL, drawn])
def loss_and_gradients_are_those_of_one_process(case: Case, seen: Any) -> Finding:
    """The loss, on the rank of the last stage alone, and gradients are those of one process."""
    todo = "Micro-batches and steps add up: scale and clear nothing, and leave the loss as given"
    has_loss = case.schedule.n_stages - 1 in case.stages
    for number, step in enumerate(seen):
        for what, found in step["results"].items():
            right = ALONE if has_loss or what != "the loss" else NONE
            if found != right:
                return f"after step {number}, {what} is {found}, expected {right}. {todo}"


def _first_difference(case: Case, seen: Any, todo: str) -> str | None:
    """Return what is wrong with the first call that is not as expected, and what was to be done."""
    for number, step in enumerate(seen):
        which = "in the second step, for which the first has to leave all as it was, " * number
        place, error = f"{which}at the start", step["error"]
        found = [*(StepCall(*call) for call in step["calls"]), StepCall(error or NO_MORE)]
        # What ends one of the two is in no other place.
        for call, right in zip(found, case.expected(found), strict=False):
            if call.name != right.name:
                expected = f"expected {right.name}{right.reason}. {todo}"
                wrong = call.name if call.name == error else f"it called {call.name}"
                return f"{place} {wrong}, {expected}"
            if call.tensor != right.tensor:
                expected = f"expected {right.tensor}{right.reason}. {todo}"
                return f"{place} {call.name} was given {call.tensor}, {expected}"
            place = f"{which}after {call.name},"
    return None
