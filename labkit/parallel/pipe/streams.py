"""Given code under Pipe: tensors that go from one device, or stream of a GPU, to another."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import torch

from labkit.trace import span


def mark_ready(tensor: torch.Tensor) -> torch.Tensor:
    """Note that ``tensor`` is ready once this thread's stream has done what is queued so far.

    On the CPU it is ready already.
    """
    if tensor.is_cuda:
        tensor.ready = torch.cuda.current_stream(tensor.device).record_event()  # type: ignore[attr-defined]
    return tensor


def wait_until_ready(tensor: torch.Tensor) -> torch.Tensor:
    """Make this thread's stream, not the thread itself, wait for a tensor from another stream."""
    if tensor.is_cuda and hasattr(tensor, "ready"):
        stream = torch.cuda.current_stream(tensor.device)
        stream.wait_event(tensor.ready)
        tensor.record_stream(stream)  # so that its memory is not given away while this stream still reads it
    return tensor


def move(x: torch.Tensor, device: torch.device, **labels: int) -> torch.Tensor:
    """Return ``x`` on ``device``, to be used on this thread's stream; virtual devices are the CPU.

    Between devices it is copied on streams that do nothing else: neither device's computing waits
    for the copy, and only what needs the copy does. Autograd runs an operation's backward on the
    stream of its forward, so the gradient travels back during the computing too. A copy is a span,
    with ``labels``.
    """
    here, there = x.device, torch.device("cpu") if device.type == "cpu" else device
    if here == there:
        return wait_until_ready(x)
    with contextlib.ExitStack() as copying:
        for end in (here, there):
            if end.type == "cuda":
                copying.enter_context(torch.cuda.stream(_copy_stream(end)))
        wait_until_ready(x)
        gpu = there if there.type == "cuda" else here
        with span("copy", lane="comm", device=gpu, bytes=x.nbytes, **labels):
            y = x.to(there, non_blocking=there.type == "cuda")  # to the CPU it blocks: nothing there waits for an event
        mark_ready(y)
    return wait_until_ready(y)


_streams = threading.local()


def _copy_stream(device: torch.device) -> Any:
    """Return the stream on which this thread copies from and to ``device``."""
    if device not in _streams.__dict__.setdefault("of", {}):
        _streams.of[device] = torch.cuda.Stream(device)
    return _streams.of[device]
