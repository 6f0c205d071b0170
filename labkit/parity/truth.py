"""Plain torch on one rank: the whole batch, or its parts in turn. No wrapper of the lab is here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils import _pytree as pytree

from labkit.parity.judge import Tolerance
from labkit.parity.record import Record, copies, write
from labkit.parity.training import DRAWS, Batch, Cut, Training, call, draws, restore, rows_of, seed


class Facts(NamedTuple):
    """What plain torch has shown of a training: the dtype it runs in, and what sets rows apart.

    ``refused`` says why nothing can be compared, ``draws`` whether the module draws random numbers.
    """

    refused: str = ""
    dtype: torch.dtype | None = None
    tolerance: Tolerance = Tolerance(torch.float32, 1)
    draws: bool = False
    batch_norm: bool = False


def find_truth(training: Training, cuts: list[Cut], n_stages: int, folder: Path) -> Facts:
    """Check the training, then write the records of each cut. Runs on one rank."""
    if refused := _check_build(training):
        return Facts(refused)
    training = _in_a_dtype(training)
    facts = _facts(training, n_stages)
    for number, cut in enumerate(cuts if not facts.refused else []):
        (folder / str(number)).mkdir()
        if step := _train(training, cut, folder / str(number)):
            return facts._replace(
                refused=f"in plain torch a gradient or the loss is not finite at step {step}: take a smaller lr"
            )
    return facts


def _train(training: Training, cut: Cut, folder: Path) -> int:
    """Train, and write records. Return the step at which numbers were not finite, otherwise 0."""
    module = training.module()
    optimizer, named = training.optimizer(module.parameters()), dict(module.named_parameters())
    assert optimizer is not None
    write(folder, 0, 0, Record(None, {}, copies(named)))
    drawn = [_seeded(DRAWS + part) for part in range(cut.n if cut.draws else 1)]
    for step in range(len(training.batches)):
        optimizer.zero_grad()
        loss = _gradients(training, module, cut, training.batch(step), drawn)
        gradients = copies({name: parameter.grad for name, parameter in named.items()})
        if not all(torch.isfinite(each).all() for each in [torch.tensor(loss), *gradients.values()]):
            return step + 1
        optimizer.step()
        write(folder, 0, step + 1, Record(loss, gradients, copies(named)))
    return 0


def _gradients(training: Training, module: nn.Module, cut: Cut, batch: Batch, drawn: list[bytes]) -> float:
    """Add up the gradients of the parts of a batch, weighted. Return the loss."""
    parts, loss = cut.parts(batch), 0.0
    if cut.mean == "batch":
        restore(drawn[0])
        outputs = [training.taken(call(module, inputs)) for inputs, _ in parts]
        joined = training.loss_of(torch.cat(outputs), batch[1])
        joined.backward()
        drawn[0] = draws()
        return joined.item()
    for i, (part, weight) in enumerate(zip(parts, cut.weights(rows_of(batch)), strict=True)):
        restore(drawn[i % len(drawn)])
        part_loss = training.loss_of(call(module, part[0]), part[1]) * weight
        part_loss.backward()
        drawn[i % len(drawn)] = draws()
        loss += part_loss.item()
    return loss


def _seeded(number: int) -> bytes:
    seed(number)
    return draws()


# --- what is asked of a training before it is compared --------------------------------------------


def _check_build(training: Training) -> str:
    first, second = training.module(), training.module()
    for module in (first, second):
        if not isinstance(module, nn.Module):
            return f"build returned a {type(module).__name__}, expected an nn.Module"
    if {*first.parameters()} & {*second.parameters()}:
        return (
            "build returned a module twice, or parameters of the one before: every training needs weights of its own, "
            "so make the module inside build, or return copy.deepcopy(module)"
        )
    one, other = first.state_dict(), second.state_dict()
    for name in [*one, *other]:
        if name not in one or name not in other or not _equal(one[name], other[name]):
            return (
                f"two builds of one seed differ in {name}: draw weights from the generators of torch, numpy and random, "
                "which are seeded before each build"
            )
    if not any(parameter.requires_grad for parameter in first.parameters()):
        return "no parameter of the module requires a gradient, so there is nothing to train"
    return ""


def _equal(a: Any, b: Any) -> bool:
    if not isinstance(a, torch.Tensor):
        return bool(a == b)
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(torch.nan_to_num(a), torch.nan_to_num(b))


def _in_a_dtype(training: Training) -> Training:
    """Return the training in float64 if none was asked for and it can run in that."""
    if training.dtype is not None:
        return training
    converted = replace(training, dtype=torch.float64)
    try:
        module = converted.module()
        loss = converted.backward(module, *converted.batch(0))
        return converted if loss.dtype == torch.float64 else training
    except Exception:  # some part of it insists on the dtype that it has
        return training


def _facts(training: Training, n_stages: int) -> Facts:
    module = training.module()
    before = _seeded(DRAWS)
    batch = training.batch(0)
    loss = training.loss_of(call(module, batch[0]), batch[1])
    refused = _check_loss(loss)
    if not refused:
        loss.backward()
        refused = _check_stages(training, module, n_stages) if n_stages else ""
    numbers = [leaf.numel() for leaf in pytree.tree_leaves(batch) if isinstance(leaf, torch.Tensor)]
    widths = [max(parameter.shape, default=1) for parameter in module.parameters()]
    return Facts(
        refused,
        training.dtype,
        Tolerance(next(module.parameters()).dtype, max(numbers) + max(widths)),
        before != draws(),
        any(isinstance(each, nn.modules.batchnorm._BatchNorm) and each.training for each in module.modules()),
    )


def _check_loss(loss: Any) -> str:
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        given = (
            f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else f"a {type(loss).__name__}"
        )
        return f"loss returned {given}, expected a tensor with one number, such as a mean over rows"
    if not loss.requires_grad:
        return "the loss depends on no parameter that trains: compute it without detach, item and torch.no_grad"
    return ""


def _check_stages(training: Training, module: nn.Module, n_stages: int) -> str:
    if training.stages is None and not isinstance(module, nn.Sequential):
        return f"a pipeline needs stages, and the module is a {type(module).__name__}: give stages=, a function of the module"
    stages = training.cut(module)
    for stage in stages:
        if not isinstance(stage, nn.Module):
            return f"stages has a {type(stage).__name__} in it, expected modules in the order in which they run"
    if len(stages) < n_stages:
        return f"there are {len(stages)} modules to make {n_stages} stages of: have stages return more of them"
    own = {*module.parameters()}
    inside = {parameter: name for stage in stages for name, parameter in stage.named_parameters()}
    if strange := [name for parameter, name in inside.items() if parameter not in own]:
        return (
            f"stages are not the module's: their {strange[0]} is not a Parameter of it. Return modules that share "
            "its Parameters, not copies"
        )
    used = {name: p for name, p in module.named_parameters() if p.grad is not None}
    if missing := [name for name, parameter in used.items() if parameter not in inside]:
        return f"stages leave out {missing[0]}, which the module trains: return all modules, in the order in which they run"
    return ""
