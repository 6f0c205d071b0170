"""Refuse collectives and messages of tensors whose memory gloo would misread."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from labkit.base.tensors import laid_out

# Methods of a process group in which gloo takes a tensor's memory as it lies (torch 2.13, pytorch
# #192920), and what the reader called.
_TAKES_MEMORY = {
    "broadcast": "broadcast",
    "reduce": "reduce",
    "allreduce": "all_reduce",
    "scatter": "scatter",
    "reduce_scatter": "reduce_scatter",
    **dict.fromkeys(("_reduce_scatter_base", "reduce_scatter_single"), "reduce_scatter_tensor"),
    **dict.fromkeys(("reduce_scatter_tensor_coalesced", "reduce_scatter_single_coalesced"), "reduce_scatter_tensor"),
    **dict.fromkeys(("alltoall_base", "all_to_all_single"), "all_to_all_single"),
    **{name: name for name in ("send", "recv", "recv_anysource")},
}
_TAKES_ANY_ORDER = {"broadcast", "reduce", "allreduce"}  # of dimensions, if it is the same on all ranks, as does NCCL


@functools.cache  # once for each class
def refuse_gaps(kind: type) -> None:
    """Have process groups of this class refuse a tensor whose memory gloo would misread."""
    for name in vars(kind).keys() & _TAKES_MEMORY.keys():
        setattr(kind, name, _refusing_gaps(name, getattr(kind, name)))


def _refusing_gaps(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    def call(group: Any, *args: Any, **options: Any) -> Any:
        for tensor in _tensors(args):
            has_no_gaps = name in _TAKES_ANY_ORDER and torch.ops.aten.is_non_overlapping_and_dense(tensor)
            if laid_out(tensor) is not tensor and not has_no_gaps:
                raise ValueError(
                    f"{_TAKES_MEMORY[name]}: a tensor of shape {tuple(tensor.shape)} and strides {tensor.stride()} is not "
                    "contiguous, and gloo would take its memory as if it were (NCCL refuses it, too). Give a contiguous() "
                    "copy; what arrives in one has to be put back with copy_()"
                )
        return method(group, *args, **options)

    return call


def _tensors(given: Any) -> Iterator[torch.Tensor]:
    """Yield the dense tensors among arguments, and in lists of them."""
    for each in given:
        if isinstance(each, torch.Tensor):
            if each.layout is torch.strided:
                yield each
        elif isinstance(each, list | tuple):
            yield from _tensors(each)
