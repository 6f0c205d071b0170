"""Run the files of examples/ as a terminal would, and compare the losses that they print."""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

import pandas as pd

from labkit.base.formats import MeasuredTable, loss, say
from labkit.base.rendezvous import LOOPBACK_INTERFACE
from labkit.launch import launch

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
    """Draw the losses of each rung over steps, with ever smaller rings, so that equal ones show.

    The last one, which a reader has broken, is dotted.
    """
    from labkit.draw import charts  # here, because every rank imports this module

    table = pd.concat({f"rung {k}": losses(text) for k, text in printed.items()}, names=["rung"]).rename("loss")
    table = table.reset_index()
    table["steps so far"] = table.step.max() * (table.epoch - 1) + table.step
    ax = charts.curve(table, x="steps so far", y="loss", series="rung", log="y")
    for i, line in enumerate(ax.lines):
        line.set(markersize=max(2, 17 - 3 * i), markerfacecolor="none")
    ax.lines[-1].set(color="#222222", linestyle=":", markersize=6)
    ax.set_yticks([0.1, 0.2, 0.5, 1, 2], labels=["0.1", "0.2", "0.5", "1", "2"])
    # Anew, as the lines have changed.
    ax.legend(loc="upper left", bbox_to_anchor=(1.005, 1.0), labelspacing=1, frameon=False)
    return ax
