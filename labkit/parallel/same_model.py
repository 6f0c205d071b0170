"""Given code under the wrappers: ranks start with the same model, that of rank 0."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from labkit.base.tensors import as_bytes


@torch.no_grad()
def take_from_rank_0(tensor: torch.Tensor, group: Any = None) -> None:
    """Replace a parameter or a buffer by that of rank 0, of ``group``'s first rank."""
    if tensor.layout is not torch.strided:
        raise TypeError(f"a tensor of {tensor.layout} is not sent to other ranks: keep it dense, or out of the buffers")
    contiguous = tensor.contiguous()
    dist.broadcast(as_bytes(contiguous), group=group, group_src=0)  # as bytes: gloo does not send every dtype
    if contiguous is not tensor:
        tensor.copy_(contiguous)


def forms_of(named: Iterable[tuple[str, torch.Tensor]]) -> dict[str, str]:
    """Return shape and dtype of tensors by name."""
    return {name: f"{tuple(tensor.shape)} {tensor.dtype}" for name, tensor in named}


def take_buffers_from_rank_0(module: torch.nn.Module, forms: dict[str, str]) -> None:
    """Replace a model's buffers by those of rank 0. ``forms`` is what they were at the start.

    Raises RuntimeError where they have other sizes since then: they may differ between ranks.
    """
    named = dict(module.named_buffers())
    now = forms_of(named.items())
    for name in {**forms, **now}:
        if now.get(name) != forms.get(name):
            raise RuntimeError(
                f"the buffer {name} is {now.get(name, 'gone')}, and was {forms.get(name, 'not there')} when the model was "
                "wrapped. Every forward pass takes buffers from rank 0, so they keep their size: give it its full size "
                "before you wrap the model, or keep what grows in an attribute that is not a buffer"
            )
    for buffer in named.values():
        take_from_rank_0(buffer)


class _Tensor(NamedTuple):
    """A parameter or buffer of a model, as ranks compare them."""

    name: str
    form: str


class _ModelLayout(NamedTuple):
    """What must be the same on all ranks: the tensors, and how many parameters a bucket has."""

    tensors: list[_Tensor]
    bucket_sizes: list[int]


def check_same_model(module: torch.nn.Module, bucket_sizes: Sequence[int] = ()) -> None:
    """Raise ValueError, on every rank, where a rank has another model or buckets than rank 0.

    ``bucket_sizes`` are how many parameters each bucket has. The order counts too: gradients in the
    same position are added up.
    """
    tensors = [
        _Tensor(name, f"{tuple(t.shape)} {t.dtype}, strides {t.stride()}{', trained' * t.requires_grad}")
        for name, t in [*module.named_parameters(), *module.named_buffers()]
    ]
    own = _ModelLayout(tensors, [*bucket_sizes])
    layouts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(layouts, own)
    first, nothing = layouts[0], _Tensor("nothing", "no further parameter or buffer")
    for rank, layout in enumerate(layouts):
        for there, here in itertools.zip_longest(layout.tensors, first.tensors, fillvalue=nothing):
            if there != here:
                raise ValueError(
                    f"rank {rank} has a different model from rank 0: it has {there.name} ({there.form}) where rank 0 has "
                    f"{here.name} ({here.form}). Build the same model on every rank"
                )
    for rank, layout in enumerate(layouts):
        if layout.bucket_sizes != first.bucket_sizes:
            raise ValueError(
                f"rank {rank} has different buckets from rank 0: of {layout.bucket_sizes} parameters where rank 0 has "
                f"{first.bucket_sizes}. Give every rank the same bucket_cap_mb"
            )
