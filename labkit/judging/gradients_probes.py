"""What runs in ranks to judge dp.3 and dp.4: the student's functions average a small model's gradients."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from labkit.check.calls import recorded
from labkit.judging.evidence import DP, attempt

BATCH = 12


def small_model() -> Any:
    """The same small model everywhere, in float64: two layers that learn, a frozen one, and one that is not used."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        model = torch.nn.ModuleDict(
            {name: torch.nn.Linear(4, 4) for name in ("first", "frozen", "unused", "last")}
        ).double()
    model["frozen"].requires_grad_(False)
    return model


def gradients(model: Any, rows: slice) -> None:
    """Put the gradients of the mean loss over some rows of the one batch into the model's parameters."""
    import torch

    generator = torch.Generator().manual_seed(11)
    inputs, targets = torch.randn(2, BATCH, 4, generator=generator, dtype=torch.float64)
    outputs = model["last"](torch.tanh(model["frozen"](model["first"](inputs[rows]))))
    torch.nn.functional.mse_loss(outputs, targets[rows]).backward()


def gradients_by_name(model: Any) -> dict[str, Any]:
    """Each parameter's gradient, or None, by the parameter's name."""
    return {name: None if p.grad is None else p.grad.detach().clone() for name, p in model.named_parameters()}


def probe_average_gradients() -> dict[str, Any]:
    """In each rank: the gradients of its shard of the batch, before and after average_gradients, and the same in groups."""
    from labkit import dp

    found = _averaged(dp.average_gradients)
    if "process_group" in inspect.signature(dp.average_gradients).parameters:  # an older answer has all ranks alone
        found["in groups"] = attempt(lambda: _averaged(in_groups(dp.average_gradients))["averaged"], DP)
    return found


def in_groups(average: Callable[..., object]) -> Callable[[Any], object]:
    """``average`` among the ranks of a group: 0 and 1 have one together, any other rank has one of its own."""
    import torch.distributed as dist

    rank, groups = dist.get_rank(), [[0, 1], *([other] for other in range(2, dist.get_world_size()))]
    (own,) = [made for made, ranks in [(dist.new_group(ranks), ranks) for ranks in groups] if rank in ranks]
    return lambda model: average(model, process_group=own)


def probe_gather_scatter() -> dict[str, Any]:
    """In each rank: the same with gather_scatter_gradients, what it called, and gradients that are not contiguous."""
    from labkit import dp

    with recorded() as calls:
        found = _averaged(dp.gather_scatter_gradients)
    return found | {
        "calls": [tuple(call) for call in calls],
        "transposed": attempt(lambda: _averaged(dp.gather_scatter_gradients, transpose=True)["averaged"], DP),
    }


def _averaged(average: Callable[[Any], object], transpose: bool = False) -> dict[str, Any]:
    import torch.distributed as dist

    model, size = small_model(), BATCH // dist.get_world_size()
    gradients(model, slice(dist.get_rank() * size, (dist.get_rank() + 1) * size))
    if transpose:
        for weight in (model["first"].weight, model["last"].weight):
            weight.grad = weight.grad.t().contiguous().t()  # the same numbers, column by column
    own = gradients_by_name(model)
    average(model)
    return {"own": own, "averaged": gradients_by_name(model), "weights": dict(model.state_dict())}
