"""Given code under ScheduledPipeline: messages between ranks, sent while they compute.

For each step:

    p2p = P2P(schedule, rank, group, devices)
    x = p2p.receive(op)                        # what op takes from another stage; waits for it
    p2p.send(op, y)                            # what op gives to another stage; does not wait
    p2p.finish()                               # at the end of a step: all is sent
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from labkit.base.tensors import as_bytes, laid_out
from labkit.parallel.devices import sending_device
from labkit.schedule import Op, Schedule
from labkit.schedule.p2p_order import Message, p2p_order
from labkit.trace import span

# --- what is sent ---------------------------------------------------------------------------------


class Item(NamedTuple):
    """An activation or a gradient, by the stage that it is for."""

    is_gradient: bool
    stage: int
    micro_batch: int

    @classmethod
    def received_by(cls, op: Op) -> Item:
        """Return what ``op`` takes: F an activation from the previous stage, else a gradient."""
        return cls(op.kind != "F", op.stage, op.micro_batch)

    @classmethod
    def sent_by(cls, op: Op) -> Item:
        """Return what ``op`` gives: F an activation to the next stage, else a gradient back."""
        return cls(op.kind != "F", op.stage + (1 if op.kind == "F" else -1), op.micro_batch)

    def activation(self) -> Item:
        """Return the activation that a gradient belongs to; an activation itself."""
        return Item(False, self.stage + self.is_gradient, self.micro_batch)

    def __str__(self) -> str:
        kind = "gradient" if self.is_gradient else "activation"
        return f"the {kind} for stage {self.stage}, micro-batch {self.micro_batch}"


class Format(NamedTuple):
    """What an activation looks like, and whether it gets a gradient back."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Format:
        """Return the format of ``tensor``."""
        return cls(tuple(tensor.shape), tensor.dtype, tensor.requires_grad)

    def header(self) -> torch.Tensor:
        """Return HEADER_SIZE int64: number of dimensions, dtype, requires_grad, and the sizes."""
        numbers = [len(self.shape), DTYPES.index(self.dtype), int(self.requires_grad), *self.shape]
        return torch.tensor(numbers + [0] * (HEADER_SIZE - len(numbers)))

    @classmethod
    def read(cls, header: torch.Tensor) -> Format:
        """Return the format that :meth:`header` wrote."""
        dimensions, dtype, requires_grad, *sizes = header.tolist()
        return cls(tuple(sizes[:dimensions]), DTYPES[dtype], bool(requires_grad))

    def __str__(self) -> str:
        return f"{self.shape} {self.dtype}{'' if self.requires_grad else ' without gradient'}"


DTYPES = sorted({value for value in vars(torch).values() if isinstance(value, torch.dtype)}, key=str)
MAX_DIMENSIONS = 13
HEADER_SIZE = 3 + MAX_DIMENSIONS


class _InFlight(NamedTuple):
    """A message, or its header, on its way: ``tensor`` is kept until ``work`` is done."""

    message: Message
    work: Any
    tensor: torch.Tensor


# --- sending and receiving ------------------------------------------------------------------------


class P2P:
    """The messages of rank ``rank`` in a step of ``schedule``, step after step.

    ``group`` is the process group, whose rank r is the schedule's; None stands for all ranks.
    ``devices`` has the device of each stage of this rank. On NCCL, tensors go from GPU to GPU,
    otherwise they go through the CPU. What is for a stage of this rank is handed over as it is.

    Messages are sent, and receives begun, in the order of
    :func:`labkit.schedule.p2p_order.p2p_order`. In the first step a header goes ahead of every
    activation, with its shape and dtype; its gradient has the same. From then on both ends know
    them, and a receive is under way before anybody waits for it. To begin again, all ranks set
    ``formats_are_known`` to False.
    """

    def __init__(self, schedule: Schedule, rank: int, group: Any, devices: dict[int, torch.device]):
        self._rank, self._group, self._devices = rank, group, devices
        self._sending_device = sending_device(group)
        self._last_stage = schedule.n_stages - 1
        self._messages = [message for message in p2p_order(schedule) if rank in (message.source, message.target)]
        self._number = {Item.received_by(message.consumer): number for number, message in enumerate(self._messages)}
        self._position = {op: position for ops in schedule.ops for position, op in enumerate(ops)}  # on its rank
        self._formats: dict[Item, Format] = {}  # of activations
        self.formats_are_known = False  # at both ends, after the first step
        self._next = 0  # the number of the message that comes next
        self._sent: set[Item] = set()  # in this step, or handed over
        self._outbox: dict[Item, torch.Tensor] = {}  # of these, what has not begun to leave or was not handed over
        self._receives: dict[Item, _InFlight] = {}
        self._sends: list[_InFlight] = []

    def send(self, op: Op, tensor: torch.Tensor | None) -> None:
        """Send what ``op`` gives to another stage, or hand it over. Does not wait for its arrival.

        A gradient of None stands for zeros, and a sparse one is made dense. Raises, before anything
        is sent: ValueError for an op that gives nothing to another stage, and for an activation of
        another format than in the first step; TypeError for one that is not a dense tensor;
        RuntimeError if it was sent already.
        """
        item = Item.sent_by(op)
        if op.kind == "W" or not 0 <= item.stage <= self._last_stage:
            raise ValueError(f"{op} gives nothing to another stage")
        if item in self._sent:
            raise RuntimeError(f"{op} has sent {item} already: an op sends its result once")
        if op.kind == "F":
            self._check_format(op, tensor)
        elif not self._is_wanted(item):
            return
        elif tensor is None:
            known = self._format_of(item)
            tensor = torch.zeros(known.shape, dtype=known.dtype, device=self._devices[op.stage])
        assert tensor is not None
        self._outbox[item] = tensor.to_dense() if tensor.layout is not torch.strided else tensor
        self._sent.add(item)
        if item in self._number:
            self._advance(through=self._number[item])

    def receive(self, op: Op) -> Any:
        """Return what ``op`` takes from another stage, on its own device. Waits for it.

        An activation requires grad if its gradient is to be sent back; if it is not, the gradient
        is None. Raises ValueError for an op that takes nothing from another stage; RuntimeError if
        this rank has yet to send what must be sent first, or has received this already.
        """
        item = Item.received_by(op)
        if op.kind == "W" or op.stage == (self._last_stage if item.is_gradient else 0):
            raise ValueError(f"{op} takes nothing from another stage")
        if not self._is_wanted(item):
            return None
        if item in self._number:
            self._advance(through=self._number[item])
        self._check_there(op, item)
        if item not in self._number:
            return self._outbox.pop(item).to(self._devices[op.stage])
        receive = self._receives.pop(item)
        with self._span("recv", op, receive.tensor):
            receive.work.wait()
        self._release_sends(receive.message)
        requires_grad = not item.is_gradient and self._format_of(item).requires_grad
        return receive.tensor.to(self._devices[op.stage]).requires_grad_(requires_grad)

    def finish(self) -> None:
        """End a step: wait until all is sent.

        Raises RuntimeError if something was not sent, or sent and not received.
        """
        self._advance(through=len(self._messages))
        if self._next < len(self._messages):
            raise RuntimeError(f"the step is over, and what {self._messages[self._next].producer} gives was not sent")
        if left := [*self._outbox, *self._receives]:
            raise RuntimeError(f"the step is over, and {left[0]} was not received")
        for send in self._sends:
            send.work.wait()
        self._sends.clear()
        self._sent.clear()
        self._next = 0
        self.formats_are_known = True

    # --- one message after another ----------------------------------------------------------------

    def _advance(self, through: int) -> None:
        """Begin all messages up to number ``through``, and later ones that can go already."""
        while self._next < len(self._messages):
            message = self._messages[self._next]
            item = Item.received_by(message.consumer)
            if self._is_wanted(item):
                if message.source == self._rank and item not in self._outbox:
                    return  # it is yet to be computed
                if message.source != self._rank and self._needs_header(item) and self._next > through:
                    return  # its format is not known, and it is not yet time to wait for the header
                self._begin(message, item)
            self._next += 1

    def _begin(self, message: Message, item: Item) -> None:
        if message.source != self._rank:
            if self._needs_header(item):
                header = torch.empty(HEADER_SIZE, dtype=torch.int64, device=self._sending_device)
                dist.recv(as_bytes(header), group=self._group, group_src=message.source)
                self._formats[item] = Format.read(header)
            known = self._format_of(item)
            buffer = torch.empty(known.shape, dtype=known.dtype, device=self._sending_device)
            work = dist.irecv(as_bytes(buffer), group=self._group, group_src=message.source)
            self._receives[item] = _InFlight(message, work, buffer)
            return
        tensor = laid_out(self._outbox.pop(item).detach().to(self._sending_device))
        with self._span("send", message.producer, tensor):
            headers = [self._format_of(item).header().to(self._sending_device)] if self._needs_header(item) else []
            for part in [*headers, tensor]:
                work = dist.isend(as_bytes(part), group=self._group, group_dst=message.target)
                self._sends.append(_InFlight(message, work, part))

    def _release_sends(self, received: Message) -> None:
        """Drop what was sent for ops that ran before the one that computed ``received``.

        That must have arrived.
        """
        by_now, left = self._position[received.producer], []
        for send in self._sends:
            if send.message.target == received.source and self._position[send.message.consumer] <= by_now:
                send.work.wait()
            else:
                left.append(send)
        self._sends = left

    def _check_there(self, op: Op, item: Item) -> None:
        """Raise RuntimeError if ``op`` cannot have what it takes."""
        if item in self._number and self._next <= self._number[item]:  # it could not go on so far
            missing = self._messages[self._next].producer
            raise RuntimeError(
                f"{op} comes too early: {missing}, which is before it on this rank, has not sent what it gives"
            )
        if item not in self._outbox and item not in self._receives:
            raise RuntimeError(
                f"{op} takes {item}, and that "
                + ("was received already" if item in self._number or item in self._sent else "was not sent yet")
            )

    # --- formats ----------------------------------------------------------------------------------

    def _format_of(self, item: Item) -> Format:
        """Return an activation's format, or for a gradient that of the activation it belongs to."""
        activation = item.activation()
        if activation not in self._formats:
            raise RuntimeError(f"{item} cannot be sent or received before {activation}, to which it belongs")
        return self._formats[activation]

    def _needs_header(self, item: Item) -> bool:
        return not item.is_gradient and not self.formats_are_known

    def _is_wanted(self, item: Item) -> bool:
        return not item.is_gradient or self._format_of(item).requires_grad

    def _check_format(self, op: Op, tensor: torch.Tensor | None) -> None:
        """Raise an error unless ``tensor`` can be sent, in the format of the first step."""
        what = f"stage {op.stage} gives {{}} for micro-batch {op.micro_batch}"
        if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
            kind = tensor.layout if isinstance(tensor, torch.Tensor) else type(tensor).__name__
            raise TypeError(f"{what.format(f'a {kind}')}, expected a dense tensor: end the stage with to_dense()")
        if tensor.dim() > MAX_DIMENSIONS:
            raise ValueError(f"{what.format(f'{tensor.dim()} dimensions')}, expected at most {MAX_DIMENSIONS}")
        now = Format.of(tensor)
        known = self._formats.setdefault(Item.sent_by(op), now) if self.formats_are_known else now
        self._formats[Item.sent_by(op)] = known
        if now != known:
            if now.shape != known.shape:
                todo = "pad the batch to one shape, or make another ScheduledPipeline for batches of another shape"
            elif now.dtype != known.dtype:
                todo = "keep to one dtype, or make another ScheduledPipeline for the other one"
            else:
                todo = "after freezing or unfreezing parameters, make another ScheduledPipeline"
            raise ValueError(
                f"{what.format(now)}, and gave {known} in the first step, expected the same in every step, because the next "
                f"stage allocates it in advance: {todo}"
            )

    def _span(self, name: str, op: Op, tensor: torch.Tensor) -> span:
        labels = {"stage": op.stage, "micro_batch": op.micro_batch, "bytes": tensor.nbytes}
        return span(name, "comm", device=tensor.device, **labels)
