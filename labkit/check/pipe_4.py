"""pipe.4: a small GPT-2 that prepare_pipeline_parallel has prepared, whose blocks note calls."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any, NamedTuple

from labkit.check.harness import Task

BLOCKS, DEVICES = range(5), ("cpu:0", "cpu:1", "cpu:2")
SHARES = [[0, 1], [2, 3], [4]]  # the blocks of each device, as models.parallelize shares them out
ROWS, SPLIT_SIZE, MICRO_BATCHES = 7, 3, [3, 3, 1]
VOCABULARY, TOKENS = 13, 4


class Case(NamedTuple):
    """What a GPT-2 is called with once it is prepared, if at all."""

    called_with: str = ""

    def __str__(self) -> str:
        called = f", called with {self.called_with}" if self.called_with else ""
        return f"a GPT-2 of {len(BLOCKS)} blocks on {', '.join(DEVICES)}, prepared with split_size={SPLIT_SIZE}{called}"

    def observe(self) -> Any:
        """Return what came back and is in the model, or the calls of its blocks and what
        differs."""
        from labkit import models, pipe

        shape = {"n_layer": len(BLOCKS), "n_embd": 8, "n_head": 2, "vocab_size": VOCABULARY, "n_positions": TOKENS + 1}
        gpt2 = models.parallelize(models.gpt2("nano", **shape, initializer_range=0.5).double(), DEVICES)
        gpt2.transformer.ln_f.bias.data += 1.0  # so a second layer norm shows, as each block does
        calls = _noted([block.module for block in gpt2.transformer.h])
        parameters = {name.replace(".module.", "."): parameter for name, parameter in gpt2.named_parameters()}
        before, names = self._outcome(gpt2, parameters), set(gpt2.state_dict())
        calls.clear()
        found = pipe.prepare_pipeline_parallel(gpt2, SPLIT_SIZE)
        if not self.called_with:
            h = getattr(gpt2.transformer, "h", None)
            finds = [type(block).__name__ for block in h] if isinstance(h, Iterable) else None
            return {"returned": found is gpt2 or found, "h": h, "finds": finds}
        differs, now = _first_other(self._outcome(gpt2, parameters), before), set(gpt2.state_dict())
        return {"differs": differs, "calls": calls, "names": [now - names, names - now]}

    def _outcome(self, gpt2: Any, parameters: dict[str, Any]) -> dict[str, Any]:
        """Return by name the output, and the gradients, or what comes next in generation."""
        import torch

        tokens = torch.arange(ROWS * TOKENS).view(ROWS, TOKENS) * 5 % VOCABULARY
        if self.called_with == ALONE:
            gpt2.zero_grad()
            output = gpt2(tokens, use_cache=False).logits
            if output.requires_grad:
                output.square().sum().backward()
            gradients = {f"the gradient of {name}": parameter.grad for name, parameter in parameters.items()}
            return {"the output": output.detach(), **gradients}
        mask = torch.ones(ROWS, TOKENS + 1, dtype=torch.int64)
        mask[0, 0] = 0
        with torch.no_grad():
            first = gpt2.eval()(tokens, attention_mask=mask[:, :TOKENS], use_cache=True)
            cache = first.past_key_values
            second = gpt2(tokens[:, :1], attention_mask=mask, past_key_values=cache, use_cache=True)
        return {"with a mask, the output": first.logits, "with a cache, the output": second.logits}


def _noted(blocks: list[Any]) -> list[tuple[int | None, int, int]]:
    """Return where calls are noted: block, None for a copy, rows, and thread, 0 for this one."""
    calls, caller = list[tuple[int | None, int, int]](), threading.get_ident()

    def note(block: Any, args: Any, kwargs: Any) -> None:
        number = next((number for number, own in enumerate(blocks) if own is block), None)
        x, thread = next(iter([*args, *kwargs.values()])), threading.get_ident()
        calls.append((number, len(x), 0 if thread == caller else thread))

    for block in blocks:
        block.register_forward_pre_hook(note, with_kwargs=True)
    return calls


def _first_other(found: dict[str, Any], expected: dict[str, Any]) -> str:
    """Return what is not as it was before, or nothing."""
    for name, value in expected.items():
        if found[name] is None:
            return f"{name} is missing"
        if found[name].shape != value.shape or not found[name].allclose(value):
            return f"{name} is not what it was before"
    return ""


ALONE = f"{ROWS} rows"
PREPARED, CALLED, GENERATING = Case(), Case(ALONE), Case("a mask and a cache")
TASK = Task(given=["Pipe", "split_module", "clock_cycles", "_clock_cycles"], first=["pipe.3"])


@TASK.claim([PREPARED])
def the_model_comes_back_and_can_call_what_it_has(case: Case, seen: Any) -> str | None:
    """It gives the model itself back, which can call what it finds in gpt2.transformer.h."""
    if seen["returned"] is not True:
        what = str(seen["returned"]).replace("a GPT2LMHeadModel", "another GPT-2")
        return f"what came back is {what}, expected the model itself: whoever has it is to go on with it"
    advice = "PipedBlocks(pipe) stands between the two: put that into gpt2.transformer.h"
    if seen["h"] is None:
        return f"there is no gpt2.transformer.h any more. {advice}"
    if seen["finds"] is None:
        return f"gpt2.transformer.h is {seen['h']}, and GPT-2 goes through it with for. {advice}"
    if "Pipe" in seen["finds"]:
        return f"GPT-2 finds a Pipe in gpt2.transformer.h, which takes one tensor and nothing beside. {advice}"
    return None


@TASK.claim([CALLED], after=[the_model_comes_back_and_can_call_what_it_has])
def each_device_has_a_worker_that_runs_its_blocks(case: Case, seen: Any) -> str | None:
    """The model's own blocks run in order, once a micro-batch, in a worker for each device."""
    calls, workers = seen["calls"], dict[int, set[int]]()
    if copies := [number for number, _, _ in calls if number is None]:
        why = "An optimizer has the parameters of the model, so put the blocks themselves into the nn.Sequential"
        return f"{len(copies)} times a block was called that is not the model's. {why}"
    for number, _, thread in calls:
        workers.setdefault(thread, set()).add(number)
        if thread == 0:
            why = "GPT-2 calls what it finds in gpt2.transformer.h: that has to lead to the Pipe"
            return f"block {number} ran in the thread that called the model, not in that of a worker. {why}"
    for block in BLOCKS:
        given = [rows for number, rows, _ in calls if number == block]
        if given and set(given) != set(MICRO_BATCHES):
            why = "Pipe takes split_size, the number of rows of a micro-batch"
            return f"block {block} was given {given} rows, expected {MICRO_BATCHES}. {why}"
        if len(given) != len(MICRO_BATCHES):
            why = "All blocks go into the Pipe, each once; and gpt2.transformer.h has one thing, which stands for them all"
            return f"block {block} was called {len(given)} times for {len(MICRO_BATCHES)} micro-batches. {why}"
    if (found := sorted(map(sorted, workers.values()))) != SHARES:
        why = "A block's device is in the WithDevice around it: put that into the nn.Sequential as it is"
        return f"the workers had the blocks {found}, expected {SHARES}. {why}"
    order = [number for number, rows, _ in calls if rows == MICRO_BATCHES[-1]]  # the others are alike
    return None if order == sorted(order) else f"its last micro-batch went through the blocks in the order {order}"


@TASK.claim([CALLED, GENERATING], after=[each_device_has_a_worker_that_runs_its_blocks])
def output_and_gradients_stay(case: Case, seen: Any) -> str | bool:
    """Output and gradients are what they were, also with a mask and a cache, as in generation."""
    why = "Embeddings, layer norm and output layer are GPT-2's own business: into the Pipe go the blocks, and nothing else"
    if "gradient" in seen["differs"]:
        why = "Let autograd follow the hidden states into the Pipe"
    if case is GENERATING:
        why = "A Pipe leaves out what GPT-2 gives to its blocks besides hidden states. PipedBlocks looks after that"
    return seen["differs"] and f"{seen['differs']}. {why}"


@TASK.claim([CALLED], after=[output_and_gradients_stay])
def parameters_keep_their_names(case: Case, seen: Any) -> str | bool:
    """The parameters have the names that they had, so that what was saved can be loaded."""
    new, old = (min(names, default="nothing") for names in seen["names"])
    why = "Put PipedBlocks, which keeps names, there as it is, in no list; and blocks without names into nn.Sequential"
    return new != old and f"it has {new} in its state dict, where there was {old}. {why}"
