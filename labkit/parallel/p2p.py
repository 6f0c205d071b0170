"""Given code under ScheduledPipeline: what the ranks of a pipeline send each other, sent and received beside the computing.

mail = Mail(schedule, rank, group, devices)
x = mail.receive(op)                       # what op takes from another stage; waits for it
mail.send(op, y)                           # what op gives to another stage; does not wait
mail.finish()                              # at the end of a step: all is sent
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from labkit._wire import as_bytes, laid_out
from labkit.schedule import Op, Schedule
from labkit.schedule.p2p_order import Message, messages_of
from labkit.trace import span

Item = tuple[bool, int, int]  # whether it is a gradient, the stage that it is for, the micro-batch


def taken_by(op: Op) -> Item:
    """What ``op`` takes: F the activation of the stage before, B and I the gradient of the stage behind."""
    return op.kind != "F", op.stage, op.micro_batch


def given_by(op: Op) -> Item:
    """What ``op`` gives: F an activation for the stage behind, B and I a gradient for the stage before."""
    return op.kind != "F", op.stage + (1 if op.kind == "F" else -1), op.micro_batch


class Format(NamedTuple):
    """What an activation looks like, and whether it gets a gradient back."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Format:
        return cls(tuple(tensor.shape), tensor.dtype, tensor.requires_grad)

    def header(self) -> torch.Tensor:
        """As HEADER_SIZES int64: the number of dimensions, dtype, requires_grad, and the sizes."""
        numbers = [len(self.shape), DTYPES.index(self.dtype), int(self.requires_grad), *self.shape]
        return torch.tensor(numbers + [0] * (HEADER_SIZE - len(numbers)))

    @classmethod
    def read(cls, header: torch.Tensor) -> Format:
        dimensions, dtype, requires_grad, *sizes = header.tolist()
        return cls(tuple(sizes[:dimensions]), DTYPES[dtype], bool(requires_grad))

    def __str__(self) -> str:
        return f"{self.shape} {self.dtype}{'' if self.requires_grad else ' without gradient'}"


DTYPES = sorted({value for value in vars(torch).values() if isinstance(value, torch.dtype)}, key=str)
MOST_DIMENSIONS = 13
HEADER_SIZE = 3 + MOST_DIMENSIONS


def _wire_of(group: Any) -> torch.device:
    """The device whose tensors the group sends: a GPU over NCCL, otherwise the CPU, as gloo sends no tensor of a GPU."""
    if dist.is_initialized() and "cuda:nccl" in dist.get_backend_config(group):
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def _words(item: Item) -> str:
    is_gradient, stage, micro_batch = item
    return f"the {'gradient' if is_gradient else 'activation'} for stage {stage}, micro-batch {micro_batch}"


class Mail:
    """The messages of rank ``rank`` in a step of ``schedule``, step after step.

    ``group`` is the process group, whose rank r is the schedule's; None stands for all ranks. ``devices`` has the device of
    each stage of this rank. On NCCL, tensors go from GPU to GPU, otherwise they go through the CPU. What is for a
    stage of this rank is handed over as it is.

    Messages are sent, and receives begun, in the order of :func:`labkit.schedule.p2p_order.messages_of`. In the first step a header
    goes ahead of every activation, with its shape and dtype; its gradient has the same. From then on both ends know them,
    and a receive is under way before anybody waits for it.
    """

    def __init__(self, schedule: Schedule, rank: int, group: Any, devices: dict[int, torch.device]):
        self.step = 0
        self._rank, self._group, self._devices = rank, group, devices
        self._wire = _wire_of(group)
        self._last_stage = schedule.n_stages - 1
        self._messages = [message for message in messages_of(schedule) if rank in (message.source, message.target)]
        self._number = {taken_by(message.consumer): number for number, message in enumerate(self._messages)}
        self._place = {op: place for ops in schedule.ops for place, op in enumerate(ops)}  # in the list of its rank
        self._formats: dict[Item, Format] = {}  # of activations
        self._formats_are_known = False  # at both ends, after the first step
        self._next = 0  # the number of the message that comes next
        self._sent: set[Item] = set()  # in this step, or handed over
        self._given: dict[Item, torch.Tensor] = {}  # of these, what has not been taken, or has not begun to leave
        self._arriving: dict[Item, tuple[Any, torch.Tensor]] = {}
        self._leaving: list[tuple[Message, Any, torch.Tensor]] = []

    def send(self, op: Op, tensor: torch.Tensor | None) -> None:
        """Send what ``op`` gives to another stage on its way, or hand it over. Does not wait until it is there.

        A gradient of None stands for zeros. Raises, before anything is sent: ValueError for an op that gives nothing to another
        stage, and for an activation that looks otherwise than in the first step; TypeError for one that is no dense tensor;
        RuntimeError for what was sent already.
        """
        item = given_by(op)
        if op.kind == "W" or not 0 <= item[1] <= self._last_stage:
            raise ValueError(f"{op} gives nothing to another stage")
        if item in self._sent:
            raise RuntimeError(f"{op} has sent {_words(item)} already: every op gives what it gives once")
        if op.kind == "F":
            self._check_format(op, tensor)
        elif not self._is_wanted(item):
            return
        elif tensor is None:
            shape, dtype, _ = self._format_of(item)
            tensor = torch.zeros(shape, dtype=dtype, device=self._devices[op.stage])
        assert tensor is not None
        self._given[item] = tensor
        self._sent.add(item)
        if item in self._number:
            self._go_on(through=self._number[item])

    def receive(self, op: Op) -> Any:
        """What ``op`` takes from another stage, a tensor on the device of its own. Waits for it.

        An activation requires grad if its gradient is to be sent back; where it is not, the gradient is None. Raises
        ValueError for an op that takes nothing from another stage; RuntimeError where this rank has not sent yet what must be
        sent first, or has received it already.
        """
        item = taken_by(op)
        if op.kind == "W" or op.stage == (self._last_stage if item[0] else 0):
            raise ValueError(f"{op} takes nothing from another stage")
        if not self._is_wanted(item):
            return None
        if item in self._number:
            self._go_on(through=self._number[item])
        self._check_there(op, item)
        if item not in self._number:
            return self._given.pop(item).to(self._devices[op.stage])
        work, tensor = self._arriving.pop(item)
        with self._span("recv", op, tensor):
            work.wait()
        self._let_go(self._messages[self._number[item]])
        requires_grad = not item[0] and self._format_of(item).requires_grad
        return tensor.to(self._devices[op.stage]).requires_grad_(requires_grad)

    def finish(self) -> None:
        """End a step: wait until all is sent. Raises RuntimeError if something was not sent, or sent and not received."""
        self._go_on(through=len(self._messages))
        if self._next < len(self._messages):
            raise RuntimeError(f"the step is over, and what {self._messages[self._next].producer} gives was not sent")
        if left := [*self._given, *self._arriving]:
            raise RuntimeError(f"the step is over, and {_words(left[0])} was not received")
        for _, work, _ in self._leaving:
            work.wait()
        self._leaving.clear()
        self._sent.clear()
        self._next = 0
        self._formats_are_known = True

    # --- one message after the other ---

    def _go_on(self, through: int) -> None:
        """Send, or begin to receive, all messages up to number ``through``, and those behind it that can go already."""
        while self._next < len(self._messages):
            message = self._messages[self._next]
            item = taken_by(message.consumer)
            if self._is_wanted(item):
                if message.source == self._rank and item not in self._given:
                    return  # it is yet to be computed
                if message.source != self._rank and self._needs_header(item) and self._next > through:
                    return  # nobody knows what to make room for, and it is not yet time to wait for the header
                self._begin(message, item)
            self._next += 1

    def _begin(self, message: Message, item: Item) -> None:
        if message.source != self._rank:
            if self._needs_header(item):
                header = torch.empty(HEADER_SIZE, dtype=torch.int64, device=self._wire)
                dist.recv(as_bytes(header), group=self._group, group_src=message.source)
                self._formats[item] = Format.read(header)
            shape, dtype, _ = self._format_of(item)
            room = torch.empty(shape, dtype=dtype, device=self._wire)
            work = dist.irecv(as_bytes(room), group=self._group, group_src=message.source)
            self._arriving[item] = work, room
            return
        tensor = laid_out(self._given.pop(item).detach().to(self._wire))
        with self._span("send", message.producer, tensor):
            headers = [self._format_of(item).header().to(self._wire)] if self._needs_header(item) else []
            for part in [*headers, tensor]:
                work = dist.isend(as_bytes(part), group=self._group, group_dst=message.target)
                self._leaving.append((message, work, part))

    def _let_go(self, arrived: Message) -> None:
        """Drop what was sent for ops that its receiver ran before it computed what has now arrived: it must be there."""
        by_now = self._place[arrived.producer]
        left = []
        for message, work, tensor in self._leaving:
            if message.target == arrived.source and self._place[message.consumer] <= by_now:
                work.wait()
            else:
                left.append((message, work, tensor))
        self._leaving = left

    def _check_there(self, op: Op, item: Item) -> None:
        if self._next <= self._number.get(item, -1):  # it could not go on so far
            missing = self._messages[self._next].producer
            raise RuntimeError(
                f"{op} comes too early: {missing}, which is before it on this rank, has not sent what it gives"
            )
        if item not in self._given and item not in self._arriving:
            raise RuntimeError(
                f"{op} takes {_words(item)}, and that "
                + ("was received already" if item in self._number or item in self._sent else "was not sent yet")
            )

    # --- what it looks like ---

    def _format_of(self, item: Item) -> Format:
        """Of an activation, or of a gradient, which looks like the activation that it belongs to."""
        is_gradient, stage, micro_batch = item
        activation = False, stage + is_gradient, micro_batch
        if activation not in self._formats:
            raise RuntimeError(
                f"{_words(item)} cannot be sent or received before {_words(activation)}, to which it belongs"
            )
        return self._formats[activation]

    def _needs_header(self, item: Item) -> bool:
        return not item[0] and not self._formats_are_known

    def _is_wanted(self, item: Item) -> bool:
        return not item[0] or self._format_of(item).requires_grad

    def _check_format(self, op: Op, tensor: torch.Tensor | None) -> None:
        what = f"stage {op.stage} gives {{}} for micro-batch {op.micro_batch}"
        if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
            kind = tensor.layout if isinstance(tensor, torch.Tensor) else type(tensor).__name__
            raise TypeError(f"{what.format(f'a {kind}')}, expected a dense tensor")
        if tensor.dim() > MOST_DIMENSIONS:
            raise ValueError(f"{what.format(f'{tensor.dim()} dimensions')}, expected at most {MOST_DIMENSIONS}")
        now = Format.of(tensor)
        known = self._formats.setdefault(given_by(op), now)
        if now != known:
            if now.shape != known.shape:
                todo = "pad the batch to one shape, or make another ScheduledPipeline for batches of another shape"
            elif now.dtype != known.dtype:
                todo = "keep to one dtype, or make another ScheduledPipeline for the other one"
            else:
                todo = "after freezing or unfreezing parameters, make another ScheduledPipeline"
            raise ValueError(
                f"{what.format(now)}, and gave {known} in the first step, expected the same in every step, as the next stage "
                f"makes room for it beforehand: {todo}"
            )

    def _span(self, name: str, op: Op, tensor: torch.Tensor) -> span:
        return span(name, "comm", step=self.step, stage=op.stage, micro_batch=op.micro_batch, bytes=tensor.nbytes)
