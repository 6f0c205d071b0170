"""The models of the lab: GPT-2 and BERT as transformers has them."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from labkit.base import hub

if TYPE_CHECKING:
    import torch
    from transformers import BertForSequenceClassification, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerBase

    from labkit.parallel.pipe.gpt2 import GPT2Stage

T = TypeVar("T")

# nano and mini are ours, for CPUs. The others are OpenAI's (Radford et al. 2019): 124M, 355M, 774M
# and 1558M parameters.
GPT2_SIZES = {
    "nano": {"n_layer": 2, "n_head": 2, "n_embd": 64},
    "mini": {"n_layer": 3, "n_head": 4, "n_embd": 128},
    "gpt2": {"n_layer": 12, "n_head": 12, "n_embd": 768},
    "gpt2-medium": {"n_layer": 24, "n_head": 16, "n_embd": 1024},
    "gpt2-large": {"n_layer": 36, "n_head": 20, "n_embd": 1280},
    "gpt2-xl": {"n_layer": 48, "n_head": 25, "n_embd": 1600},
}


# Google's (Turc et al. 2019, arXiv 1908.08962, and Devlin et al. 2018): 4.4M, 11.3M, 29.1M, 41.7M
# and 110.1M parameters.
BERT_SIZES = {
    "tiny": {"num_hidden_layers": 2, "hidden_size": 128},
    "mini": {"num_hidden_layers": 4, "hidden_size": 256},
    "small": {"num_hidden_layers": 4, "hidden_size": 512},
    "medium": {"num_hidden_layers": 8, "hidden_size": 512},
    "base": {"num_hidden_layers": 12, "hidden_size": 768},
}


def gpt2_config(size: str = "mini", **settings: Any) -> GPT2Config:
    """Return the configuration of a named size, with ``settings`` of GPT2Config's own.

    Two of them are ``vocab_size`` (50,257) and ``n_positions`` (1,024). Dropout is off unless
    ``settings`` turn it on (GPT-2 was trained with 0.1). Without it, the gradient of a batch is the
    same however many ranks share the batch, so runs can be compared.

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
    """Return a GPT-2 with new random weights: a named size with ``settings``, or any GPT2Config.

    The weights depend on configuration and ``seed`` alone. Ranks that name the same seed start with
    equal weights, so nothing needs to be broadcast; torch's own random state is left as it was.

    Raises ValueError for an unknown size, TypeError for settings with a GPT2Config.
    """
    from transformers import GPT2LMHeadModel

    if isinstance(size, str):
        config = gpt2_config(size, **settings)
    elif settings:
        raise TypeError(
            f"gpt2() was given a GPT2Config and the settings {', '.join(settings)}; put them into the config"
        )
    else:
        config = size
    with _seeded(seed):
        return GPT2LMHeadModel(config)


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Draw random numbers by ``seed`` in the block; leave torch's random state as it was."""
    import torch

    with torch.random.fork_rng(devices=[]):  # weights are drawn on the CPU: the same on every machine
        torch.manual_seed(seed)
        yield


def pretrained_gpt2(name_or_folder: str | os.PathLike[str] = "openai-community/gpt2") -> GPT2LMHeadModel:
    """Return a trained GPT-2: from a folder, or by its name on the Hugging Face hub.

    The folder is one that ``save_pretrained`` wrote. A model that was downloaded before is used
    without asking the hub. Raises FileNotFoundError for a folder that is not there or has no model,
    ValueError for a model of another architecture, and ConnectionError, within seconds, where the
    hub is needed and does not answer.
    """
    from transformers import GPT2LMHeadModel

    return _from_pretrained(GPT2LMHeadModel.from_pretrained, name_or_folder, "gpt2")


def parallelize(gpt2: GPT2LMHeadModel, devices: Sequence[str | torch.device]) -> GPT2LMHeadModel:
    """Place the blocks of a GPT-2 on ``devices``, in place: model parallel. Returns it.

        parallelize(gpt2("gpt2"), ["cuda:0", "cuda:1"])     # six blocks on each

    Neighbouring blocks are together, as many on each device, or one more on the first ones. The
    embeddings are on the first device, and so is ``lm_head``, which shares its weight with one of
    them; the last layer norm is on the last. Hidden states are moved where they are needed. The
    model takes token ids on the first device and gives logits there. On virtual devices (``cpu:0``)
    nothing moves, but :class:`labkit.pipe.Pipe` knows them apart.

    Everything else works as before: training, masks, caches, ``generate``, copies.
    ``state_dict()`` keeps its names, so ``save_pretrained`` writes what an unplaced model reads;
    ``named_parameters()`` has ``module`` in the names of a block. A model that was placed before is
    placed again; if it went through a Pipe, that is closed.

    Raises TypeError for anything but a GPT2LMHeadModel. Before anything is moved, raises ValueError
    for no device at all, for more devices than blocks, and for GPUs where there are none.
    """
    from labkit.parallel.pipe.gpt2 import place_blocks

    return place_blocks(gpt2, devices)


def stages(gpt2: GPT2LMHeadModel, n_stages: int) -> list[GPT2Stage]:
    """Return a GPT-2 as ``n_stages`` modules, for :class:`labkit.pipe.ScheduledPipeline`.

    Stage 0 takes token ids (rows, T), the others hidden states (rows, T, n_embd); the last one
    gives logits (rows, T, vocab). Blocks are shared out as in :func:`parallelize`. The modules are
    those of ``gpt2``, not copies, and parameters keep the names that they have there. There is
    neither mask nor cache, so padding has to be on the right.

    The embedding of the tokens, in the first stage, and the output layer, in the last one, share a
    weight: each has it as ``tied_weight``. In one process it is one Parameter. If the two stages
    are on different ranks, there are two copies, and the weight's gradient is the sum of theirs:
    add them up, or the copies grow apart.

    Raises TypeError for anything but a GPT2LMHeadModel and an int, ValueError for fewer stages than
    one or more than blocks.
    """
    from labkit.parallel.pipe.gpt2 import cut_into_stages

    return cut_into_stages(gpt2, n_stages)


def bert(size: str = "small", seed: int = 0, **settings: Any) -> BertForSequenceClassification:
    """Return a BERT with new random weights, to sort texts into ``num_labels`` (2) classes.

    ``settings`` are BertConfig's own. An attention head is 64 wide and a layer's MLP four times the
    layer, as in all of Google's sizes. Dropout and weights are as for :func:`gpt2`: no dropout
    unless asked for, and weights that depend on ``seed`` alone.

    Raises ValueError for an unknown size.
    """
    from transformers import BertConfig, BertForSequenceClassification

    if size not in BERT_SIZES:
        raise ValueError(f"size is {size!r}, expected one of {', '.join(BERT_SIZES)}")
    shape = BERT_SIZES[size]
    derived = {"num_attention_heads": shape["hidden_size"] // 64, "intermediate_size": 4 * shape["hidden_size"]}
    no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = BertConfig(**(shape | derived | no_dropout | settings))
    with _seeded(seed):
        return BertForSequenceClassification(config)


def pretrained_bert(
    name_or_folder: str | os.PathLike[str] = "google-bert/bert-base-cased",
    num_labels: int = 2,
    seed: int = 0,
    **settings: Any,
) -> BertForSequenceClassification:
    """Return a trained BERT, to sort texts into ``num_labels`` classes.

    If the model has not learned that yet, its last layer gets new weights, which depend on ``seed``
    alone. ``settings`` are BertConfig's own, such as ``hidden_dropout_prob``. Folders, names and
    errors are those of :func:`pretrained_gpt2`; ValueError also for a folder without BERT's
    weights.
    """
    from transformers import BertForSequenceClassification

    def load(name: str, **options: Any) -> BertForSequenceClassification:
        with _seeded(seed), quiet_transformers():
            loaded: Any = BertForSequenceClassification.from_pretrained(
                name, num_labels=num_labels, output_loading_info=True, **options
            )
        model, found = loaded
        if lost := sorted(key for key in found["missing_keys"] if not key.startswith(("classifier.", "bert.pooler."))):
            raise ValueError(
                f"the model {name} lacks {len(lost)} of BERT's weights, such as {lost[0]}: name another one"
            )
        return model

    return _from_pretrained(load, name_or_folder, "bert", **settings)


def _from_pretrained(
    load: Callable[..., T], name_or_folder: str | os.PathLike[str], architecture: str, **settings: Any
) -> T:
    """Return what ``load`` makes of a folder or a name, from this machine if possible.

    Otherwise it comes from the hub. ``architecture`` is transformers' name for the kind of model
    that it has to be.
    """
    name = os.fspath(name_or_folder)
    if os.path.isdir(name):
        if not os.path.isfile(os.path.join(name, "config.json")):
            raise FileNotFoundError(
                f"the folder {name} has no config.json; expected a folder that model.save_pretrained wrote"
            )
    elif not re.fullmatch(r"[\w-][\w.-]*(/[\w.-]+)?", name):
        raise FileNotFoundError(f"there is no folder {name}; expected a folder with a model, or a name on the hub")
    try:
        _check_architecture(name, architecture, local_files_only=True)
        return load(name, local_files_only=True, **settings)
    except OSError:
        if os.path.isdir(name) or hub.offline():
            raise
    hub.require(f"the model {name}")
    _check_architecture(name, architecture)
    return load(name, **settings)


def _check_architecture(name: str, expected: str, **options: Any) -> None:
    """Raise ValueError, before weights are read, if a model's configuration names another one."""
    from transformers import PretrainedConfig

    found = PretrainedConfig.get_config_dict(name, **options)[0].get("model_type")
    if found != expected:
        raise ValueError(f"{name} holds a model of type {found!r}, expected {expected!r}: name another one")


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Keep transformers from printing bars, and tables of new weights: those are intended."""
    from transformers import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def pretrained_bert_tokenizer(
    name_or_folder: str | os.PathLike[str] = "google-bert/bert-base-cased",
) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a trained BERT. Folders, names and errors are as for the model.

    Raises FileNotFoundError also for a folder without one.
    """
    from transformers import AutoTokenizer

    tokenizer = _from_pretrained(AutoTokenizer.from_pretrained, name_or_folder, "bert")
    if len(tokenizer) <= len(tokenizer.all_special_tokens):  # what transformers makes of a place without one
        raise FileNotFoundError(
            f"{name_or_folder} has no tokenizer: expected tokenizer.json or vocab.txt with its tokens"
        )
    return tokenizer


def parameter_count(model: Any) -> int:
    """Return how many numbers a model learns; weights used twice count once.

    GPT-2's embedding, for one, is its output layer too.
    """
    return sum(parameter.numel() for parameter in model.parameters())
