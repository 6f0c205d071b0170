"""Given code under BucketedDataParallel: buckets of gradients, and hooks that send them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from labkit.base.units import MIB
from labkit.trace import span

# Takes a buffer of gradients, 1-D, and starts replacing it by its sum over all ranks, in place. Its
# future is done, and gives an error if there was one, when the sum is there.
CommHook = Callable[[torch.Tensor], "torch.futures.Future[Any]"]


class Bucket:
    """Parameters whose gradients travel in one message.

    ``buffer`` is 1-D. Once collected, the gradient of each parameter is a view of a part of it, so
    it is sent as it is. ``names`` and ``parameters`` are lists in the same order; ``missing`` holds
    the numbers, in these lists, of those whose gradient is not ready yet in this step; ``future``
    is None until the buffer is sent. All that a backward pass leaves behind is here, and
    ``reset()`` ends the step.
    """

    def __init__(self, number: int, names: list[str], parameters: list[torch.nn.Parameter]):
        self.number, self.names, self.parameters = number, names, parameters
        self.share = 1 / dist.get_world_size()
        self._take_memory()
        self.reset()

    def _take_memory(self) -> None:
        first, sizes = self.parameters[0], [parameter.numel() for parameter in self.parameters]
        row = torch.zeros(sum(sizes), dtype=first.dtype, device=first.device)
        self.buffer = torch.view_as_real(row).view(-1) if row.is_complex() else row
        # By .data each view counts the changes made through it, and none made through the buffer.
        self.views = [_as(p, part).data for p, part in zip(self.parameters, row.split(sizes), strict=True)]
        self._own_uses = self._uses()

    def reset(self) -> None:
        """Begin a step: every gradient is missing, and nothing is on its way."""
        self.missing = set(range(len(self.parameters)))
        self.future: torch.futures.Future[Any] | None = None
        self._streams: set[Any] = set()  # of a GPU, on which gradients were collected
        self._changes: dict[int, int] = {}  # by position, how often its view had been changed when it was collected
        self._frozen: list[int] = []  # positions, since the module was wrapped

    def _uses(self) -> list[int]:
        """Return how many tensors use the buffer's memory, and how many names each view has."""
        n_tensors = torch._C._storage_Use_Count(self.buffer.untyped_storage()._cdata)  # no public way (2.13)
        return [n_tensors, *map(sys.getrefcount, self.views)]

    def _is_kept(self) -> bool:
        """Return whether somebody has kept gradients of an earlier step, which are views."""
        n_tensors, *n_names = (now > own for now, own in zip(self._uses(), self._own_uses, strict=True))
        views = zip(n_names, self.parameters, self.views, strict=True)
        return n_tensors or any(more and parameter.grad is not view for more, parameter, view in views)

    @torch.no_grad()
    def collect(self, position: int) -> None:
        """Put this rank's share of a parameter's gradient, one N-th, into the buffer; None is zero.

        The sum of the shares over N ranks is the mean. Dividing here costs nothing, because the
        gradient is read anyway. ``missing`` stays as it is. This is a span of the lane host: the
        thread that computes does it.
        """
        if not self._streams and self._is_kept():
            self._take_memory()
        with span("collect", lane="host", bucket=self.number):
            self._collect(position)
            self._streams.add(_current_stream(self.buffer))

    def _collect(self, position: int) -> None:
        parameter, view, name = self.parameters[position], self.views[position], self.names[position]
        if not parameter.requires_grad:  # frozen since it was wrapped: it is not to move
            view.zero_()
            self._frozen.append(position)
            return
        if parameter.grad is None:
            view.zero_()
        elif parameter.grad.is_sparse:
            raise ValueError(
                f"the gradient of {name} is sparse, expected a dense one, which has its place in a bucket: "
                "build the embedding with sparse=False"
            )
        else:
            torch.mul(parameter.grad, self.share, out=view)
        parameter.grad = view
        self._changes[position] = view._version

    def send(self, comm_hook: CommHook) -> None:
        """Start summing the buffer over all ranks: a span in the event table until it is done.

        Its ``bytes`` are the buffer's, whatever the hook makes of them on the way. Handing it over
        is a span of the lane host: it holds up the thread that computes.
        """
        for stream in self._streams - {_current_stream(self.buffer)}:  # partitions of a Pipe have one each
            _current_stream(self.buffer).wait_stream(stream)
        device, n_bytes = self.buffer.device, self.buffer.nbytes
        timing = span("all_reduce", "comm", device=device, bucket=self.number, bytes=n_bytes).begin()

        def arrived(future: torch.futures.Future[Any]) -> Any:
            timing.end()
            return future.value()  # raises what went wrong on the way

        with span("hand over", lane="host", bucket=self.number):
            future = comm_hook(self.buffer)
        if not hasattr(future, "then"):
            raise TypeError(
                f"comm_hook returned {future!r}, expected a torch.futures.Future: start the collective with async_op=True "
                "and return its get_future()"
            )
        self.future = future.then(arrived)

    def wait(self) -> None:
        """Wait until the buffer holds the sum. Raises what went wrong on the way."""
        if self.future is not None:
            self.future.wait()

    def check_untouched(self) -> None:
        """Raise RuntimeError where the mean has overwritten a change that was made before it."""
        for position, changes in self._changes.items():
            if self.parameters[position].grad is not self.views[position] or self.views[position]._version > changes:
                raise RuntimeError(
                    f"the gradient of {self.names[position]} was changed between backward() and "
                    "finish_gradient_synchronization(), and the mean has overwritten that: wait first, then clip gradients, "
                    "scale them or set them to zero"
                )
        for position in self._frozen:
            if self.views[position].any():
                raise RuntimeError(
                    f"{self.names[position]} is frozen on this rank, and another rank has a gradient for it: freeze it on "
                    "every rank, or on none"
                )

    def __repr__(self) -> str:
        return f"Bucket({self.number}: {len(self.names)} parameters, {self.buffer.nbytes / MIB:.3g} MiB {self.buffer.dtype})"


def _current_stream(tensor: torch.Tensor) -> Any:
    """Return the stream on which this thread computes on the tensor's GPU; None on the CPU."""
    return torch.cuda.current_stream(tensor.device) if tensor.is_cuda else None


def _as(parameter: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    """Return ``part``, 1-D, as a view of the parameter's shape.

    Its strides are the parameter's too (channels_last), unless they leave gaps.
    """
    strides = torch.empty_like(parameter, device="meta").stride()
    return part.as_strided(parameter.shape, strides)


# --- communication hooks: how a bucket travels ----------------------------------------------------


def all_reduce_hook(buffer: torch.Tensor) -> torch.futures.Future[Any]:
    """Sum ``buffer`` over all ranks, in place, asynchronously: the default communication hook."""
    return dist.all_reduce(buffer, async_op=True).get_future()
