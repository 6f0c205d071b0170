"""What all that waits for a GPU shares: where ranks run, a place for what is found out, and the
skip where there is no GPU. The folders tests/gpu and benchmarks/gpu import it in their conftest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from labkit.base.machine import usable_gpus
from labkit.launch import Run, WarmRanks, launch, workers
from labkit.ranks.notebook.cells import Ranks
from labkit.ranks.processes.plan import decide


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    waiting = [item for item in items if item.get_closest_marker("gpu")]
    for item in waiting if waiting and not usable_gpus() else []:
        if not (config.getoption("rehearse", False) and "rig" in getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU"))


class Rig(NamedTuple):
    """Where the ranks of a test run: on GPUs over NCCL, two and more share one; or, as a rehearsal,
    on CPUs over gloo."""

    backend: str
    device: str

    @property
    def on_gpu(self) -> bool:
        return self.backend == "nccl"

    def launch(self, fn: Callable[..., Any], *args: Any, **options: Any) -> Run:
        return launch(fn, *args, **{"backend": self.backend, "share_gpu": self.on_gpu, "timeout_s": 60} | options)

    def workers(self, world_size: int = 2, **options: Any) -> WarmRanks:
        return workers(world_size, **{"backend": self.backend, "share_gpu": self.on_gpu, "timeout_s": 60} | options)

    def cells(self, world_size: int = 2) -> Ranks:
        return Ranks(decide(world_size, self.backend, timeout_s=60.0, share_gpu=self.on_gpu))


@pytest.fixture(scope="session")
def rig(pytestconfig: pytest.Config) -> Rig:
    """A test that takes it can be rehearsed (benchmarks/on_gpu.py --rehearse)."""
    return Rig("gloo", "cpu") if pytestconfig.getoption("rehearse", False) else Rig("nccl", "cuda:0")


@pytest.fixture
def measured(record_property: Callable[[str, object], None]) -> Callable[[str, float, str], None]:
    """measured(what, value, unit): a number for benchmarks/RESULTS.md. benchmarks/on_gpu.py
    collects them."""

    def note(what: str, value: float, unit: str) -> None:
        record_property("measured", {"what": what, "value": float(value), "unit": unit})

    return note


@pytest.fixture
def noted(record_property: Callable[[str, object], None]) -> Callable[[str, object], None]:
    """noted(what, text): a fact that is no number, and no claim."""

    def note(what: str, text: object) -> None:
        record_property("fact", (what, str(text)))

    return note
