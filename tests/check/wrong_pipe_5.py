### INSTRUCTORS ONLY: this file holds answers, so it is not in the student edition
"""Wrong and right answers to pipe.5; test_answers.py says how they are written."""

from labkit.check import pipe_5 as claims

OPS = "self.schedule.ops[self.rank]"
LOOP = f"            for op in {OPS}:\n"
STAGE = "stage, i = self._stages[op.stage], op.micro_batch\n"
RECEIVE = "self._p2p.receive(op)"
INPUT = f"inputs[i] if op.stage == 0 else {RECEIVE}"
GRADIENT = f"{RECEIVE} if op.stage != last else None"
BACKWARD, INPUT_GRAD, WEIGHT_GRAD = "stage.backward(i, dy)", "stage.input_grad(i, dy)", "stage.weight_grad(i)"
SEND_Y, SEND_DX = "self._p2p.send(op, y)", "self._p2p.send(op, dx)"
NOT_LAST, NOT_FIRST = "if op.stage != last:", "if op.stage != 0:"
RANK_NOT_LAST = "self.rank != self.schedule.n_ranks - 1"
EACH_STAGE = "for stage in self._stages.values(): stage.module"


def ops(other: str) -> tuple[str, str]:
    return OPS, other.replace("OPS", OPS)


def x(before: str, after: str) -> tuple[str, str]:
    return INPUT, INPUT.replace(before, after)


def dy(before: str, after: str) -> tuple[str, str]:
    return GRADIENT, GRADIENT.replace(before, after)


def first(lines: str) -> tuple[str, str]:
    """Put these lines in front of the loop."""
    return LOOP, _indented(lines) + LOOP


def each(line: str) -> tuple[str, str]:
    """Put this line at the beginning of each op."""
    return STAGE, f"{STAGE}                {line}\n"


def then(lines: str) -> tuple[str, str]:
    """Put these lines after the loop."""
    return SEND_DX + "\n", f"{SEND_DX}\n{_indented(lines)}"


def _indented(lines: str) -> str:
    return "".join(f"            {line}\n" for line in lines.splitlines())


def guarded(handler: str) -> list[tuple[str, str]]:
    """Put the loop into a try block."""
    return [then(handler), (LOOP, f"            try:\n {LOOP}")]


LATE = [then("for kept in late: self._p2p.send(*kept)"), first("late = []")]
LATE += [(SEND_Y, "late.append((op, y))"), (SEND_DX, "late.append((op, dx))")]
EARLY = first(f"early = {{op: {RECEIVE} for op in {OPS} if op.kind == 'F' and op.stage}}")
POP = (LOOP, f"            while {OPS}:\n                op = {OPS}.pop(0)\n")
SUPPRESS = (LOOP, f"{LOOP}              with contextlib.suppress(Exception):\n")
GIVES_0 = "self._p2p.finish()\nreturn self._loss.total() if self._loss else torch.zeros(())"
FLOAT = "self._p2p.finish()\nreturn self._loss.total().item() if self._loss else None"
MEAN = "if self._loss: self._loss._parts = [part / self.schedule.n_micro for part in self._loss._parts]"

CALLS = {
    "does nothing": ("rank 0 of 3: at the start it was done, without forward of stage 0", ops("[]")),
    "all F, then all B": ("(0F3), expected receive(0B0)", ops('sorted(OPS, key=lambda op: op.kind != "F")')),
    "a loop over micro-batches": ("after send(0F0), it called receive(0B0)", ops("sorted(OPS, key=lambda op: op[2])")),
    "no backward on the last rank": ("without backward of st", ops("[o for o in OPS if o[0] == 'F' or o[1] < last]")),
    "the ops of the first rank": ("rank 1 of 3: at the start it raised KeyError: 0 (", ops("self.schedule.ops[0]")),
    "the rank of the process": ("has the stages [1]. Take", ops("self.schedule.ops[torch.distributed.get_rank()]")),
    "the ops of all ranks": ("rank 0 of 3: after 0B2, it raised KeyError: 1", ops("sum(self.schedule.ops, [])")),
    "counts micro-batches": ("expected backward of stage 0 for micro", first("k = -1"), each("i = k = k + 1")),
    "all but the last": ("rank 0 of 3: after 0B1, it was done, without receive(0B2)", ops("OPS[:-1]")),
    "from the last to the first": ("at the start it called receive(0B2), expected forward", ops("reversed(OPS)")),
    "all of it twice": ("after 0B2, it called forward of stage 0 for micro-batch 0 (0F0), expected", ops("2 * OPS")),
    "takes the ops off the schedule": ("in the second step, at the start it was done, without forward", POP),
    "an iterator for ever": ("Leave all for it as the first", ops("self.__dict__.setdefault('rest', iter(OPS))")),
    "inputs everywhere": ("inputs is for stage 0, and empty on this rank: other stages receive", x(INPUT, "inputs[i]")),
    "receives on stage 0": ("ValueError: 0F0 takes nothing from another stage (labkit/pipe.py", x(INPUT, RECEIVE)),
    "sends the loss": ("after 2F0, it raised ValueError: 2F0 gives nothing to another stage", (NOT_LAST, "if True:")),
    "waits for a gradient at the end": ("ValueError: 2B0 takes nothing from another stage", dy(GRADIENT, RECEIVE)),
    "sends the gradient of stage 0": ("after 0B0, it raised ValueError: 0B0 gives nothing", (NOT_FIRST, "if True:")),
    "input first": ("the first argument of forward is a Tensor", (f"(i, {INPUT})", f"({INPUT}, i)")),
    "the module itself": ("it called send(0F0), expected forward of stage 0", ("stage.forward(i, ", "stage.module(")),
    "under no_grad": ("gradients are switched off, and the schedule has", first("torch.set_grad_enabled(False)")),
    "past P2P": ("send of torch.distributed was called", (SEND_Y, "torch.distributed.send(y, self.rank + 1)")),
    "shares the loss": ("all_reduce of torch.distributed", then("torch.distributed.all_reduce(torch.ones(1))")),
    "the whole batch": ("0F0 was given another tensor, of shape (5, 2), expected micro-batch 0", x("inputs[i]", "x")),
    "cuts x itself": ("of shape (2, 2), expected micro-batch 2", x("inputs[i]", "x.chunk(self.schedule.n_micro)[i]")),
    "the first micro-batch": ("0F1 was given micro-batch 0 of x, expected micro-batch 1 of x", x("[i]", "[0]")),
    "takes inputs in turn": ("at the start 0F1 was given micro-batch 0 of x", x("inputs[i]", "inputs.pop(0)")),
    "detaches what it receives": ("1F0 was given what 0F0 gives, detached, expected", (INPUT, f"({INPUT}).detach()")),
    "forgets the gradient": ("expected what 1B0 gives. Hand over what receive(0B0)", (BACKWARD, "stage.backward(i)")),
    "receives no gradient": ("0B0 was given nothing, expected what 1B0 gives. Call receive(0B0)", (GRADIENT, "None")),
    "the loss as a gradient": ("of shape (), expected nothing. The backward pass begins at the loss", dy("None", "y")),
    "a mean over micro-batches": ("of shape (2, 2), expected what 1B0", (BACKWARD, "stage.backward(i, dy / 3)")),
    "another micro-batch's gradient": ("called receive(0B0) again, expect", dy("(op)", "(op._replace(micro_batch=0))")),
    "sends no activation": ("after 0F0, what 0F0 gives was not sent, and 1F0 waits for it, for ever", (SEND_Y, "pass")),
    "sends no gradient": ("rank 1 of 3: after 1B0, what 1B0 gives was not sent, and 0B0 waits", (SEND_DX, "pass")),
    "does not send the last one": ("what 0F2 gives was not sent, and", (NOT_LAST, "if op.stage != last and i < 2:")),
    "a last stage of its own": ("what 0F0 gives was not sent, and 1F0 waits", first("last = max(self._stages)")),
    "sends its input": ("0F0 sent micro-batch 0 of x, expected what 0F0", (SEND_Y, "self._p2p.send(op, inputs[i])")),
    "detaches what it sends": ("0F0 sent what 0F0 gives, detached, exp", (SEND_Y, "self._p2p.send(op, y.detach())")),
    "sends before it runs": ("it called send(0F0), expected forward", each(f"if op.kind == 'F': y = x; {SEND_Y}")),
    "sends twice": ("it called send(0F0) again, expected forward of stage 0", (SEND_Y, f"{SEND_Y}, {SEND_Y}")),
    "receives twice": ("called receive(0B0) again, expected backward", (GRADIENT, f"[{GRADIENT}, {GRADIENT}][0]")),
    "names what takes it": ("send was called for 0B0, expect", (SEND_DX, "self._p2p.send(op._replace(stage=0), dx)")),
    "names what gives it": ("receive was called for 0F0, expected the op of", x("(op)", "(op._replace(stage=0))")),
    "misspells send": ("'P2P' object has no attribute 'sent' (labkit", (SEND_Y, "self._p2p.sent(op, y)")),
    "names the micro-batch": ("send was called for <class 'int'>, expected the op", (SEND_Y, "self._p2p.send(i, y)")),
    "no gradient, nothing to send": ("what 1B1 gives was not sent, and 0B1 waits", (NOT_FIRST, "if dx is not None:")),
    "asks if there is a gradient": ("Boolean value of Tensor", (SEND_DX, "self._p2p.send(op, dx or 0 * dy)")),
    "sends in the end": ("forward of stage 0 for micro-batch 1 (0F1), expected send(0F0)", *LATE),
    "sends late": ("(0F1), expected send(0F0)", *LATE, each("while len(late) > 1: self._p2p.send(*late.pop(0))")),
    "receives all first": ("after receive(1F0), it called receive(1F1), expected", EARLY, x(RECEIVE, "early[op]")),
    "returns from between": ("self._p2p.finish() was called 0 times, expected once", then("return None")),
    "finishes it itself": ("self._p2p.finish() was called 2 times", then("self._p2p.finish()")),
    "finishes after every op": ("self._p2p.finish() was called 7 times", then("    self._p2p.finish()")),
}
SPLIT = {
    "B for I": ("(0B0), expected input_grad of stage 0 for micro-batch 0 (0I0). F is forward", (INPUT_GRAD, BACKWARD)),
    "forgets W": ("(0F3), expected weight_grad of stage 0 for micro-batch 0 (0W0)", (WEIGHT_GRAD, "pass")),
    "W at once": ("called weight_grad of st", (WEIGHT_GRAD, "pass"), (INPUT_GRAD, f"[{INPUT_GRAD}, {WEIGHT_GRAD}][0]")),
    "I gets no gradient": ("after receive(0I0), 0I0 was given nothing, expected", (INPUT_GRAD, "stage.input_grad(i)")),
    "sends after B alone": ("what 1I0 gives was not sent, and 0I0", (NOT_FIRST, "if op.stage and op.kind == 'B':")),
}
HERE, THERE = "(op.stage - 1 in self._stages)", "(op.stage + 1 in self._stages)"
KEPT = first("kept = {}")
PLACE = "sorted(self._stages)[op.stage // self.schedule.n_ranks]"
ON_RANK = (x("op.stage == 0", "self.rank == 0"), (NOT_LAST, f"if {RANK_NOT_LAST}:"), (NOT_FIRST, "if self.rank:"))
SEVERAL = {
    "a rank for a stage": ("2F0 was given micro-batch 0 of x, expected what 1F0 gives. Rank 0 has the", ON_RANK[0]),
    "a rank for a stage in all": ("2F0 was given micro-batch 0 of x", *ON_RANK, dy("op.stage != last", RANK_NOT_LAST)),
    "the last rank sends nothing on": ("rank 1 of 2: after 1F0, what 1F0 gives was not sent, and 2F0", ON_RANK[1]),
    "the first rank sends nothing back": ("rank 0 of 2: after 2B0, what 2B0 gives was not sent", ON_RANK[2]),
    "the last rank takes no gradient": ("1B0 was given nothing, expected what", dy("op.stage != last", RANK_NOT_LAST)),
    "one stage for all": ("(0F0), expected forward of stage 2", ("_stages[op.stage]", "_stages[self.rank]")),
    "a stage by its place": ("neighbours, rank 0 of 2: after receive(1F0)", ("[op.stage]", f"[{PLACE}]")),
    "as many stages as ranks": ("interleaved 1F1B, rank 1 of 2: after 1F0", first("last = self.schedule.n_ranks - 1")),
    "stage after stage": ("(0F2), expected receive(2F0). Rank 0 has", ops("sorted(OPS, key=lambda op: op.stage)")),
    "keeps by micro-batch": ("3F0 was given what 0F0", KEPT, x(RECEIVE, f"kept.setdefault(i, {RECEIVE})")),
    "sends to other ranks": ("is on this rank too", (NOT_FIRST, f"if op.stage and not {HERE}:")),
}
ERRORS = {
    "goes on after an error": ("where 1F1 raised an ArithmeticError, it called receive(1B0) afterwards", SUPPRESS),
    "another error": ("it raised RuntimeError: no (labkit", *guarded("except Exception: raise RuntimeError('no')")),
    "finishes": ("it called finish() afterwards. Let it", *guarded("except Exception: self._p2p.finish(); raise")),
    "prints the error": ("it called finish() afterwards", *guarded("except Exception as error: print(error)")),
}
RESULTS = {
    "a number for the loss": ("the loss is a float, expected a Tensor", then(FLOAT)),
    "a mean of the losses": ("rank 2 of 3: after step 0, the loss is 0.333 times that of one process", then(MEAN)),
    "all ranks give something": ("rank 0 of 3: after step 0, the loss is a Tensor, expected None", then(GIVES_0)),
    "sets gradients to zero": ("step 1, the gradient of stage 0 is 0.5 times", first(f"{EACH_STAGE}.zero_grad()")),
    "clears gradients": ("step 0, the gradient of stage 0 is None, expected a Ten", then(f"{EACH_STAGE}.zero_grad()")),
    "divides gradients": ("0.333 times", then(f"if self._trains:\n {EACH_STAGE}.weight.grad /= self.schedule.n_micro")),
}
NO_END = {"a loop without end": ("it did not end in time. It was at labkit", first("while self.rank == 1: pass"))}
WRONG = {
    claims.each_op_is_received_run_and_sent: CALLS,
    claims.a_split_backward_pass_is_two_ops: SPLIT,
    claims.a_rank_may_have_several_stages: SEVERAL,
    claims.an_error_of_a_stage_ends_the_step: ERRORS,
    claims.loss_and_gradients_are_those_of_one_process: RESULTS,
    None: NO_END,
}

# --- right ones -----------------------------------------------------------------------------------

NO_LOOP = "            for op in []:\n"
BY_NAME = """
            methods = {"F": "forward", "B": "backward", "I": "input_grad", "W": "weight_grad"}
            for op in self.schedule.ops[self.rank]:
                kind, number, i = op
                takes = kind != "W" and number != (0 if kind == "F" else last)
                gives = kind != "W" and number != (last if kind == "F" else 0)
                given = [self._p2p.receive(op)] if takes else inputs[i : i + 1] if kind == "F" else []
                result = getattr(self._stages[number], methods[kind])(i, *given)
                if gives:
                    self._p2p.send(tensor=result, op=op)
"""
BY_KIND = """
def run_F(self, op, stage, inputs):
    x = inputs[op.micro_batch] if op.stage < 1 else self._p2p.receive(op)
    y = stage.forward(x=x, micro_batch=op.micro_batch)
    if op.stage + 1 < self.schedule.n_stages:
        self._p2p.send(op, y)

def run_B(self, op, stage, inputs, name="backward"):
    given = [self._p2p.receive(op)] if op.stage + 1 < self.schedule.n_stages else []
    gradient = getattr(stage, name)(op.micro_batch, *given)
    if op.stage:
        self._p2p.send(op, gradient)

def run_I(*given):
    run_B(*given, name="input_grad")

def run_W(self, op, stage, inputs):
    stage.weight_grad(op.micro_batch)
"""
EACH_KIND = f"            for op in {OPS}: globals()['run_' + op.kind](self, op, self._stages[op.stage], inputs)\n"
RIGHT = {
    "by the name of the method": [(LOOP, BY_NAME + NO_LOOP)],
    "a function for each kind": [(LOOP, EACH_KIND + NO_LOOP), BY_KIND],
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
