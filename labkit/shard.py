"""Sharding by hand: what a model needs to train, shared out over the ranks.

This is a student file: it holds the task shard.1, an optimizer of which each rank keeps a part.
"""

# ruff: noqa: F401, F841, RUF100  (the student edition keeps the imports and variables that its
# TODOs will need)

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from labkit.parallel.shard import Broadcast, check_same_parameters, on_cpu
from labkit.todo import TodoError

# --- the optimizer's state ------------------------------------------------------------------------


class ShardedOptimizer(torch.optim.Optimizer):
    """An optimizer of which each rank keeps a share: ZeRO's first stage.

        optimizer = ShardedOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3)
        loss(model(inputs)).backward()
        average_gradients(model)  # as ever: all gradients, on all ranks
        optimizer.step()          # each rank steps its share, and sends it to the others

    Each parameter has one owner, the rank that keeps its state and steps it. So of Adam's state, 8
    bytes per parameter in float32, a rank keeps about one N-th. ``owners`` has the owner of each
    parameter, ``local`` is the optimizer of those that this rank owns.

    Arguments:

    - ``params``: parameters or groups of them, as for a plain optimizer, with the same values and
      in the same order on every rank. A parameter that is there twice counts once.
    - ``optimizer_class``: such as torch.optim.AdamW. It steps each parameter by itself, so not LBFGS.
    - ``options``: what that takes, such as ``lr``. Schedulers may change them in ``param_groups``.

    Raises ValueError, on every rank, where ranks have different parameters, and for a parameter on
    another device than the first or on one from which the group does not send.

    Caveats: ``step``, ``full_state_dict`` and ``add_param_group`` are collectives, so every rank
    has to call them. With more ranks than parameters some have an empty share. A frozen parameter
    has an owner too, since it may be unfrozen later.

    After Rajbhandari et al. 2020, ZeRO, arXiv 1910.02054: P_os.
    """

    def __init__(self, params: Any, optimizer_class: type[torch.optim.Optimizer], **options: Any):
        self.owners: dict[torch.Tensor, int] = {}
        self.local: torch.optim.Optimizer | None = None
        super().__init__(params, optimizer_class([{"params": []}], **options).defaults)
        check_same_parameters(self._parameters())
        self.local = optimizer_class([self._own_part(group) for group in self.param_groups], **options)
        self.state = self.local.state

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Share out one more group of parameters, such as layers that were frozen up to now."""
        params = param_group["params"]
        if not isinstance(params, torch.Tensor | set):  # those are the plain optimizer's to take, or to refuse
            param_group = param_group | {"params": list(dict.fromkeys(params))}
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        self._assign_owners(group["params"])
        if self.local is not None:  # else __init__ goes on with all groups at once
            check_same_parameters(group["params"])
            self.local.add_param_group(self._own_part(group))

    def _parameters(self) -> list[torch.Tensor]:
        """Return all parameters, in the order in which a state_dict numbers them."""
        return [parameter for group in self.param_groups for parameter in group["params"]]

    def _assign_owners(self, parameters: Sequence[torch.Tensor]) -> None:
        """Note in ``owners`` which rank owns each of these parameters, in addition to earlier ones.

        Every rank finds the same owners, without a word to the others. Whatever sizes come, the
        fullest rank has at most as many bytes of parameters as the emptiest and the largest
        parameter together.
        """
        ### TODO shard.1 (10 minutes): Set self.owners[parameter] for each of these parameters. Think
        ### of parcels and carts: to whom do you give the next one?
        ### BEGIN SOLUTION shard.1
        held_bytes = [0] * dist.get_world_size()
        for parameter, owner in self.owners.items():
            held_bytes[owner] += parameter.nbytes
        for parameter in parameters:
            owner = held_bytes.index(min(held_bytes))
            self.owners[parameter] = owner
            held_bytes[owner] += parameter.nbytes
        ### END SOLUTION

    def _own_part(self, group: dict[str, Any]) -> dict[str, Any]:
        """Return the part of a group that this rank owns, for its ``local`` optimizer."""
        ### TODO shard.1 (5 minutes): Return a new group with the options of this one, such as its lr,
        ### and under "params" those parameters that this rank owns. It may be none.
        ### BEGIN SOLUTION shard.1
        own = [parameter for parameter in group["params"] if self.owners[parameter] == dist.get_rank()]
        return group | {"params": own}
        ### END SOLUTION

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step each parameter on its owner, and have every rank take it from there.

        Gradients are the same on all ranks. Return what ``closure`` returns, if there is one: it
        computes loss and gradients anew, on every rank.
        """
        assert self.local is not None
        for group, own in zip(self.param_groups, self.local.param_groups, strict=True):
            own.update(group | {"params": own["params"]})  # a scheduler may have changed the options
        ### TODO shard.1 (10 minutes): Step this rank's share, with self.local, which takes the closure
        ### as well. Then have every parameter travel from its owner: a Broadcast, in
        ### labkit/parallel/shard.py, starts at once and can be waited for, so all can be on their way
        ### at the same time. Every rank takes part in each of them, in the same order.
        ### BEGIN SOLUTION shard.1
        loss = self.local.step(closure)
        broadcasts = [Broadcast(parameter, owner) for parameter, owner in self.owners.items()]
        for broadcast in broadcasts:
            broadcast.wait()
        return loss
        ### END SOLUTION

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's share, for the same rank of as many ranks; parameters are numbered as
        in a plain optimizer's."""
        return super().state_dict() | {"share": [dist.get_rank(), dist.get_world_size()]}

    def full_state_dict(self) -> dict[str, Any]:
        """Return on every rank what state_dict() of a plain ``optimizer_class`` would, on the CPU."""
        full = super().state_dict()
        own = on_cpu(full["state"])
        states: list[Any] = [None] * dist.get_world_size()
        ### TODO shard.1 (5 minutes): Put the states of all ranks together, and return full with them
        ### under "state". own has this rank's, by the number of the parameter; states has room for
        ### every rank's. What is not a tensor travels by dist.all_gather_object.
        ### BEGIN SOLUTION shard.1
        dist.all_gather_object(states, own)
        return full | {"state": {number: state[number] for state in states for number in state}}
        ### END SOLUTION

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take this rank's share of a full state, saved at any world size, or its own share as saved.

        Raises ValueError for the share of another rank or world size.
        """
        here = [dist.get_rank(), dist.get_world_size()]
        rank, world_size = state_dict.get("share", here)
        if [rank, world_size] != here:
            raise ValueError(
                f"this is the share of rank {rank} of {world_size}, and this is rank {here[0]} of {here[1]}: save "
                "full_state_dict() instead, which can be loaded at any world size"
            )
        owners = [self.owners[parameter] for parameter in self._parameters()]
        own = {number: state for number, state in state_dict["state"].items() if owners[number] == rank}
        super().load_state_dict(state_dict | {"state": own})
        assert self.local is not None
        self.local.state = self.state
