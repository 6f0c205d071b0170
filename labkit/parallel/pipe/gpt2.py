"""Given code under models.parallelize and models.stages: a GPT-2 on devices, and one in stages.

A GPT-2 is two embeddings, the blocks ``transformer.h`` one after the other, a layer norm and the
output layer ``lm_head``. That shares its weight with the token embedding: one Parameter in two
places.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from labkit.base.checks import check_counts
from labkit.base.texts import listed
from labkit.parallel.devices import check_device, is_virtual, real_device
from labkit.parallel.pipe.placement import WithDevice

if TYPE_CHECKING:
    from transformers import GPT2Config, GPT2LMHeadModel

# --- on devices -----------------------------------------------------------------------------------


def place_blocks(gpt2: GPT2LMHeadModel, devices: Sequence[str | torch.device]) -> GPT2LMHeadModel:
    """Place the blocks on ``devices``, in place: see :func:`labkit.models.parallelize`."""
    check_gpt2(gpt2)
    if isinstance(devices, str) or not isinstance(devices, Sequence):
        raise TypeError(f"devices is {devices!r}, expected a list of devices, such as ['cpu:0', 'cpu:1']")
    targets = [check_device(device) for device in devices]
    blocks, transformer, head = plain_blocks(gpt2), gpt2.transformer, gpt2.lm_head
    shares = _block_ranges(len(blocks), len(targets), "devices")
    take_out_of_pipe(gpt2)
    tied = head.weight is transformer.wte.weight
    for module in (transformer.wte, transformer.wpe, head):
        module.to(real_device(targets[0]))
    if tied:  # torch gives a module a new Parameter where it cannot change the old one
        head.weight = transformer.wte.weight
    transformer.ln_f.to(real_device(targets[-1]))
    transformer.h = nn.ModuleList(
        PlacedBlock(blocks[i], device) for device, share in zip(targets, shares, strict=True) for i in share
    )
    _hook_once(transformer.ln_f, _move_input_to_weight)
    _hook_once(head, _move_input_to_weight)
    _hook_once(transformer, _note_what_is_recorded)
    return gpt2


def _hook_once(module: nn.Module, hook: Any) -> None:
    """Register a forward pre-hook, unless an earlier placement did."""
    # torch has no public list of a module's hooks.
    if hook not in module._forward_pre_hooks.values():
        module.register_forward_pre_hook(hook, with_kwargs=True)


class PlacedBlock(WithDevice):
    """A block and its device. If that is a real one, the block's inputs are moved there.

    In a state dict its parameters keep their names: ``transformer.h.0.ln_1.weight``, without
    ``module``.
    """

    def __init__(self, module: nn.Module, device: str | torch.device):
        super().__init__(module.to(real_device(torch.device(device))), device)
        self.training = module.training
        self.register_state_dict_post_hook(_leave_module_out)
        self.register_load_state_dict_pre_hook(_put_module_in)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if is_virtual(self.device):
            return self.module(*args, **kwargs)
        moved = {name: _on(self.device, value) for name, value in kwargs.items()}
        return self.module(*(_on(self.device, value) for value in args), **moved)


def _on(device: torch.device, value: Any) -> Any:
    return value.to(device) if isinstance(value, torch.Tensor) else value


def _move_input_to_weight(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """Move the input to where the module's weight is: a forward pre-hook."""
    return tuple(_on(module.weight.device, value) for value in args), kwargs


def _leave_module_out(module: nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
    """Rename ``h.0.module.ln_1.weight`` to ``h.0.ln_1.weight``: a hook of state_dict."""
    for name in [name for name in state if name.startswith(f"{prefix}module.")]:
        state[prefix + name.removeprefix(f"{prefix}module.")] = state.pop(name)


def _put_module_in(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Rename it back: a hook of load_state_dict. Names with ``module`` stay as they are."""
    for name in [name for name in state if name.startswith(prefix) and not name.startswith(f"{prefix}module.")]:
        state[f"{prefix}module.{name.removeprefix(prefix)}"] = state.pop(name)


# --- through a Pipe -------------------------------------------------------------------------------


class PipedBlocks(nn.Module):
    """The blocks of a GPT-2 in ``pipe``, as one module to replace ``gpt2.transformer.h``.

    GPT2Model goes through ``transformer.h`` and calls each block that it finds. Here it finds one:
    this module, which calls the Pipe, and so all blocks. Parameters have the names that they had in
    ``transformer.h``.

    A Pipe takes one tensor. So if a block is given more than hidden states, or its output is to be
    recorded, the blocks run one after the other, without the Pipe. That happens with a cache or a
    mask, as in generation; in training a warning says so.
    """

    pipe: Any
    recorded: bool = False  # whether the blocks' output is

    def __init__(self, pipe: Any):
        super().__init__()
        for partition in pipe.partitions:
            for name, block in partition.named_children():
                self.add_module(name, block)
        # Not as a submodule, or each block would be there twice, with two names.
        object.__setattr__(self, "pipe", pipe)

    def __iter__(self) -> Iterator[PipedBlocks]:
        """Yield what GPT2Model is to call: once, for all blocks."""
        yield self

    @property
    def blocks(self) -> list[nn.Module]:
        """Return the blocks in order, each with its device."""
        return list(self.children())

    def forward(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Return the blocks' output for ``hidden_states`` (rows, T, n_embd)."""
        others = _other_inputs(args, kwargs) or ("output_hidden_states or output_attentions" if self.recorded else "")
        if not others:
            return self.pipe(hidden_states)
        if self.training and torch.is_grad_enabled():
            warnings.warn(
                f"this GPT-2 was given {others}, so its blocks run one after the other, not through the Pipe, which takes hidden "
                "states alone: train with use_cache=False and without a mask, padding on the right",
                stacklevel=2,
            )
        for block in self.blocks:
            hidden_states = block(hidden_states, *args, **kwargs)
        return hidden_states


def _other_inputs(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Name what a block is given besides hidden states, and would use; empty if nothing is."""
    names = ("a cache", "an attention mask", "encoder states")
    found = [name for name, value in zip(names, args, strict=False) if value is not None]
    # GPT-2 has used the positions by now, and the cache is there or not.
    found += [name for name, value in kwargs.items() if value is not None and name not in ("position_ids", "use_cache")]
    return listed(found)


def _note_what_is_recorded(transformer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Tell blocks in a Pipe whether transformers is to record their output: a forward pre-hook.

    transformers records in the caller's thread alone, and does not tell a block.
    """
    if isinstance(transformer.h, PipedBlocks):
        options = {name: kwargs.get(name) for name in ("output_hidden_states", "output_attentions")}
        transformer.h.recorded = any(
            getattr(transformer.config, name) if value is None else value for name, value in options.items()
        )


def check_ready(gpt2: GPT2LMHeadModel) -> None:
    """Raise an error unless the blocks can go through a Pipe.

    Raises TypeError for anything but a GPT-2, ValueError for one that
    :func:`labkit.models.parallelize` has not placed, and for one whose attention is causal only
    with a mask: transformers then makes one, even if nothing is padded.
    """
    check_gpt2(gpt2)
    if not all(isinstance(block, PlacedBlock) for block in _blocks(gpt2)):
        raise ValueError(
            "the blocks of this GPT-2 are on no devices yet: call models.parallelize(gpt2, devices) first, with a device for "
            "each partition, such as ['cpu:0', 'cpu:1']"
        )
    if _causal_mask(gpt2.config, torch.empty(1, 2, gpt2.config.n_embd)) is not None:
        raise ValueError(
            f"the attention implementation is {gpt2.config._attn_implementation!r}, which needs a mask to be causal, and a Pipe "
            'takes hidden states alone: call gpt2.set_attn_implementation("sdpa") first'
        )


def take_out_of_pipe(gpt2: GPT2LMHeadModel) -> None:
    """Undo :class:`PipedBlocks`, if it is there, and close its Pipe. Blocks keep their devices."""
    piped: Any = gpt2.transformer.h
    if isinstance(piped, PipedBlocks):
        piped.pipe.close()
        gpt2.transformer.h = nn.ModuleList(piped.blocks)


# --- in stages ------------------------------------------------------------------------------------


class GPT2Stage(nn.Module):
    """The blocks with the numbers in ``share``, with embeddings or output layer at the ends.

    Parameters have the names that they have in the whole model, so its state dict is that of all
    stages together. ``tied_weight`` is the Parameter that the first stage and the last one share,
    in these two; None in the others.
    """

    def __init__(self, gpt2: GPT2LMHeadModel, share: range):
        super().__init__()
        whole, blocks = gpt2.transformer, plain_blocks(gpt2)
        self.config, self.training = gpt2.config, gpt2.training
        self.first, self.last = share.start == 0, share.stop == len(blocks)
        parts: dict[str, nn.Module] = {"wte": whole.wte, "wpe": whole.wpe, "drop": whole.drop} if self.first else {}
        parts["h"] = nn.ModuleDict({str(i): blocks[i] for i in share})
        self.transformer = nn.ModuleDict(parts | ({"ln_f": whole.ln_f} if self.last else {}))
        if self.last:
            self.lm_head = gpt2.lm_head

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return hidden states (rows, T, n_embd), and in the last stage logits (rows, T, vocab)."""
        part: Any = self.transformer
        if self.first:
            positions = torch.arange(x.shape[1], device=x.device)
            x = part["drop"](part["wte"](x) + part["wpe"](positions))
        mask = _causal_mask(self.config, x)
        for block in part["h"].values():
            x = block(x, attention_mask=mask)
        return self.lm_head(part["ln_f"](x)) if self.last else x

    @property
    def tied_weight(self) -> nn.Parameter | None:
        if not self.config.tie_word_embeddings or not (self.first or self.last):
            return None
        module: Any = self.transformer["wte"] if self.first else self.lm_head
        return module.weight


def cut_into_stages(gpt2: GPT2LMHeadModel, n_stages: int) -> list[GPT2Stage]:
    """Return ``gpt2`` as ``n_stages`` modules: see :func:`labkit.models.stages`."""
    check_gpt2(gpt2)
    check_counts(n_stages=n_stages)
    return [GPT2Stage(gpt2, share) for share in _block_ranges(len(plain_blocks(gpt2)), n_stages, "stages")]


# --- the model ------------------------------------------------------------------------------------


def check_gpt2(gpt2: Any) -> None:
    from transformers import GPT2LMHeadModel

    if not isinstance(gpt2, GPT2LMHeadModel):
        raise TypeError(f"the model is a {type(gpt2).__name__}, expected a GPT2LMHeadModel, as models.gpt2() gives one")


def _causal_mask(config: GPT2Config, hidden_states: torch.Tensor) -> Any:
    """Return GPT2Model's mask where nothing is padded; None if attention is causal without one."""
    from transformers.masking_utils import create_causal_mask

    return create_causal_mask(config, hidden_states, attention_mask=None, past_key_values=None)


def plain_blocks(gpt2: GPT2LMHeadModel) -> list[nn.Module]:
    """Return the GPT2Blocks themselves, wherever they are."""
    return [block.module if isinstance(block, PlacedBlock) else block for block in _blocks(gpt2)]


def _blocks(gpt2: GPT2LMHeadModel) -> list[nn.Module]:
    return list(gpt2.transformer.h.children())


def _block_ranges(n_blocks: int, n_parts: int, what: str) -> list[range]:
    """Return the numbers of each part's blocks: neighbours, shared out evenly, the rest in front.

    Raises ValueError for no part at all, and for more parts than blocks.
    """
    if n_parts < 1:
        raise ValueError(f"there are {n_parts} {what}, expected at least one")
    if n_parts > n_blocks:
        raise ValueError(
            f"{n_parts} {what} for {n_blocks} blocks, expected 1 to {n_blocks}, so that there is a block for each: take fewer "
            f"{what} or a model of more layers"
        )
    each, more = divmod(n_blocks, n_parts)
    starts = [part * each + min(part, more) for part in range(n_parts + 1)]
    return [range(start, end) for start, end in itertools.pairwise(starts)]
