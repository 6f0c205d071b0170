"""Count the bytes that autograd keeps for the backward pass."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks


class KeptMemory:
    """Storages that autograd has kept: their bytes, each storage counted once."""

    def __init__(self) -> None:
        self._kept: dict[int, int] = {}

    def add(self, tensor: torch.Tensor) -> torch.Tensor:
        """Count a tensor's storage, and return the tensor."""
        storage = tensor.untyped_storage()
        self._kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    def without(self, storages: Iterable[int]) -> None:
        """Leave these storages out, by address."""
        for address in storages:
            self._kept.pop(address, None)

    @property
    def n_bytes(self) -> int:
        """Bytes of all storages."""
        return sum(self._kept.values())


@contextlib.contextmanager
def kept_for_backward(weights: Iterable[Any]) -> Iterator[KeptMemory]:
    """Count what autograd keeps in this block, without ``weights``, which are there anyway."""
    kept = KeptMemory()
    addresses = [local_part(weight).untyped_storage().data_ptr() for weight in weights]
    with saved_tensors_hooks(kept.add, lambda tensor: tensor):
        yield kept
    kept.without(addresses)


def local_part(tensor: Any) -> torch.Tensor:
    """Return what this rank has of a tensor: of one that FSDP2 has split, its part."""
    part: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part
