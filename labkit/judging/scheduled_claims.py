"""What must hold of pipe.5, a step of the scheduled pipeline. Each claim is a function: its docstring says what must hold, and
it gives None where that holds, else what is wrong and what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from labkit.judging import scheduled_probes as probes
from labkit.judging.evidence import Evidence, EvidenceMissing, Failure, NotTried, Untried, holds
from labkit.judging.in_ranks import try_in_ranks
from labkit.judging.scheduled_probes import METHODS, NOTHING, ONE, Note, gives, source_of, target_of
from labkit.schedule import Op, Schedule

Claim = Callable[[Evidence], str | None]
Part = Callable[["Step", list["Step"]], str | None]


class Step(NamedTuple):
    """What one rank called in a step of ``schedule``, in order, and what ended it, if it was not the end.

    ``called`` is what it called of torch.distributed itself.
    """

    name: str
    schedule: Schedule
    rank: int
    notes: list[Note]
    failure: Failure | None
    called: list[str]

    @property
    def where(self) -> str:
        return f"{self.name}, rank {self.rank} of {self.schedule.n_ranks}"

    @property
    def ops(self) -> list[Op]:
        return self.schedule.ops[self.rank]

    @property
    def ran(self) -> list[Op]:
        return [note.op for note in self.notes if note.what == "run" and note.op]

    def places(self, what: str, op: Op) -> list[int]:
        """Where in the notes these calls are."""
        return [place for place, note in enumerate(self.notes) if (note.what, note.op) == (what, op)]


def gather() -> Evidence:
    """What each rank does by itself, where nothing waits; and what two do together, if they will not wait for ever."""
    (found,) = try_in_ranks(probes.probe_alone, world_size=1)
    if all(holds(claim, Evidence(found)) for claim in BY_ITSELF):
        together: Any = try_in_ranks(probes.probe_together, world_size=probes.WORLD_SIZE)
    else:
        together = Untried("not tried, because the ranks would not get to the end together yet")
    return Evidence(found | {"together": together})


# --- one stage a rank ------------------------------------------------------------------------------------------------


def each_rank_runs_its_ops_in_order(evidence: Evidence) -> str | None:
    """Each rank runs its own ops, each of them once, in the order that the schedule has them."""
    return _first_wrong(evidence, probes.ONE_STAGE_A_RANK, [_order])


def an_op_is_given_what_is_meant_for_it(evidence: Evidence) -> str | None:
    """F is given its micro-batch as the stage before has left it, B the gradient that the stage behind has computed for it."""
    _only_where(each_rank_runs_its_ops_in_order, evidence)
    return _first_wrong(evidence, probes.ONE_STAGE_A_RANK, [_given])


def what_others_wait_for_is_sent(evidence: Evidence) -> str | None:
    """What an op gives to another stage is sent, once, so that nobody waits for ever."""
    _only_where(each_rank_runs_its_ops_in_order, evidence)
    if wrong := _first_wrong(evidence, probes.ONE_STAGE_A_RANK, [_sent]):
        return wrong
    op, notes = probes.NO_GRADIENT, evidence["no gradient"][0]
    if ("send", op) not in [note[:2] for note in notes]:
        return (
            f"where {op} gives None, as the output of its stage does not depend on the input, it was not sent, and rank "
            f"{op.stage - 1} would wait for ever. Send it all the same: the mail sends zeros"
        )
    return None


def a_rank_does_not_keep_others_waiting(evidence: Evidence) -> str | None:
    """What an op gives is sent before the next op begins, and a rank waits for what an op takes only when its turn has come."""
    _only_where(what_others_wait_for_is_sent, evidence)
    return _first_wrong(evidence, probes.ONE_STAGE_A_RANK, [_in_time])


def what_is_given_behind_the_ops_still_runs(evidence: Evidence) -> str | None:
    """The step goes on behind the last op: the mail is finished, once."""
    _only_where(each_rank_runs_its_ops_in_order, evidence)
    return _first_wrong(evidence, probes.ONE_STAGE_A_RANK, [_end])


# --- other schedules -------------------------------------------------------------------------------------------------


def a_split_backward_pass_is_two_ops(evidence: Evidence) -> str | None:
    """Where the backward pass is split, I computes the input's gradient, and W, later, the weights'."""
    _where_one_stage_a_rank_is_right(evidence)
    return _first_wrong(evidence, probes.SPLIT, PARTS)


def a_rank_may_have_several_stages(evidence: Evidence) -> str | None:
    """A rank may have several stages, the first and the last among them."""
    _where_one_stage_a_rank_is_right(evidence)
    if wrong := _first_wrong(evidence, probes.INTERLEAVED, PARTS):
        return wrong
    _only_where(a_split_backward_pass_is_two_ops, evidence)
    return _first_wrong(evidence, probes.V, PARTS)


# --- errors ----------------------------------------------------------------------------------------------------------


def a_stage_that_raises_ends_the_step(evidence: Evidence) -> str | None:
    """Where a stage raises, the step ends with that error, and runs and sends nothing more."""
    _only_where(each_rank_runs_its_ops_in_order, evidence)
    for op, found in zip(probes.FAILING, evidence["fails"], strict=True):
        where = f"1F1B, rank 1 of 3, where {METHODS[op.kind]} raised an ArithmeticError at {op}"
        notes = found["notes"]
        if found["error"] is None:
            return f"{where}: nothing was raised. {LET_THROUGH}"
        if not found["is the stage's"]:
            return f"{where}: {found['error']} came out instead. {LET_THROUGH}"
        if after := notes[notes.index(next(note for note in notes if (note.what, note.op) == ("run", op))) + 1 :]:
            return f"{where}: {_called(after[0])} afterwards. {LET_THROUGH}"
    return None


# --- together --------------------------------------------------------------------------------------------------------


def the_loss_is_that_of_one_process(evidence: Evidence) -> str | None:
    """step gives the loss of the whole batch on the rank of the last stage, and None on others."""
    for step in _steps_together(evidence):
        found, expected = step["loss"], step["expected loss"]
        if not step["has the last stage"]:
            if found is not None:
                return f"{step['where']}: step gave a {type(found).__name__}, expected None. {BEHIND}"
        elif not hasattr(found, "shape") or found.numel() != 1:
            what = "None" if found is None else f"a {type(found).__name__} of more than one number"
            return f"{step['where']}: step gave {what}, expected the loss. {BEHIND}"
        elif not _close(found, expected):
            return (
                f"{step['where']}: the loss is {_times(found, expected)} that of one process. The loss of a micro-batch is its "
                f"part of the mean over all rows already, so the parts add up. {BEHIND}"
            )
    return None


def the_gradients_are_those_of_one_process(evidence: Evidence) -> str | None:
    """Each step adds to the gradients what one process computes for the whole batch."""
    for step in _steps_together(evidence):
        for stage, expected in step["expected gradients"].items():
            found = step["gradients"][stage]
            if found is None:
                return (
                    f"{step['where']}: stage {stage} has no gradients. Leave the modules' .grad as backward has made it"
                )
            if not _close(found, expected):
                return (
                    f"{step['where']}: the gradients of stage {stage} are {_times(found, expected)} those of one process. A step "
                    "adds to what is there: whoever calls it sets it to zero, and nobody scales it"
                )
    return None


# --- what is looked at in a step -------------------------------------------------------------------------------------


def _order(step: Step, everyone: list[Step]) -> str | None:
    ran, ops = step.ran, step.ops
    number = next((k for k, (a, b) in enumerate(zip(ran, ops, strict=False)) if a != b), min(len(ran), len(ops)))
    so_far = f"after {ops[number - 1]}" if number else "at the start"
    if number < min(len(ran), len(ops)):
        advice = f"{_advice(step, number)}{_who_waits(everyone)}"
        return f"{so_far} it called {_called_as(ran[number])}, expected {_called_as(ops[number])}. {advice}"
    if step.failure:
        return f"{so_far} {step.failure.what}"
    if len(ran) < len(ops):
        return f"{so_far} it was done, without {_called_as(ops[number])}. {IN_THEIR_ORDER}{_who_waits(everyone)}"
    if len(ran) > len(ops):
        return f"behind its last op it called {_called_as(ran[number])}. {IN_THEIR_ORDER}"
    return None


def _advice(step: Step, number: int) -> str:
    """What to do where another op than that of this number ran."""
    found, expected = step.ran[number], step.ops[number]
    if (found.stage, found.micro_batch) == (expected.stage, expected.micro_batch):
        return "F is forward, B backward, I input_grad, and W weight_grad of the stage"
    if found.stage != expected.stage and found._replace(stage=expected.stage) == expected:
        return "op.stage is the number of the stage, also where a rank has several"
    return IN_THEIR_ORDER


def _given(step: Step, everyone: list[Step]) -> str | None:
    last = step.schedule.n_stages - 1
    for note in step.notes:
        op = note.op
        if note.what != "run" or op is None or op.kind == "W":
            continue
        source = source_of(op, step.schedule)
        by_itself = f"micro-batch {op.micro_batch} of x" if op.kind == "F" else NOTHING
        expected = gives(source, step.schedule) if source else by_itself
        if note.given == expected or (op.kind != "F" and op.stage == last and note.given == ONE):
            continue
        return f"{op} was given {note.given}, expected {expected}. {_source_advice(op, source, note.given)}"
    return None


def _source_advice(op: Op, source: Op | None, found: str) -> str:
    if found.endswith(", detached"):
        return "Hand it over as receive gives it: its requires_grad says that its gradient is to be sent back"
    if source:
        return f"receive({op}) gives what the other stage has sent, and nothing has to be done to it"
    if op.kind == "F":
        return "Stage 0 takes its micro-batch from inputs"
    return "The backward pass begins at the loss, with a gradient of 1, which the stage knows by itself"


def _sent(step: Step, everyone: list[Step]) -> str | None:
    if step.called:
        called = " and ".join(step.called)
        return f"{called} of torch.distributed was called. Everything goes through receive and send of self._p2p"
    for op in step.ops:
        target = target_of(op, step.schedule)
        places = step.places("send", op)
        if target and not places:
            return f"what {op} gives was not sent, and {target} takes it{_who_waits(everyone)}"
        if len(places) > 1:
            return f"what {op} gives was sent {len(places)} times, expected once"
        if places and (found := step.notes[places[0]].given) != (expected := gives(op, step.schedule)):
            return f"as what {op} gives, {found} was sent, expected {expected}: send what the stage returns, as it is"
        if len(step.places("receive", op)) > 1:
            return f"receive({op}) was called {len(step.places('receive', op))} times, and what {op} takes is sent once"
    return None


def _in_time(step: Step, everyone: list[Step]) -> str | None:
    for op, following in zip(step.ops, step.ops[1:], strict=False):
        (end,) = step.places("send", op) or step.places("run", op)
        begins = step.places("receive", following) + step.places("run", following)
        if end > min(begins):
            what = "sent" if step.notes[end].what == "send" else "computed"
            then = "waited for what" if step.notes[min(begins)].what == "receive" else "ran"
            takes = " takes" if then != "ran" else ""
            return f"it {then} {following}{takes} before what {op} gives was {what}. Finish one op before you turn to the next"
    return None


def _end(step: Step, everyone: list[Step]) -> str | None:
    times = step.notes.count(Note("finish"))
    if times == 0:
        return f"self._p2p.finish() was not called, so the next step would not begin. {BEHIND}"
    if times > 1:
        return f"self._p2p.finish() was called {times} times, and it ends a step. {BEHIND}"
    if step.failure:
        raise EvidenceMissing(step.failure.what)
    return None


PARTS: list[Part] = [_order, _given, _sent, _in_time, _end]


# --- helpers ---------------------------------------------------------------------------------------------------------

IN_THEIR_ORDER = "Take the ops of self.schedule.ops[self.rank], one after the other, and run each when its turn comes"
LET_THROUGH = "Let the error through: then this rank ends, and with it all others, instead of waiting for it"
BEHIND = "The lines that are given behind the TODO see to that: let the step get there"
NOT_YET: dict[Claim, str] = {
    each_rank_runs_its_ops_in_order: "the ops of a rank are not run in their order yet",
    what_others_wait_for_is_sent: "what other stages wait for is not sent yet",
    a_split_backward_pass_is_two_ops: "a split backward pass is not right yet",
}


def _only_where(claim: Claim, evidence: Evidence) -> None:
    """Raises NotTried where what the claim says does not hold: what follows would only say it again."""
    if not holds(claim, evidence):
        raise NotTried(f"not tried, because {NOT_YET[claim]}")


def _where_one_stage_a_rank_is_right(evidence: Evidence) -> None:
    if any(_first_wrong(evidence, probes.ONE_STAGE_A_RANK, [part]) for part in PARTS):
        raise NotTried("not tried, because schedules with one stage a rank are not right yet")


def _first_wrong(evidence: Evidence, schedules: dict[str, Schedule], parts: list[Part]) -> str | None:
    """What is wrong with the first rank's step that is wrong, looked at for one thing after the other."""
    for name, schedule in schedules.items():
        ranks = evidence["ranks"][name]
        steps = [Step(name, schedule, rank, *found) for rank, found in enumerate(ranks)]
        for part in parts:
            for step in steps:
                if wrong := part(step, steps):
                    return f"{step.where}: {wrong}"
    return None


def _who_waits(steps: list[Step]) -> str:
    """``. Then rank 1 waits at 1F0 for what 0F0 gives, for ever``: what these steps would have come to, had they run together."""
    if any(step.failure for step in steps):
        return ""
    ahead, sent = [list(step.notes) for step in steps], set[Op]()

    def waits_for(notes: list[Note]) -> Op | None:
        op = notes[0].op if notes and notes[0].what == "receive" else None
        source = source_of(op, steps[0].schedule) if op else None
        return source if source not in sent else None

    while ready := [notes for notes in ahead if notes and not waits_for(notes)]:
        note = ready[0].pop(0)
        if note.what == "send" and note.op:
            sent.add(note.op)
    waits = [
        f"rank {rank} waits at {notes[0].op} for what {waits_for(notes)} gives"
        for rank, notes in enumerate(ahead)
        if notes
    ]
    return f". Then {', '.join(waits)}, for ever" if waits else ""


def _called_as(op: Op) -> str:
    return f"{METHODS[op.kind]} of stage {op.stage} for micro-batch {op.micro_batch} ({op})"


def _called(note: Note) -> str:
    """``1F2 ran``, ``what 1F2 gives was sent``."""
    return {
        "run": f"{note.op} ran",
        "send": f"what {note.op} gives was sent",
        "receive": f"what {note.op} takes was waited for",
        "finish": "the mail was finished",
    }[note.what]


def _steps_together(evidence: Evidence) -> Iterator[dict[str, Any]]:
    """Each step of each rank of each schedule, with words for where it was."""
    for name, schedule in probes.TOGETHER.items():
        for rank, found in enumerate(evidence["together"]):
            for number, step in enumerate(found[name]):
                where = f"{name}, rank {rank} of {schedule.n_ranks}, step {number}"
                last = any(op.stage == schedule.n_stages - 1 for op in schedule.ops[rank])
                yield step | {"where": where, "has the last stage": last}


def _close(found: Any, expected: Any) -> bool:
    return bool(found.shape == expected.shape and found.double().allclose(expected, rtol=1e-9, atol=1e-12))


def _times(found: Any, expected: Any) -> str:
    """``0.25 times``, where one is a multiple of the other; else ``not``."""
    ratio = float(found.sum() / expected.sum()) if found.shape == expected.shape else 0.0
    return f"{ratio:.3g} times" if ratio and _close(found, ratio * expected) else "not"


BY_ITSELF = (  # causes before what follows from them
    each_rank_runs_its_ops_in_order,
    an_op_is_given_what_is_meant_for_it,
    what_others_wait_for_is_sent,
    a_rank_does_not_keep_others_waiting,
    what_is_given_behind_the_ops_still_runs,
    a_split_backward_pass_is_two_ops,
    a_rank_may_have_several_stages,
    a_stage_that_raises_ends_the_step,
)
CLAIMS = (*BY_ITSELF, the_loss_is_that_of_one_process, the_gradients_are_those_of_one_process)
