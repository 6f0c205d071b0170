"""The models of the lab: GPT-2, as transformers' GPT2LMHeadModel, in any size."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from labkit import hub

if TYPE_CHECKING:
    from transformers import GPT2Config, GPT2LMHeadModel

# nano and mini are ours, for CPUs. The others are OpenAI's (Radford et al. 2019): 124M, 355M, 774M and 1558M parameters.
GPT2_SIZES = {
    "nano": {"n_layer": 2, "n_head": 2, "n_embd": 64},
    "mini": {"n_layer": 3, "n_head": 4, "n_embd": 128},
    "gpt2": {"n_layer": 12, "n_head": 12, "n_embd": 768},
    "gpt2-medium": {"n_layer": 24, "n_head": 16, "n_embd": 1024},
    "gpt2-large": {"n_layer": 36, "n_head": 20, "n_embd": 1280},
    "gpt2-xl": {"n_layer": 48, "n_head": 25, "n_embd": 1600},
}


def gpt2_config(size: str = "mini", **settings: Any) -> GPT2Config:
    """The configuration of a named size. ``settings`` are GPT2Config's own: ``vocab_size`` (50,257), ``n_positions`` (1,024) …

    Dropout is off unless ``settings`` turn it on (GPT-2 was trained with 0.1): without it, the gradient of a batch is
    the same however many ranks share the batch, and runs can be compared.

    Raises ValueError for an unknown size.
    """
    from transformers import GPT2Config

    if size not in GPT2_SIZES:
        raise ValueError(f"size is {size!r}, expected one of {', '.join(GPT2_SIZES)}")
    no_dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    # Token ids that GPT-2's own tokenizer gives its marks; a smaller vocabulary does not have them.
    no_marks: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None} if "vocab_size" in settings else {}
    return GPT2Config(**(GPT2_SIZES[size] | no_dropout | no_marks | settings))


def gpt2(size: str | GPT2Config = "mini", seed: int = 0, **settings: Any) -> GPT2LMHeadModel:
    """A GPT-2 with new random weights: a named size with changed ``settings``, or any GPT2Config.

    The weights depend on configuration and ``seed`` alone. Ranks that name the same seed start with equal weights, so
    nothing needs to be broadcast; torch's own random state is left as it was.

    Raises ValueError for an unknown size, TypeError for settings beside a GPT2Config.
    """
    import torch
    from transformers import GPT2LMHeadModel

    if isinstance(size, str):
        config = gpt2_config(size, **settings)
    elif settings:
        raise TypeError(
            f"gpt2() was given a GPT2Config and the settings {', '.join(settings)}; put them into the config"
        )
    else:
        config = size
    with torch.random.fork_rng(devices=[]):  # weights are drawn on the CPU: the same on every machine
        torch.manual_seed(seed)
        return GPT2LMHeadModel(config)


def pretrained_gpt2(name_or_folder: str | os.PathLike[str] = "openai-community/gpt2") -> GPT2LMHeadModel:
    """A trained GPT-2: a folder that ``save_pretrained`` wrote, or a model's name on the Hugging Face hub.

    What was downloaded before is used without asking the hub. Raises FileNotFoundError for a folder without a model,
    and ConnectionError, within seconds, where the hub is needed and does not answer.
    """
    from transformers import GPT2LMHeadModel

    name = os.fspath(name_or_folder)
    if os.path.isdir(name) and not os.path.isfile(os.path.join(name, "config.json")):
        raise FileNotFoundError(
            f"the folder {name} has no config.json; expected a folder that model.save_pretrained wrote"
        )
    try:
        return GPT2LMHeadModel.from_pretrained(name, local_files_only=True)
    except OSError:
        if os.path.isdir(name) or hub.offline():
            raise
    hub.require(f"the model {name}")
    return GPT2LMHeadModel.from_pretrained(name)


def parameter_count(model: Any) -> int:
    """How many numbers a model learns. Weights used twice (GPT-2's embedding is its output layer too) count once."""
    return sum(parameter.numel() for parameter in model.parameters())
