"""Given code under ShardedOptimizer: how a parameter travels, and what is refused."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn  # else an optimizer imports it, and it keeps the group that is up, with gloo's threads, for ever

from labkit.base.tensors import as_bytes
from labkit.parallel.guard import PIECE_OF
from labkit.trace import span

_NO_PIECES = "is a rank's own piece of a ShardedModel's: give these to a plain optimizer, made after the ShardedModel"
_GAPS = "leaves gaps in memory (strides {}): use its contiguous() copy"


class Broadcast:
    """Starts replacing a tensor by the one of rank ``owner``, in place, on every rank.

    :meth:`wait` ends it. Any dtype travels, as bytes, and any strides that leave no gaps. It is a
    span of the lane comm until somebody has waited for it. Raises ValueError for a piece, and for
    gaps.
    """

    def __init__(self, tensor: torch.Tensor, owner: int):
        if hasattr(tensor, PIECE_OF):
            raise ValueError(f"a parameter {_NO_PIECES}")
        tensor = tensor.detach()
        if not (tensor.is_contiguous() or torch.ops.aten.is_non_overlapping_and_dense(tensor)):
            raise ValueError(f"a parameter of {tuple(tensor.shape)} {_GAPS.format(tensor.stride())}")
        memory = as_bytes(tensor.as_strided((tensor.numel(),), (1,)))
        self._timing = span("broadcast", "comm", device=tensor.device, bytes=tensor.nbytes).begin()
        self._work: Any = dist.broadcast(memory, src=owner, async_op=True)

    def wait(self) -> None:
        """Wait until the owner's numbers are there. Raises what went wrong on the way."""
        self._work.wait()
        self._timing.end()


def on_cpu(state: Any) -> Any:
    """Return an optimizer's state, dicts within dicts, with each tensor on the CPU."""
    if isinstance(state, dict):
        return {key: on_cpu(value) for key, value in state.items()}
    return state.cpu() if isinstance(state, torch.Tensor) else state


def check_optimizer_class(optimizer_class: Any) -> None:
    """Raise TypeError for anything but a class of optimizers, ValueError for LBFGS."""
    if not isinstance(optimizer_class, type) or not issubclass(optimizer_class, torch.optim.Optimizer):
        raise TypeError(f"optimizer_class is {optimizer_class!r}, expected a class such as torch.optim.AdamW")
    if issubclass(optimizer_class, torch.optim.LBFGS):
        raise ValueError(
            "optimizer_class is LBFGS, which steps all parameters together, so they cannot be shared out: take one that "
            "steps each by itself, such as torch.optim.AdamW"
        )


Form = tuple[torch.Size, torch.dtype, torch.device]


def forms_of(parameters: Iterable[torch.Tensor]) -> dict[torch.Tensor, Form]:
    """Return what must stay as it is of each parameter, once it has an owner."""
    return {parameter: (parameter.shape, parameter.dtype, parameter.device) for parameter in parameters}


def check_unchanged(forms: dict[torch.Tensor, Form], parameters: Sequence[torch.Tensor]) -> None:
    """Raise RuntimeError where these are not the parameters that were shared out, as they were."""
    if [*map(id, parameters)] != [*map(id, forms)]:
        raise RuntimeError(
            f"param_groups has {len(parameters)} parameters, which are not the {len(forms)} that were shared out, in that order: "
            "make a new ShardedOptimizer of these; to leave one out of a step, set its gradient to None; for more there is "
            "add_param_group"
        )
    now = forms_of(parameters)
    if now != forms:
        number, parameter = next((n, p) for n, p in enumerate(forms) if now[p] != forms[p])
        if hasattr(parameter, PIECE_OF):
            raise ValueError(f"parameter {number} {_NO_PIECES}")
        shape, dtype, device = forms[parameter]
        raise RuntimeError(
            f"parameter {number} is {tuple(parameter.shape)} {parameter.dtype} on {parameter.device}, and was {tuple(shape)} "
            f"{dtype} on {device} when it was shared out: convert or move the model first, then make the ShardedOptimizer"
        )


def check_share(state: dict[str, Any]) -> None:
    """Raise ValueError for a state that is the share of another rank, or of another world size."""
    if "share" in state and dist.is_initialized() and state["share"] != own_share():
        (rank, world_size), (here, size) = state["share"], own_share()
        raise ValueError(
            f"this is the share of rank {rank} of {world_size}, and this is rank {here} of {size}: save "
            "full_state_dict() instead, which can be loaded at any world size"
        )


def own_share() -> list[int]:
    """Return which share this rank has: its number, and how many there are."""
    return [dist.get_rank(), dist.get_world_size()]


def check_same_parameters(parameters: Sequence[torch.Tensor]) -> None:
    """Raise ValueError, on every rank, where parameters cannot be shared out over the ranks.

    All are on one device, from which the group sends, and leave no gaps in memory. Every rank has
    the same ones in the same order, or what a rank sends would be taken for another parameter.
    """
    own = _refused(parameters), [f"{tuple(p.shape)} {p.dtype}, strides {p.stride()}" for p in parameters]
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, own)
    for rank, (refused, forms) in enumerate(every):
        if refused:
            raise ValueError(f"on rank {rank}, {refused}")
        for number, (there, here) in enumerate(itertools.zip_longest(forms, every[0][1], fillvalue="missing")):
            if there != here:
                raise ValueError(
                    f"rank {rank} has different parameters from rank 0: its parameter {number} is {there}, and that of rank 0 "
                    f"is {here}. Build the same model on every rank"
                )


def _refused(parameters: Sequence[torch.Tensor]) -> str:
    """Return why this rank's parameters cannot be shared out, if they cannot."""
    backends = dist.get_backend_config()  # such as "cpu:gloo,cuda:gloo"
    devices = [each.partition(":")[0] for each in backends.split(",")]
    for number, parameter in enumerate(parameters):
        what = f"parameter {number} is on {parameter.device}"
        if hasattr(parameter, PIECE_OF):
            return f"parameter {number} {_NO_PIECES}"
        if parameter.device.type not in devices:
            return f"{what}, and its group sends from {' and '.join(devices)}: move the model there first"
        if parameter.device != parameters[0].device:
            return f"{what} and parameter 0 on {parameters[0].device}: move the model to one device first"
        if not torch.ops.aten.is_non_overlapping_and_dense(parameter):
            return f"parameter {number} {_GAPS.format(parameter.stride())}"
    return overlap({f"parameter {number}": parameter for number, parameter in enumerate(parameters)})


def overlap(parameters: dict[str, torch.Tensor]) -> str:
    """Return in a sentence which two of these lie in the same memory, if any do; "" if not.

    Those that leave gaps in memory do not count.
    """
    dense = {n: p for n, p in parameters.items() if p.nbytes and torch.ops.aten.is_non_overlapping_and_dense(p)}
    ends = [(p.data_ptr(), p.data_ptr() + p.nbytes, name) for name, p in dense.items()]
    for (_, end, one), (begin, _, other) in itertools.pairwise(sorted(ends)):
        if begin < end:
            first, second = (name for name in parameters if name in (one, other))
            return (
                f"{first} and {second} overlap in memory, so neither can be moved by itself: make them one Parameter, or give "
                "each its own memory (clone())"
            )
    return ""
