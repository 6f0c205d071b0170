### INSTRUCTORS ONLY: this file holds answers, so it is not in the student edition
"""Wrong and right answers to pipe.5; test_answers.py says how they are written."""

from labkit.check import pipe_5 as claims

OPS = "self.schedule.ops[self.rank]"
LOOP = f"            for op in {OPS}:\n"
RECEIVE = "self._p2p.receive(op)"
INPUT = f"inputs[i] if op.stage == 0 else {RECEIVE}"
GRADIENT = f"{RECEIVE} if op.stage != last else None"
BACKWARD, INPUT_GRAD, WEIGHT_GRAD = "stage.backward(i, dy)", "stage.input_grad(i, dy)", "stage.weight_grad(i)"
SEND_Y, SEND_DX = "self._p2p.send(op, y)", "self._p2p.send(op, dx)"
NOT_LAST, NOT_FIRST = "if op.stage != last:", "if op.stage != 0:"
HERE, THERE = "(op.stage - 1 in self._stages)", "(op.stage + 1 in self._stages)"
EACH_STAGE = "for stage in self._stages.values(): stage.module"


def ops(other: str) -> tuple[str, str]:
    return OPS, other.replace("OPS", OPS)


def x(before: str, after: str) -> tuple[str, str]:
    return INPUT, INPUT.replace(before, after)


def first(line: str) -> tuple[str, str]:
    return LOOP, f"            {line}\n{LOOP}"


def then(lines: str) -> tuple[str, str]:
    return SEND_DX + "\n", "\n            ".join([SEND_DX, *lines.splitlines()]) + "\n"


CALLS = {
    "does nothing": ("rank 0 of 3: at the start it called finish(), expected forward(0F0). Each", ops("[]")),
    "an iterator for ever": ("in the second step, ", ops("self.__dict__.setdefault('rest', iter(OPS))")),
    "receives on stage 0": ("ValueError: 0F0 takes nothing from another stage (labkit/pipe.py", x(INPUT, RECEIVE)),
    "sends the loss": ("it raised ValueError: 2F0 gives nothing to another stage", (NOT_LAST, "if True:")),
    "under no_grad": ("send(0F0) was given what 0F0 gives, cut off by", first("torch.set_grad_enabled(False)")),
    "past P2P": ("was called past self._p2p (labkit", (SEND_Y, "torch.distributed.send(y, self.rank + 1)")),
    "cuts x itself": ("of shape (2, 2), expected inputs[2]", x("inputs[i]", "x.chunk(self.schedule.n_micro)[i]")),
    "takes inputs in turn": ("(0F1) was given inputs[0], expected inputs[1]", x("inputs[i]", "inputs.pop(0)")),
    "forgets the gradient": ("(0B0) was given None, expected what 1B0 gives", (BACKWARD, "stage.backward(i)")),
    "the loss as a gradient": ("expected None, as it begins at the loss", (GRADIENT, GRADIENT.replace("None", "y"))),
    "a mean over micro-batches": ("given 0.333 times what 1B0 gives", (BACKWARD, "stage.backward(i, dy / 3)")),
    "no gradient, nothing to send": ("expected send(1B3), for which 0B3 waits", (NOT_FIRST, "if dx is not None:")),
    "returns from between": ("it called nothing more, expected finish()", then("return None")),
    "finishes it itself": ("it called finish(), expected nothing more", then("self._p2p.finish()")),
}
SPLIT = {
    "B for I": ("backward(0B0), expected input_grad(0I0)", (INPUT_GRAD, BACKWARD)),
    "a gradient for W": ("(0W0) was given what 1I0 gives", (WEIGHT_GRAD, "stage.weight_grad(i, dy)")),
}
KEPT = first("kept = {}")
PLACE = "[sorted(self._stages)[op.stage // self.schedule.n_ranks]]"
SEVERAL = {
    "a rank for a stage": ("expected receive(2F0) of what 1F0 gives. Here", x("op.stage == 0", "self.rank == 0")),
    "a stage by its place": ("forward(0F0), expected forward(1F0)", ("[op.stage]", PLACE)),
    "sends to other ranks": ("expected send(2I0), for which 1I0 waits", (NOT_FIRST, f"if op.stage and not {HERE}:")),
}
SUPPRESS = "with contextlib.suppress(Exception):\n"
ERRORS = {"goes on with the next op": ("(1F1), it called receive(1B0), ", (LOOP, f"{LOOP}              {SUPPRESS}"))}
FLOAT = "self._p2p.finish()\nreturn self._loss.total().item() if self._loss else None"
GIVES_0 = "self._p2p.finish()\nreturn self._loss.total() if self._loss else torch.zeros(())"
RESULTS = {
    "a number for the loss": ("the loss is a float, expected", then(FLOAT)),
    "all ranks give something": ("the loss is another tensor, of shape (), expected None", then(GIVES_0)),
    "sets gradients to zero": ("step 1, the gradient of stage 0 is 0.5 times", first(f"{EACH_STAGE}.zero_grad()")),
}
WRONG = {
    claims.each_op_is_received_run_and_sent: CALLS,
    claims.a_split_backward_pass_is_two_ops: SPLIT,
    claims.a_rank_may_have_several_stages: SEVERAL,
    claims.an_error_of_a_stage_ends_the_step: ERRORS,
    claims.loss_and_gradients_are_those_of_one_process: RESULTS,
}


RIGHT = {
    "arguments by their names": [
        (f"(i, {INPUT})", f"(x={INPUT}, micro_batch=i)"),
        (BACKWARD, "stage.backward(gradient=dy, micro_batch=i)"),
        (SEND_DX, "self._p2p.send(tensor=dx, op=op)"),
    ],
    "the loss's gradient is 1": [(GRADIENT, GRADIENT.replace("None", "torch.ones_like(y)"))],
    "zeros where there is no gradient": [(SEND_DX, "self._p2p.send(op, torch.zeros_like(dy) if dx is None else dx)")],
    "keeps what stays on the rank": [
        KEPT,
        x(RECEIVE, f"kept.pop(op) if {HERE} else {RECEIVE}"),
        (SEND_Y, f"kept.update({{op._replace(stage=op.stage + 1): y}}) if {THERE} else {SEND_Y}"),
        (GRADIENT, f"kept.pop((i, op.stage)) if {THERE} else {GRADIENT}"),
        (SEND_DX, f"kept.update({{(i, op.stage - 1): dx}}) if {HERE} else {SEND_DX}"),
    ],
}
CALLS |= {
    "knows four stages": ("(drawn with seed=", first("last = min(last, 3)")),
    "knows five micro-batches": ("(drawn with seed=", ops("[op for op in OPS if op.micro_batch < 5]")),
}
METHODS = "{'B': stage.backward, 'I': stage.input_grad}[op.kind](i, dy)"
RIGHT |= {"a table of methods": [('stage.backward(i, dy) if op.kind == "B" else stage.input_grad(i, dy)', METHODS)]}
