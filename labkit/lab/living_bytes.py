"""Count the bytes that live on a rank at every moment of training, by what they are for.

    with living_bytes(model, optimizer) as counted:
        ...                                   # steps of training
    counted.moments                           # a row for each moment

The bytes are those of tensors, not what the allocator holds.
"""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import pandas as pd
import torch

from labkit.base.units import MIB

KINDS = ["parameters", "gradients", "optimizer state", "activations"]

_AFTER = {"forward": -1, "backward": -1, "optimizer": 0}  # which moment of each phase is right after it


# Not .grad, which a ShardedModel's piece refuses while gradients are on their way.
_GRADIENT: Any = vars(torch._C.TensorBase)["grad"].__get__


class EmulatedOutOfMemory(MemoryError):
    """More is alive than the emulated device has."""


class LivingBytes:
    """Counts storages of parameters, gradients, optimizer state, and what autograd has saved.

    A storage counts once, however many tensors look at it; among the activations, one of a
    parameter does not count. Of a :class:`labkit.shard.ShardedModel` its shards are parameters, and
    so is what it has gathered. What an operation needs for a moment, and what travels, is left out.
    A moment is when autograd saves a tensor, when a gradient is complete, after the optimizer's
    step, and at the end of the step that it belongs to. With more than ``device_mib`` alive it
    raises EmulatedOutOfMemory.
    """

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, device_mib: float = math.inf):
        self._parameters, self._optimizer, self._device_mib = [*model.parameters()], optimizer, device_mib
        self._number = 1  # of the step
        self._gathered = [each for unit in getattr(model, "units", ()) for each in (unit.shard, unit.full)]
        self._saved: weakref.WeakSet[_Saved] = weakref.WeakSet()
        self._moments: list[list[Any]] = []

    @property
    def moments(self) -> pd.DataFrame:
        """Return a row for each moment: its ``phase``, bytes for each of KINDS, and all ``alive``.

        The index is a place in the course of events: each phase is one unit long, so forward goes
        from 0 to 1, backward to 2, the optimizer stands at 2, and the next step begins at 3.
        """
        table = pd.DataFrame(self._moments, columns=["phase", *KINDS])
        table["alive"] = table[KINDS].sum(axis=1)
        number = (table.phase != table.phase.shift()).cumsum() - 1
        of_phase = table.groupby(number).phase
        return table.set_axis(number + of_phase.cumcount() / of_phase.transform("size"))

    def note(self, phase: str) -> None:
        """Add a row: what lives now."""
        own = _storages([*self._parameters, *self._gathered])
        states = (value for state in self._optimizer.state.values() for value in state.values())
        of_kinds = [
            own,
            _storages(map(_GRADIENT, self._parameters)),
            _storages(states),
            _storages(saved.tensor for saved in self._saved) - own,
        ]
        sizes = [sum(n_bytes for _, n_bytes in storages) for storages in of_kinds]
        self._moments.append([phase, *sizes])
        if (alive_mib := sum(sizes) / MIB) > self._device_mib:
            raise EmulatedOutOfMemory(
                f"out of memory in {phase} of step {self._number}: {alive_mib:.2f} MiB are alive, and the "
                f"emulated device has {self._device_mib:g}"
            )

    def save(self, tensor: torch.Tensor) -> _Saved:
        """Be autograd's hook for a tensor that it saves."""
        if self._moments and self._moments[-1][0] == "optimizer":
            self.note("optimizer")  # the last step's end, without the gradients that it has let go
            self._number += 1
        saved = _Saved(tensor)
        self._saved.add(saved)
        self.note("forward")
        return saved


def mib_after_each(moments: pd.DataFrame) -> pd.DataFrame:
    """Return the MiB that live after each forward, backward, and step of the optimizer."""
    rows = {}
    for number, of_phase in moments.groupby(moments.index // 1):
        phase = of_phase.phase.iloc[0]
        rows[f"step {int(number) // 3 + 1}, {phase}"] = of_phase[[*KINDS, "alive"]].iloc[_AFTER[phase]]
    return (pd.DataFrame(rows).T.astype(float) / MIB).round(2)


class _Saved:
    """A tensor for as long as autograd keeps it."""

    def __init__(self, tensor: torch.Tensor):
        self.tensor = tensor


def _storages(tensors: Iterable[Any]) -> set[tuple[int, int]]:
    storages = [tensor.untyped_storage() for tensor in plain_tensors(tensors)]
    return {(storage.data_ptr(), storage.nbytes()) for storage in storages}


def plain_tensors(leaves: Iterable[Any]) -> Iterator[torch.Tensor]:
    """Yield tensors that have a storage of their own: of a DTensor the one inside."""
    for leaf in leaves:
        if hasattr(leaf, "__tensor_flatten__"):
            yield from plain_tensors(getattr(leaf, name) for name in leaf.__tensor_flatten__()[0])
        elif isinstance(leaf, torch.Tensor):
            yield leaf


@contextlib.contextmanager
def living_bytes(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, device_mib: float = math.inf
) -> Iterator[LivingBytes]:
    """Count what lives while the block trains ``model``, with ``optimizer`` alone.

    The block ends, and says so, where more than ``device_mib`` are alive: the memory of an emulated
    device.
    """
    counted = LivingBytes(model, optimizer, device_mib)
    hooks = [
        parameter.register_post_accumulate_grad_hook(lambda _: counted.note("backward"))
        for parameter in model.parameters()
    ]
    hooks.append(optimizer.register_step_post_hook(lambda *_: counted.note("optimizer")))
    try:
        with torch.autograd.graph.saved_tensors_hooks(counted.save, lambda saved: saved.tensor):
            yield counted
        counted.note("optimizer")
    except EmulatedOutOfMemory as error:
        print(error)
    for hook in hooks:
        hook.remove()
