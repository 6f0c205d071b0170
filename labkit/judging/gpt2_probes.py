"""What runs in a rank to judge pipe.4: the student prepares a small GPT-2, whose blocks note by whom they are called."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from labkit.judging.evidence import PIPE, Failure, attempt
from labkit.judging.pipe_probes import has_to_come_first

BLOCKS, DEVICES = 5, ("cpu:0", "cpu:1", "cpu:2")
SHARES = [[0, 1], [2, 3], [4]]  # the blocks of each device, as models.parallelize shares them out
ROWS, SPLIT_SIZE = 7, 3
MICRO_BATCHES = [3, 3, 1]  # their rows
VOCABULARY, WIDTH, TOKENS = 13, 8, 4


class Call(NamedTuple):
    """One call of a block: its number, None for one that is not the model's; how many rows it was given; and the name of the
    thread that it ran in, "" for the one that called the model."""

    block: int | None
    rows: int
    thread: str


def probe_gpt2(first: dict[str, Callable[[], bool]]) -> dict[str, Any]:
    """What became of a GPT-2 that the answer has prepared; or the Failure that it cannot be right yet.

    ``first``: what it is made of, by task; each says whether it is right. What is not right may not come to an end.
    """
    from labkit import pipe  # noqa: F401  (what is wrong with the file as a whole is said once)

    tries = {
        "returned": _returned,
        "calls": _calls,
        "differs": _differs,
        "names": _names,
        "generation differs": _generation_differs,
    }
    for task, is_right in first.items():
        if not is_right():
            return dict.fromkeys(tries, Failure(has_to_come_first(task)))
    return {name: attempt(code, PIPE) for name, code in tries.items()}


def _returned() -> str:
    """What came back: "the model", or what else it is."""
    gpt2 = _placed()
    found = _prepare(gpt2)
    if found is gpt2:
        return "the model"
    if isinstance(found, type(gpt2)):
        return "another GPT-2"
    return "None" if found is None else f"a {type(found).__name__}"


def _calls() -> list[Call]:
    """The calls of blocks in a forward pass, in the order in which they began."""
    gpt2 = _placed()
    blocks = [wrapped.module for wrapped in gpt2.transformer.h]
    calls: list[Call] = []
    caller = threading.current_thread()

    def note(block: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        number = next((number for number, own in enumerate(blocks) if own is block), None)
        thread = threading.current_thread()
        (x, *_) = [*args, *kwargs.values()]
        calls.append(Call(number, len(x), "" if thread is caller else thread.name))

    for block in blocks:
        block.register_forward_pre_hook(note, with_kwargs=True)
    _prepare(gpt2)
    gpt2(_tokens(), use_cache=False)
    return calls


def _differs() -> str:
    """The first thing that is not as it was before: the output, or the gradient of a parameter. Empty if all is."""
    gpt2 = _placed()
    parameters = {name.replace(".module.", "."): parameter for name, parameter in gpt2.named_parameters()}

    def all_of_it() -> dict[str, Any]:
        gpt2.zero_grad()
        output = gpt2(_tokens(), use_cache=False).logits
        output.square().sum().backward()
        return {"the output": output.detach()} | {
            f"the gradient of {name}": parameter.grad for name, parameter in parameters.items()
        }

    expected = all_of_it()
    _prepare(gpt2)
    return _first_other(all_of_it(), expected)


def _names() -> tuple[list[str], list[str]]:
    """The names of the parameters after it, and before."""
    gpt2 = _placed()
    before = list(gpt2.state_dict())
    _prepare(gpt2)
    return list(gpt2.state_dict()), before


def _generation_differs() -> str:
    """The first thing that is not as it was before in generation, where padding is masked and a cache is kept."""
    import torch

    gpt2 = _placed().eval()

    def all_of_it() -> dict[str, Any]:
        tokens, mask = _tokens(), torch.ones(ROWS, TOKENS, dtype=torch.int64)
        mask[0, 0] = 0
        with torch.no_grad():
            first = gpt2(tokens, attention_mask=mask, use_cache=True)
            longer = torch.cat([mask, mask[:, -1:]], dim=1)
            cache = first.past_key_values
            second = gpt2(tokens[:, :1], attention_mask=longer, past_key_values=cache, use_cache=True)
        return {"with a mask, the output": first.logits, "with a cache, the output": second.logits}

    expected = all_of_it()
    _prepare(gpt2)
    return _first_other(all_of_it(), expected)


def _first_other(found: dict[str, Any], expected: dict[str, Any]) -> str:
    import torch

    for name, value in expected.items():
        other = found[name]
        if other is None:
            return f"{name} is missing"
        if not isinstance(other, torch.Tensor) or other.shape != value.shape or not other.allclose(value):
            return f"{name} is not what it was before"
    return ""


# --- what is tried ---------------------------------------------------------------------------------------------------


def _placed() -> Any:
    """A GPT-2 in float64 with weights large enough that each block shows in the output, and a second layer norm would, too."""
    import torch

    from labkit import models

    shape = {"n_layer": BLOCKS, "n_embd": WIDTH, "n_head": 2, "vocab_size": VOCABULARY, "n_positions": TOKENS + 1}
    gpt2 = models.gpt2("nano", **shape, initializer_range=0.5).double()
    torch.nn.init.constant_(gpt2.transformer.ln_f.bias, 1.0)
    return models.parallelize(gpt2, DEVICES)


def _prepare(gpt2: Any) -> Any:
    from labkit import pipe

    return pipe.prepare_pipeline_parallel(gpt2, SPLIT_SIZE)


def _tokens() -> Any:
    import torch

    return torch.arange(ROWS * TOKENS).view(ROWS, TOKENS) * 5 % VOCABULARY
