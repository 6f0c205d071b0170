### INSTRUCTORS ONLY: this file holds answers, so it is not in the student edition
"""Wrong answers to pipe.4, each with the claim that rejects it and a phrase of the finding; and right ones."""

from __future__ import annotations

import textwrap

from labkit.judging import gpt2_claims as claims

BLOCKS = "nn.Sequential(*gpt2.transformer.h)"


def prepare(
    modules: str = BLOCKS, split_size: str = "split_size", put: str = "gpt2.transformer.h = PipedBlocks(pipe)"
) -> str:
    """An answer: of what it makes the Pipe, and where it puts it."""
    return body(f"pipe = Pipe({modules}, {split_size})\n{put}")


def body(lines: str) -> str:
    return f"""
def prepare_pipeline_parallel(gpt2, split_size):
    check_ready(gpt2)
    check_counts(split_size=split_size)
    take_out_of_pipe(gpt2)
{textwrap.indent(lines.strip(), "    ")}
    return gpt2
"""


COPIES = "import copy\nblocks = nn.Sequential(*copy.deepcopy(gpt2.transformer.h))"
OWN_ADAPTER = """
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
OWN_ADAPTER_IN_PLACE = f"{OWN_ADAPTER}\ngpt2.transformer.h = Adapter(pipe)"
OWN_ADAPTER_WITH_MORE = OWN_ADAPTER_IN_PLACE.replace(
    "        return self",
    """        if (args and any(arg is not None for arg in args)):
            for block in self.children():
                x = block(x, *args, **options)
            return x
        return self""",
)
BY_HAND = """
from collections import OrderedDict
named = OrderedDict()
for i in range(len(gpt2.transformer.h)):
    named[str(i)] = gpt2.transformer.h[i]
setattr(gpt2.transformer, "h", PipedBlocks(pipe=Pipe(nn.Sequential(named), split_size=split_size)))
"""
APPENDED = """
model = nn.Sequential()
for block in gpt2.transformer.h:
    model.append(block)
gpt2.transformer.h = PipedBlocks(Pipe(model, split_size))
"""

WRONG = {
    "gives a copy back": (
        claims.the_model_itself_is_given_back,
        f"{prepare()}\nin_place = prepare_pipeline_parallel\nimport copy\n"
        "def prepare_pipeline_parallel(gpt2, split_size): return in_place(copy.deepcopy(gpt2), split_size)\n",
        "what came back is another GPT-2, expected the model itself",
    ),
    "gives the Pipe back": (
        claims.the_model_itself_is_given_back,
        prepare(put="gpt2.transformer.h = PipedBlocks(pipe)\nreturn pipe"),
        "what came back is a Pipe, expected the model itself",
    ),
    "gives nothing back": (
        claims.the_model_itself_is_given_back,
        prepare(put="gpt2.transformer.h = PipedBlocks(pipe)\nreturn"),
        "what came back is None, expected the model itself",
    ),
    "copies the blocks": (
        claims.the_blocks_are_not_copied,
        body(f"{COPIES}\ngpt2.transformer.h = PipedBlocks(Pipe(blocks, split_size))"),
        "15 times a block was called that is not the model's. An optimizer has the parameters of the model",
    ),
    "does nothing": (
        claims.the_blocks_run_in_workers,
        body("pass"),
        "block 0 ran in the thread that called the model, not in that of a worker",
    ),
    "puts the Pipe somewhere else": (
        claims.the_blocks_run_in_workers,
        prepare(put="gpt2.h = PipedBlocks(pipe)"),
        "GPT-2 calls what it finds in gpt2.transformer.h: that has to lead to the Pipe",
    ),
    "forgets split_size": (
        claims.micro_batches_have_split_size_rows,
        prepare(split_size="1"),
        "block 0 was given [1, 1, 1, 1, 1, 1, 1] rows, expected [3, 3, 1]",
    ),
    "takes split_size for the number of micro-batches": (
        claims.micro_batches_have_split_size_rows,
        prepare(split_size="-(-7 // 2)"),
        "block 0 was given [4, 3] rows, expected [3, 3, 1]. Pipe takes split_size, the number of rows",
    ),
    "a Pipe for each block": (
        claims.each_block_runs_once_for_each_micro_batch,
        prepare(put="gpt2.transformer.h = nn.ModuleList([PipedBlocks(pipe)] * len(gpt2.transformer.h))"),
        "block 0 was called 15 times for 3 micro-batches",
    ),
    "leaves the last block out": (
        claims.each_block_runs_once_for_each_micro_batch,
        prepare("nn.Sequential(*list(gpt2.transformer.h)[:-1])"),
        "block 4 was called 0 times for 3 micro-batches. All blocks go into the Pipe, each once",
    ),
    "takes blocks out of WithDevice": (
        claims.each_device_has_a_worker,
        prepare("nn.Sequential(*(block.module for block in gpt2.transformer.h))"),
        "the workers had the blocks [[0, 1, 2, 3, 4]], expected [[0, 1], [2, 3], [4]]. A block's device is in the WithDevice",
    ),
    "a device for each block": (
        claims.each_device_has_a_worker,
        prepare("nn.Sequential(*(WithDevice(block.module, f'cpu:{i}') for i, block in enumerate(gpt2.transformer.h)))"),
        "the workers had the blocks [[0], [1], [2], [3], [4]], expected",
    ),
    "the other way round": (
        claims.the_blocks_stay_in_order,
        prepare("nn.Sequential(*reversed(gpt2.transformer.h))"),
        "its last micro-batch went through the blocks in the order [4, 3, 2, 1, 0]",
    ),
    "layer norm in the Pipe": (
        claims.output_and_gradients_stay,
        prepare("nn.Sequential(*gpt2.transformer.h, gpt2.transformer.ln_f)"),
        "the output is not what it was before. Embeddings, layer norm and output layer are GPT-2's own business",
    ),
    "keeps no gradients": (
        claims.output_and_gradients_stay,
        prepare(put=OWN_ADAPTER_IN_PLACE.replace("(x)", "(x.detach())")),
        "the gradient of transformer.wte.weight is not what it was before. Let autograd follow",
    ),
    "in a list": (
        claims.parameters_keep_their_names,
        prepare(put="gpt2.transformer.h = nn.ModuleList([PipedBlocks(pipe)])"),
        "has transformer.h.0.0.ln_1.weight in its state dict, where there was transformer.h.0.ln_1.weight. PipedBlocks",
    ),
    "with new names": (
        claims.parameters_keep_their_names,
        prepare("nn.Sequential(OrderedDict((f'block{i}', b) for i, b in enumerate(gpt2.transformer.h)))").replace(
            "    pipe =", "    from collections import OrderedDict\n    pipe ="
        ),
        "has transformer.h.block0.ln_1.weight in its state dict",
    ),
    "an adapter of its own": (
        claims.generation_stays,
        prepare(put=OWN_ADAPTER_IN_PLACE),
        "with a mask, the output is not what it was before. A Pipe takes hidden states alone",
    ),
}
RIGHT = {
    "by name": body(BY_HAND),
    "one after the other": body(APPENDED),
    "an adapter of its own that looks after the rest": prepare(put=OWN_ADAPTER_WITH_MORE),
}
