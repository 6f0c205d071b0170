### INSTRUCTORS ONLY: this file holds answers, so it is not in the student edition
"""Wrong answers to pipe.5, each with the claim that rejects it and a phrase of the finding; and right ones."""

from __future__ import annotations

import textwrap

from labkit.judging import scheduled_claims as claims

OPS = """
for op in self.schedule.ops[self.rank]:
    stage, i = self._stages[op.stage], op.micro_batch
    if op.kind == "F":
        y = stage.forward(i, inputs[i] if op.stage == 0 else self._p2p.receive(op))
        if op.stage != last:
            self._p2p.send(op, y)
    elif op.kind == "W":
        stage.weight_grad(i)
    else:
        dy = self._p2p.receive(op) if op.stage != last else None
        dx = stage.backward(i, dy) if op.kind == "B" else stage.input_grad(i, dy)
        if op.stage != 0:
            self._p2p.send(op, dx)
"""


def step(lines: str = OPS, helpers: str = "") -> str:
    """The method with these lines where the student writes, between those that are given; ``helpers`` stand in front."""
    return f"""
{helpers.strip()}

def step(self, x=None, target=None):
    inputs, last = self._begin(x, target), self.schedule.n_stages - 1
    with self._running():
{textwrap.indent(lines.strip(), "        ")}
        self._p2p.finish()
    return self._loss.total() if self._loss else None

ScheduledPipeline.step = step
"""


def changed(*changes: tuple[str, str]) -> str:
    """Our own answer, with some of its lines changed."""
    lines = OPS
    for before, after in changes:
        assert before in lines, before
        lines = lines.replace(before, after)
    return step(lines)


# --- wrong ones ------------------------------------------------------------------------------------------------------

IN_ORDER = "for op in self.schedule.ops[self.rank]:"
BACKWARD = 'stage.backward(i, dy) if op.kind == "B" else stage.input_grad(i, dy)'
RECEIVE_ALL = """
for op in self.schedule.ops[self.rank]:
    if op.kind == "F" and op.stage != 0:
        inputs.append(self._p2p.receive(op))
"""
KEEPS = OPS.replace("self._p2p.send(op, y)", "kept.append((op, y))").replace(
    "self._p2p.send(op, dx)", "kept.append((op, dx))"
)
SEND_KEPT = """
    while len(kept) > 1:
        self._p2p.send(*kept.pop(0))
"""
SEND_REST = """
for op, tensor in kept:
    self._p2p.send(op, tensor)
"""
LATE = KEEPS.replace("    stage, i =", SEND_KEPT.strip("\n") + "\n    stage, i =")
GUARDED = "try:" + textwrap.indent(OPS, "    ") + "except Exception as error:\n    "
OP_BY_OP = (
    OPS.replace(IN_ORDER, "def run(op):")
    + f"""
{IN_ORDER}
    try:
        run(op)
    except Exception as error:
        print(op, error)
"""
)
LOSSES = "losses = []" + OPS.replace(
    "        if op.stage != last:", "        if op.stage == last:\n            losses.append(y)\n        else:"
)
FINISH = "\nself._p2p.finish()\n"
TOTAL = "return self._loss.total() if self._loss else "
DIVIDE = """
for stage in self._stages.values():
    for parameter in stage.module.parameters():
        parameter.grad /= self.schedule.n_micro
"""
DISTRIBUTED = OPS.replace("self._p2p.send(op, y)", "torch.distributed.send(y, self.rank + 1)")

WRONG = {
    "does nothing": (
        claims.each_rank_runs_its_ops_in_order,
        step("pass"),
        "GPipe, rank 0 of 3: at the start it was done, without forward of stage 0 for micro-batch 0 (0F0)",
    ),
    "all F, then all B": (
        claims.each_rank_runs_its_ops_in_order,
        changed((IN_ORDER, 'for op in sorted(self.schedule.ops[self.rank], key=lambda op: op.kind != "F"):')),
        "1F1B, rank 0 of 3: after 0F2 it called forward of stage 0 for micro-batch 3 (0F3), expected backward of stage 0 for "
        "micro-batch 0 (0B0)",
    ),
    "a loop over micro-batches": (
        claims.each_rank_runs_its_ops_in_order,
        changed((IN_ORDER, "for op in sorted(self.schedule.ops[self.rank], key=lambda op: op.micro_batch):")),
        "GPipe, rank 0 of 3: after 0F0 it called backward of stage 0 for micro-batch 0 (0B0), expected forward of stage 0",
    ),
    "no backward pass on the last rank": (
        claims.each_rank_runs_its_ops_in_order,
        changed(
            (IN_ORDER, "for op in [op for op in self.schedule.ops[self.rank] if op.kind == 'F' or op.stage != last]:")
        ),
        "Then rank 0 waits at 0B0 for what 1B0 gives, rank 1 waits at 1B0 for what 2B0 gives, for ever",
    ),
    "the ops of the first rank": (
        claims.each_rank_runs_its_ops_in_order,
        changed((IN_ORDER, "for op in self.schedule.ops[0]:")),
        "GPipe, rank 1 of 3: at the start self._stages was asked for 0, and this rank has 1 alone",
    ),
    "the rank of the process": (
        claims.each_rank_runs_its_ops_in_order,
        changed((IN_ORDER, "for op in self.schedule.ops[torch.distributed.get_rank()]:")),
        "Take the ops of self.schedule.ops[self.rank]",
    ),
    "the ops of all ranks": (
        claims.each_rank_runs_its_ops_in_order,
        changed((IN_ORDER, "for op in sum(self.schedule.ops, []):")),
        "GPipe, rank 0 of 3: after 0B2 self._stages was asked for 1",
    ),
    "counts the micro-batches itself": (
        claims.each_rank_runs_its_ops_in_order,
        step(
            "number = -1\n"
            + OPS.replace("op.micro_batch", "number").replace("    stage, i", "    number += 1\n    stage, i")
        ),
        "for micro-batch 3",
    ),
    "all but the last": (
        claims.each_rank_runs_its_ops_in_order,
        changed((IN_ORDER, "for op in self.schedule.ops[self.rank][:-1]:")),
        "GPipe, rank 0 of 3: after 0B1 it was done, without backward of stage 0 for micro-batch 2 (0B2)",
    ),
    "all of it twice": (
        claims.each_rank_runs_its_ops_in_order,
        changed((IN_ORDER, "for op in [op for _ in range(2) for op in self.schedule.ops[self.rank]]:")),
        "behind its last op it called forward of stage 0 for micro-batch 0 (0F0)",
    ),
    "the input of stage 0 everywhere": (
        claims.each_rank_runs_its_ops_in_order,
        changed(("inputs[i] if op.stage == 0 else self._p2p.receive(op)", "inputs[i]")),
        "GPipe, rank 1 of 3: at the start it took from inputs, which is empty on this rank",
    ),
    "receives on stage 0": (
        claims.each_rank_runs_its_ops_in_order,
        changed(("inputs[i] if op.stage == 0 else self._p2p.receive(op)", "self._p2p.receive(op)")),
        "GPipe, rank 0 of 3: at the start it raised ValueError: 0F0 takes nothing from another stage (labkit/pipe.py, line ",
    ),
    "sends the loss": (
        claims.each_rank_runs_its_ops_in_order,
        changed(("op.stage != last:\n            self._p2p.send(op, y)", "True:\n            self._p2p.send(op, y)")),
        "GPipe, rank 2 of 3: after 2F0 it raised ValueError: 2F0 gives nothing to another stage (labkit/pipe.py, line ",
    ),
    "waits for a gradient at the end": (
        claims.each_rank_runs_its_ops_in_order,
        changed((" if op.stage != last else None", "")),
        "GPipe, rank 2 of 3: after 2F2 it raised ValueError: 2B0 takes nothing from another stage",
    ),
    "sends the gradient of stage 0": (
        claims.each_rank_runs_its_ops_in_order,
        changed(("if op.stage != 0:", "if True:")),
        "GPipe, rank 0 of 3: after 0B0 it raised ValueError: 0B0 gives nothing to another stage",
    ),
    "input first": (
        claims.each_rank_runs_its_ops_in_order,
        changed(
            (
                "stage.forward(i, inputs[i] if op.stage == 0 else self._p2p.receive(op))",
                "stage.forward(inputs[i] if op.stage == 0 else self._p2p.receive(op), i)",
            )
        ),
        "the first argument of forward was a Tensor, expected the micro-batch's number",
    ),
    "the module itself": (
        claims.each_rank_runs_its_ops_in_order,
        changed(
            ("stage.forward(i, ", "stage.module("),
        ),
        "at the start it called backward of stage 0",
    ),
    "under no_grad": (
        claims.each_rank_runs_its_ops_in_order,
        step("with torch.no_grad():" + textwrap.indent(OPS, "    ")),
        "GPipe, rank 2 of 3: after 2F0 it raised ValueError: loss_fn gave a loss that requires no grad",
    ),
    "past the mail": (
        claims.what_others_wait_for_is_sent,
        step(DISTRIBUTED),
        "GPipe, rank 0 of 3: send of torch.distributed was called. Everything goes through receive and send of self._p2p",
    ),
    "the whole batch": (
        claims.an_op_is_given_what_is_meant_for_it,
        changed(("inputs[i] if op.stage == 0", "x if op.stage == 0")),
        "GPipe, rank 0 of 3: 0F0 was given a tensor of shape (3, 1), expected micro-batch 0 of x. Stage 0 takes",
    ),
    "the first micro-batch": (
        claims.an_op_is_given_what_is_meant_for_it,
        changed(("inputs[i] if op.stage == 0", "inputs[0] if op.stage == 0")),
        "GPipe, rank 0 of 3: 0F1 was given micro-batch 0 of x, expected micro-batch 1 of x",
    ),
    "detaches what it receives": (
        claims.an_op_is_given_what_is_meant_for_it,
        changed(("else self._p2p.receive(op))", "else self._p2p.receive(op).detach())")),
        "1F0 was given what 0F0 gives, detached, expected what 0F0 gives. Hand it over as receive gives it",
    ),
    "forgets the gradient": (
        claims.an_op_is_given_what_is_meant_for_it,
        changed((BACKWARD, BACKWARD.replace("(i, dy)", "(i)"))),
        "GPipe, rank 0 of 3: 0B0 was given nothing, expected what 1B0 gives. receive(0B0) gives",
    ),
    "the loss as a gradient": (
        claims.an_op_is_given_what_is_meant_for_it,
        changed(("!= last else None", "!= last else y")),
        "GPipe, rank 2 of 3: 2B0 was given the loss of micro-batch 2, expected nothing. The backward pass begins at the loss",
    ),
    "a mean over micro-batches": (
        claims.an_op_is_given_what_is_meant_for_it,
        changed(("stage.backward(i, dy)", "stage.backward(i, dy if dy is None else dy / len(self.schedule.ops[0]))")),
        "0B0 was given a tensor that no op has given, expected what 1B0 gives",
    ),
    "the gradient of another micro-batch": (
        claims.an_op_is_given_what_is_meant_for_it,
        changed(
            (
                "self._p2p.receive(op) if op.stage != last",
                "self._p2p.receive(op._replace(micro_batch=0)) if op.stage != last",
            )
        ),
        "0B1 was given what 1B0 gives, expected what 1B1 gives",
    ),
    "sends no activation": (
        claims.what_others_wait_for_is_sent,
        changed(("            self._p2p.send(op, y)", "            pass")),
        "what 0F0 gives was not sent, and 1F0 takes it. Then rank 0 waits at 0B0 for what 1B0 gives, rank 1 waits at 1F0 for "
        "what 0F0 gives, rank 2 waits at 2F0 for what 1F0 gives",
    ),
    "sends no gradient": (
        claims.what_others_wait_for_is_sent,
        changed(("            self._p2p.send(op, dx)", "            pass")),
        "GPipe, rank 1 of 3: what 1B0 gives was not sent, and 0B0 takes it. Then rank 0 waits at 0B0",
    ),
    "does not send the last micro-batch": (
        claims.what_others_wait_for_is_sent,
        changed(("if op.stage != last:", "if op.stage != last and i + 1 < self.schedule.n_micro:")),
        "what 0F2 gives was not sent, and 1F2 takes it. Then rank 0 waits at 0B0 for what 1B0 gives, rank 1 waits at 1F2",
    ),
    "sends its input": (
        claims.what_others_wait_for_is_sent,
        changed(
            (
                "y = stage.forward(i, inputs[i] if op.stage == 0 else self._p2p.receive(op))",
                "x = inputs[i] if op.stage == 0 else self._p2p.receive(op)\n        stage.forward(i, x)",
            ),
            ("self._p2p.send(op, y)", "self._p2p.send(op, x)"),
        ),
        "as what 0F0 gives, micro-batch 0 of x was sent, expected what 0F0 gives",
    ),
    "detaches what it sends": (
        claims.what_others_wait_for_is_sent,
        changed(("self._p2p.send(op, y)", "self._p2p.send(op, y.detach())")),
        "as what 0F0 gives, what 0F0 gives, detached was sent, expected what 0F0 gives: send what the stage returns, as it is",
    ),
    "sends what was computed before": (
        claims.what_others_wait_for_is_sent,
        step(
            "y = x\n"
            + OPS.replace(
                "        y = stage.forward",
                "        if op.stage != last:\n            self._p2p.send(op, y)\n        y = stage.forward",
            ).replace("        if op.stage != last:\n            self._p2p.send(op, y)\n    elif", "    elif")
        ),
        "as what 0F0 gives, a tensor of shape (3, 1) was sent",
    ),
    "sends twice": (
        claims.what_others_wait_for_is_sent,
        changed(("self._p2p.send(op, y)", "self._p2p.send(op, y), self._p2p.send(op, y)")),
        "what 0F0 gives was sent 2 times, expected once",
    ),
    "receives twice": (
        claims.what_others_wait_for_is_sent,
        changed(("else self._p2p.receive(op))", "else (self._p2p.receive(op), self._p2p.receive(op))[0])")),
        "receive(1F0) was called 2 times",
    ),
    "names the op that takes it": (
        claims.what_others_wait_for_is_sent,
        changed(
            ("self._p2p.send(op, dx)", "self._p2p.send(op._replace(stage=op.stage - 1), dx) if op.stage > 1 else 0")
        ),
        "was not sent",
    ),
    "no gradient, nothing to send": (
        claims.what_others_wait_for_is_sent,
        changed(("if op.stage != 0:", "if dx is not None:")),
        "where 1B1 gives None, as the output of its stage does not depend on the input, it was not sent",
    ),
    "sends in the end": (
        claims.a_rank_does_not_keep_others_waiting,
        step("kept = []" + KEEPS + SEND_REST),
        "GPipe, rank 0 of 3: it ran 0F1 before what 0F0 gives was sent. Finish one op before you turn to the next",
    ),
    "sends one op late": (
        claims.a_rank_does_not_keep_others_waiting,
        step("kept = []" + LATE + SEND_REST),
        "it ran 0F1 before what 0F0 gives was sent",
    ),
    "receives all first": (
        claims.a_rank_does_not_keep_others_waiting,
        step(RECEIVE_ALL + OPS.replace("inputs[i] if op.stage == 0 else self._p2p.receive(op)", "inputs[i]")),
        "GPipe, rank 1 of 3: it waited for what 1F1 takes before what 1F0 gives was sent",
    ),
    "returns from between": (
        claims.what_is_given_behind_the_ops_still_runs,
        step(OPS + TOTAL + "None"),
        "GPipe, rank 0 of 3: self._p2p.finish() was not called",
    ),
    "finishes it itself": (
        claims.what_is_given_behind_the_ops_still_runs,
        step(OPS + FINISH),
        "self._p2p.finish() was called 2 times",
    ),
    "finishes after every op": (
        claims.what_is_given_behind_the_ops_still_runs,
        step(OPS + "    self._p2p.finish()"),
        "self._p2p.finish() was called 7 times",
    ),
    "B for I": (
        claims.a_split_backward_pass_is_two_ops,
        changed((BACKWARD, "stage.backward(i, dy)")),
        "(0B0), expected input_grad of stage 0 for micro-batch 0 (0I0). F is forward, B backward, I input_grad",
    ),
    "forgets W": (
        claims.a_split_backward_pass_is_two_ops,
        changed(("        stage.weight_grad(i)", "        pass")),
        "ZB-H1, rank 0 of 3: after 0I0 it called forward of stage 0 for micro-batch 3 (0F3), expected weight_grad of stage 0",
    ),
    "W at once": (
        claims.a_split_backward_pass_is_two_ops,
        changed(
            ("        stage.weight_grad(i)", "        pass"),
            ("if op.stage != 0:", "if op.kind == 'I': stage.weight_grad(i)\n        if op.stage != 0:"),
        ),
        "it called weight_grad of stage",
    ),
    "I gets no gradient": (
        claims.a_split_backward_pass_is_two_ops,
        changed(("stage.input_grad(i, dy)", "stage.input_grad(i)")),
        "ZB-H1, rank 0 of 3: 0I0 was given nothing, expected what 1I0 gives",
    ),
    "sends after B alone": (
        claims.a_split_backward_pass_is_two_ops,
        changed(("if op.stage != 0:", "if op.stage != 0 and op.kind == 'B':")),
        "ZB-H1, rank 1 of 3: what 1I0 gives was not sent, and 0I0 takes it. Then rank 0 waits at 0I0",
    ),
    "a rank for a stage": (
        claims.a_rank_may_have_several_stages,
        changed(("inputs[i] if op.stage == 0", "inputs[i] if self.rank == 0")),
        "interleaved 1F1B, rank 0 of 2: 2F0 was given micro-batch 0 of x, expected what 1F0 gives",
    ),
    "the last rank for the last stage": (
        claims.a_rank_may_have_several_stages,
        changed(("        if op.stage != last:", "        if self.rank != self.schedule.n_ranks - 1:")),
        "interleaved 1F1B, rank 1 of 2: what 1F0 gives was not sent, and 2F0 takes it. Then rank 0 waits at 2F0",
    ),
    "the first rank sends no gradient": (
        claims.a_rank_may_have_several_stages,
        changed(("if op.stage != 0:", "if self.rank != 0:")),
        "interleaved 1F1B, rank 0 of 2: what 2B0 gives was not sent",
    ),
    "the last rank waits for no gradient": (
        claims.a_rank_may_have_several_stages,
        changed(("if op.stage != last else None", "if self.rank != self.schedule.n_ranks - 1 else None")),
        "1B0 was given nothing, expected what 2B0 gives",
    ),
    "one stage for all": (
        claims.a_rank_may_have_several_stages,
        changed(("self._stages[op.stage]", "self._stages[self.rank]")),
        "interleaved 1F1B, rank 0 of 2: after 0F1 it called forward of stage 0 for micro-batch 0 (0F0), expected forward of "
        "stage 2 for micro-batch 0 (2F0). op.stage is the number of the stage, also where a rank has several",
    ),
    "the number of ranks for that of stages": (
        claims.a_rank_may_have_several_stages,
        step("last = self.schedule.n_ranks - 1\n" + OPS),
        "interleaved 1F1B, rank 1 of 2: ",
    ),
    "sends only to other ranks": (
        claims.a_rank_may_have_several_stages,
        changed(
            ("if op.stage != 0:", "if op.stage - 1 not in self._stages and op.stage != 0:"),
        ),
        "ZB-V, rank 1 of 2: what 2I0 gives was not sent, and 1I0 takes it",
    ),
    "goes on after an error": (
        claims.a_stage_that_raises_ends_the_step,
        step(OP_BY_OP),
        "1F1B, rank 1 of 3, where forward raised an ArithmeticError at 1F1: nothing was raised. Let the error through",
    ),
    "an error of another type": (
        claims.a_stage_that_raises_ends_the_step,
        step(GUARDED + "raise RuntimeError('a stage failed')"),
        "at 1F1: RuntimeError came out instead",
    ),
    "finishes after an error": (
        claims.a_stage_that_raises_ends_the_step,
        step(GUARDED + "self._p2p.finish()\n    raise"),
        "at 1F1: the mail was finished afterwards",
    ),
    "a mean of the losses": (
        claims.the_loss_is_that_of_one_process,
        step(LOSSES + FINISH + "return torch.stack(losses).mean() if losses else None"),
        "1F1B, rank 1 of 2, step 0: the loss is 0.25 times that of one process",
    ),
    "every rank gives something": (
        claims.the_loss_is_that_of_one_process,
        step(OPS + FINISH + TOTAL + "torch.zeros(())"),
        "1F1B, rank 0 of 2, step 0: step gave a Tensor, expected None",
    ),
    "sets gradients to zero": (
        claims.the_gradients_are_those_of_one_process,
        step("for stage in self._stages.values():\n    stage.module.zero_grad()\n" + OPS),
        "1F1B, rank 0 of 2, step 1: the gradients of stage 0 are 0.5 times those of one process",
    ),
    "clears gradients in the end": (
        claims.the_gradients_are_those_of_one_process,
        step(OPS + "for stage in self._stages.values():\n    stage.module.zero_grad()"),
        "1F1B, rank 0 of 2, step 0: stage 0 has no gradients",
    ),
    "divides gradients": (
        claims.the_gradients_are_those_of_one_process,
        step(OPS + DIVIDE),
        "1F1B, rank 0 of 2, step 0: the gradients of stage 0 are 0.25 times those of one process",
    ),
    "a loop without end": (
        None,
        step("while self.rank == 1: pass\n" + OPS),
        "Look for a loop without an end, or for a rank that waits for the others",
    ),
}


# --- right ones ------------------------------------------------------------------------------------------------------

BY_KIND = """
def taken(self, op, end):
    return None if op.stage == end else self._p2p.receive(op)

def run_F(self, op, stage, inputs):
    last = self.schedule.n_stages - 1
    x = inputs[op.micro_batch] if op.stage < 1 else self._p2p.receive(op)
    y = stage.forward(x=x, micro_batch=op.micro_batch)
    if last > op.stage:
        self._p2p.send(tensor=y, op=op)

def run_B(self, op, stage, inputs):
    self._gave(op, stage.backward(op.micro_batch, taken(self, op, self.schedule.n_stages - 1)))

def run_I(self, op, stage, inputs):
    self._gave(op, stage.input_grad(op.micro_batch, taken(self, op, self.schedule.n_stages - 1)))

def run_W(self, op, stage, inputs):
    stage.weight_grad(op.micro_batch)

def gave(self, op, gradient):
    if op.stage:
        self._p2p.send(op, gradient)

ScheduledPipeline._gave = gave
"""
BY_NAME = """
methods = {"F": "forward", "B": "backward", "I": "input_grad", "W": "weight_grad"}
for kind, number, i in map(tuple, self.schedule.ops[self.rank]):
    op = [o for o in self.schedule.ops[self.rank] if tuple(o) == (kind, number, i)][0]
    forward = kind == "F"
    takes = kind != "W" and number != (0 if forward else last)
    gives = kind != "W" and number != (last if forward else 0)
    given = [self._p2p.receive(op)] if takes else inputs[i : i + 1] if forward else []
    result = getattr(self._stages[number], methods[kind])(i, *given)
    if gives:
        self._p2p.send(op, result)
"""
RIGHT = {
    "a function for each kind": step(
        "for op in self.schedule.ops[self.rank]:\n"
        "    globals()[f'run_{op.kind}'](self, op, self._stages[op.stage], inputs)",
        BY_KIND,
    ),
    "by the name of the method": step(BY_NAME),
    "the loss's gradient is 1": changed(("!= last else None", "!= last else torch.ones_like(y)")),
    "zeros where there is no gradient": changed(
        ("self._p2p.send(op, dx)", "self._p2p.send(op, torch.zeros_like(dy) if dx is None else dx)")
    ),
}
