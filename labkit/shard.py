"""Sharding by hand: what a model needs to train, shared out over the ranks.

This is a student file: it holds the tasks shard.1, an optimizer of which each rank keeps a part,
shard.2, a model of which each rank keeps a part, and shard.3, a layer's matrix over the ranks.
"""

# ruff: noqa: F401, F841, RUF100  (the student edition keeps the imports and variables that its
# TODOs will need)

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from labkit.parallel.guard import Guard, check_unwrapped, check_whole
from labkit.parallel.same_model import check_same_model, take_from_rank_0
from labkit.parallel.shard.matrix_share import (
    CollectiveFunction,
    check_input,
    check_linear,
    keep_frozen,
    sum_over_ranks,
)
from labkit.parallel.shard.optimizer_share import (
    Broadcast,
    Form,
    check_optimizer_class,
    check_same_parameters,
    check_share,
    check_unchanged,
    forms_of,
    on_cpu,
    own_share,
)
from labkit.parallel.shard.piece import InPieces
from labkit.parallel.shard.sharded_state import sharded_state
from labkit.parallel.shard.unit import (
    OnItsWay,
    Unit,
    all_gather_into_tensor,
    all_reduce_span,
    check_kinds,
    check_same_order,
    check_same_units,
    gradients_of,
    make_units,
    reduce_scatter_tensor,
)
from labkit.parallel.shard.unit_hooks import GatherOrder, Hooks, listen
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
    - ``optimizer_class``: such as torch.optim.AdamW, which steps each parameter by itself. It sees
      whole parameters, so Muon, Shampoo and Adafactor are right here, as they are in one process.
    - ``options``: what that takes, such as ``lr``. Schedulers may change them in ``param_groups``.

    Raises ValueError, on every rank, where ranks have different parameters, and for a parameter on
    another device than the first or on one from which the group does not send; for two in the same
    memory; for LBFGS, which steps all parameters together; for what a plain optimizer refuses.
    ``step`` raises RuntimeError where a parameter was converted, moved or replaced since then.

    Caveats: ``step``, ``full_state_dict`` and ``add_param_group`` are collectives, so every rank
    has to call them. With more ranks than parameters some have an empty share. A frozen parameter
    has an owner too, since it may be unfrozen later. A copy or a pickle is for the same rank.
    A hook of all optimizers (register_optimizer_step_post_hook) runs for ``local``, too.

    After Rajbhandari et al. 2020, ZeRO, arXiv 1910.02054: P_os.
    """

    def __init__(self, params: Any, optimizer_class: type[torch.optim.Optimizer], **options: Any):
        check_optimizer_class(optimizer_class)
        self.owners: dict[torch.Tensor, int] = {}
        self.forms: dict[torch.Tensor, Form] = {}
        self.local: torch.optim.Optimizer | None = None
        super().__init__(params, optimizer_class([{"params": []}], **options).defaults)
        check_same_parameters(self._parameters())
        self.local = optimizer_class([self._own_part(group) for group in self.param_groups], **options)
        self.state = self.local.state

    def __getstate__(self) -> dict[str, Any]:
        own = {"owners": self.owners, "forms": self.forms, "local": self.local, "share": own_share()}
        return super().__getstate__() | own

    def __setstate__(self, state: dict[str, Any]) -> None:
        check_share(state)
        super().__setstate__(state)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Share out one more group of parameters, such as layers that were frozen up to now."""
        params = param_group["params"]
        if not isinstance(params, torch.Tensor | set):  # those are the plain optimizer's to take, or to refuse
            param_group = param_group | {"params": list(dict.fromkeys(params))}
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        self._assign_owners(group["params"])
        self.forms |= forms_of(group["params"])
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
        computes loss and gradients again, on every rank. Raises RuntimeError where the gradients are
        in buckets of a BucketedDataParallel that have not been waited for.
        """
        assert self.local is not None
        check_unchanged(self.forms, self._parameters())
        self.local.state = self.state  # it may have been replaced
        for group, own in zip(self.param_groups, self.local.param_groups, strict=True):
            own.update(group | {"params": own["params"]})  # a scheduler may have changed the options
        ### TODO shard.1 (10 minutes): Step this rank's share, with self.local, which takes the closure
        ### as well. Then have every parameter travel from its owner: a Broadcast, in
        ### labkit/parallel/shard/optimizer_share.py, starts at once and can be waited for, so all can
        ### be on their way at the same time. Every rank takes part in each of them, in the same order.
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
        return super().state_dict() | {"share": own_share()}

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
        check_share(state_dict)
        owners = [self.owners[parameter] for parameter in self._parameters()]
        rank, states = dist.get_rank(), state_dict["state"].items()
        own = {n: state for n, state in states if n < len(owners) and owners[n] == rank}
        super().load_state_dict(state_dict | {"state": own})


# --- the parameters themselves --------------------------------------------------------------------


class ShardedModel(InPieces):
    """A model of which each rank keeps one N-th, and all of a layer only while it computes: FSDP.

        model = ShardedModel(model)
        optimizer = torch.optim.AdamW(model.parameters())  # of this rank's pieces
        loss(model(inputs)).backward()           # a layer's gradients leave once they are ready
        model.finish_gradient_synchronization()  # wait; gradients are now means over ranks
        optimizer.step()

    Arguments:

    - ``module``: the whole model, which each rank has built, on the device and in the dtype to
      train in. Its parameters and buffers are taken from rank 0. As ``.module`` it has the names
      that it had; in a layer of ``units`` a parameter is now this rank's piece, 1-D.
    - ``shard``: a class of modules, or several. Each outermost layer of these is a
      :class:`~labkit.parallel.shard.unit.Unit`; layers that share a parameter are one. All other
      parameters are ``replicated``: on every rank, with averaged gradients.
    - ``compute_dtype``: weights are cast to it before they travel, and the inputs of their layers;
      outputs stay in it. Pieces, their gradients and so the optimizer keep the dtype that they had.
    - ``prefetch``: gather the next unit while one computes, forward and backward. It is the one that
      was next in the last step, so the first step waits for each. It takes the memory of one unit
      more.

    A step sends a unit's parameters twice and its gradients once, each (N−1)/N of their bytes from
    each rank; with gloo the gradients count twice, as its reduce_scatter is an all_reduce.
    Gradients add up, as ever, until they are set to None or zero.

    Raises ValueError where ranks have different models, for a model without a layer to shard, for
    one that is in a wrapper already, for parameters that overlap in memory, and where layers outside
    need a unit's parameters; TypeError for a ``shard`` that is not a class. ``forward`` raises
    RuntimeError on every rank where a layer was replaced or unfrozen since then, where a parameter
    is used outside its own layer, as in a tied head by hand, and where ranks have used different
    layers of one size; that last it learns by an all_reduce of 16 bytes. So do copies, second
    derivatives, torch.autograd.grad, plain states to load, and torch's clip_grad_norm_.

    Caveats:

    - All ranks use the same layers, in the same order.
    - The optimizer comes after this: one that has taken steps before has state for whole
      parameters. It sees 1-D pieces, which suits those that treat each number by itself, such as
      SGD and AdamW. Those that look at a matrix or at all parameters together, such as Muon,
      Shampoo, Adafactor, LARS and LBFGS, need whole ones: a :class:`ShardedOptimizer`.
    - Outside the forward pass a parameter is a piece, in ``shape`` and ``numel()``; ``dim()`` is
      that of the whole one. It has its gradient after finish_gradient_synchronization(); from
      backward() until then ``grad`` raises RuntimeError. A norm or a sum that you compute of them is
      this rank's alone. :meth:`clip_grad_norm_` clips by the norm of all; a GradScaler's verdict is
      shared.
    - To keep an average of weights, keep one of each piece, by hand. For a plain model save
      :meth:`full_parameters`.
    - A replicated parameter that no rank uses gets a gradient of zero, as in dp.7, and so does one
      of a unit whose other parameters are used. One that is frozen after wrapping does not move.
    - Under torch.compile the model runs uncompiled.

    After Rajbhandari et al. 2020, ZeRO, arXiv 1910.02054: stage 3; Zhao et al. 2023, PyTorch FSDP,
    arXiv 2304.11277.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        shard: type[torch.nn.Module] | tuple[type[torch.nn.Module], ...] = (torch.nn.Linear, torch.nn.Embedding),
        compute_dtype: torch.dtype | None = None,
        prefetch: bool = False,
    ):
        super().__init__()
        kinds = check_kinds(shard)
        check_whole(module.parameters())
        check_unwrapped(module)
        check_same_model(module)
        for tensor in [*module.parameters(), *module.buffers()]:
            take_from_rank_0(tensor)
        self.units = make_units(module, kinds, compute_dtype)
        check_same_units(module, self.units)
        inside = {parameter for unit in self.units for parameter in unit.parameters}
        self.replicated = [each for each in module.parameters() if each.requires_grad and each not in inside]
        self.module = module
        self._on_their_way: list[OnItsWay] = []
        self._backward_ran = False
        self._order = GatherOrder(prefetch)
        hooks = Hooks(
            self._gather, self._order.after, self._let_go, self._note_backward, self._send, self._end_backward
        )
        averaged = [*self.replicated, *(parameter for unit in self.units for parameter in unit.parameters)]
        self._guard = Guard(self, module, averaged, listen(self.units, self.replicated, hooks))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled():
            self._guard.check_averaged()
            self._guard.check()
        self._begin_pass()
        outputs = self.module(*args, **kwargs)
        check_same_order(self._order.now)
        return outputs

    @torch.no_grad()
    def _gather(self, unit: Unit) -> Any:
        """Start to get all of a unit's parameters, for a layer's forward or backward pass.

        The code that needs them waits for what this returns, and has the parameters show ``unit.full``.
        """
        ### TODO shard.2 (20 minutes): Give unit.full its memory, unit.full.nbytes, with
        ### unit.full.untyped_storage().resize_(…). Start filling it with the shards of all ranks, in
        ### its dtype, by all_gather_into_tensor. Another layer may compute meanwhile, so do not wait
        ### here: take async_op=True, and return what that returns. What a Unit can do is in
        ### labkit/parallel/shard/unit.py.
        ### BEGIN SOLUTION shard.2
        unit.full.untyped_storage().resize_(unit.full.nbytes)
        return all_gather_into_tensor(unit.full, unit.shard.to(unit.full.dtype), async_op=True)
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
        self._guard.check_ready()
        gradients = gradients_of(self.replicated)
        ### TODO shard.2 (5 minutes): Wait for all that is in self._on_their_way, and give each unit
        ### the mean of its gradients, with add_gradient.
        ### BEGIN SOLUTION shard.2
        for unit, part, work in self._on_their_way:
            work.wait()
            unit.add_gradient(part / dist.get_world_size())
        ### END SOLUTION
        with all_reduce_span(gradients):
            ### TODO shard.2 (5 minutes): Average these, the gradients of the replicated parameters.
            ### BEGIN SOLUTION shard.2
            for gradient in gradients:
                dist.all_reduce(gradient)
                gradient.div_(dist.get_world_size())
            ### END SOLUTION
        self._on_their_way.clear()
        self._backward_ran = False
        self._begin_pass()

    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        """Scale all gradients so that together they have at most this norm. Return what it was.

        It is the norm that one process would find: every rank's pieces, and what is replicated
        once. All ranks call it, after finish_gradient_synchronization(); one number travels.
        """
        self._guard.check_averaged()
        pieces = [gradient for unit in self.units for gradient in unit.gradients()]
        replicated = [p.grad for p in self.replicated if p.grad is not None]
        square = get_total_norm(pieces).to(self.units[0].shard.device).square()
        norm = (sum_over_ranks(square) + get_total_norm(replicated).to(square.device).square()).sqrt()
        clip_grads_with_norm_(self.module.parameters(), max_norm, norm)
        return norm

    def full_parameters(self) -> dict[str, torch.Tensor]:
        """Return on every rank all parameters by name, whole: new tensors. All ranks call it."""
        whole = {name: parameter.detach().clone() for name, parameter in self.module.named_parameters()}
        for unit in self.units:
            whole |= unit.gather_parameters()
        return whole

    def sharded_state(self, optimizer: torch.optim.Optimizer | None = None) -> dict[str, torch.Tensor]:
        """Return the state that torch.distributed.checkpoint saves, and fills at any world size.

            state = model.sharded_state(optimizer)
            checkpoint.save(state, checkpoint_id="folder")  # each rank writes its part
            checkpoint.load(state, checkpoint_id="folder")  # model and optimizer have it now

        A unit's parameters are one row of numbers, so load it with the same ``shard``. All ranks
        call it, with the optimizer of ``module``'s parameters, stepped or new.
        """
        return sharded_state(self.module, self.units, optimizer)

    def _apply(self, fn: Any, recurse: bool = True) -> ShardedModel:
        """Refuse to move or convert the model: ``to()``, ``cuda()``, ``half()`` come before it is
        sharded."""
        for unit in self.units:
            now, then = unit.shard, fn(unit.shard)
            if (now.dtype, now.device) != (then.dtype, then.device):
                raise RuntimeError(
                    f"this model is sharded, in {now.dtype} on {now.device}, and cannot become {then.dtype} on {then.device}: "
                    "move or convert the plain model, and shard that"
                )
        return self

    def _send(self, unit: Unit) -> None:
        """Have a unit's gradients leave, now that all are there, and let it go.

        Those of the unit before may still be on their way, earlier ones have arrived: no more than
        two units' gradients are whole in memory.
        """
        unit.reset()
        for each in self._on_their_way[:-1]:
            each.work.wait()
        timing = unit.reduce_scatter_span().begin()
        self._on_their_way.append(self._scatter(unit).timed(timing))
        self._let_go(unit)

    def _end_backward(self, unit: Unit) -> None:
        """Let a unit go that the backward pass has left, since it had not all of its gradients."""
        if self._backward_ran and unit.missing:  # a parameter was not used, by this rank
            self._send(unit)
        else:  # a gradient of the inputs alone, or a frozen unit
            unit.reset()
            self._let_go(unit)

    def _has_ready_gradients(self) -> bool:
        return self._backward_ran

    def _note_backward(self) -> None:
        self._backward_ran = True

    def _begin_pass(self) -> None:
        """Let go of units that were gathered ahead, and that nobody needed."""
        self._order.begin()
        for unit in self.units:
            if unit.arriving:
                unit.finish_gather()
                self._let_go(unit)


# --- one layer's matrix ---------------------------------------------------------------------------


class CopyToRanks(CollectiveFunction):
    """Hands on an input that all ranks have. Its gradient is the sum of what each rank has of it.

    Megatron's f: Shoeybi et al. 2019, arXiv 1909.08053, figure 3.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        ### TODO shard.3 (2 minutes): What does the layer get, of an x that every rank has already?
        ### BEGIN SOLUTION shard.3
        return x.view_as(x)
        ### END SOLUTION

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> Any:
        ### TODO shard.3 (5 minutes): dy is the gradient that comes from this rank's part of the layer
        ### alone. Return x's whole gradient, and None for the group, ctx.group. sum_over_ranks is
        ### in labkit/parallel/shard/matrix_share.py.
        ### BEGIN SOLUTION shard.3
        return sum_over_ranks(dy, ctx.group), None
        ### END SOLUTION


class SumOverRanks(CollectiveFunction):
    """Adds up what each rank has, so that all ranks have the sum. Its gradient is that of the sum.

    Megatron's g: Shoeybi et al. 2019, arXiv 1909.08053, figure 3.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ### TODO shard.3 (2 minutes): Return the sum of every rank's x.
        ### BEGIN SOLUTION shard.3
        return sum_over_ranks(x, group)
        ### END SOLUTION

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> Any:
        ### TODO shard.3 (3 minutes): dy is the gradient of the sum, and every rank has it. Return the
        ### gradient of this rank's x, and None for the group.
        ### BEGIN SOLUTION shard.3
        return dy, None
        ### END SOLUTION


class ColumnParallelLinear(torch.nn.Module):
    """A linear layer of which each rank computes some of the outputs.

        hidden = gelu(ColumnParallelLinear(first)(x))   # (rows, width / N), of this rank
        y = RowParallelLinear(second)(hidden)           # (rows, outputs), the same on all ranks

    ``linear`` is an nn.Linear, the same on every rank of ``process_group`` (all ranks); its numbers
    are taken from the first of them. ``weight`` (outputs / N, inputs) and ``bias`` are this rank's,
    as torch.tensor_split cuts the outputs; what is frozen stays so. The input is the same on all
    ranks.

    Raises TypeError for anything but an nn.Linear that computes as such, without a ``forward`` or
    hooks of its own; ValueError where ranks have different ones, and for an input of another width;
    RuntimeError for torch.func and for second derivatives.

    Caveats: a parameter that is used between the two layers, such as a scale, has on each rank the
    part of its gradient that comes from this rank's hidden numbers. Add those up after backward,
    with dist.all_reduce, or the ranks drift apart. ``weight`` and ``bias`` are new ones:
    a tie, a hook or an optimizer of ``linear``'s stays with that. They are this rank's parts, and so
    is a norm of them, such as clip_grad_norm_ takes.
    """

    def __init__(self, linear: torch.nn.Linear, process_group: Any = None):
        super().__init__()
        self.group = process_group
        check_linear(linear, self.group)
        for parameter in linear.parameters():
            take_from_rank_0(parameter, self.group)
        rank, n_ranks = dist.get_rank(self.group), dist.get_world_size(self.group)
        ### TODO shard.3 (5 minutes): Set self.weight to a Parameter, a copy of this rank's part of
        ### linear.weight, whose shape is (outputs, inputs). Likewise self.bias, which is None where
        ### linear has none.
        ### BEGIN SOLUTION shard.3
        self.weight = torch.nn.Parameter(linear.weight.detach().tensor_split(n_ranks)[rank].clone())
        self.bias = None
        if linear.bias is not None:
            self.bias = torch.nn.Parameter(linear.bias.detach().tensor_split(n_ranks)[rank].clone())
        ### END SOLUTION
        keep_frozen(self, linear)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return this rank's outputs: of (…, inputs) the (…, outputs / N)."""
        check_input(x, self.weight)
        ### TODO shard.3 (3 minutes): Compute this rank's outputs, so that x gets its whole gradient.
        ### BEGIN SOLUTION shard.3
        return torch.nn.functional.linear(CopyToRanks.apply(x, self.group), self.weight, self.bias)
        ### END SOLUTION


class RowParallelLinear(torch.nn.Module):
    """A linear layer of which each rank has some of the inputs, as a ColumnParallelLinear gives them.

    ``weight`` is (outputs, inputs / N), this rank's, as torch.tensor_split cuts the inputs; ``bias``
    is whole, the same on all ranks. Arguments and errors are those of :class:`ColumnParallelLinear`.
    """

    def __init__(self, linear: torch.nn.Linear, process_group: Any = None):
        super().__init__()
        self.group = process_group
        check_linear(linear, self.group)
        for parameter in linear.parameters():
            take_from_rank_0(parameter, self.group)
        rank, n_ranks = dist.get_rank(self.group), dist.get_world_size(self.group)
        ### TODO shard.3 (5 minutes): Set self.weight and self.bias. Which part of the weight do this
        ### rank's inputs need?
        ### BEGIN SOLUTION shard.3
        self.weight = torch.nn.Parameter(linear.weight.detach().tensor_split(n_ranks, dim=1)[rank].clone())
        self.bias = None if linear.bias is None else torch.nn.Parameter(linear.bias.detach().clone())
        ### END SOLUTION
        keep_frozen(self, linear)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return all outputs, the same on all ranks: of (…, inputs / N) the (…, outputs)."""
        check_input(x, self.weight)
        ### TODO shard.3 (5 minutes): Put together what the ranks have of each output. The bias counts
        ### once, in the dtype of the output: under autocast that is not the bias's own.
        ### BEGIN SOLUTION shard.3
        y = SumOverRanks.apply(torch.nn.functional.linear(x, self.weight), self.group)
        return y if self.bias is None else y + self.bias.to(y.dtype)
        ### END SOLUTION
