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
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
from torch import nn

from labkit.base.formats import MeasuredTable, loss, say
from labkit.base.rendezvous import LOOPBACK_INTERFACE
from labkit.base.units import MIB
from labkit.lab.kept_memory import local_part
from labkit.launch import device, launch

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Training = tuple[nn.Module, torch.optim.Optimizer, torch.Tensor]
Wrap = Callable[[nn.Module], nn.Module]

ROUNDING = 2e-4  # losses are printed with four digits after the point
os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's profiler would print when it starts and stops
_COMMUNICATES = "^gloo:|nccl"
_LINE = re.compile(r"epoch (\d+), step (\d+), loss ([\d.]+)")


def in_rank(path: str | os.PathLike[str], *options: str) -> str:
    """Run a file on this rank, as a terminal would, and return what it prints."""
    sys.argv = [os.fspath(path), *options]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        runpy.run_path(os.fspath(path), run_name="__main__")
    return printed.getvalue()


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
        return str(launch(in_rank, broken, init=False).values[0])


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
    differ = ours.index[(ours - theirs).abs() > ROUNDING]
    return int(differ[0][0]) if len(differ) else None


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


def blocks_and_rows(n_rows: int) -> tuple[nn.Sequential, torch.Tensor]:
    """Return four blocks of two layers, and rows for the first: the same on every rank."""
    torch.manual_seed(0)
    blocks = (nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256)) for _ in range(4))
    return nn.Sequential(*blocks).to(device()), torch.randn(n_rows, 256, device=device())


def held_mib(step: Callable[..., object], wrap: Wrap) -> dict[str, float]:
    """Take a step, and return the MiB that this rank holds after it, by what they are."""
    model, optimizer, rows = training(wrap)
    step(model, optimizer, rows)
    tensors: dict[str, list[Any]] = {
        "parameters": [*model.parameters()],
        "gradients": [parameter.grad for parameter in model.parameters()],
        "optimizer state": [each for one in optimizer.state.values() for each in one.values()],
    }
    return {name: sum(local_part(each).nbytes for each in of) / MIB for name, of in tensors.items()}


# --- what torch's profiler says -------------------------------------------------------------------


def ops_of(profiler: torch.profiler.profile) -> pd.DataFrame:
    """Return the ops that a profiler has recorded: where each ran, and from when to when."""
    rows = [
        (op.name, op.device_type.name, op.time_range.start / 1000, op.time_range.end / 1000) for op in profiler.events()
    ]
    return pd.DataFrame(rows, columns=["op", "device", "start_ms", "end_ms"])


def communication(ops: pd.DataFrame) -> MeasuredTable:
    """Return the ms of each step in a profile, and in how many per cent of them it communicates.

    A step ends with ``profiler.step()``. *Exposed* is the time in which gloo or NCCL is at work and
    no other op is: on the GPU where there is one, whose kernels the CPU does not wait for.
    """
    named = ops["op"].str.startswith("ProfilerStep")
    steps = ops[named & (ops["device"] == "CPU")]
    ops = ops[~named & (ops["device"] == ops["device"].max())]  # CUDA comes after CPU
    sends = ops["op"].str.contains(_COMMUNICATES)
    rows = []
    for begin, end in zip(steps["start_ms"], steps["end_ms"], strict=True):
        together, alone, others = (_covered(part, begin, end) for part in (ops, ops[sends], ops[~sends]))
        rows.append([end - begin, *(100 * ms / (end - begin) for ms in (alone, together - others))])
    columns = ["step, ms", "communication, %", "of it exposed, % of the step"]
    return MeasuredTable(rows, columns=columns, index=pd.RangeIndex(1, len(rows) + 1, name="step"))


def _covered(ops: pd.DataFrame, begin: float, end: float) -> float:
    """Return for how long at least one of these ops runs between two times."""
    total = 0.0
    for start, stop in sorted(zip(ops["start_ms"], ops["end_ms"], strict=True)):
        total += max(0.0, min(stop, end) - max(start, begin))
        begin = max(begin, stop)
    return total


def said_of_unused(error: RuntimeError) -> list[str]:
    """Return what DDP says first of parameters without a gradient, and which these are."""
    return re.findall(r"Expected[^.]*\.|Parameter indices[^\n]*", str(error))
