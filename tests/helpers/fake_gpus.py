"""Stand-ins for torch.cuda: GPUs whose clocks the test moves, for what is timed and what waits."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from labkit.trace import gpu_time, spans


class FakeGpus:
    """Two GPUs, on which all is done as soon as it is queued.

    Each has a clock of its own, which loses ``slow`` seconds per second against the CPU's. That one
    moves when the test says :meth:`sleep`. ``events`` has the number of the GPU of each event,
    ``waited`` of each synchronize. As CUDA has it, a new thread's current device is 0.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, slow: float = 0.0):
        self.now_ns, self.slow, self._current = 10**12, slow, threading.local()
        self.in_use: set[int] = set()
        self.events: list[int] = []
        self.waited: list[int] = []
        gpus, clock = self, lambda: self.now_ns

        class Stream:
            def __init__(self, device: Any = None, priority: int = 0):
                self.device = gpus.device_of(device)

        class Event:
            def __init__(self, enable_timing: bool = False):
                assert enable_timing

            def record(self, stream: Stream | None = None) -> None:
                self.device = stream.device if stream else gpus.device_of(None)
                self.ms = (gpus.now_ns * (1 - gpus.slow)) / 1e6 + 1e6 * self.device.index
                gpus.events.append(self.device.index)

            def synchronize(self) -> None:
                pass

            def elapsed_time(self, end: Event) -> float:
                assert self.device == end.device, "events of two GPUs"
                return end.ms - self.ms

        fakes = {"Stream": Stream, "current_stream": Stream, "Event": Event, "device": self.device}
        fakes |= {"current_device": self.current_device, "synchronize": self.synchronize}
        fakes |= {"is_initialized": lambda: True, "is_available": lambda: True, "device_count": lambda: 2}
        for name, fake in fakes.items():
            monkeypatch.setattr(torch.cuda, name, fake)
        monkeypatch.setattr(torch._C, "_cuda_hasPrimaryContext", self.has_context, raising=False)
        monkeypatch.setattr(spans, "_clock", clock)
        monkeypatch.setattr(gpu_time, "_clock", clock)

    def sleep(self, seconds: float) -> None:
        self.now_ns += round(1e9 * seconds)

    def has_context(self, number: int) -> bool:
        return number in self.in_use

    def current_device(self) -> int:
        return getattr(self._current, "number", 0)

    def device_of(self, device: Any) -> torch.device:
        given = torch.device("cuda", self.current_device()) if device is None else torch.device(device)
        return given if given.index is not None else torch.device("cuda", self.current_device())

    @contextlib.contextmanager
    def device(self, device: Any) -> Iterator[None]:
        before, self._current.number = self.current_device(), torch.device("cuda", device).index
        yield
        self._current.number = before

    def synchronize(self, device: Any = None) -> None:
        number = device if isinstance(device, int) else self.device_of(device).index
        self.waited.append(number)
