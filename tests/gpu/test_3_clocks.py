"""Two clocks, the host's and the device's: how long a span of queued work lasts, and when the
host's may be read while the device still computes."""

from __future__ import annotations

import threading
import time

import pytest
import torch
import torch.distributed as dist

from labkit import trace
from labkit.launch import device
from labkit.trace import span

pytestmark = pytest.mark.gpu

CYCLES_A_SECOND = 2_000_000_000  # of a GPU, at the most
BUSY_S = 0.05


# --- spans ----------------------------------------------------------------------------------------


def busy(seconds=BUSY_S):
    """Compute for a while: on a GPU that is queued, and the host goes on at once."""
    if device().type == "cuda":
        torch.cuda._sleep(int(seconds * CYCLES_A_SECOND))
    else:
        time.sleep(seconds)


def in_a_span(name):
    with span(name):
        busy()


class Busy(torch.autograd.Function):
    """Gives its input, and computes for a while on the way back."""

    @staticmethod
    def forward(context, x):
        return x.clone()

    @staticmethod
    def backward(context, dy):
        in_a_span("autograd thread")
        return dy


def spans_in_three_threads():
    """The same work in a span of the main thread, of a Python thread, and of autograd. Gives which
    devices this process has contexts on."""
    for name in ("warm-up", "main thread"):
        in_a_span(name)
    thread = threading.Thread(target=in_a_span, args=["Python thread"])
    thread.start()
    thread.join()
    Busy.apply(torch.ones(1, device=device(), requires_grad=True)).backward()
    contexts = [torch._C._cuda_hasPrimaryContext(index) for index in range(torch.cuda.device_count())]
    return [index for index, has_one in enumerate(contexts) if has_one]


def test_spans_of_main_python_and_autograd_threads_last_as_long_as_what_they_queue(rig, measured):
    run = rig.launch(spans_in_three_threads, world_size=2)
    seconds = run.timings.set_index(["rank", "name"]).mean_s
    for rank, contexts in enumerate(run.values):
        for name in ("main thread", "Python thread", "autograd thread"):
            measured(f"the same work in a span of rank {rank}'s {name}", 1e3 * seconds[rank, name], "ms")
            assert seconds[rank, name] > 0.5 * BUSY_S  # to queue it takes some µs
        if rig.on_gpu:  # or a thread has opened one where another rank is at home
            assert contexts == [torch.device(run.devices[rank]).index]


# --- barriers -------------------------------------------------------------------------------------


def long_kernel_then(barrier):
    """Queue half a second of work, meet the others, and read the host's clock. Gives how long the
    device still computes then."""
    trace.barrier()
    busy(0.5)
    barrier()
    begin_s = time.perf_counter()
    if device().type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begin_s


def test_a_barrier_before_the_hosts_clock_is_read_waits_for_long_kernels(rig, measured):
    with rig.workers() as ranks:
        ranks.run(long_kernel_then, trace.barrier)
        bare, waited = (max(ranks.run(long_kernel_then, each).values) for each in (dist.barrier, trace.barrier))
    measured("after dist.barrier() the device still computes", 1e3 * bare, "ms")
    measured("after trace.barrier() it still computes", 1e3 * waited, "ms")
    assert waited < 0.05
