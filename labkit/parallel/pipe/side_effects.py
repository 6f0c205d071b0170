"""Run a model or a loss once more to see what it does, and leave no trace of that."""

from __future__ import annotations

import contextlib
import random
import threading
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from labkit.trace import pause


@contextlib.contextmanager
def without_side_effects(devices: Iterable[torch.device]) -> Iterator[None]:
    """Leave everything as it was before the block, in which there are no gradients.

    That is: the random numbers of torch, Python and numpy, the buffers and attributes of modules
    that are called, spans and warnings. ``devices`` are those whose random numbers may be used.
    """
    python, numpy = random.getstate(), np.random.get_state()
    with (
        pause(),
        warnings.catch_warnings(),
        torch.random.fork_rng([device for device in devices if device.type == "cuda"]),
        _modules_kept(),
        torch.no_grad(),
    ):
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


@contextlib.contextmanager
def _modules_kept() -> Iterator[None]:
    """Give every module that this thread calls in the block copies of its buffers, for the block.

    The buffers themselves are not written to, because the backward pass may need them.
    """
    thread, kept = threading.get_ident(), dict[nn.Module, tuple[dict[str, Any], dict[str, Any]]]()

    def keep(module: nn.Module, _: Any) -> None:
        for each in module.modules() if threading.get_ident() == thread else ():
            if each not in kept:
                kept[each] = dict(each.__dict__), dict(each._buffers)
                each._buffers.update({name: None if b is None else b.clone() for name, b in each._buffers.items()})

    hook = register_module_forward_pre_hook(keep)
    try:
        yield
    finally:
        hook.remove()
        for module, (attributes, buffers) in kept.items():
            for now, before in ((module._buffers, buffers), (module.__dict__, attributes)):
                now.clear()
                now.update(before)
