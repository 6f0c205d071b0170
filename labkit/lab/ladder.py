"""Run the files of examples/ as a terminal would, compare losses, and count what FSDP2 saves."""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
import torch.distributed as dist
from torch import nn

from labkit.base.formats import MeasuredTable, loss, say
from labkit.base.rendezvous import LOOPBACK_INTERFACE
from labkit.launch import device, launch
from labkit.trace import traffic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROUNDING = 2e-4  # losses are printed with four digits after the point
_LINE = re.compile(r"epoch (\d+), step (\d+), loss ([\d.]+)")


def in_rank(path: str, *options: str) -> str:
    """Run a file on this rank, as a terminal would, and return what it prints."""
    sys.argv = [path, *options]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        runpy.run_path(path, run_name="__main__")
    return printed.getvalue()


def on_ranks(path: str | os.PathLike[str], *options: str, world_size: int = 2) -> str:
    """Run a file on ranks, as torchrun would, and return what rank 0 prints."""
    run = launch(in_rank, str(path), *options, world_size=world_size, compared_with=2, init=False)
    return str(run.values[0])


def in_terminal(*command: object) -> str:
    """Run ``python -m`` with these arguments and return what it prints.

    Its traffic stays on this machine. Raises CalledProcessError where it fails.
    """
    local = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": LOOPBACK_INTERFACE, "NCCL_SOCKET_IFNAME": LOOPBACK_INTERFACE}
    arguments = [sys.executable, "-m", *map(str, command)]
    return subprocess.run(arguments, env=os.environ | local, capture_output=True, text=True, check=True).stdout


def losses(printed: str) -> pd.Series:
    """Return the losses that a file of the ladder has printed, by epoch and step."""
    table = pd.DataFrame(_LINE.findall(printed), columns=["epoch", "step", "loss"])
    return table.astype({"epoch": int, "step": int, "loss": float}).set_index(["epoch", "step"])["loss"]


def first_difference(printed: str, other: str) -> int | None:
    """Return the first epoch in which two files have printed other losses; None if they agree.

    Raises ValueError where they have not printed losses of the same steps.
    """
    ours, theirs = losses(printed), losses(other)
    if ours.empty or not ours.index.equals(theirs.index):
        raise ValueError(f"{len(ours)} losses and {len(theirs)}, expected those of the same steps")
    apart = ours.index[(ours - theirs).abs() > ROUNDING]
    return int(apart[0][0]) if len(apart) else None


def beside(printed: Mapping[int, str], rung: int, before: int) -> MeasuredTable:
    """Return the losses of two rungs at the end of each epoch, and say whether all agree."""
    agree = first_difference(printed[rung], printed[before]) is None
    table = pd.DataFrame({f"rung {k}": losses(printed[k]) for k in (before, rung)})
    say(f"all {len(table)} losses agree up to rounding: {agree}")
    return MeasuredTable(table.groupby("epoch").tail(1).map(loss))


def shown(printed: str) -> str:
    """Return what a file has printed, with its losses as a notebook shows them."""
    return re.sub(r"loss ([\d.]+)", lambda found: f"loss {loss(float(found[1]))}", printed.rstrip())


def draw_losses(printed: Mapping[int | str, str]) -> Axes:
    """Draw the losses of rungs over steps; the last one, which a reader has broken, is dotted."""
    from labkit.draw import charts  # here, because every rank imports this module

    table = pd.concat({f"rung {k}": losses(text) for k, text in printed.items()}, names=["rung"]).rename("loss")
    table = table.reset_index()
    table["steps so far"] = table.step.max() * (table.epoch - 1) + table.step
    ends, label = table.groupby("epoch")["steps so far"].max(), "steps; an epoch ends at each tick"
    ax = charts.curve(table, x="steps so far", y="loss", series="rung", log="y", ticks=[*ends], x_label=label)
    ax.set_yticks([0.1, 0.2, 0.5, 1, 2], labels=["0.1", "0.2", "0.5", "1", "2"])
    ax.lines[-1].set_linestyle(":")
    return ax


# --- what splitting saves and costs ---------------------------------------------------------------


def network() -> nn.Module:
    """Return a network of three layers, most of its parameters in the second."""
    return nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 16))


def shard(model: nn.Module) -> nn.Module:
    """Return a model that FSDP2 has split over all ranks, layer by layer."""
    from torch.distributed.fsdp import fully_shard  # loads much

    mesh = dist.init_device_mesh(device().type, (dist.get_world_size(),))
    for part in (*(layer for layer in model.children() if isinstance(layer, nn.Linear)), model):
        fully_shard(part, mesh=mesh)
    return model


def _train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(8, 64, device=device())).sum().backward()
        optimizer.step()


def held_mib(wrap: Callable[[nn.Module], nn.Module]) -> pd.Series:
    """Return the MiB of parameters, gradients and optimizer state on this rank after a step."""
    model = wrap(network().to(device()))
    optimizer = torch.optim.AdamW(model.parameters())
    _train(model, optimizer, steps=1)
    kept: dict[str, list[Any]] = {"parameters": [*model.parameters()]}
    kept["gradients"] = [parameter.grad for parameter in model.parameters()]
    kept["optimizer state"] = [each for one in optimizer.state.values() for each in one.values()]
    return pd.Series({name: sum(_local(each).nbytes for each in tensors) for name, tensors in kept.items()}) / 2**20


def _local(tensor: Any) -> torch.Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor  # FSDP2's tensors are a part here


def sent_mib(wrap: Callable[[nn.Module], nn.Module], steps: int = 3) -> float:
    """Return the MiB that this rank sends in a step, as the kernel counts them."""
    model = wrap(network().to(device()))
    optimizer = torch.optim.AdamW(model.parameters())
    _train(model, optimizer, steps=2)  # these set up what the others use
    with traffic.observe() as seen:
        _train(model, optimizer, steps)
    return seen.sent_bytes / steps / 2**20


def steps_until_one_fails(model: nn.Module, rows: torch.Tensor, steps: int = 3) -> list[Any]:
    """Return how many backward passes go well, and what torch says of the one that does not."""
    for done in range(steps):
        try:
            model(rows).sum().backward()
        except RuntimeError as error:
            return [done, *re.findall(r"Expected[^.]*\.|Parameter indices[^\n]*", str(error))]
    return [steps, "no error"]
