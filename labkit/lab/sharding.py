"""Build what is sharded, and count what a step of it keeps and sends.

A ``way`` takes a model, and returns the model to train, its optimizer, and what to call after
backward; ``step`` is the notebook's, and takes these three and rows.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pandas as pd
import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from labkit.lab.living_bytes import living_bytes, plain_tensors
from labkit.lab.living_bytes import mib_after_each as mib_after_each
from labkit.lab.turns import Turns
from labkit.launch import Run, device
from labkit.parallel.emulated import Sleep
from labkit.trace import barrier, span, traffic

WIDTH, LAYERS, SLEEPING_LAYERS = 256, 8, 4
LAYER_BYTES = 4 * (WIDTH + 1) * WIDTH


def network() -> nn.Sequential:
    """Return the model that is sharded, on this rank's device: the same on every rank."""
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(LAYERS))).to(device())


def mlp() -> nn.Sequential:
    """Return an MLP of width 128, with 8 · width² weights: the same on every rank."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(128, 4 * 128), nn.ReLU(), nn.Linear(4 * 128, 128)).to(device())


def sleeping_network(forward_s: float) -> nn.Sequential:
    """Return layers that compute almost nothing, and sleep: twice as long in backward."""
    torch.manual_seed(0)
    return nn.Sequential(*(_SleepingLinear(forward_s, k) for k in range(SLEEPING_LAYERS))).to(device())


class _SleepingLinear(nn.Linear):
    """A layer that is there, all of it, while it sleeps: with a span around that."""

    def __init__(self, forward_s: float, number: int):
        super().__init__(WIDTH, WIDTH)
        self.sleep = _timed(Sleep(forward_s, 2 * forward_s), number)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.sleep(super().forward(x))
        return y


def _timed(layer: nn.Module, number: int) -> nn.Module:
    """Have the layer leave a span of its forward and of its backward pass."""
    open_spans: list[Any] = []

    def begin(name: str) -> Callable[..., None]:
        return lambda *_: open_spans.append(span(name, bucket=number).begin())

    def end(*_: Any) -> None:
        open_spans.pop().end()

    layer.register_forward_pre_hook(begin("forward"))
    layer.register_forward_hook(end)
    layer.register_full_backward_pre_hook(begin("backward"))
    layer.register_full_backward_hook(end)
    return layer


def own_rows(n_rows: int, width: int = WIDTH) -> torch.Tensor:
    """Return this rank's rows, which no other rank has."""
    torch.manual_seed(torch.distributed.get_rank())
    return torch.randn(n_rows, width).to(device())


def gathers(turns: Turns, *ways: str) -> dict[str, pd.DataFrame]:
    """Return, by way, the passes and the gathers of rank 0 in the median step."""
    shown = {way: turns.typical(way) for way in ways}
    names = ["forward", "backward", "all_gather"]
    return {way: step[(step["rank"] == 0) & step["name"].isin(names)] for way, step in shown.items()}


# --- bytes ----------------------------------------------------------------------------------------


def two_steps(step: Any, way: Any, n_rows: int = 128, device_mib: float = math.inf) -> pd.DataFrame:
    """Return what lives at every moment of two steps, on a device of so many MiB."""
    model, optimizer, sync = way(network())
    rows = own_rows(n_rows)
    with living_bytes(model, optimizer, device_mib) as counted:
        for _ in range(2):
            step(model, optimizer, sync, rows)
    return counted.moments


def sent_bytes(step: Any, way: Any) -> float:
    """Return the bytes that this rank sends in a step; NaN where the kernel does not count."""
    once = partial(step, *way(network()), own_rows(128))
    if not traffic.available():
        return math.nan
    barrier()
    with traffic.observe() as seen:
        once()
    return seen.sent_bytes


def peak_and_output(step: Any, way: Any) -> dict[str, float]:
    """Return the most MiB that all tensors take in a step, whatever for, and an output after it."""
    model, *others = way(network())
    rows = own_rows(128)
    with _StorageCount([*model.parameters()]) as counted:
        step(model, *others, rows)
    return {"peak, MiB": counted.peak_bytes / 2**20, "output after a step": model(torch.ones_like(rows)).sum().item()}


def travelling_mib(runs: Mapping[str, Run]) -> pd.DataFrame:
    """Return the MiB of the tensors that rank 0 takes part in sending in a step: a row per run.

    The runs are of :func:`two_steps`.
    """
    totals = {}
    for name, run in runs.items():
        events = run.events[(run.events["rank"] == 0) & run.events["name"].isin(["all_gather", "reduce_scatter"])]
        totals[name] = events.groupby("name")["bytes"].sum().astype(float) / 2 / 2**20
    return pd.DataFrame(totals).T.round(2).rename_axis(columns=None)


class _StorageCount(TorchDispatchMode):
    """Counts the bytes of all tensors' storages after each operation.

    A storage counts from the first operation that sees it until nobody keeps it. Memory that an
    operation takes and gives back by itself is not seen.
    """

    def __init__(self, tree: Any):
        super().__init__()
        self.peak_bytes = 0
        self._living: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._see(tree)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        self._see((args, kwargs, found))
        return found

    def _see(self, tree: Any) -> None:
        for tensor in plain_tensors(pytree.tree_leaves(tree)):
            seen = tensor.untyped_storage()
            self._living[seen._cdata] = weakref.ref(seen)
        living = [(key, storage) for key, ref in self._living.items() if (storage := ref()) is not None]
        self._living = {key: self._living[key] for key, _ in living}
        self.peak_bytes = max(self.peak_bytes, sum(storage.nbytes() for _, storage in living))
