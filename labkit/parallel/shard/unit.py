"""Given code under ShardedModel: units of layers, whose numbers are shared out over the ranks."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from labkit.base.texts import listed
from labkit.base.units import MIB
from labkit.parallel.guard import PIECE_OF
from labkit.parallel.shard.optimizer_share import overlap
from labkit.parallel.shard.piece import Whole, become_pieces, check_plain, gradient_of
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
        names = {parameter: name for name, parameter in reversed(named)}  # a tied one by its first name
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
        for parameter, name in zip(self.parameters, self.names, strict=True):
            setattr(parameter, PIECE_OF, Whole(name, parameter.dim(), self.renew_shard))
        self._classes = [type(parameter) for parameter in self.parameters]  # while is_full
        self._kept: list[Any] = [None] * len(self.parameters)  # gradients of pieces, while is_full
        self.is_full = True
        self.arriving: Any = None
        self.use_shard()
        self.reset()

    def reset(self) -> None:
        """Begin a backward pass: every gradient is missing."""
        self.missing = {i for i, parameter in enumerate(self.parameters) if parameter.requires_grad}
        self.in_backward = False

    def check_unchanged(self) -> None:
        """Raise RuntimeError where the layers have changed ``full`` in place, while ``is_full``."""
        for parameter, name, version in zip(self.parameters, self.names, self._versions, strict=True):
            if parameter._version > version:
                raise RuntimeError(
                    f"{name} was changed in place in its layer's forward pass (as max_norm does), which is lost, since only "
                    "pieces are kept: change the pieces, between steps"
                )

    def finish_gather(self) -> None:
        """Wait until ``full`` is there, if it is on its way."""
        if self.arriving:
            self.arriving.wait()
            self.arriving = None

    def use_full(self) -> None:
        """Have each parameter show its part of ``full``, in its own shape, with no gradient yet."""
        if not self.is_full:
            for i, (parameter, whole) in enumerate(zip(self.parameters, self._whole(self.full), strict=True)):
                parameter.__class__ = self._classes[i]
                self._kept[i], parameter.grad = parameter.grad, None
                parameter.data = whole
            self._versions = [parameter._version for parameter in self.parameters]
        self.is_full = True

    def use_shard(self) -> None:
        """Have each parameter show this rank's piece, with the gradient that this has had."""
        if self.is_full:
            for i, (parameter, piece) in enumerate(zip(self.parameters, self._pieces, strict=True)):
                parameter.grad, parameter.data = None, piece
                parameter.grad, self._kept[i] = self._kept[i], None
            become_pieces(self.parameters)
        self.is_full = False

    def renew_shard(self) -> None:
        """Have the pieces lie in new memory: somebody may keep the old, with the numbers of now."""
        self.shard = self.shard.clone()
        self._pieces = self._in_pieces(self.shard)
        for parameter, piece in zip(self.parameters, self._pieces, strict=True):
            parameter.__class__ = nn.Parameter
            parameter.data = piece
        become_pieces(self.parameters)

    def gradients(self) -> list[torch.Tensor]:
        """Return the gradients of the pieces that have one, as plain tensors in the same memory."""
        return [gradient for gradient in map(gradient_of, self.parameters) if gradient is not None]

    def take_gradients(self) -> torch.Tensor:
        """Take the gradients off the parameters, while ``is_full``, and return them as one row.

        It is in the dtype of ``shard``. A parameter without a gradient counts as 0.
        """
        row = torch.zeros(len(self.full), dtype=self.shard.dtype, device=self.shard.device)
        for parameter, part in zip(self.parameters, self._whole(row), strict=True):
            if parameter.grad is not None:
                part.copy_(parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad)
                parameter.grad = None
        return row

    def add_gradient(self, part: torch.Tensor) -> None:
        """Add ``part``, as long as ``shard``, to the gradients of the pieces."""
        for parameter, own in zip(self.parameters, self._in_pieces(part), strict=True):
            if parameter.requires_grad:
                before = gradient_of(parameter)
                parameter.grad = own if before is None else own + before

    @torch.no_grad()
    def gather_parameters(self) -> dict[str, torch.Tensor]:
        """Return all parameters by name, in the dtype of ``shard``: new tensors, on every rank."""
        return self._gather_by_name(self.shard)

    @torch.no_grad()
    def gather_gradients(self) -> dict[str, torch.Tensor]:
        """Return all gradients likewise. All ranks call it; a missing gradient counts as 0."""
        part = torch.zeros_like(self.shard)
        for parameter, own in zip(self.parameters, self._in_pieces(part), strict=True):
            if (gradient := gradient_of(parameter)) is not None:
                own.copy_(gradient)
        return self._gather_by_name(part)

    def _gather_by_name(self, shard: torch.Tensor) -> dict[str, torch.Tensor]:
        row = shard.new_empty(len(self.full))
        all_gather_into_tensor(row, shard)
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
        size = f"{self.full.nbytes / MIB:.3g} MiB {self.full.dtype}"
        return f"Unit({self.number}: {', '.join(self.layers)}, {size})"


def _without_memory(tensor: torch.Tensor) -> torch.Tensor:
    tensor.untyped_storage().resize_(0)
    return tensor


def _check_one_kind(names: Sequence[str], parameters: Sequence[torch.Tensor]) -> None:
    """Raise ValueError for parameters that cannot be in one unit."""
    facts: dict[str, Callable[[torch.Tensor], str]] = {
        "convert the model": lambda parameter: str(parameter.dtype),
        "move the model": lambda parameter: f"on {parameter.device}",
        "freeze all of a layer, or nothing,": lambda p: "trained" if p.requires_grad else "frozen",
    }
    for then, fact in facts.items():
        of = {fact(parameter): name for name, parameter in zip(names, parameters, strict=True)}
        if len(of) > 1:
            (one, name), (other, there) = [*of.items()][:2]
            differ = f"{name} is {one} and {there} is {other}"
            raise ValueError(f"{differ}, but they are gathered together: {then} first")


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
    """Return their gradients, dense. One that this rank has not used gets zeros: another may have.

    For one that is frozen by now zeros are returned, and it keeps None: no optimizer moves it.
    """
    found = []
    for parameter in parameters:
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.to_dense()
        if parameter.requires_grad:
            parameter.grad = gradient
        found.append(gradient)
    return found


def all_reduce_span(gradients: Sequence[torch.Tensor]) -> Any:
    """Return a span of the lane comm, for the time in which these are averaged."""
    return span("all_reduce", "comm", bytes=sum(gradient.nbytes for gradient in gradients))


# --- which layers are units -----------------------------------------------------------------------


Kinds = tuple[type[nn.Module], ...]


def make_units(module: nn.Module, kinds: Kinds, compute_dtype: torch.dtype | None) -> list[Unit]:
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
        names = listed((kind.__name__ for kind in kinds), "or")
        raise ValueError(
            f"the model has no layer with parameters of {names}, so there is nothing to shard: "
            "name the kinds of its layers, such as shard=(GPT2Block,)"
        )
    check_plain(module, layers.values())
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
    if shared := overlap(dict(module.named_parameters())):
        raise ValueError(shared)
    within = {each for layer in layers.values() for each in layer.modules()}
    for name, layer in module.named_modules():
        if layer in within:
            continue
        for own, parameter in layer.named_parameters(recurse=False):
            if parameter in inside:
                raise ValueError(
                    f"{name}.{own} is a parameter of {inside[parameter]} too, which is to be sharded: "
                    "name both kinds of layers in shard, or neither"
                )
        if isinstance(layer, nn.MultiheadAttention) and within & {*layer.modules()}:
            raise ValueError(
                f"{name} is an nn.MultiheadAttention, which uses its layers' weights without calling "
                "the layers: name it in shard, so that it is a unit as a whole"
            )
    for name, layer in layers.items():
        if any(getattr(each, "sparse", False) is True for each in layer.modules()):
            raise ValueError(
                f"the gradients of {name} are sparse, expected dense ones, which have their place "
                "in a row: build the embedding with sparse=False"
            )


def check_kinds(shard: Any) -> Kinds:
    """Return ``shard`` as a tuple of classes of modules. Raises TypeError for anything else."""
    kinds = shard if isinstance(shard, tuple) else (shard,)
    if not kinds or not all(isinstance(kind, type) and issubclass(kind, nn.Module) for kind in kinds):
        expected = "expected a class of modules, or a tuple of classes, such as (nn.Linear,)"
        raise TypeError(f"shard is {shard!r}, {expected}")
    return kinds


def check_same_units(module: nn.Module, units: Sequence[Unit]) -> None:
    """Raise ValueError, on every rank, where a rank has other units, or layers, than rank 0."""
    layouts: list[Any] = [None] * dist.get_world_size()
    layers = [_form(name, layer) for name, layer in module.named_modules()]
    dist.all_gather_object(layouts, ([(repr(unit), unit.names) for unit in units], layers))
    for rank, (layout, forms) in enumerate(layouts):
        for there, here in itertools.zip_longest(forms, layouts[0][1], fillvalue="no further layer"):
            if there != here:
                raise ValueError(
                    f"rank {rank} has a different model from rank 0: it has {there} where rank 0 has {here}. Build the same "
                    "model on every rank"
                )
        if layout != layouts[0][0]:
            here, there = ([form for form, _ in each] for each in (layouts[0][0], layout))
            raise ValueError(
                f"rank {rank} has different units from rank 0: {there} where rank 0 has {here}. "
                "Give every rank the same shard and compute_dtype"
            )


def _form(name: str, layer: nn.Module) -> str:
    """Return what all ranks must have alike of a layer: its class, and of torch's its options."""
    kind = type(layer)
    options = layer.extra_repr() if kind.__module__.startswith("torch.nn.") else ""
    return f"{name or 'the model'}, a {kind.__qualname__}({options})"


def check_same_order(units: Sequence[Unit]) -> None:
    """Raise RuntimeError, on every rank, where ranks have used other layers than rank 0 in a pass.

    Those were gathered together, and mixed. One all_reduce of 16 bytes, for all of the pass.
    """
    if not units:
        return
    number = hash(tuple(unit.number for unit in units)) % 2**62
    highest = torch.tensor([number, -number], device=units[0].shard.device)
    dist.all_reduce(highest, dist.ReduceOp.MAX)
    if highest.sum() == 0:
        return
    orders: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(orders, [listed(unit.layers) for unit in units])
    for rank, order in enumerate(orders):
        for there, here in itertools.zip_longest(order, orders[0], fillvalue="no further layer"):
            if there != here:
                raise RuntimeError(
                    f"rank {rank} uses {there} where rank 0 uses {here}, and they were mixed, since layers are gathered from all "
                    "ranks together: have all ranks use the same layers, in the same order"
                )
