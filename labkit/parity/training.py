"""Hold what is trained, and on what: the same for plain torch and for every way."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.utils import _pytree as pytree

WEIGHTS, DRAWS = 1, 1001  # seeds: of a build, and of what rank 0 draws while it trains

Batch = tuple[Any, Any]  # inputs and target, each a tensor, or tensors in a tuple or dict


@dataclass(frozen=True)
class Training:
    """A build, a batch for each step, a loss and an optimizer, as they travel to the ranks.

    ``dtype`` is the one to convert to, None to keep the model's; ``default_dtype`` is the caller's.
    ``output`` takes a tensor out of what the module returns, ``stages`` cuts it for a pipeline.
    """

    build: Callable[[], nn.Module]
    batches: list[Batch]
    loss: Callable[[Any, Any], torch.Tensor]
    optimizer_class: type[torch.optim.Optimizer]
    options: dict[str, Any]
    dtype: torch.dtype | None
    default_dtype: torch.dtype
    output: Callable[[Any], torch.Tensor] | None = None
    stages: Callable[[nn.Module], Sequence[nn.Module]] | None = None

    def module(self, number: int = 0) -> nn.Module:
        """Build the module with seed ``number``, in the dtype to train in."""
        torch.set_default_dtype(self.default_dtype)
        seed(WEIGHTS + number)
        module = self.build()
        return module if self.dtype is None else module.to(self.dtype)

    def optimizer(self, parameters: Any) -> torch.optim.Optimizer | None:
        """Return the optimizer of these parameters; None where there are none."""
        parameters = list(parameters)
        return self.optimizer_class(parameters, **self.options) if parameters else None

    def batch(self, step: int) -> Batch:
        """Return inputs and target of a step, in the dtype to train in."""
        return pytree.tree_map(self._convert, self.batches[step])

    def _convert(self, x: Any) -> Any:
        is_float = isinstance(x, torch.Tensor) and x.is_floating_point()
        return x.detach().to(self.dtype or x.dtype) if is_float else x

    def loss_of(self, output: Any, target: Any) -> torch.Tensor:
        """Return the loss of what the module, or the last stage, has returned."""
        return self.loss(self.taken(output), target)

    def taken(self, output: Any) -> Any:
        """Return what the loss is computed from; a last stage may return that itself."""
        return self.output(output) if self.output and not isinstance(output, torch.Tensor) else output

    def backward(self, module: nn.Module, inputs: Any, target: Any) -> torch.Tensor:
        """Do forward and backward in one go. Return the loss."""
        loss = self.loss_of(call(module, inputs), target)
        loss.backward()
        return loss

    def stage_modules(self, module: nn.Module, number: int) -> list[nn.Sequential]:
        """Return ``number`` stages: neighbours are joined, as evenly as they can be."""
        groups = np.array_split(np.arange(len(modules := self.cut(module))), number)
        return [nn.Sequential(*(modules[i] for i in group)) for group in groups]

    def cut(self, module: nn.Module) -> list[nn.Module]:
        """Return the modules that pipelines are made of, in order."""
        return list(self.stages(module) if self.stages else module.children())


def call(module: nn.Module, inputs: Any) -> Any:
    """Call a module with a tensor, with those of a tuple, or with those of a dict by name."""
    if isinstance(inputs, dict):
        return module(**inputs)
    return module(*inputs) if isinstance(inputs, tuple | list) else module(inputs)


class Cut(NamedTuple):
    """How a batch is cut into parts, and their losses become one.

    There are ``n`` parts as tensor_split makes them, or parts of ``rows``, as Tensor.split does.
    ``mean`` is over ``"parts"``, over ``"rows"``, or one loss of the whole ``"batch"``, whose
    outputs are joined. ``draws``: each part has random numbers of its own, as ranks have.
    """

    n: int = 1
    rows: int = 0
    mean: str = "parts"
    draws: bool = False

    def sizes(self, n_rows: int) -> list[int]:
        rows = torch.empty(n_rows, 0)
        return [len(part) for part in (rows.split(self.rows) if self.rows else rows.tensor_split(self.n))]

    def parts(self, batch: Batch) -> list[Batch]:
        """Return the batch's parts. What is not a tensor with rows goes into each of them."""
        sizes = self.sizes(rows_of(batch))
        leaves, tree = pytree.tree_flatten(batch)
        split = [leaf.split(sizes) if has_rows(leaf) else [leaf] * len(sizes) for leaf in leaves]
        return [pytree.tree_unflatten(list(part), tree) for part in zip(*split, strict=True)]

    def weights(self, n_rows: int) -> list[float]:
        """Return the weight of each part's loss in that of the batch."""
        sizes = self.sizes(n_rows)
        return [size / n_rows if self.mean == "rows" else 1 / len(sizes) for size in sizes]


def has_rows(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.dim() > 0


def rows_of(batch: Batch) -> int:
    """Return how many rows the batch has, by its first tensor; 0 without one."""
    return next((len(leaf) for leaf in pytree.tree_leaves(batch) if has_rows(leaf)), 0)


# --- random numbers -------------------------------------------------------------------------------


def seed(number: int) -> None:
    """Seed torch, numpy and random."""
    torch.manual_seed(number)
    np.random.seed(number)
    random.seed(number)


def draws() -> bytes:
    """Return where the generators of torch, numpy and random stand."""
    return pickle.dumps((torch.get_rng_state().numpy(), np.random.get_state(), random.getstate()))


def restore(drawn: bytes) -> None:
    """Have the generators go on from there."""
    of_torch, of_numpy, of_random = pickle.loads(drawn)
    torch.set_rng_state(torch.from_numpy(of_torch))
    np.random.set_state(of_numpy)
    random.setstate(of_random)


@contextmanager
def own_draws() -> Iterator[None]:
    """Seed the generators, and leave them and the default dtype as they were."""
    before, dtype = draws(), torch.get_default_dtype()
    seed(DRAWS)
    try:
        yield
    finally:
        restore(before)
        torch.set_default_dtype(dtype)
