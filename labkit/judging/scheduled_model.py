"""What stands in for stages and mail where pipe.5 is tried on one rank alone: they note every call, compute nothing, and
never wait."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import nn

from labkit import pipe
from labkit.check.calls import recorded
from labkit.judging.evidence import Stopped
from labkit.judging.scheduled_probes import METHODS, NOTHING, ONE, Note, gives, source_of, target_of
from labkit.parallel.stage import Stage
from labkit.parallel.stage_assignment import local_stages
from labkit.schedule import Op, Schedule

TOLD_TO_FAIL = "this stage was told to fail"


class Tokens:
    """Tensors that differ in their one number, each with words for what it stands for."""

    def __init__(self) -> None:
        self._words = {1.0: ONE}

    def new(self, words: str) -> torch.Tensor:
        """A tensor of one row. Its number is between 1 and 2, so twice or half of it is that of no token."""
        number = 1 + len(self._words) / 1024
        self._words[number] = words
        return torch.tensor([[number]], dtype=torch.float64)

    def words(self, value: Any) -> str:
        if value is None:
            return NOTHING
        if not isinstance(value, torch.Tensor):
            return f"a {type(value).__name__}"
        if value.numel() != 1:
            return f"a tensor of shape {tuple(value.shape)}"
        return self._words.get(value.item(), "a tensor that no op has given")


class Alone:
    """One rank of a schedule by itself: what it is sent is there whenever it asks for it.

    ``fails`` is an op whose stage raises, ``no_gradient`` one that gives None for its input's gradient.
    """

    def __init__(self, schedule: Schedule, rank: int, fails: Op | None = None, no_gradient: Op | None = None):
        self.schedule, self.rank, self.notes, self.tokens = schedule, rank, list[Note](), Tokens()
        self.called: set[str] = set()  # of torch.distributed, by the step itself
        self._fails, self._no_gradient = fails, no_gradient
        self._trains = any(op.kind != "F" for op in schedule.ops[rank])

    def step(self) -> None:
        """One step of the student's pipeline, on what stands in for the rest."""
        with self._in_its_place():
            stages = [nn.Identity() for _ in {op.stage for op in self.schedule.ops[self.rank]}]
            tried: Any = pipe.ScheduledPipeline(stages, self.schedule, lambda output, target: output.mean())
        tried._stages = _Stages(tried._stages)
        begin = tried._begin
        tried._begin = lambda *given: _Inputs(begin(*given))
        parts = [self.tokens.new(f"micro-batch {number} of x") for number in range(self.schedule.n_micro)]
        with recorded(carry_out=False) as calls:
            try:
                tried.step(torch.cat(parts), torch.zeros(len(parts), 1))
            finally:
                self.called = {call.name for call in calls}

    def ran(self, op: Op, given: torch.Tensor | None) -> torch.Tensor | None:
        """What a stage does when it is called for ``op``."""
        self.notes.append(Note("run", op, self.words(op, given)))
        if op == self._fails:
            raise ArithmeticError(TOLD_TO_FAIL)
        if op.kind == "W" or (op.kind != "F" and op.stage == 0) or op == self._no_gradient:
            return None
        return self.token(op)

    def token(self, op: Op) -> torch.Tensor:
        """A tensor that stands for what ``op`` gives; the gradient of an activation is to be sent back."""
        return self.tokens.new(gives(op, self.schedule)).requires_grad_(op.kind == "F" and self._trains)

    def words(self, op: Op, tensor: Any) -> str:
        """What ``tensor`` is that was given to ``op``, or that was sent for it."""
        words = self.tokens.words(tensor)
        lost = words.startswith("what ") and op.kind == "F" and self._trains and not tensor.requires_grad
        return f"{words}, detached" if lost else words

    @contextmanager
    def _in_its_place(self) -> Iterator[None]:
        """A pipeline made inside is this rank's, though there are no other ranks, and has stand-ins."""
        with mock.patch.multiple(
            pipe,
            assign_stages=lambda stages, schedule, *_: (self.rank, local_stages(stages, schedule, self.rank)),
            Stage=lambda module, number: _NotingStage(module, number, self),
            P2P=lambda *_: _NotingP2P(self),
        ):
            yield


class _NotingStage(Stage):
    def __init__(self, module: nn.Module, number: int, alone: Alone):
        super().__init__(module, number)
        self._alone = alone

    def forward(self, micro_batch: int, x: torch.Tensor) -> Any:
        y = self._ran("F", micro_batch, x)
        if self.loss:
            self.loss(y, micro_batch)  # counts it
        return y

    def backward(self, micro_batch: int, gradient: torch.Tensor | None = None) -> Any:
        return self._ran("B", micro_batch, gradient)

    def input_grad(self, micro_batch: int, gradient: torch.Tensor | None = None) -> Any:
        return self._ran("I", micro_batch, gradient)

    def weight_grad(self, micro_batch: int) -> None:
        self._ran("W", micro_batch, None)

    def _ran(self, kind: str, micro_batch: Any, given: Any) -> Any:
        if not isinstance(micro_batch, int):
            raise Stopped(
                f"the first argument of {METHODS[kind]} was a {type(micro_batch).__name__}, expected the micro-batch's number"
            )
        return self._alone.ran(Op(kind, self.number, micro_batch), given)


class _NotingP2P:
    def __init__(self, alone: Alone):
        self.step, self._alone = 0, alone

    def send(self, op: Op, tensor: torch.Tensor | None) -> None:
        if target_of(op, self._alone.schedule) is None:
            raise ValueError(f"{op} gives nothing to another stage")
        self._alone.notes.append(Note("send", op, self._alone.words(op, tensor)))

    def receive(self, op: Op) -> torch.Tensor:
        source = source_of(op, self._alone.schedule)
        if source is None:
            raise ValueError(f"{op} takes nothing from another stage")
        self._alone.notes.append(Note("receive", op))
        return self._alone.token(source)

    def finish(self) -> None:
        self._alone.notes.append(Note("finish"))


class _Stages(dict[int, Stage]):
    """The stages of a rank, which say so where another one is asked for."""

    def __missing__(self, number: Any) -> Stage:
        raise Stopped(
            f"self._stages was asked for {number!r}, and this rank has {', '.join(map(str, self))} alone. Take the ops of "
            "self.schedule.ops[self.rank], and each op's stage by op.stage"
        )


class _Inputs(list[torch.Tensor]):
    """The micro-batches of x, which are on the rank of stage 0 alone."""

    def __getitem__(self, number: Any) -> Any:
        if not self:
            raise Stopped(
                "it took from inputs, which is empty on this rank: they are for stage 0. Other stages receive what they are given"
            )
        return super().__getitem__(number)
