"""Find layers that take the rows of a batch for a sequence: those must not be cut.

Attention and recurrent layers have a dimension for the sequence, and ``batch_first`` says which. A
stage that gives them rows there, as nn.TransformerEncoderLayer does by default with a batch whose
rows are dimension 0, is right for the whole batch and wrong for a micro-batch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from labkit.parallel.devices import real_device
from labkit.parallel.pipe.side_effects import without_side_effects


def check_sequence_layers(
    stages: Iterable[nn.Module], devices: Sequence[torch.device], x: torch.Tensor, first: int = 0
) -> None:
    """Run ``stages``, one after the other, with the rows of ``x`` and with one more, and compare.

    ``first`` is the number of the first one. Raises ValueError for a layer with ``batch_first``
    whose sequence then has another length. It leaves no trace. Without such layers nothing is run,
    and stages that fail are not judged.
    """
    stages = list(stages)
    layers = {
        layer: f"layer {name!r} of stage {number}, a {type(layer).__name__}"
        for number, stage in enumerate(stages, first)
        for name, layer in stage.named_modules()
        if isinstance(getattr(layer, "batch_first", None), bool)
    }
    if not layers or any(is_lazy(parameter) for stage in stages for parameter in stage.parameters()):
        return
    places = [real_device(device) for device in devices]
    shapes: list[list[tuple[nn.Module, torch.Size]]] = []
    with contextlib.suppress(Exception), without_side_effects(places):
        for rows in (x, torch.cat([x, x[-1:]])):
            shapes.append([])
            with _noting(layers, shapes[-1]):
                y = rows.detach().clone()
                for stage, place in zip(stages, places, strict=True):
                    y = stage(y.to(place))
    if len(shapes) == 2:
        for (layer, shape), (_, longer) in zip(*shapes, strict=False):
            _check(layer, layers[layer], shape, longer)


@contextlib.contextmanager
def _noting(layers: dict[nn.Module, str], shapes: list[tuple[nn.Module, torch.Size]]) -> Iterator[None]:
    """Add to ``shapes`` what each of ``layers`` is given in the block."""

    def note(layer: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        given = [value for value in (*inputs, *named.values()) if isinstance(value, torch.Tensor)]
        shapes.extend((layer, value.shape) for value in given[:1])

    hooks = [layer.register_forward_pre_hook(note, with_kwargs=True) for layer in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _check(layer: nn.Module, name: str, shape: torch.Size, longer: torch.Size) -> None:
    if not len(longer) == len(shape) in (2, 3):
        return
    sequence = 1 if layer.batch_first and len(shape) == 3 else 0
    if longer[sequence] != shape[sequence]:
        instead = (
            "make it with batch_first=True" if len(shape) == 3 and not sequence else "give it the rows as its batch"
        )
        raise ValueError(
            f"{name} with batch_first={layer.batch_first}, was given {tuple(shape)}, of which it takes dimension {sequence} "
            f"for the sequence, and there are the rows, which are cut into micro-batches: {instead}, or transpose before "
            "and after it, inside the stage, so that the rows are its batch"
        )
