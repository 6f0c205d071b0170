"""Given code under ShardedModel: units of layers, whose numbers are shared out over the ranks, and
hooks that say when a unit is needed and when its gradients are ready."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.graph import register_multi_grad_hook
from torch.utils import _pytree as pytree

from labkit.parallel.shard import mark_pieces
from labkit.trace import span

# torch 2.13 has new names for these.
all_gather_into_tensor = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_tensor = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Unit:
    """Layers whose parameters are gathered, let go and averaged together.

    All their numbers stand in one row, with zeros at its end so that N ranks have equal parts of
    it; each rank keeps its part. The parameters are the model's own, and show one of two things:

    - as a rule, this rank's piece of them: 1-D, a view of ``shard``, empty where it has none;
    - while ``is_full``, all of them, in their own shape: views of ``full``.

    ``shard`` is 1-D, in the parameters' dtype. ``full`` is the row, N times as long, in the dtype
    to compute in; its memory comes and goes. ``arriving`` is the work that fills it, until somebody
    has waited for it. ``missing`` holds the numbers of those parameters whose gradient is not ready
    in this backward pass. ``in_backward`` is True from when the backward pass has gathered it until
    its gradients leave: a forward pass that is run again meanwhile, by a checkpoint, does not let
    it go.
    """

    def __init__(self, number: int, layers: dict[str, nn.Module], compute_dtype: torch.dtype | None):
        self.number, self.layers = number, layers
        named = [each for name, layer in layers.items() for each in layer.named_parameters(name)]
        names = {parameter: name for name, parameter in reversed(named)}  # one that is tied once, by its first name
        self.parameters, self.names = [*reversed(names)], [*reversed(names.values())]
        _check_one_kind(self.names, self.parameters)
        n_ranks, rank = dist.get_world_size(), dist.get_rank()
        self.shapes = [parameter.shape for parameter in self.parameters]
        self._ends = torch.tensor([shape.numel() for shape in self.shapes]).cumsum(0).tolist()
        length = -(-self._ends[-1] // n_ranks)
        row = torch.cat([parameter.detach().flatten() for parameter in self.parameters])
        row = nn.functional.pad(row, (0, n_ranks * length - len(row)))
        self.shard = row[rank * length : (rank + 1) * length].clone()
        self.full = _without_memory(torch.empty_like(row, dtype=compute_dtype))
        self._first = rank * length  # of the numbers in the row, the first in this rank's shard
        self._pieces = self._in_pieces(self.shard)
        mark_pieces(self.parameters)
        self._kept: list[torch.Tensor | None] = [None] * len(self.parameters)  # gradients of pieces, while is_full
        self.is_full = True
        self.arriving: Any = None
        self.use_shard()
        self.reset()

    def reset(self) -> None:
        """Begin a backward pass: every gradient is missing."""
        self.missing = {i for i, parameter in enumerate(self.parameters) if parameter.requires_grad}
        self.in_backward = False

    def finish_gather(self) -> None:
        """Wait until ``full`` is there, if it is on its way."""
        if self.arriving:
            self.arriving.wait()
            self.arriving = None

    def use_full(self) -> None:
        """Have each parameter show its part of ``full``, in its own shape, with no gradient yet."""
        if not self.is_full:
            for i, (parameter, whole) in enumerate(zip(self.parameters, self._whole(self.full), strict=True)):
                self._kept[i], parameter.grad = parameter.grad, None
                parameter.data = whole
        self.is_full = True

    def use_shard(self) -> None:
        """Have each parameter show this rank's piece, with the gradient that this has had."""
        if self.is_full:
            for i, (parameter, piece) in enumerate(zip(self.parameters, self._pieces, strict=True)):
                parameter.grad, parameter.data = None, piece
                parameter.grad, self._kept[i] = self._kept[i], None
        self.is_full = False

    def take_gradients(self) -> torch.Tensor:
        """Take the gradients off the parameters, while ``is_full``, and return them as one row.

        It is in the dtype of ``shard``. A parameter without a gradient counts as 0.
        """
        row = torch.zeros(len(self.full), dtype=self.shard.dtype, device=self.shard.device)
        for parameter, part in zip(self.parameters, self._whole(row), strict=True):
            if parameter.grad is not None:
                part.copy_(parameter.grad)
                parameter.grad = None
        return row

    def add_gradient(self, part: torch.Tensor) -> None:
        """Add ``part``, as long as ``shard``, to the gradients of the pieces."""
        for parameter, own in zip(self.parameters, self._in_pieces(part), strict=True):
            if parameter.requires_grad:
                parameter.grad = own if parameter.grad is None else parameter.grad + own

    @torch.no_grad()
    def gather_parameters(self) -> dict[str, torch.Tensor]:
        """Return all parameters by name, in the dtype of ``shard``: new tensors, on every rank."""
        row = self.shard.new_empty(len(self.full))
        all_gather_into_tensor(row, self.shard)
        return dict(zip(self.names, self._whole(row), strict=True))

    def all_gather_span(self) -> Any:
        """Return a span of the lane comm, for the time until ``full`` is there."""
        return span("all_gather", "comm", device=self.full.device, bucket=self.number, bytes=self.full.nbytes)

    def reduce_scatter_span(self) -> Any:
        """Return a span of the lane comm, for the time that the gradients are on their way."""
        n_bytes = self.full.numel() * self.shard.itemsize
        return span("reduce_scatter", "comm", device=self.full.device, bucket=self.number, bytes=n_bytes)

    def _whole(self, row: torch.Tensor) -> list[torch.Tensor]:
        """Return of the row each parameter's part, in its shape."""
        parts = row[: self._ends[-1]].split([shape.numel() for shape in self.shapes])
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def _in_pieces(self, shard: torch.Tensor) -> list[torch.Tensor]:
        """Return of what is as long as ``shard`` each parameter's part."""
        cuts = [min(max(end - self._first, 0), len(shard)) for end in [0, *self._ends]]
        return [shard[begin:end] for begin, end in itertools.pairwise(cuts)]

    def __repr__(self) -> str:
        return f"Unit({self.number}: {', '.join(self.layers)}, {self.full.nbytes / 2**20:.3g} MiB {self.full.dtype})"


def _without_memory(tensor: torch.Tensor) -> torch.Tensor:
    tensor.untyped_storage().resize_(0)
    return tensor


def _check_one_kind(names: Sequence[str], parameters: Sequence[torch.Tensor]) -> None:
    """Raise ValueError for parameters that cannot be in one unit."""
    facts: dict[str, Callable[[torch.Tensor], str]] = {
        "convert the model": lambda parameter: str(parameter.dtype),
        "move the model": lambda parameter: f"on {parameter.device}",
        "freeze all of a layer, or nothing,": lambda parameter: "trained" if parameter.requires_grad else "frozen",
    }
    for then, fact in facts.items():
        of = {fact(parameter): name for name, parameter in zip(names, parameters, strict=True)}
        if len(of) > 1:
            (one, name), (other, there) = [*of.items()][:2]
            raise ValueError(f"{name} is {one} and {there} is {other}, but they are gathered together: {then} first")


class OnItsWay(NamedTuple):
    """What comes of a unit's gradients: this rank's ``part`` of their sum once ``work`` is done."""

    unit: Unit
    part: torch.Tensor
    work: Any

    def timed(self, timing: Any) -> OnItsWay:
        """Return the same with a work that ends ``timing``, a span, once it has been waited for."""
        return self._replace(work=_TimedWork(self.work, timing))


class _TimedWork:
    """A work that ends ``timing`` once it is ``done``, and then lets go of what it has sent."""

    def __init__(self, work: Any, timing: Any):
        self._work, self._timing = work, timing

    @property
    def done(self) -> bool:
        return self._work is None

    def wait(self) -> None:
        if not self.done:
            self._work.wait()
            self._timing.end()
        self._work = None


def gradients_of(parameters: Sequence[nn.Parameter]) -> list[torch.Tensor]:
    """Return their gradients. One that this rank has not used gets zeros: another may have."""
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def all_reduce_span(gradients: Sequence[torch.Tensor]) -> Any:
    """Return a span of the lane comm, for the time in which these are averaged."""
    return span("all_reduce", "comm", bytes=sum(gradient.nbytes for gradient in gradients))


# --- which layers are units -----------------------------------------------------------------------


def make_units(module: nn.Module, kinds: tuple[type[nn.Module], ...], compute_dtype: torch.dtype | None) -> list[Unit]:
    """Return a unit for each outermost layer of these ``kinds``, in the model's order.

    Layers that share a parameter are one unit. Raises ValueError if there is none, and where a
    layer outside would use a unit's parameters.
    """
    layers: dict[str, nn.Module] = {}
    for name, layer in module.named_modules():
        outermost = not any(f"{name}.".startswith(f"{outer}.") or not outer for outer in layers)
        if isinstance(layer, kinds) and outermost and any(True for _ in layer.parameters()):
            layers[name] = layer
    if not layers:
        raise ValueError(
            f"the model has no layer with parameters of {' or '.join(kind.__name__ for kind in kinds)}, so there is nothing "
            "to shard: name the kinds of its layers, such as shard=(GPT2Block,)"
        )
    _check_outside(module, layers)
    groups: list[dict[str, nn.Module]] = []
    for name, layer in layers.items():
        own = {*layer.parameters()}
        tied = [group for group in groups if any(own & {*each.parameters()} for each in group.values())]
        groups = [group for group in groups if group not in tied]
        groups.append({key: each for group in tied for key, each in group.items()} | {name: layer})
    return [Unit(number, group, compute_dtype) for number, group in enumerate(groups)]


def _check_outside(module: nn.Module, layers: dict[str, nn.Module]) -> None:
    inside = {parameter: name for name, layer in layers.items() for parameter in layer.parameters()}
    within = {each for layer in layers.values() for each in layer.modules()}
    for name, layer in module.named_modules():
        if layer in within:
            continue
        for own, parameter in layer.named_parameters(recurse=False):
            if parameter in inside:
                raise ValueError(
                    f"{name}.{own} is a parameter of {inside[parameter]} too, which is to be sharded: name both kinds of "
                    "layers in shard, or neither"
                )
        if isinstance(layer, nn.MultiheadAttention) and within & {*layer.modules()}:
            raise ValueError(
                f"{name} is an nn.MultiheadAttention, which uses its layers' weights without calling the layers: name it "
                "in shard, so that it is a unit as a whole"
            )
    for name, layer in layers.items():
        if isinstance(layer, nn.Embedding) and layer.sparse:
            raise ValueError(
                f"the gradients of {name} are sparse, expected dense ones, which have their place in a row: build the "
                "embedding with sparse=False"
            )


def check_kinds(shard: Any) -> tuple[type[nn.Module], ...]:
    """Return ``shard`` as a tuple of classes of modules. Raises TypeError for anything else."""
    kinds = shard if isinstance(shard, tuple) else (shard,)
    if not kinds or not all(isinstance(kind, type) and issubclass(kind, nn.Module) for kind in kinds):
        raise TypeError(f"shard is {shard!r}, expected a class of modules, or a tuple of classes, such as (nn.Linear,)")
    return kinds


def check_same_units(units: Sequence[Unit]) -> None:
    """Raise ValueError, on every rank, where a rank has other units than rank 0."""
    layouts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(layouts, [(repr(unit), unit.names) for unit in units])
    for rank, layout in enumerate(layouts):
        if layout != layouts[0]:
            here, there = ([form for form, _ in each] for each in (layouts[0], layout))
            raise ValueError(
                f"rank {rank} has different units from rank 0: {there} where rank 0 has {here}. Give every rank the same "
                "shard and compute_dtype"
            )


# --- when a unit is needed, and when its gradients are ready --------------------------------------


class GatherOrder:
    """Tells which unit is next: the one that was, while all goes as it did in the last pass."""

    def __init__(self) -> None:
        self._last: list[Unit] = []
        self._now: list[Unit] = []

    def begin(self) -> None:
        """Begin a pass, forward and backward; one that needed nothing is no pass."""
        self._last, self._now = self._now or self._last, []

    def after(self, unit: Unit) -> Unit | None:
        """Note that ``unit`` is needed now. Return the next one, None where it is not known."""
        self._now.append(unit)
        as_before = self._last[: len(self._now)] == self._now
        return self._last[len(self._now)] if as_before and len(self._now) < len(self._last) else None


class Hooks(NamedTuple):
    """What is called for a unit.

    ``gather`` starts to gather it and returns the work; ``following`` says which unit to gather
    while this one computes, if any; ``let_go`` is called after the forward pass, ``ran`` at any
    gradient, ``send`` once its gradients are ready, ``end`` where backward ended without some.
    """

    gather: Callable[[Unit], Any]
    following: Callable[[Unit], Unit | None]
    let_go: Callable[[Unit], object]
    ran: Callable[[], object]
    send: Callable[[Unit], object]
    end: Callable[[Unit], object]


def listen(units: Sequence[Unit], replicated: Sequence[nn.Parameter], hooks: Hooks) -> None:
    """Have the layers and autograd call ``hooks``."""
    for unit in units:
        for layer in unit.layers.values():
            layer.register_forward_pre_hook(partial(_before_forward, unit, hooks), with_kwargs=True)
            layer.register_forward_hook(partial(_after_forward, unit, hooks), always_call=True)
        for position in unit.missing:
            hook = partial(_is_ready, unit, position, hooks)
            unit.parameters[position].register_post_accumulate_grad_hook(hook)
    for parameter in replicated:
        parameter.register_post_accumulate_grad_hook(lambda _: hooks.ran())


def _before_forward(unit: Unit, hooks: Hooks, layer: nn.Module, *inputs: Any) -> Any:
    """Gather before ``layer(*args, **options)``; ``inputs`` are the two, args and options."""
    _need(unit, hooks)
    tracked = [x for x in _tensors(inputs) if x.requires_grad and torch.is_grad_enabled()]
    if (
        tracked and not unit.parameters[0].requires_grad
    ):  # then no gradient of its own says that its backward pass is over
        register_multi_grad_hook(tracked, partial(_let_go, unit, hooks))
    if unit.full.dtype == unit.shard.dtype:
        return inputs
    return pytree.tree_map(lambda x: x.to(unit.full.dtype) if _is_float(x) else x, inputs)


def _after_forward(unit: Unit, hooks: Hooks, layer: nn.Module, inputs: Any, outputs: Any) -> None:
    if unit.is_full and not unit.in_backward:
        hooks.let_go(unit)
    found = _tensors(outputs)
    if outputs is not None and not found and torch.is_grad_enabled():
        raise TypeError(
            f"{type(layer).__name__} returned a {type(outputs).__name__}, in which no tensor was found, so its weights would "
            "not be there in the backward pass: have it return tensors, in tuples, lists or dicts, or shard another layer"
        )
    for y in found:
        if y.requires_grad:
            y.register_hook(lambda _: _backward_begins(unit, hooks))  # called before the layer's backward pass


def _backward_begins(unit: Unit, hooks: Hooks) -> None:
    _need(unit, hooks)
    if not unit.in_backward:
        unit.in_backward = True
        torch.autograd.Variable._execution_engine.queue_callback(partial(_backward_ends, unit, hooks))


def _backward_ends(unit: Unit, hooks: Hooks) -> None:
    if unit.in_backward:
        hooks.end(unit)


def _need(unit: Unit, hooks: Hooks) -> None:
    """Have all of a unit's parameters there, and those of the next one on their way."""
    if unit.is_full and not unit.arriving:
        return
    _start_gather(unit, hooks)
    unit.finish_gather()
    unit.use_full()
    if following := hooks.following(unit):
        _start_gather(following, hooks)


def _start_gather(unit: Unit, hooks: Hooks) -> None:
    if not unit.is_full and not unit.arriving:
        timing = unit.all_gather_span().begin()
        unit.arriving = hooks.gather(unit)
        if not hasattr(unit.arriving, "get_future"):
            raise TypeError(
                f"_gather returned {unit.arriving!r}, expected the work that is to be waited for: what all_gather_into_tensor "
                "returns with async_op=True"
            )
        unit.arriving.get_future().then(lambda _: timing.end())


def _let_go(unit: Unit, hooks: Hooks, _: Sequence[torch.Tensor | None]) -> None:
    unit.in_backward = False
    hooks.let_go(unit)


def _is_ready(unit: Unit, position: int, hooks: Hooks, _: torch.Tensor) -> None:
    hooks.ran()
    unit.missing.discard(position)
    if not unit.missing:
        hooks.send(unit)


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _is_float(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.is_floating_point()
