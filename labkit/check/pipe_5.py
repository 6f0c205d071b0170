"""pipe.5: what a rank receives, runs and sends, call by call, held against its schedule."""

from __future__ import annotations

import copy
import inspect
import traceback
from dataclasses import dataclass
from itertools import chain, product, zip_longest
from typing import Any, NamedTuple
from unittest import mock

from labkit.check.calls import recorded
from labkit.check.failure import Source, raised
from labkit.check.harness import Task
from labkit.schedule import EVENT_NAMES, Op, Schedule, papers
from labkit.todo import task_file

RECEIVE, RUN, SEND, FINISH = "receive", "run", "send", "finish"
NOTHING, TOLD_TO_FAIL = "nothing", "this stage was told to fail"
IN_TURN = "Take the ops of self.schedule.ops[self.rank] in turn: receive, run on self._stages[op.stage], send"
GIVEN = "The lines that are given behind the TODO see to the rest"


class Call(NamedTuple):
    """RUN of a stage, or RECEIVE, SEND, FINISH of P2P. ``tensor`` says in words what went along."""

    what: str
    op: Op | None = None
    tensor: str = NOTHING

    def __str__(self) -> str:
        if self.what == RUN and self.op:
            kind, stage, micro_batch = self.op
            return f"{EVENT_NAMES[kind]} of stage {stage} for micro-batch {micro_batch} ({self.op})"
        return f"{self.what}({self.op or ''})"


@dataclass(eq=False)
class Case:
    """One rank of a schedule by itself, which stands in for its P2P and the methods of its stages.

    They note what they are called with, and give what is right at once, whatever they were given.
    ``fails`` is an op whose stage raises, ``no_gradient`` one that gives None to the stage before.
    """

    schedule: Schedule
    rank: int
    fails: Op | None = None
    no_gradient: Op | None = None

    world_size = 1  # so there is a process group, and what goes past P2P is seen

    def __post_init__(self) -> None:
        self.ops = self.schedule.ops[self.rank]
        self.stages = sorted({op.stage for op in self.ops})
        self.trains = any(op.kind != "F" for op in self.ops)

    def __str__(self) -> str:
        return f"{self.schedule.name}, rank {self.rank} of {self.schedule.n_ranks}"

    def passes(self, op: Op) -> tuple[Op | None, Op | None]:
        """Return the op of another stage that ``op`` takes from, and the one that it gives to."""
        ways = {"F": "F", "B": "BI", "I": "BI", "W": ""}[op.kind]
        ops = [o for ops in self.schedule.ops for o in ops if o.micro_batch == op.micro_batch and o.kind in ways]
        before, behind = ({o.stage: o for o in ops}.get(op.stage + way) for way in (-1, 1))
        return (before, behind) if op.kind == "F" else (behind, before)

    def takes(self, op: Op) -> str:
        """Return in words what a stage is to be given for ``op``."""
        if source := self.passes(op)[0]:
            return f"what {source} gives"
        return f"micro-batch {op.micro_batch} of x" if op.kind == "F" else NOTHING

    def expected(self, found: list[Call]) -> list[Call]:
        """Return the calls of a step, in the one order that is right.

        What stays on the rank need not go through P2P, if it is neither sent nor received there.
        """
        used, calls = {call[:2] for call in found}, list[Call]()

        def is_sent(giver: Op | None, taker: Op | None) -> bool:
            stays = giver in self.ops and taker in self.ops and not {(SEND, giver), (RECEIVE, taker)} & used
            return bool(giver and taker) and not stays

        for op in self.ops:
            source, target = self.passes(op)
            gives = NOTHING if op == self.no_gradient else f"what {op} gives"
            calls += [Call(RECEIVE, op)] * is_sent(source, op)
            calls += [Call(RUN, op, self.takes(op))]
            calls += [Call(SEND, op, gives)] * is_sent(op, target)
        return [*calls, Call(FINISH)]

    def in_one_process(self) -> tuple[list[Any], list[Any], Any, dict[str, Any]]:
        """Return the stages after a step, x and target, the loss, and by its words what ops
        take."""
        import torch

        torch.manual_seed(5)
        modules = [torch.nn.Linear(2, 2).double() for _ in range(self.schedule.n_stages)]
        x, target = torch.randn(2, self.schedule.n_micro + 2, 2, dtype=torch.float64)  # uneven parts
        ys = x.tensor_split(self.schedule.n_micro)
        tensors = {f"micro-batch {i} of x": y for i, y in enumerate(ys)}
        outputs = [ys := [module(y) for y in ys] for module in modules]
        for y in chain(*outputs):
            y.retain_grad()
        loss = torch.nn.functional.mse_loss(torch.cat(ys), target)
        loss.backward()
        for stage, i in product(range(len(modules) - 1), range(len(ys))):
            tensors |= {f"what {Op('F', stage, i)} gives": outputs[stage][i].detach()}
            tensors |= {self.takes(Op(kind, stage, i)): outputs[stage][i].grad for kind in "BI"}
        return modules, [x, target], loss.detach(), tensors

    def observe(self) -> list[dict[str, Any]]:
        """Return what is seen in two steps, or in one that does not come to its end."""
        from torch.nn.functional import mse_loss

        from labkit import pipe

        modules, batch, total, self.tensors = self.in_one_process()
        own, seen = {number: copy.deepcopy(modules[number]) for number in self.stages}, list[Any]()
        with mock.patch.multiple(pipe, assign_stages=lambda *_: (self.rank, own), P2P=lambda *_: self):
            pipeline: Any = pipe.ScheduledPipeline([*own.values()], copy.deepcopy(self.schedule), mse_loss)
        for number, stage in pipeline._stages.items():
            stage.module.zero_grad()
            for kind, name in EVENT_NAMES.items():
                setattr(stage, name, self.noting(kind, number, getattr(stage, name)))
        while len(seen) < 2 and not (seen and seen[-1]["error"]):
            self.calls: list[Call] = []
            with recorded(carry_out=False) as others:
                loss, error = self.tried(lambda: pipeline.step(*batch))
            results = [("the loss", loss, total if self.schedule.n_stages - 1 in self.stages else None)]
            for number, module in own.items():
                gradient = modules[number].weight.grad * (len(seen) + 1) if self.trains else None
                results.append((f"the gradient of stage {number}", copy.deepcopy(module.weight.grad), gradient))
            past = [call.name for call in others]
            seen.append({"calls": self.calls, "past P2P": past, "error": error, "results": results})
        return seen

    def tried(self, step: Any) -> tuple[Any, str]:
        """Return what a step gives, or else what it raises, with what to do where that is clear."""
        try:
            return step(), ""
        except (Exception, KeyboardInterrupt) as error:
            name, text = type(error).__name__, "".join(traceback.format_exception(error))
            what = raised(name, str(error).replace("'Case'", "'P2P'"), text, Source(task_file("pipe.5")))
        if name == "KeyError" and "_stages[" in text:
            what += f". This rank has the stages {self.stages}. {IN_TURN}"
        if name == "IndexError" and "inputs[" in text and 0 not in self.stages:
            what += ". inputs is for stage 0, and empty on this rank: other stages receive"
        return None, what

    def send(self, op: Op, tensor: Any) -> None:
        self.note(SEND, op, tensor)

    def receive(self, op: Op) -> Any:
        self.note(RECEIVE, op)
        return self.right(op)

    def finish(self) -> None:
        self.note(FINISH)

    def noting(self, kind: str, stage: int, method: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            micro_batch, *given = inspect.signature(method).bind(*args, **options).arguments.values()
            if not isinstance(micro_batch, int):
                what = f"the first argument of {EVENT_NAMES[kind]} is a {type(micro_batch).__name__}"
                raise TypeError(f"{what}, expected the micro-batch's number")
            op = Op(kind, stage, micro_batch)
            self.note(RUN, op, *given)
            if op == self.fails:
                raise ArithmeticError(TOLD_TO_FAIL)
            result = method(micro_batch, *[self.right(op)] * (kind != "W"))
            if kind == "F" and self.trains and not result.requires_grad:
                raise RuntimeError("gradients are switched off, and the schedule has backward passes")
            return None if op == self.no_gradient else result

        return call

    def right(self, op: Op) -> Any:
        """Return what ``op`` takes. An activation that gets a gradient back requires grad."""
        tensor: Any = self.tensors.get(self.takes(op))
        return tensor if op.kind != "F" else tensor.clone().requires_grad_(op.stage > 0 and self.trains)

    def note(self, what: str, op: Any = None, tensor: Any = None) -> None:
        if what in (SEND, RECEIVE) and (type(op) is not Op or op not in self.ops):
            name = op if type(op) is Op else type(op)
            raise ValueError(f"{what} was called for {name}, expected the op of this rank whose turn it is")
        if what in (SEND, RECEIVE) and not self.passes(op)[what == SEND]:
            raise ValueError(f"{op} {'gives nothing to' if what == SEND else 'takes nothing from'} another stage")
        self.calls.append(Call(what, op, self.words(op, tensor)))

    def words(self, op: Op, tensor: Any) -> str:
        """Return what ``tensor`` is, which was given to ``op``, or sent for it."""
        if not hasattr(tensor, "requires_grad"):
            return NOTHING if tensor is None else f"a {type(tensor).__name__}"
        same_as_none = 1 if self.takes(op) == NOTHING else 0 if op == self.no_gradient else None
        if same_as_none is not None and bool((tensor == same_as_none).all()):
            return NOTHING
        for words, value in self.tensors.items():
            if (tensor.shape, tensor.dtype) == (value.shape, value.dtype) and tensor.allclose(value):
                lost = "F" in words and op.kind == "F" and self.trains and not tensor.requires_grad
                return f"{words}, detached" if lost else words
        return f"another tensor, of shape {tuple(tensor.shape)}"


# --- what must hold -------------------------------------------------------------------------------


def _cases(*schedules: Schedule) -> list[Case]:
    return [Case(schedule, rank) for schedule in schedules for rank in range(schedule.n_ranks)]


ANY_ORDER = Schedule.from_csv("0F1,0F2,0F0,0B2,0B0,0B1\n1F1,1F2,1F0,1B2,1B0,1B1").ops
NEIGHBOURS = Schedule.from_csv("0F0,1F0,0F1,1F1,1B0,0B0,1B1,0B1\n2F0,3F0,2F1,3F1,3B0,2B0,3B1,2B1").ops
ONE_STAGE = _cases(papers.gpipe(3, 3), papers.one_f_one_b(3, 4), papers.forward_only(3, 2), papers.gpipe(1, 2))
ONE_STAGE += _cases(Schedule(ANY_ORDER, "micro-batches in another order"))
SPLIT = _cases(papers.zero_bubble_h1(3, 4))
SEVERAL = _cases(papers.interleaved(2, 4, 2), papers.zero_bubble_v(2, 4), Schedule(NEIGHBOURS, "neighbours"))
FAILING = [Case(papers.one_f_one_b(3, 4), 1, fails=op) for op in (Op("F", 1, 1), Op("B", 1, 0))]
TASK = Task()


@TASK.claim([*ONE_STAGE, Case(papers.one_f_one_b(3, 4), 1, no_gradient=Op("B", 1, 1))])
def each_op_is_received_run_and_sent(case: Case, seen: Any) -> str | None:
    """A rank takes its ops in turn: receives what an op takes, runs it, sends what it gives."""
    return _first_difference(case, seen)


@TASK.claim(SPLIT, after=[each_op_is_received_run_and_sent])
def a_split_backward_pass_is_two_ops(case: Case, seen: Any) -> str | None:
    """Where backward is split, I computes the input's gradient, and W, later, the weights'."""
    return _first_difference(case, seen)


@TASK.claim(SEVERAL, after=[a_split_backward_pass_is_two_ops])
def a_rank_may_have_several_stages(case: Case, seen: Any) -> str | None:
    """A rank may have several stages, the first and the last among them."""
    return _first_difference(case, seen)


@TASK.claim(FAILING, after=[each_op_is_received_run_and_sent])
def an_error_of_a_stage_ends_the_step(case: Case, seen: Any) -> str | None:
    """Where a stage raises, the step ends with that error, and runs and sends nothing more."""
    calls = _calls(step := seen[0][0])
    after = calls[[call[:2] for call in calls].index((RUN, case.fails)) + 1 :]
    if TOLD_TO_FAIL in step["error"] and not after:
        return None
    instead = f"it called {after[0]} afterwards" if after else step["error"] or "nothing was raised"
    return f"where {case.fails} raised an ArithmeticError, {instead}. Let it through: so all ranks end, and none waits"


@TASK.claim([*ONE_STAGE, *SPLIT, *SEVERAL], after=[a_rank_may_have_several_stages])
def loss_and_gradients_are_those_of_one_process(case: Case, seen: Any) -> str | None:
    """The loss, on the rank of the last stage alone, and gradients are those of one process."""
    for number, step in enumerate(seen[0]):
        for what, found, expected in step["results"]:
            if wrong := _differs(found, expected):
                advice = "Micro-batches add up as they are, and so do steps: scale nothing, set nothing to zero"
                return f"after step {number}, {what} is {wrong}. {advice}. {GIVEN}"
    return None


def _differs(found: Any, expected: Any) -> str | None:
    if expected is None or getattr(found, "shape", None) != expected.shape:
        names = ["None" if each is None else f"a {type(each).__name__}" for each in (found, expected)]
        return None if found is expected else f"{names[0]}, expected {names[1]}"
    ratio = float(found.sum() / expected.sum())
    times = f"{ratio:.3g} times" if found.allclose(ratio * expected) else "something else than"
    return None if found.allclose(expected) else f"{times} that of one process"


# --- the first difference -------------------------------------------------------------------------


def _calls(step: Any) -> list[Call]:
    return [Call(what, op and Op(*op), tensor) for what, op, tensor in step["calls"]]


def _first_difference(case: Case, seen: Any) -> str | None:
    for number, step in enumerate(seen[0]):
        if step["past P2P"]:
            return f"{step['past P2P'][0]} of torch.distributed was called: use receive and send of self._p2p"
        found, error = _calls(step), step["error"]
        right = case.expected(found)
        n = next((n for n, (a, b) in enumerate(zip_longest(found, right)) if a != b), len(right))
        if n == max(len(found), len(right)) and not error:
            continue
        place = f"after {right[n - 1].op if right[n - 1].what == RUN else right[n - 1]}," if n else "at the start"
        wrong = f"{place} {error if error and n == len(found) else _explain(case, found, right, n)}"
        return f"in the second step, {wrong}. Leave all for it as the first has found it" if number else wrong
    return None


def _explain(case: Case, found: list[Call], expected: list[Call], n: int) -> str:
    """Return what is wrong with call ``n``, the first that is not as expected, and what to do."""
    call, right = (calls[n] if n < len(calls) else Call("") for calls in (found, expected))
    op, names, several = right.op, [each[:2] for each in found], len(case.stages) > 1
    if (call.what or right.what) == FINISH and (times := names.count((FINISH, None))) != 1:
        return f"self._p2p.finish() was called {times} times, expected once. {GIVEN}"
    if not op or not call.op:
        return f"{f'it was done, without {right}' if op else f'it called {call}, expected nothing more'}. {IN_TURN}"
    advice = f"Rank {case.rank} has the stages {case.stages}: ask for op.stage, not for the rank" * several or IN_TURN
    if call.op == op and call.what == RUN and right.what == RECEIVE:
        advice = advice if several else f"Call receive({op}) for it"
        return f"{op} was given {call.tensor}, expected {case.takes(op)}. {advice}"
    if call[:2] == right[:2]:
        verb = "was given" if call.what == RUN else "sent"
        return f"{op} {verb} {call.tensor}, expected {right.tensor}. {_on_tensor(op, call, right)}"
    if call.what != RUN and call[:2] in names[:n]:
        return f"it called {call} again, expected {right}: what an op gives is sent once, and received once"
    if right.what == SEND and (target := case.passes(op)[1]) and (SEND, op) not in names:
        if op == case.no_gradient:
            advice = "It is None, as nothing depends on the input: send it all the same, and zeros are sent"
        elif target in case.ops:
            advice = "That stage is on this rank too: send and receive, or do without both"
        return f"what {op} gives was not sent, and {target} waits for it, for ever. {advice}"
    if call.what == right.what == RUN and call.op[1:] == op[1:]:
        advice = "F is forward, B backward, I input_grad, and W weight_grad of the stage"
    return f"it called {call}, expected {right}. {advice}"


def _on_tensor(op: Op, call: Call, right: Call) -> str:
    if call.what == SEND:
        return "Send what the stage returns, as it is"
    if call.tensor.endswith(", detached"):
        return "Hand it over as receive gives it: its requires_grad says that its gradient is to be sent back"
    if right.tensor.startswith("what"):
        return f"Hand over what receive({op}) gives, as it is"
    at_the_loss = "The backward pass begins at the loss, with a gradient of 1, which the stage knows by itself"
    return "Stage 0 takes inputs[op.micro_batch]" if op.kind == "F" else at_the_loss
