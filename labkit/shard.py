"""Sharding by hand: what a model needs to train, shared out over the ranks.

This is a student file: it holds the task shard.2, a model of which each rank keeps a part.
"""

# ruff: noqa: F401, F841, RUF100  (the student edition keeps the imports and variables that its
# TODOs will need)

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from labkit.parallel.bucket import check_same_model, take_from_rank_0
from labkit.parallel.unit import (
    Hooks,
    OnItsWay,
    Unit,
    all_gather_into_tensor,
    check_kinds,
    check_same_units,
    gradients_of,
    listen,
    make_units,
    reduce_scatter_tensor,
)
from labkit.todo import TodoError
from labkit.trace import span

# --- the parameters themselves --------------------------------------------------------------------


class ShardedModel(torch.nn.Module):
    """A model of which each rank keeps one N-th, and all of a layer only while it computes: FSDP.

        model = ShardedModel(model)
        optimizer = torch.optim.AdamW(model.parameters())  # of this rank's pieces
        loss(model(inputs)).backward()           # a layer's gradients leave once they are ready
        model.finish_gradient_synchronization()  # wait; gradients are now means over ranks
        optimizer.step()

    Arguments:

    - ``module``: the model, whose parameters and buffers are taken from rank 0. As ``.module`` it
      has the names that it had; in a layer of ``units`` a parameter is now this rank's piece, 1-D.
    - ``shard``: a class of modules, or several. Each outermost layer of these is a
      :class:`~labkit.parallel.unit.Unit`; layers that share a parameter are one. All other
      parameters are ``replicated``: on every rank, with averaged gradients.
    - ``compute_dtype``: weights are cast to it before they travel, and the inputs of their layers.
      Pieces, their gradients and so the optimizer keep the dtype that they had.

    A step sends a unit's parameters twice and its gradients once, each (N−1)/N of their bytes from
    each rank. Gradients add up, as ever, until they are set to None or zero.

    Raises ValueError where ranks have different models, for a model without a layer to shard, and
    where layers outside need a unit's parameters; TypeError for a ``shard`` that is no class.

    Caveats: all ranks use the same layers, in the same order. The optimizer comes after this: one
    that has taken steps before has state for whole parameters. It sees 1-D pieces, which suits
    those that treat each number by itself, such as SGD and AdamW. A parameter that is used but not
    by its own layer's forward pass is found as a piece.

    After Rajbhandari et al. 2020, ZeRO, arXiv 1910.02054: stage 3; Zhao et al. 2023, PyTorch FSDP,
    arXiv 2304.11277.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        shard: type[torch.nn.Module] | tuple[type[torch.nn.Module], ...] = (torch.nn.Linear, torch.nn.Embedding),
        compute_dtype: torch.dtype | None = None,
    ):
        super().__init__()
        kinds = check_kinds(shard)
        check_same_model(module, [])
        for tensor in [*module.parameters(), *module.buffers()]:
            take_from_rank_0(tensor)
        self.units = make_units(module, kinds, compute_dtype)
        check_same_units(self.units)
        inside = {parameter for unit in self.units for parameter in unit.parameters}
        self.replicated = [each for each in module.parameters() if each.requires_grad and each not in inside]
        self.module = module
        self._on_their_way: list[OnItsWay] = []
        self._backward_ran = False
        listen(self.units, self.replicated, Hooks(self._gather, self._let_go, self._send, self._note_backward))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self._backward_ran and torch.is_grad_enabled():
            raise RuntimeError(
                "the gradients of the last backward pass are not averaged yet: call finish_gradient_synchronization() "
                "after backward() and before the optimizer's step"
            )
        return self.module(*args, **kwargs)

    @torch.no_grad()
    def _gather(self, unit: Unit) -> None:
        """Get all of a unit's parameters: before a layer's forward pass, and its backward pass."""
        ### TODO shard.2 (15 minutes): Give unit.full its memory, unit.full.nbytes, with
        ### unit.full.untyped_storage().resize_(…). Fill it with the shards of all ranks, in its
        ### dtype, by all_gather_into_tensor. Then have the parameters show it. What a Unit can do
        ### is in labkit/parallel/unit.py.
        ### BEGIN SOLUTION shard.2
        unit.full.untyped_storage().resize_(unit.full.nbytes)
        all_gather_into_tensor(unit.full, unit.shard.to(unit.full.dtype))
        unit.use_full()
        ### END SOLUTION

    def _let_go(self, unit: Unit) -> None:
        """Keep of a unit's parameters this rank's shard alone: after each pass."""
        ### TODO shard.2 (5 minutes): Have the parameters show the shard, and resize full's storage
        ### to nothing. Autograd keeps full, without its numbers; the next _gather puts them back.
        ### BEGIN SOLUTION shard.2
        unit.use_shard()
        unit.full.untyped_storage().resize_(0)
        ### END SOLUTION

    def _scatter(self, unit: Unit) -> OnItsWay:
        """Start adding up a unit's gradients over all ranks, of which this rank gets its part."""
        ### TODO shard.2 (10 minutes): Start reduce_scatter_tensor on unit.take_gradients(), into a
        ### new tensor like the shard. Backward is to go on meanwhile, so do not wait here. Return
        ### OnItsWay(unit, the new tensor, what reduce_scatter_tensor returned).
        ### BEGIN SOLUTION shard.2
        part = torch.empty_like(unit.shard)
        return OnItsWay(unit, part, reduce_scatter_tensor(part, unit.take_gradients(), async_op=True))
        ### END SOLUTION

    @torch.no_grad()
    def finish_gradient_synchronization(self) -> None:
        """Wait until all gradients are means over the ranks: of units, those of this rank's pieces.

        Call it after each backward pass and before the optimizer's step. Raises RuntimeError if
        there was no backward pass since the last time.
        """
        if not self._backward_ran:
            raise RuntimeError(
                "there is no gradient to average: since the last finish_gradient_synchronization() no backward() through "
                "this model has run"
            )
        for unit in self.units:
            if unit.is_full:  # a parameter of it was not used
                self._send(unit)
        gradients = gradients_of(self.replicated)
        ### TODO shard.2 (5 minutes): Wait for all that is in self._on_their_way, and give each unit
        ### the mean of its gradients, with add_gradient.
        ### BEGIN SOLUTION shard.2
        for unit, part, work in self._on_their_way:
            work.wait()
            unit.add_gradient(part / dist.get_world_size())
        ### END SOLUTION
        with span("all_reduce", lane="comm", bytes=sum(gradient.nbytes for gradient in gradients)):
            ### TODO shard.2 (5 minutes): Average these, the gradients of the replicated parameters.
            ### BEGIN SOLUTION shard.2
            for gradient in gradients:
                dist.all_reduce(gradient)
                gradient /= dist.get_world_size()
            ### END SOLUTION
        self._on_their_way.clear()
        self._backward_ran = False

    def full_parameters(self) -> dict[str, torch.Tensor]:
        """Return on every rank all parameters by name, whole: new tensors. All ranks call it."""
        whole = {name: parameter.detach().clone() for name, parameter in self.module.named_parameters()}
        for unit in self.units:
            whole |= unit.gather_parameters()
        return whole

    def _send(self, unit: Unit) -> None:
        """Have a unit's gradients leave, now that all are there, and let it go."""
        unit.reset()
        n_bytes, device = unit.full.numel() * unit.shard.itemsize, unit.shard.device
        timing = span("reduce_scatter", "comm", device=device, bucket=unit.number, bytes=n_bytes).begin()
        self._on_their_way.append(self._scatter(unit).timed(timing))
        self._let_go(unit)

    def _note_backward(self) -> None:
        self._backward_ran = True
