"""Emulated data-parallel training: many ranks on few cores, to see how a step scales.

    step = EmulatedStep(forward_s=0.03, backward_s=0.06)
    run = launch(step.train, world_size=64)          # measured
    step.predict(world_size=64, overlap=True)        # predicted: an event table as well

A rank sleeps instead of computing, and its gradients really are added up over all ranks, on a link
that is emulated as well. Whatever is recorded meanwhile says so.

A ring of 64 ranks on two cores would take longer than the link: 2 · 63 messages a rank, each of
which wakes a process up, 0.3 s in all. So the bytes travel another way, to rank 0 and back along a
tree, which takes some 15 ms. They are held until the ring would be done on the link. ``train`` says
how often a machine could not keep up.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from labkit.base.checks import check_counts, check_seconds, check_whole_bytes
from labkit.cost import Link, collective_s, ddp_step
from labkit.trace import note_emulated, span

if TYPE_CHECKING:
    import pandas as pd

COMPUTE_NOTE = "emulated compute: ranks sleep instead of computing"
KIB = 2**10
SLOW = Link(latency_s=200e-6, bytes_per_s=2.5e6, name="slow link")
_FLOAT_BYTES, _STAMP_BYTES = 4, 8
_cpu_span = functools.partial(span, device="cpu")  # a rank sleeps and sends here, also where it has a GPU
_HEAD_START_S = 0.5e-3  # for each rank, from rank 0's word to the step: by then all have heard it


@dataclass(frozen=True)
class EmulatedStep:
    """A step of data-parallel training whose compute takes as long as it says: ranks sleep.

        EmulatedStep(forward_s=0.03, backward_s=0.06, bucket_bytes=(2**14, 2**14))

    The backward pass makes its buckets one by one, in equal times: the last one as it ends. A
    bucket is that many bytes of float32, summed over all ranks in the time of a ring on ``link``.
    By default all of it fits what 64 ranks can do on two cores.

    Raises TypeError for anything but a number, ValueError for a negative or infinite one, for no
    bucket at all, and for bytes that are no whole number of floats.
    """

    forward_s: float = 0.03
    backward_s: float = 0.06
    optimizer_s: float = 0.005
    bucket_bytes: Sequence[int] = (16 * KIB,) * 4
    link: Link = SLOW

    def __post_init__(self) -> None:
        for name in ("forward_s", "backward_s", "optimizer_s"):
            check_seconds(name, getattr(self, name))
        if not self.bucket_bytes:
            raise ValueError("bucket_bytes is empty, expected the bytes of at least one bucket")
        for k, n_bytes in enumerate(self.bucket_bytes):
            check_whole_bytes(f"bucket_bytes[{k}]", n_bytes)
            if n_bytes % _FLOAT_BYTES:
                raise ValueError(f"bucket_bytes[{k}] is {n_bytes}, expected a multiple of 4, the bytes of a float32")

    @property
    def ready_s(self) -> list[float]:
        """When each bucket is full, in seconds from the start of the backward pass."""
        n = len(self.bucket_bytes)
        return [self.backward_s * (k + 1) / n for k in range(n)]

    def predict(self, world_size: int, overlap: bool = True, host_s: float = 0.0) -> pd.DataFrame:
        """Return the step as it should be: see :func:`labkit.cost.ddp_step`."""
        buckets = [[k] for k in range(len(self.bucket_bytes))]
        times = self.forward_s, self.ready_s, self.optimizer_s
        latency_s, bytes_per_s = self.link.latency_s, self.link.bytes_per_s
        return ddp_step(*times, self.bucket_bytes, buckets, world_size, latency_s, bytes_per_s, host_s, overlap)

    def train(self, overlaps: Sequence[bool] = (False, True), rounds: int = 3) -> int:
        """Do ``rounds`` of steps in turns: step s overlaps if ``overlaps[s % len(overlaps)]``.

        With overlap a bucket leaves as soon as it is full, without it all leave after the backward
        pass. Spans: forward, backward, wait, optimizer, all_reduce by bucket, and the calls, "hand
        over". Returns how many all_reduces took longer than the link says because this machine was
        too slow: with 0 the times are those of the link.
        """
        check_counts(rounds=rounds, overlaps=len(overlaps))
        note_emulated(COMPUTE_NOTE)
        note_emulated(f"emulated link: {self.link}")
        with ThreadPoolExecutor(1, "labkit.emulated_step") as thread:
            channel = BucketChannel(self.link, thread)
            for number in range(rounds * len(overlaps)):
                self._step(channel, number, overlaps[number % len(overlaps)])
        return channel.late

    def _step(self, channel: BucketChannel, number: int, overlap: bool) -> None:
        gradients = [torch.ones(n_bytes // _FLOAT_BYTES) for n_bytes in self.bucket_bytes]
        sent: list[Future[None]] = []
        begin_s = _begin_together()
        with _cpu_span("forward", step=number):
            _sleep_until(begin_s + self.forward_s)
        with _cpu_span("backward", step=number):
            start_s = time.perf_counter()
            for k, ready_s in enumerate(self.ready_s):
                _sleep_until(start_s + ready_s)
                if overlap:
                    sent.append(channel.hand_over(gradients[k], number, k))
        with _cpu_span("wait", step=number):
            sent += [channel.hand_over(gradients[k], number, k) for k in range(len(sent), len(gradients))]
            for each in sent:
                each.result()
        with _cpu_span("optimizer", step=number):
            time.sleep(self.optimizer_s)


class BucketChannel:
    """This rank's one channel: what is handed over is summed over all ranks, one after the other.

    ``late`` counts what ended later than on ``link`` because the machine under it was too slow.
    ``thread`` does the sending, and has one worker.
    """

    def __init__(self, link: Link, thread: ThreadPoolExecutor):
        self._link, self._thread, self._free_ns, self.late = link, thread, 0, 0

    def hand_over(self, gradient: torch.Tensor, step: int, bucket: int) -> Future[None]:
        """Start replacing ``gradient``, 1-D of float32, by its sum over all ranks, in place."""
        with span("hand over", lane="host", step=step, bucket=bucket):
            return self._thread.submit(self._sum, gradient, time.perf_counter_ns(), step, bucket)

    def _sum(self, gradient: torch.Tensor, handed_over_ns: int, step: int, bucket: int) -> None:
        with _cpu_span("all_reduce", lane="comm", step=step, bucket=bucket, bytes=gradient.nbytes):
            if dist.get_world_size() == 1:
                return
            # However late this thread woke up: the channel was free when the bucket before was due.
            began_ns = sum_over_tree(gradient, max(handed_over_ns, self._free_ns))
            cost_s = collective_s("all_reduce", gradient.nbytes, dist.get_world_size(), self._link)
            self._free_ns = began_ns + round(1e9 * cost_s)
            self.late += time.perf_counter_ns() > self._free_ns
            _sleep_until(1e-9 * self._free_ns)


def sum_over_tree(tensor: torch.Tensor, joined_ns: int) -> int:
    """Replace ``tensor``, 1-D of float32, by its sum over all ranks, in place, in few messages.

    Each rank sends its own to rank 0, which adds them up; the sum goes out along gloo's tree.
    Returns the latest ``joined_ns`` of all ranks, which travels with it.
    """
    message = torch.cat([torch.tensor([joined_ns]).view(torch.uint8), tensor.view(torch.uint8)])
    gathered = None
    if dist.get_rank() == 0:
        gathered = [torch.empty_like(message) for _ in range(dist.get_world_size())]
    dist.gather(message, gathered)
    if gathered:
        stamps = torch.stack([each[:_STAMP_BYTES].view(torch.int64) for each in gathered])
        total = torch.stack([each[_STAMP_BYTES:].view(torch.float32) for each in gathered]).sum(dim=0)
        message = torch.cat([stamps.max().view(1).view(torch.uint8), total.view(torch.uint8)])
    dist.broadcast(message, src=0)
    tensor.copy_(message[_STAMP_BYTES:].view(torch.float32))
    return int(message[:_STAMP_BYTES].view(torch.int64))


def _begin_together() -> float:
    """Return when the step begins, the same moment on all ranks: rank 0 says it in advance."""
    world_size = dist.get_world_size()
    begin_ns = torch.tensor([time.perf_counter_ns() + round(1e9 * _HEAD_START_S * world_size)])
    if world_size > 1:
        dist.broadcast(begin_ns, src=0)
    begin_s = 1e-9 * int(begin_ns)
    _sleep_until(begin_s)
    return begin_s


def _sleep_until(deadline: float) -> None:
    """Sleep until ``time.perf_counter()`` has reached ``deadline``, and leave the cores alone."""
    while (left := deadline - time.perf_counter()) > 0:
        time.sleep(left)
