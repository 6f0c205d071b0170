"""Given code under ShardedModel: hooks that say when a unit is needed, and when its gradients are
ready."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.autograd.graph import register_multi_grad_hook
from torch.utils import _pytree as pytree

from labkit.parallel.shard.piece import refuse_use
from labkit.parallel.shard.unit import Unit


class GatherOrder:
    """Tells which unit is next: the one that was, while all goes as it did in the last pass.

    Without ``prefetch`` it tells of none. ``now`` are the units of this pass up to now, in order.
    """

    def __init__(self, prefetch: bool) -> None:
        self._prefetch = prefetch
        self._last: list[Unit] = []
        self.now: list[Unit] = []

    def begin(self) -> None:
        """Begin a pass, forward and backward; one that needed nothing does not count."""
        self._last, self.now = self.now or self._last, []

    def after(self, unit: Unit) -> Unit | None:
        """Note that ``unit`` is needed now. Return the next one, None where it is not known."""
        self.now.append(unit)
        as_before = self._last[: len(self.now)] == self.now
        known = self._prefetch and as_before and len(self.now) < len(self._last)
        return self._last[len(self.now)] if known else None


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


def listen(units: Sequence[Unit], replicated: Sequence[nn.Parameter], hooks: Hooks) -> list[Any]:
    """Have the layers and autograd call ``hooks``. Return the handles."""
    handles: list[Any] = []
    for unit in units:
        for name, layer in unit.layers.items():
            before, after = partial(_before_forward, unit, name, hooks), partial(_after_forward, unit, hooks)
            handles.append(layer.register_load_state_dict_pre_hook(_before_load))
            handles.append(layer.register_forward_pre_hook(before, with_kwargs=True, prepend=True))
            handles.append(layer.register_forward_hook(after, always_call=True))
        for position in sorted(unit.missing):
            hook = partial(_is_ready, unit, position, hooks)
            handles.append(unit.parameters[position].register_post_accumulate_grad_hook(hook))
    return handles + [each.register_post_accumulate_grad_hook(lambda _: hooks.ran()) for each in replicated]


def _before_load(layer: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Refuse whole parameters, before any of the layer's is loaded."""
    for name, piece in layer.named_parameters(prefix.removesuffix(".")):
        given = state.get(name)
        if isinstance(given, torch.Tensor) and given.shape != piece.shape:
            raise RuntimeError(
                f"{name} is {tuple(given.shape)} in the state to load, and {tuple(piece.shape)} here, as this rank's piece "
                "of a ShardedModel's: load its own state_dict(), or load a plain one into the plain model and shard that"
            )


def _check_given(unit: Unit, name: str, layer: nn.Module) -> None:
    """Raise RuntimeError where functional_call gives the layer pieces: those are not gathered."""
    others = [each for each in layer.named_parameters(name) if not isinstance(each[1], nn.Parameter)]
    shapes = dict(zip(unit.names, unit.shapes, strict=True)) if others else {}
    for own, given in others:
        if given.shape != shapes.get(own, given.shape):
            raise RuntimeError(
                f"functional_call gives {own} of a ShardedModel as {tuple(given.shape)}, as pieces are, and it takes whole "
                "parameters: make them of full_parameters()"
            )


def _before_forward(unit: Unit, name: str, hooks: Hooks, layer: nn.Module, *inputs: Any) -> Any:
    """Gather before ``layer(*args, **options)``; ``inputs`` are the two, args and options."""
    _need(unit, hooks)
    _check_given(unit, name, layer)
    tracked = [x for x in _tensors(inputs) if x.requires_grad and torch.is_grad_enabled()]
    frozen = not any(each.requires_grad for each in unit.parameters)  # no gradient of its own ends its backward pass
    if tracked and frozen:
        register_multi_grad_hook(tracked, partial(_let_go, unit, hooks))
    if unit.full.dtype == unit.shard.dtype:
        return inputs
    return pytree.tree_map(lambda x: x.to(unit.full.dtype) if _is_float(x) else x, inputs)


def _after_forward(unit: Unit, hooks: Hooks, layer: nn.Module, inputs: Any, outputs: Any) -> Any:
    if any(_is_part(y, unit) for y in _tensors(outputs)):  # its memory goes
        outputs = pytree.tree_map(lambda y: y.clone() if _is_part(y, unit) else y, outputs)
    if unit.is_full and not unit.in_backward:
        unit.check_unchanged()
        hooks.let_go(unit)
    found = _tensors(outputs)
    if outputs is not None and not found and torch.is_grad_enabled():
        raise TypeError(
            f"{type(layer).__name__} returned a {type(outputs).__name__}, in which no tensor was found, "
            "so its weights would not be there in the backward pass: "
            "have it return tensors, in tuples, lists or dicts, or shard another layer"
        )
    for y in found:
        if y.requires_grad:  # its hook is called before the layer's backward pass
            y.register_hook(lambda _: _backward_begins(unit, hooks))
    return outputs


def _backward_begins(unit: Unit, hooks: Hooks) -> None:
    if torch.is_grad_enabled():
        raise RuntimeError(
            f"backward of {' and '.join(unit.layers)} with create_graph=True: the gradient through a ShardedModel cannot be "
            "differentiated again, since weights are let go after each pass. Use the plain model for second derivatives"
        )
    _need(unit, hooks)
    if not unit.in_backward:
        unit.reset()  # what is frozen now may not have been in the last pass
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
                f"_gather returned {unit.arriving!r}, expected the work to wait for: "
                "what all_gather_into_tensor returns with async_op=True"
            )
        unit.arriving.get_future().then(lambda _: timing.end())


def _let_go(unit: Unit, hooks: Hooks, _: Sequence[torch.Tensor | None]) -> None:
    unit.in_backward = False
    hooks.let_go(unit)


def _is_ready(unit: Unit, position: int, hooks: Hooks, _: torch.Tensor) -> None:
    if not unit.is_full:
        refuse_use(unit.parameters[position])
    hooks.ran()
    unit.missing.discard(position)
    if not unit.missing:
        hooks.send(unit)


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _is_part(y: Any, unit: Unit) -> bool:
    """Return whether ``y`` lies in the unit's memory, as a view of a weight does."""
    dense = isinstance(y, torch.Tensor) and y.layout is torch.strided
    return dense and y.untyped_storage().data_ptr() == unit.full.untyped_storage().data_ptr()


def _is_float(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.is_floating_point()
