"""pipe.4: a small GPT-2 that prepare_pipeline_parallel has prepared, and whose blocks note by whom they are called."""

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
        """Return what came back and stands in the model, the calls of its blocks, and the first thing that differs."""
        from labkit import models, pipe

        shape = {"n_layer": len(BLOCKS), "n_embd": 8, "n_head": 2, "vocab_size": VOCABULARY, "n_positions": TOKENS + 1}
        gpt2 = models.parallelize(models.gpt2("nano", **shape, initializer_range=0.5).double(), DEVICES)
        gpt2.transformer.ln_f.bias.data += (
            1.0  # so a second layer norm would show, as each block does with large weights
        )
        calls = _noted([block.module for block in gpt2.transformer.h])
        parameters = {name.replace(".module.", "."): parameter for name, parameter in gpt2.named_parameters()}
        before, names = self._outcome(gpt2, parameters), sorted(gpt2.state_dict())
        calls.clear()
        found = pipe.prepare_pipeline_parallel(gpt2, SPLIT_SIZE)
        h = getattr(gpt2.transformer, "h", None)
        finds = [type(block).__name__ for block in h] if isinstance(h, Iterable) else None
        seen = {"returned": found is gpt2 or found, "h": h, "finds": finds}
        if not self.called_with:
            return seen
        return seen | {
            "differs": _first_other(self._outcome(gpt2, parameters), before),
            "calls": calls,
            "names": [sorted(gpt2.state_dict()), names],
        }

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


def _noted(blocks: list[Any]) -> list[dict[str, Any]]:
    """Return the list in which each call of a block is noted: which one, None for a copy, how many rows, in which thread."""
    calls: list[dict[str, Any]] = []
    threads = [threading.current_thread()]  # in the order in which they came; 0 is the one that calls the model

    def note(block: Any, args: Any, kwargs: Any) -> None:
        if (thread := threading.current_thread()) not in threads:
            threads.append(thread)
        x = next(iter([*args, *kwargs.values()]))
        number = next((number for number, own in enumerate(blocks) if own is block), None)
        calls.append({"block": number, "rows": len(x), "thread": threads.index(thread)})

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
PREPARED, CALLED, GENERATING = [Case()], [Case(ALONE)], [Case("a mask and a cache")]
TASK = Task(given=["Pipe", "split_module", "clock_cycles", "_clock_cycles"], first=["pipe.3"])


@TASK.claim(PREPARED)
def the_model_itself_is_given_back(case: Case, seen: Any) -> str | None:
    """prepare_pipeline_parallel changes the model that it is given, and gives it back."""
    if seen["returned"] is True:
        return None
    what = str(seen["returned"]).replace("a GPT2LMHeadModel", "another GPT-2")
    return f"what came back is {what}, expected the model itself: whoever has it is to go on with it"


STANDS_BETWEEN = "PipedBlocks(pipe) stands between the two: put that into gpt2.transformer.h"


@TASK.claim(PREPARED, after=[the_model_itself_is_given_back])
def gpt2_can_call_what_it_finds(case: Case, seen: Any) -> str | None:
    """GPT-2 can go through gpt2.transformer.h, and call what it finds with hidden states and more."""
    if seen["h"] is None:
        return f"there is no gpt2.transformer.h any more. {STANDS_BETWEEN}"
    if seen["finds"] is None:
        return f"gpt2.transformer.h is {seen['h']}, and GPT-2 goes through it with for. {STANDS_BETWEEN}"
    if "Pipe" in seen["finds"]:
        return f"GPT-2 finds a Pipe in gpt2.transformer.h, which takes one tensor and nothing beside. {STANDS_BETWEEN}"
    return None


@TASK.claim(CALLED, after=[gpt2_can_call_what_it_finds])
def its_own_blocks_run_in_workers(case: Case, seen: Any) -> str | None:
    """The model's own blocks run, not copies, in the worker threads of a Pipe."""
    if copies := [call for call in seen["calls"] if call["block"] is None]:
        why = "An optimizer has the parameters of the model, so put the blocks themselves into the nn.Sequential"
        return f"{len(copies)} times a block was called that is not the model's. {why}"
    if here := [call["block"] for call in seen["calls"] if call["thread"] == 0]:
        why = "GPT-2 calls what it finds in gpt2.transformer.h: that has to lead to the Pipe"
        return f"block {here[0]} ran in the thread that called the model, not in that of a worker. {why}"
    return None


@TASK.claim(CALLED, after=[its_own_blocks_run_in_workers])
def each_block_runs_once_for_each_micro_batch(case: Case, seen: Any) -> str | None:
    """Each block is called once for each micro-batch, of split_size rows."""
    for number in BLOCKS:
        rows = [call["rows"] for call in seen["calls"] if call["block"] == number]
        if rows and set(rows) != set(MICRO_BATCHES):
            why = "Pipe takes split_size, the number of rows of a micro-batch"
            return f"block {number} was given {rows} rows, expected {MICRO_BATCHES}. {why}"
        if (times := len(rows)) != len(MICRO_BATCHES):
            why = "All blocks go into the Pipe, each once; and gpt2.transformer.h has one thing, which stands for them all"
            return f"block {number} was called {times} times for {len(MICRO_BATCHES)} micro-batches. {why}"
    return None


@TASK.claim(CALLED, after=[each_block_runs_once_for_each_micro_batch])
def each_device_has_a_worker(case: Case, seen: Any) -> str | None:
    """The blocks of a device run in one worker, those of another device in another one."""
    by_thread: dict[int, set[int]] = {}
    for call in seen["calls"]:
        by_thread.setdefault(call["thread"], set()).add(call["block"])
    if (found := sorted(map(sorted, by_thread.values()))) == SHARES:
        return None
    why = "A block's device is in the WithDevice around it: put that into the nn.Sequential as it is"
    return f"the workers had the blocks {found}, expected {SHARES}. {why}"


@TASK.claim(CALLED, after=[each_block_runs_once_for_each_micro_batch])
def the_blocks_stay_in_order(case: Case, seen: Any) -> str | None:
    """A micro-batch goes through the blocks in their order."""
    order = [call["block"] for call in seen["calls"] if call["rows"] == MICRO_BATCHES[-1]]  # the others are alike
    return None if order == sorted(order) else f"its last micro-batch went through the blocks in the order {order}"


@TASK.claim(CALLED, after=[each_device_has_a_worker, the_blocks_stay_in_order])
def output_and_gradients_stay(case: Case, seen: Any) -> str | None:
    """Output and gradients are what they were before."""
    if not seen["differs"]:
        return None
    why = "Embeddings, layer norm and output layer are GPT-2's own business: into the Pipe go the blocks, and nothing else"
    if "gradient" in seen["differs"]:
        why = "Let autograd follow the hidden states into the Pipe"
    return f"{seen['differs']}. {why}"


@TASK.claim(CALLED, after=[output_and_gradients_stay])
def parameters_keep_their_names(case: Case, seen: Any) -> str | None:
    """The parameters have the names that they had, so that what was saved can be loaded."""
    found, expected = map(set, seen["names"])
    if found == expected:
        return None
    other, was = min(found - expected, default="nothing"), min(expected - found, default="nothing")
    return (
        f"it has {other} in its state dict, where there was {was}. PipedBlocks keeps names: put it into gpt2.transformer.h "
        "as it is, without a list around it; and modules without names into nn.Sequential, which numbers them"
    )


@TASK.claim(GENERATING, after=[output_and_gradients_stay])
def generation_stays(case: Case, seen: Any) -> str | None:
    """With a mask and a cache, as in generation, the output is what it was before."""
    if not seen["differs"]:
        return None
    why = "A Pipe takes hidden states alone, and leaves out what else GPT-2 gives to its blocks"
    return f"{seen['differs']}. {why}. PipedBlocks looks after that"
