### INSTRUCTORS ONLY: this file holds answers, so it is not in the student edition
"""Wrong and right answers to pipe.4; test_answers.py says how they are written."""

from labkit.check import pipe_4 as claims
from labkit.todo import task_file

BLOCKS, PUT, PLACE = "*gpt2.transformer.h", "PipedBlocks(pipe)", "gpt2.transformer.h = PipedBlocks(pipe)"
LINE = task_file("pipe.4").read_text().partition("pipe = Pipe(")[0].count("\n") + 1  # the student's own
ADAPTER = """
class Adapter(nn.Module):
    def __init__(self, pipe):
        super().__init__()
        for partition in pipe.partitions:
            for name, block in partition.named_children():
                self.add_module(name, block)
        self.pipe = [pipe]

    def __iter__(self):
        yield self

    def forward(self, x, *args, **options):
        return self.pipe[0](x)
"""
LOOKS_AFTER_THE_REST = """        if any(arg is not None for arg in args):
            for block in self.children():
                x = block(x, *args, **options)
            return x
        return self"""


def last(line: str) -> tuple[str, str]:
    return PLACE, f"{PLACE}\n    {line}"


RETURNED = {
    "gives nothing back": ("what came back is None, expected the model itself", last("return")),
    "a bare Pipe": ("gpt2.transformer.h is a Pipe. GPT-2 goes through it", (PUT, "pipe")),
    "a Pipe in a list": ("gpt2.transformer.h is [a Pipe]. GPT-2", (PUT, "nn.ModuleList([pipe])")),
    "instead of the transformer": ("gpt2.transformer.h is gone", ("gpt2.transformer.h = ", "gpt2.transformer = ")),
}
CALLS = {
    "puts the Pipe somewhere else": ("block 0 ran in the thread that called", ("gpt2.transformer.h = ", "gpt2.h = ")),
    "a Pipe for each block": ("block 0 was given [3, 3, 1, 3, 3, 1, 3,", (PUT, f"nn.ModuleList([{PUT}] * 5)")),
    "takes WithDevice off": ("'stage 0 on cpu', expected 'st", (BLOCKS, "*[x.module for x in gpt2.transformer.h]")),
}
OUTCOME = {
    "layer norm in the Pipe": ("the output is not what it was", (BLOCKS, f"{BLOCKS}, gpt2.transformer.ln_f")),
    "freezes the blocks": ("transformer.wte.weight is missing", last("gpt2.requires_grad_(False)")),
    "an adapter of its own": ("by generate, with a mask and a cache: what", (PUT, "Adapter(pipe)"), ADAPTER),
}
NAMES = {"in a list": ("it has transformer.h.0.0.attn.c_attn.bias in its state", (PUT, f"nn.ModuleList([{PUT}])"))}
MODULE_LIST = ("nn.Sequential(*gpt2.transformer.h)", "gpt2.transformer.h")
NO_END = {"a Pipe of a ModuleList": (f"put the modules into one (labkit/pipe.py, line {LINE})", MODULE_LIST)}
WRONG = {
    claims.the_model_comes_back_and_can_call_what_it_has: RETURNED,
    claims.each_device_has_a_worker_that_runs_its_blocks: CALLS,
    claims.output_and_gradients_stay: OUTCOME,
    claims.parameters_keep_their_names: NAMES,
    None: NO_END,
}
RIGHT = {
    "by name": [(BLOCKS, "OrderedDict(gpt2.transformer.h.named_children())"), "from collections import OrderedDict\n"],
    "deletes the blocks first": [(PLACE, f"del gpt2.transformer.h\n    {PLACE}")],
    "an adapter of its own that looks after the rest": [
        (PUT, "Adapter(pipe)"),
        ADAPTER.replace("        return self", LOOKS_AFTER_THE_REST),
    ],
}
CALLS |= {
    "three rows, whatever is asked for": ("(drawn with seed=", ("split_size)", "3)")),
    "three rows or one": ("(drawn with seed=", ("split_size)", "3 if split_size == 3 else 1)")),
    "five blocks": ("(drawn with seed=", (BLOCKS, "*gpt2.transformer.h[:5]")),
}
