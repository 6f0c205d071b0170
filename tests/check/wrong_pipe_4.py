### INSTRUCTORS ONLY: this file holds answers, so it is not in the student edition
"""Wrong and right answers to pipe.4; test_answers.py says how they are written."""

from labkit.check import pipe_4 as claims
from labkit.todo import task_file

BLOCKS, PIPE, PUT = "*gpt2.transformer.h", "Pipe(nn.Sequential(*gpt2.transformer.h), split_size)", "PipedBlocks(pipe)"
PLACE = "gpt2.transformer.h = PipedBlocks(pipe)"
LINE = task_file("pipe.4").read_text().partition("pipe = Pipe(")[0].count("\n") + 1  # the student's own
ON_A_COPY = """import copy
_in_place = prepare_pipeline_parallel
def prepare_pipeline_parallel(gpt2, split_size): return _in_place(copy.deepcopy(gpt2), split_size)
"""
COPIES = "*__import__('copy').deepcopy(gpt2.transformer.h)"
UNWRAPPED = "*(block.module for block in gpt2.transformer.h)"
SPREAD = "*(WithDevice(block.module, f'cpu:{i}') for i, block in enumerate(gpt2.transformer.h))"
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
DETACHES = ADAPTER.replace("(x)", "(x.detach())")
LOOKS_AFTER_THE_REST = """        if any(arg is not None for arg in args):
            for block in self.children():
                x = block(x, *args, **options)
            return x
        return self"""
NAMED = "__import__('collections').OrderedDict((f'{i}', block) for i, block in enumerate(gpt2.transformer.h))"
APPENDED = """model = nn.Sequential()
    for block in gpt2.transformer.h:
        model.append(block)
    pipe = Pipe(model, split_size)
"""

RETURNED = {
    "gives a copy back": ("what came back is another GPT-2, expected the model itself", ON_A_COPY),
    "gives the Pipe back": ("what came back is a Pipe, expected the model", (PLACE, f"{PLACE}\n    return pipe")),
    "gives nothing back": ("what came back is None, expected the model itself", (PLACE, f"{PLACE}\n    return")),
    "a bare Pipe": ("gpt2.transformer.h is a Pipe, and GPT-2 goes through it with for.", (PUT, "pipe")),
    "instead of the transformer": ("gpt2.transformer.h any more", ("gpt2.transformer.h = ", "gpt2.transformer = ")),
    "a Pipe in a list": ("GPT-2 finds a Pipe in gpt2.transformer.h, which takes", (PUT, "nn.ModuleList([pipe])")),
}
CALLS = {
    "copies the blocks": ("15 times a block was called that is not the model's", (BLOCKS, COPIES)),
    "does nothing": ("called with 7 rows: block 0 ran in the thread that called the model, not", (PLACE, "pass")),
    "puts the Pipe somewhere else": ("GPT-2 calls what it finds in", ("gpt2.transformer.h = ", "gpt2.h = ")),
    "forgets split_size": ("block 0 was given [1, 1, 1, 1, 1, 1, 1] rows, expected [3,", (", split_size)", ")")),
    "split_size micro-batches": ("0 was given [4, 3] rows, expected [3, 3, 1]", (", split_size)", ", -(-7 // 2))")),
    "a Pipe for each block": ("block 0 was called 15 times for 3 micro-batches", (PUT, f"nn.ModuleList([{PUT}] * 5)")),
    "leaves the last block out": ("block 4 was called 0 times for 3", (BLOCKS, "*list(gpt2.transformer.h)[:-1]")),
    "takes blocks out of WithDevice": ("the blocks [[0, 1, 2, 3, 4]], expected [[0, 1],", (BLOCKS, UNWRAPPED)),
    "a device for each block": ("the workers had the blocks [[0], [1], [2], [3], [4]], expected", (BLOCKS, SPREAD)),
    "the other way round": ("its last micro-batch went through the", (BLOCKS, "*reversed(gpt2.transformer.h)")),
}
OUTCOME = {
    "layer norm in the Pipe": ("the output is not what it was", (BLOCKS, f"{BLOCKS}, gpt2.transformer.ln_f")),
    "freezes the blocks": ("transformer.wte.weight is missing", (PLACE, f"{PLACE}; gpt2.requires_grad_(False)")),
    "keeps no gradients": ("transformer.wte.weight is not what it was before. Let", (PUT, "Adapter(pipe)"), DETACHES),
    "an adapter of its own": ("called with a mask and a cache: with a mask, the", (PUT, "Adapter(pipe)"), ADAPTER),
}
NAMES = {
    "in a list": ("it has transformer.h.0.0.attn.c_attn.bias in its state", (PUT, f"nn.ModuleList([{PUT}])")),
    "with new names": ("r.h.block0.attn.c_attn.bias in its state dict", (BLOCKS, NAMED.replace("{i}", "block{i}"))),
}
NO_SEQUENTIAL = f"put the modules into one (labkit/pipe.py, line {LINE})"
NO_END = {"makes a Pipe of a ModuleList": (NO_SEQUENTIAL, (PIPE, "Pipe(gpt2.transformer.h, split_size)"))}
WRONG = {
    claims.the_model_comes_back_and_can_call_what_it_has: RETURNED,
    claims.each_device_has_a_worker_that_runs_its_blocks: CALLS,
    claims.output_and_gradients_stay: OUTCOME,
    claims.parameters_keep_their_names: NAMES,
    None: NO_END,
}
RIGHT = {
    "by name": [(BLOCKS, NAMED)],
    "one after the other": [(f"pipe = {PIPE}\n", APPENDED)],
    "deletes the blocks first": [(PLACE, f"del gpt2.transformer.h\n    {PLACE}")],
    "an adapter of its own that looks after the rest": [
        (PUT, "Adapter(pipe)"),
        ADAPTER.replace("        return self", LOOKS_AFTER_THE_REST),
    ],
}
