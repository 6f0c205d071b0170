"""Given code under BucketedDataParallel: buckets of gradients, and hooks that send them."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from labkit.base.tensors import as_bytes
from labkit.trace import span

MIB = 2**20

# Takes a buffer of gradients, 1-D, and starts replacing it by its sum over all ranks, in place. Its
# future is done, and gives an error if there was one, when the sum is there.
CommHook = Callable[[torch.Tensor], "torch.futures.Future[Any]"]


class Bucket:
    """Parameters whose gradients travel in one message.

    ``buffer`` is 1-D. Once collected, the gradient of each parameter is a view of a part of it, so
    it is sent as it is. ``names`` and ``parameters`` are lists in the same order; ``missing`` holds
    the numbers, in these lists, of those whose gradient is not ready yet in this step; ``future``
    is set while the buffer is on its way.
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


# --- ranks start with the same model --------------------------------------------------------------


@torch.no_grad()
def take_from_rank_0(tensor: torch.Tensor, group: Any = None) -> None:
    """Replace a parameter or a buffer by that of rank 0, of ``group``'s first rank."""
    if tensor.layout is not torch.strided:
        raise TypeError(f"a tensor of {tensor.layout} is not sent to other ranks: keep it dense, or out of the buffers")
    contiguous = tensor.contiguous()
    dist.broadcast(as_bytes(contiguous), group=group, group_src=0)  # as bytes: gloo does not send every dtype
    if contiguous is not tensor:
        tensor.copy_(contiguous)


def forms_of(named: Iterable[tuple[str, torch.Tensor]]) -> dict[str, str]:
    """Return shape and dtype of tensors by name."""
    return {name: f"{tuple(tensor.shape)} {tensor.dtype}" for name, tensor in named}


def take_buffers_from_rank_0(module: torch.nn.Module, forms: dict[str, str]) -> None:
    """Replace a model's buffers by those of rank 0. ``forms`` is what they were in the beginning.

    Raises RuntimeError where they have other sizes since then: they may differ between ranks.
    """
    named = dict(module.named_buffers())
    now = forms_of(named.items())
    for name in {**forms, **now}:
        if now.get(name) != forms.get(name):
            raise RuntimeError(
                f"the buffer {name} is {now.get(name, 'gone')}, and was {forms.get(name, 'not there')} when the model was "
                "wrapped. Every forward pass takes buffers from rank 0, so they keep their size: give it its full size "
                "before you wrap the model, or keep what grows in an attribute that is not a buffer"
            )
    for buffer in named.values():
        take_from_rank_0(buffer)


class _Tensor(NamedTuple):
    """A parameter or buffer of a model, as ranks compare them."""

    name: str
    form: str


class _Layout(NamedTuple):
    """What must be the same on all ranks: the tensors, and how many parameters a bucket has."""

    tensors: list[_Tensor]
    bucket_sizes: list[int]


def check_same_model(module: torch.nn.Module, buckets: list[Bucket]) -> None:
    """Raise ValueError, on every rank, where a rank has another model or buckets than rank 0.

    The order counts too: gradients in the same position are added up.
    """
    tensors = [
        _Tensor(name, f"{tuple(t.shape)} {t.dtype}, strides {t.stride()}{', trained' * t.requires_grad}")
        for name, t in [*module.named_parameters(), *module.named_buffers()]
    ]
    own = _Layout(tensors, [len(bucket.names) for bucket in buckets])
    layouts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(layouts, own)
    first, nothing = layouts[0], _Tensor("nothing", "no further parameter or buffer")
    for rank, layout in enumerate(layouts):
        for there, here in itertools.zip_longest(layout.tensors, first.tensors, fillvalue=nothing):
            if there != here:
                raise ValueError(
                    f"rank {rank} has a different model from rank 0: it has {there.name} ({there.form}) where rank 0 has "
                    f"{here.name} ({here.form}). Build the same model on every rank"
                )
    for rank, layout in enumerate(layouts):
        if layout.bucket_sizes != first.bucket_sizes:
            raise ValueError(
                f"rank {rank} has different buckets from rank 0: of {layout.bucket_sizes} parameters where rank 0 has "
                f"{first.bucket_sizes}. Give every rank the same bucket_cap_mb"
            )
