### INSTRUCTORS ONLY: this file holds answers, so it is not in the student edition
"""Wrong and right answers to pipe.4; test_answers.py says how they are written."""

from __future__ import annotations

from labkit.check import pipe_4 as claims

BLOCKS, PIPE, PUT = "*gpt2.transformer.h", "Pipe(nn.Sequential(*gpt2.transformer.h), split_size)", "PipedBlocks(pipe)"
PLACE = "gpt2.transformer.h = PipedBlocks(pipe)"
AGAIN = "_in_place = prepare_pipeline_parallel\n\ndef prepare_pipeline_parallel(gpt2, split_size):\n    "
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
NAMED = "__import__('collections').OrderedDict((f'block{i}', block) for i, block in enumerate(gpt2.transformer.h))"
APPENDED = """model = nn.Sequential()
    for block in gpt2.transformer.h:
        model.append(block)
    pipe = Pipe(model, split_size)
"""

WRONG = {
    "gives a copy back": (
        claims.the_model_itself_is_given_back,
        "what came back is another GPT-2, expected the model itself",
        f"import copy\n{AGAIN}return _in_place(copy.deepcopy(gpt2), split_size)\n",
    ),
    "gives the Pipe back": (
        claims.the_model_itself_is_given_back,
        "what came back is a Pipe, expected the model itself",
        (PLACE, f"{PLACE}\n    return pipe"),
    ),
    "gives nothing back": (
        claims.the_model_itself_is_given_back,
        "what came back is None, expected the model itself",
        (PLACE, f"{PLACE}\n    return"),
    ),
    "a bare Pipe": (
        claims.gpt2_can_call_what_it_finds,
        "gpt2.transformer.h is a Pipe, and GPT-2 goes through it with for. PipedBlocks(pipe) stands between the two",
        (PUT, "pipe"),
    ),
    "a Pipe in a list": (
        claims.gpt2_can_call_what_it_finds,
        "GPT-2 finds a Pipe in gpt2.transformer.h, which takes one tensor and nothing beside. PipedBlocks(pipe) stands",
        (PUT, "nn.ModuleList([pipe])"),
    ),
    "makes a Pipe of a ModuleList": (
        None,
        "it raised TypeError: the model is a ModuleList, expected an nn.Sequential, which says in which order its modules run: "
        "put the modules into one (labkit/pipe.py, line 2",
        (PIPE, "Pipe(gpt2.transformer.h, split_size)"),
    ),
    "copies the blocks": (
        claims.the_blocks_are_not_copied,
        "15 times a block was called that is not the model's. An optimizer has the parameters of the model",
        (BLOCKS, "*__import__('copy').deepcopy(gpt2.transformer.h)"),
    ),
    "does nothing": (
        claims.the_blocks_run_in_workers,
        "called with 7 rows: block 0 ran in the thread that called the model, not in that of a worker",
        (PLACE, "pass"),
    ),
    "puts the Pipe somewhere else": (
        claims.the_blocks_run_in_workers,
        "GPT-2 calls what it finds in gpt2.transformer.h: that has to lead to the Pipe",
        ("gpt2.transformer.h = ", "gpt2.h = "),
    ),
    "forgets split_size": (
        claims.micro_batches_have_split_size_rows,
        "block 0 was given [1, 1, 1, 1, 1, 1, 1] rows, expected [3, 3, 1]",
        (", split_size)", ")"),
    ),
    "takes split_size for the number of micro-batches": (
        claims.micro_batches_have_split_size_rows,
        "block 0 was given [4, 3] rows, expected [3, 3, 1]. Pipe takes split_size, the number of rows",
        (", split_size)", ", -(-7 // 2))"),
    ),
    "a Pipe for each block": (
        claims.each_block_runs_once_for_each_micro_batch,
        "block 0 was called 15 times for 3 micro-batches",
        (PUT, f"nn.ModuleList([{PUT}] * len(gpt2.transformer.h))"),
    ),
    "leaves the last block out": (
        claims.each_block_runs_once_for_each_micro_batch,
        "block 4 was called 0 times for 3 micro-batches. All blocks go into the Pipe, each once",
        (BLOCKS, "*list(gpt2.transformer.h)[:-1]"),
    ),
    "takes blocks out of WithDevice": (
        claims.each_device_has_a_worker,
        "the workers had the blocks [[0, 1, 2, 3, 4]], expected [[0, 1], [2, 3], [4]]. A block's device is in the WithDevice",
        (BLOCKS, "*(block.module for block in gpt2.transformer.h)"),
    ),
    "a device for each block": (
        claims.each_device_has_a_worker,
        "the workers had the blocks [[0], [1], [2], [3], [4]], expected",
        (BLOCKS, "*(WithDevice(block.module, f'cpu:{i}') for i, block in enumerate(gpt2.transformer.h))"),
    ),
    "the other way round": (
        claims.the_blocks_stay_in_order,
        "its last micro-batch went through the blocks in the order [4, 3, 2, 1, 0]",
        (BLOCKS, "*reversed(gpt2.transformer.h)"),
    ),
    "layer norm in the Pipe": (
        claims.output_and_gradients_stay,
        "the output is not what it was before. Embeddings, layer norm and output layer are GPT-2's own business",
        (BLOCKS, f"{BLOCKS}, gpt2.transformer.ln_f"),
    ),
    "keeps no gradients": (
        claims.output_and_gradients_stay,
        "the gradient of transformer.wte.weight is not what it was before. Let autograd follow",
        (PUT, "Adapter(pipe)"),
        ADAPTER.replace("(x)", "(x.detach())"),
    ),
    "in a list": (
        claims.parameters_keep_their_names,
        "it has transformer.h.0.0.attn.c_attn.bias in its state dict, where there was transformer.h.0.attn.c_attn.bias",
        (PUT, f"nn.ModuleList([{PUT}])"),
    ),
    "with new names": (
        claims.parameters_keep_their_names,
        "it has transformer.h.block0.attn.c_attn.bias in its state dict",
        (BLOCKS, NAMED),
    ),
    "an adapter of its own": (
        claims.generation_stays,
        "called with a mask and a cache: with a mask, the output is not what it was before. A Pipe takes hidden states alone",
        (PUT, "Adapter(pipe)"),
        ADAPTER,
    ),
}
FOLLOWS = [
    "does nothing",
    "gives a copy back",
    "copies the blocks",
    "the other way round",
    "a bare Pipe",
    "a device for each block",
]
OTHER_CAUSE: dict[str, tuple[str, ...]] = {}
RIGHT = {
    "one after the other": [(f"pipe = {PIPE}\n", APPENDED)],
    "deletes the blocks first": [(PLACE, f"del gpt2.transformer.h\n    {PLACE}")],
    "an adapter of its own that looks after the rest": [
        (PUT, "Adapter(pipe)"),
        ADAPTER.replace("        return self", LOOKS_AFTER_THE_REST),
    ],
}
