"""pipe.4: a small GPT-2 that prepare_pipeline_parallel has prepared, whose blocks note calls."""

from __future__ import annotations

import random
from collections.abc import Iterable
from threading import current_thread
from typing import Any, NamedTuple

from labkit.check.harness import Finding, Task

DEVICES = ["cpu:0", "cpu:1", "cpu:2"]
ROWS = 7
SHAPE: dict[str, Any] = {"n_head": 2, "n_embd": 8, "vocab_size": 13, "n_positions": 6, "initializer_range": 0.5}


class Case(NamedTuple):
    """What is done with a GPT-2 once it is prepared."""

    then: str = ""
    split_size: int = 3
    n_blocks: int = 5

    def __str__(self) -> str:
        prepared = f"prepared with split_size={self.split_size}{self.then}"
        return f"a GPT-2 of {self.n_blocks} blocks on {', '.join(DEVICES)}, {prepared}"

    def workers(self) -> list[str]:
        """Return each block's worker, as its thread is called."""
        n = len(DEVICES)
        return [f"stage {j} on {DEVICES[j]}" for j in sorted(block % n for block in range(self.n_blocks))]

    def observe(self) -> Any:
        """Return what came back and is in the model, or what its blocks and the model then do."""
        from labkit import models, pipe

        gpt2 = models.parallelize(models.gpt2("nano", n_layer=self.n_blocks, **SHAPE).double(), DEVICES)
        gpt2.transformer.ln_f.bias.data += 1.0  # so a second layer norm shows, as each block does
        blocks, calls = list[Any](block.module for block in gpt2.transformer.h), list[Any]()
        parameters, names = dict(gpt2.named_parameters()), set(gpt2.state_dict())
        before = self._outcome(gpt2, parameters)

        def note(block: Any, _: Any, y: Any) -> None:
            calls.append((block, current_thread().name, len(y)))

        for each in blocks:
            each.register_forward_hook(note)
        returned = pipe.prepare_pipeline_parallel(gpt2, self.split_size)
        if self == PREPARED:
            h = getattr(gpt2.transformer, "h", None)
            return {"returned": returned is gpt2 or returned, "h": [*h] if isinstance(h, Iterable) else h}
        after, new_names = self._outcome(gpt2, parameters), set(gpt2.state_dict())
        return {
            "calls": [[call for own, *call in calls if own is block] for block in blocks],
            "before": before,
            "after": after,
            "names": [names - new_names, new_names - names],
        }

    def _outcome(self, gpt2: Any, parameters: dict[str, Any]) -> dict[str, Any]:
        """Return by name the output and the gradients, or what comes next in generation."""
        import torch

        tokens = torch.arange(28).view(ROWS, 4) * 5 % 13
        if self == GENERATING:
            mask = torch.ones_like(tokens)
            mask[0, 0] = 0
            options = {"max_new_tokens": 2, "output_logits": True, "return_dict_in_generate": True}
            written = gpt2.generate(tokens, attention_mask=mask, **options)
            return {"what it computes": torch.stack(written.logits)}
        gpt2.zero_grad()
        output = gpt2(tokens, use_cache=False).logits
        if output.requires_grad:
            output.square().sum().backward()
        gradients = {f"the gradient of {name}": each.grad for name, each in parameters.items()}
        return {"the output": output} | gradients


PREPARED, CALLED = Case(), Case(", called with 7 rows")
GENERATING = Case(", called by generate, with a mask and a cache")


def drawn(draw: random.Random) -> list[Case]:
    return [Case(", called with 7 rows", split_size=draw.choice((2, 4, 5)), n_blocks=draw.choice((6, 7, 8)))]


TASK = Task(
    writes="prepare_pipeline_parallel",
    minutes=15,
    points=10,
    notebooks="10",
    needs=["pipe.1", "pipe.2", "pipe.3"],
    given=["Pipe", "split_module", "clock_cycles", "_clock_cycles"],
    hints=(
        """GPT-2 goes through gpt2.transformer.h in a loop. If one call of the Pipe runs all blocks, how often
may that loop turn?""",
        """PipedBlocks is what the loop turns over: once. It is made of a Pipe, which is made of the blocks,
one after the other in an nn.Sequential; they know their devices, so the Pipe knows where to cut.""",
        """From the inside out it is the blocks, the nn.Sequential, the Pipe with its split_size, PipedBlocks;
and that takes the place of the blocks in the model. Most people put it into a list, as the blocks
were in one: then the parameters have other names, and what was saved cannot be loaded.""",
    ),
)


@TASK.claim([PREPARED])
def the_model_comes_back_and_can_call_what_it_has(case: Case, seen: Any) -> Finding:
    """It gives the model itself back, which can call what it finds in gpt2.transformer.h."""
    if seen["returned"] is not True:
        expected = "expected the model itself: callers keep using the same object"
        return f"what came back is {seen['returned']}, {expected}"
    h = "gone" if seen["h"] is None else seen["h"]
    takes_all = isinstance(h, list) and {"a Pipe", "a Sequential"}.isdisjoint(map(str, h))
    why = "GPT-2 goes through it, and calls each item with more than the one tensor that a Pipe takes"
    return not takes_all and f"gpt2.transformer.h is {h}. {why}"


@TASK.claim([CALLED, drawn], core=True)
def each_device_has_a_worker_that_runs_its_blocks(case: Case, seen: Any) -> Finding:
    """The model's own blocks run once a micro-batch, in a worker for each device."""
    sizes = [min(case.split_size, ROWS - row) for row in range(0, ROWS, case.split_size)]
    for block, (calls, expected) in enumerate(zip(seen["calls"], case.workers(), strict=True)):
        rows, workers = [rows for _, rows in calls], {worker for worker, _ in calls}
        if any(not worker.startswith("stage") for worker in workers):
            why = "GPT-2 calls what it finds in gpt2.transformer.h"
            where = "in the thread that called the model, not in that of a worker"
            return f"block {block} ran {where}. {why}"
        if rows != sizes:
            expected = f"expected {sizes}, once for each micro-batch"
            return f"block {block} was given {rows} rows, {expected}"
        if workers != {expected}:
            return f"block {block} ran in the worker {min(workers)!r}, expected {expected!r}"


@TASK.claim([CALLED, GENERATING])
def output_and_gradients_stay(case: Case, seen: Any) -> Finding:
    """Output and gradients are what they were, also with a mask and a cache, as in generation."""
    for name, value in seen["before"].items():
        now = seen["after"][name]
        if now is None or not now.allclose(value):
            return f"{name} is {'missing' if now is None else 'not what it was before'}"


@TASK.claim([CALLED])
def parameters_keep_their_names(case: Case, seen: Any) -> Finding:
    """The parameters have the names that they had, so that what was saved can be loaded."""
    old, new = (min(names, default="nothing") for names in seen["names"])
    return old != new and f"it has {new} in its state dict, where there was {old}"
