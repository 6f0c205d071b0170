"""Run the files of examples/ as a terminal would, compare losses, and count what a step holds."""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd
import torch
from torch import nn

from labkit.base.formats import MeasuredTable, fact, loss, say
from labkit.base.rendezvous import LOOPBACK_INTERFACE
from labkit.lab.kept_memory import kept_for_backward, local_part
from labkit.launch import device, launch
from labkit.trace import traffic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Training = tuple[nn.Module, torch.optim.Optimizer, torch.Tensor]
Wrap = Callable[[nn.Module], nn.Module]

MIB = 2**20
NAME_WIDTH = 40  # of an op in a table, so that it is as wide whatever took longest
ROUNDING = 2e-4  # losses are printed with four digits after the point
os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's profiler would print when it starts and stops
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


def stopped_and_resumed(path: str | os.PathLike[str]) -> str:
    """Run one epoch of a file, then the others from its checkpoint; return what both print."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = "--checkpoint", f"{folder}/digits.pt"
        return on_ranks(path, "--epochs", "1", *checkpoint) + on_ranks(path, *checkpoint)


def on_ranks_without(statement: str, path: Path) -> str:
    """Run a copy of a file in which ``statement`` does nothing, and return what rank 0 prints.

    Raises ValueError where the file does not have it once.
    """
    code = path.read_text(encoding="utf-8")
    if code.count(statement) != 1:
        raise ValueError(f"{path} has {statement!r} {code.count(statement)} times, expected once")
    with tempfile.TemporaryDirectory() as folder:
        broken = Path(folder) / path.name
        broken.write_text(code.replace(statement, "pass"), encoding="utf-8")
        return on_ranks(broken)


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
    same = first_difference(printed[rung], printed[before]) is None
    table = pd.DataFrame({f"rung {k}": losses(printed[k]) for k in (before, rung)})
    say(f"all {len(table)} losses agree up to rounding: {same}")
    return MeasuredTable(table.groupby("epoch").tail(1).map(loss))


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


# --- what a step holds, sends and takes -----------------------------------------------------------


def network() -> nn.Module:
    """Return a network of three layers, the same on every rank: the second has most parameters."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 16))


def training(wrap: Wrap, n_rows: int = 64) -> Training:
    """Return the network as ``wrap`` returns it, an optimizer for it, and rows to train on."""
    model = wrap(network().to(device()))
    return model, torch.optim.AdamW(model.parameters()), torch.ones(n_rows, 64, device=device())


def held_mib(step: Callable[..., object], wrap: Wrap, n_rows: int = 64, **options: Any) -> dict[str, float]:
    """Take a step; return the MiB that this rank then holds, and those kept for backward."""
    model, optimizer, rows = training(wrap, n_rows)
    with kept_for_backward(model.parameters()) as kept:
        step(model, optimizer, rows, **options)
    tensors: dict[str, list[Any]] = {
        "parameters": [*model.parameters()],
        "gradients": [parameter.grad for parameter in model.parameters()],
        "optimizer state": [each for one in optimizer.state.values() for each in one.values()],
    }
    held = {name: sum(local_part(each).nbytes for each in of) for name, of in tensors.items()}
    return {name: n_bytes / MIB for name, n_bytes in {**held, "kept for backward": kept.n_bytes}.items()}


def sent_mib(step: Callable[..., object], wrap: Wrap, steps: int = 3) -> float:
    """Return the MiB that this rank sends in a step, as the kernel counts them."""
    trained = training(wrap)
    for _ in range(2):
        step(*trained)  # these set up what the others use
    with traffic.observe() as seen:
        for _ in range(steps):
            step(*trained)
    return seen.sent_bytes / steps / MIB


class OpTime(NamedTuple):
    """An op in a profile: how often it ran, and ms, without and with the ops that it calls."""

    op: str
    calls: int
    own_ms: float
    all_ms: float


def times_of_ops(profiler: torch.profiler.profile) -> list[OpTime]:
    """Return a profiler's ops on the CPU."""
    return [
        OpTime(each.key, each.count, each.self_cpu_time_total / 1000, each.cpu_time_total / 1000)
        for each in profiler.key_averages()
    ]


def top_ops(ops: Sequence[OpTime], n: int = 9) -> MeasuredTable:
    """Return the ``n`` ops that take longest themselves, and those that start collectives."""
    by_time = sorted(ops, key=lambda op: op.own_ms, reverse=True)
    collectives = [op for op in by_time if op.op.startswith("c10d::")]
    others = [op for op in by_time if op not in collectives][:n]
    rows = {
        fact(op.op[:NAME_WIDTH], width=NAME_WIDTH): [fact(op.calls, width=4), op.own_ms, op.all_ms]
        for op in (*others, *collectives)
    }
    return MeasuredTable(rows, index=["calls", "own ms", "ms with what it calls"]).T


def steps_until_one_fails(model: nn.Module, rows: torch.Tensor, steps: int = 3) -> list[Any]:
    """Return how many backward passes go well, and what torch says of the one that does not."""
    for done in range(steps):
        try:
            model(rows).sum().backward()
        except RuntimeError as error:
            return [done, *re.findall(r"Expected[^.]*\.|Parameter indices[^\n]*", str(error))]
    return [steps, "no error"]
