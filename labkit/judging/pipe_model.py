"""The small stages on which pipe.3 is tried: they note what they are given, wait for each other or fail, as they are told."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch import nn

from labkit.judging.pipe_probes import described

MEET_S = 1.5  # those who run at the same time meet within this time, on a busy machine too
SLOW_S = 0.2  # how long a slow stage takes
TOLD_TO_FAIL = "this partition was told to fail"
FIRST = 5  # the value of micro-batch 0 as it comes; each partition appends a digit to it


class Call(NamedTuple):
    """One call of a stage: the stage's number, what it was given in words (see :func:`history`), and where it ran.

    ``thread`` is the number of the thread, by the order in which threads came; 0 is the one that calls the pipeline.
    """

    stage: int
    given: str
    rows: int
    device: str
    thread: int


class Notes:
    """What the stages of one pipeline note, and what they are told. Made in the thread that calls the pipeline."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.missed: list[int] = []  # clocks whose stages did not run at the same time
        self.running = 0  # calls of stages that are slow, and have not come to their end
        self._failing: int | None = None
        self._slow: int | None = None
        self._slow_one_runs = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.current_thread()]  # all that there were, so that none is taken for another one
        self._meetings: dict[tuple[int, int], tuple[int, threading.Barrier]] = {}  # by stage and number of its call

    def anew(self, *clocks: list[int]) -> None:
        """Forget the calls. From now on, the stages of a clock wait for each other; each clock lists its stages."""
        self.calls, self.missed, self._meetings = [], [], {}
        times: Counter[int] = Counter()
        for number, stages in enumerate(clocks):
            barrier = threading.Barrier(len(stages))
            for stage in stages:
                self._meetings[stage, times[stage]] = (number, barrier)
                times[stage] += 1

    def fail(self, stage: int | None, slow: int | None = None) -> None:
        """From now on this stage raises, once the slow one, if there is one, is running; or none does any more."""
        self._failing, self._slow = stage, slow
        self._slow_one_runs.clear()

    def note(self, stage: int, x: Any) -> None:
        """What a stage does at the start of its forward."""
        earlier = sum(call.stage == stage for call in self.calls)
        self.calls.append(Call(stage, history(x), len(x), x.device.type, self._thread()))
        if self._failing == stage:
            if self._slow is not None:
                self._slow_one_runs.wait(SLOW_S)
            raise ValueError(TOLD_TO_FAIL)
        if self._slow == stage:
            self.running += 1
            self._slow_one_runs.set()
            time.sleep(SLOW_S)
            self.running -= 1
        clock, barrier = self._meetings.get((stage, earlier), (0, None))
        if barrier and not self.missed:
            with suppress(threading.BrokenBarrierError):
                barrier.wait(MEET_S)
                return
            self.missed.append(clock)

    def _thread(self) -> int:
        thread = threading.current_thread()
        with self._lock:
            if thread not in self._threads:
                self._threads.append(thread)
            return self._threads.index(thread)


class Digit(nn.Module):
    """A stage that appends its digit, 1 for stage 0, so that a value tells which stages have made it, in which order."""

    def __init__(self, stage: int, notes: Notes):
        super().__init__()
        self.stage, self.notes = stage, notes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.notes.note(self.stage, x)
        return 10 * x + self.stage + 1


class Layer(nn.Module):
    """A stage with parameters: the rows stay apart, so a micro-batch's result is that of its rows in the whole batch."""

    def __init__(self, stage: int, notes: Notes, inputs: int, outputs: int, device: str = "cpu"):
        super().__init__()
        self.stage, self.notes = stage, notes
        weight = torch.randn(inputs, outputs, dtype=torch.float64, generator=torch.Generator().manual_seed(stage))
        self.weight = nn.Parameter(weight.to(device))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.notes.note(self.stage, x)
        return torch.tanh(x @ self.weight)


class Uneven(nn.Module):
    """A stage that gives another dtype for rows whose sum is positive."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.double() if x.sum() > 0 else x.float()


def micro_batch(number: int, partitions: Sequence[int] = ()) -> torch.Tensor:
    """Micro-batch ``number`` for stages that are a :class:`Digit`, as it is after these partitions."""
    digits = [FIRST + number, *(partition + 1 for partition in partitions)]
    return torch.tensor([[float("".join(map(str, digits)))]])


def history(value: Any) -> str:
    """In words, which :func:`micro_batch` a value was, and which partitions it has gone through."""
    if not isinstance(value, torch.Tensor) or value.numel() != 1 or value.is_meta:
        return f"a {type(value).__name__}"
    digits = f"{value.item():.0f}"
    if not digits.isdigit() or int(digits[0]) < FIRST:
        return "a value that no partition gives"
    return described(int(digits[0]) - FIRST, [int(digit) - 1 for digit in digits[1:]])
