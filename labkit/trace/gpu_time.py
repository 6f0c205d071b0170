"""Tell when GPUs have done what they were given: by events on the CPU's clock, and by waiting."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch

_clock = time.perf_counter_ns
_MAX_DRIFT = 1e-3  # seconds per second: clocks differ by less, so more is how late the CPU heard of an event

# --- waiting --------------------------------------------------------------------------------------


def barrier(group: Any = None) -> None:
    """Wait until every rank has come here, and its GPUs have done what they were given.

    Call it before and after what you measure. ``dist.barrier()`` waits for the processes alone:
    what they have queued on their GPUs may still be running, in the next measurement's time.
    """
    import torch.distributed as dist

    synchronize()
    dist.barrier(group)


def synchronize() -> None:
    """Wait until the GPUs that this process computes on have done what it gave them.

    On CPUs that is so already. ``torch.cuda.synchronize()`` waits for one GPU alone.
    """
    import torch

    for device in gpus_in_use():
        torch.cuda.synchronize(device)


def gpus_in_use() -> list[torch.device]:
    """Return the GPUs on which this process has a context. Does not begin to use any other."""
    import torch

    numbers = range(torch.cuda.device_count() if torch.cuda.is_initialized() else 0)
    torch_c: Any = torch._C
    return [torch.device("cuda", number) for number in numbers if torch_c._cuda_hasPrimaryContext(number)]


# --- events on the CPU's clock --------------------------------------------------------------------


class GpuMark(NamedTuple):
    """A moment in a stream of a GPU: an event, which compares with those of that GPU alone."""

    device: torch.device
    event: Any


def mark(device: str | torch.device) -> GpuMark:
    """Record an event on this thread's stream of ``device``. Does not wait for it."""
    import torch

    stream, event = torch.cuda.current_stream(device), torch.cuda.Event(enable_timing=True)
    event.record(stream)
    return GpuMark(stream.device, event)


class GpuClock:
    """The clock of a GPU, tied to the CPU's by ticks: at each both are read at one moment.

    Between two ticks, one at each end of a recording, a GPU's clock may be slower or faster. With
    one alone they count as equally fast.
    """

    def __init__(self, device: torch.device):
        self._device, self._rate = device, 1.0
        self._ticks: list[tuple[Any, int]] = []

    def tick(self) -> None:
        """Read both clocks, on a stream that does nothing else: it waits for no other work."""
        import torch

        stream, event = torch.cuda.Stream(self._device, priority=-1), torch.cuda.Event(enable_timing=True)
        event.record(stream)
        event.synchronize()
        self._ticks.append((event, _clock()))
        (first, first_ns), (last, last_ns) = self._ticks[0], self._ticks[-1]
        if passed_ns := first.elapsed_time(last) * 1e6:  # 0 at the first tick
            self._rate = min(max((last_ns - first_ns) / passed_ns, 1 - _MAX_DRIFT), 1 + _MAX_DRIFT)

    def read(self, event: Any) -> int:
        """Return when ``event`` was, in nanoseconds of time.perf_counter_ns."""
        first, first_ns = self._ticks[0]
        return first_ns + round(first.elapsed_time(event) * 1e6 * self._rate)  # negative before the tick
