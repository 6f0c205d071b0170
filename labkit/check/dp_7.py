"""dp.7: BucketedDataParallel takes steps of training; what becomes ready, is sent and is waited for
is noted.

Each rank is by itself first, so that none waits for a message that another one does not send. Where
all have sent the same, the same steps are taken with communication.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn

from labkit.check.calls import recorded
from labkit.check.harness import Task

WORLD_SIZE = 3
WIDTH = 4
CAP_MB = 96 / 2**20  # reached by a layer's bias of 32 bytes and weight of 128, so each layer has a bucket
NO_SYNC, BACKWARD, FINISH = "inside no_sync", "last backward pass", "finish"  # parts of a step
READY, SENT, WAITED = "ready", "sent", "waited for"  # what happens to a gradient, and to a bucket
TASK = Task()


@torch.random.fork_rng(devices=[])
def layers_of(letters: str) -> nn.ModuleDict:
    """Return layers in float64, but ``h`` in bfloat16; ``f`` is frozen, and ``t`` has the weight of
    ``a``."""
    torch.manual_seed(3)
    layers = nn.ModuleDict({letter: nn.Linear(WIDTH, WIDTH).double() for letter in letters})
    if "f" in letters:
        layers["f"].requires_grad_(False)
        layers["h"].bfloat16()
        layers["t"].weight = layers["a"].weight
    return layers


class Step(NamedTuple):
    """One step of one rank, as it was seen."""

    rank: int
    number: int
    buckets: list[list[str]]  # names of parameters
    events: list[Any]  # part, kind, and a parameter's name or a bucket's number, or None for another buffer
    marked: bool
    called: list[str]  # of torch.distributed
    gradients: dict[str, tuple[Any, bool]]  # each with whether it is its part of a bucket's buffer

    def which(self, kind: str, *parts: str) -> list[Any]:
        """Return what this happened to, in order, in some parts of the step, by default in all."""
        return [what for part, each, what in self.events if each == kind and (not parts or part in parts)]


@dataclass(eq=False)
class Case:
    """The student's reducer in steps of training, of layers registered in the order of ``letters``.

    A step is passes, all but the last inside no_sync; a pass is the layers that the rows of each
    rank go through, in that order, or of all ranks, if they do the same. ``advice`` is for a
    gradient whose numbers do not tell what became of it. If ``summed``, ranks communicate.
    """

    what: str
    letters: str
    steps: Sequence[str]
    advice: str = "is it collected once, before its bucket is sent?"
    summed: bool = False
    world_size = WORLD_SIZE

    def __str__(self) -> str:
        return self.what

    def losses(self, layers: nn.ModuleDict, step: int, rank: int) -> Iterator[torch.Tensor]:
        """Compute the mean loss over the rank's rows, in one pass of the step after the other."""
        for number, routes in enumerate(self.steps[step].split(" | ")):
            generator = torch.Generator().manual_seed(1000 * step + 100 * number + rank)
            rows, targets = torch.randn(2, WIDTH, WIDTH, generator=generator, dtype=torch.float64)
            for letter in (routes.split() * WORLD_SIZE)[rank]:
                layer = layers[letter]
                rows = layer(rows.to(next(layer.parameters()).dtype)).tanh().double()
            yield nn.functional.mse_loss(rows, targets)

    def of_a_single_process(self, step: int, ranks: Sequence[int]) -> dict[str, Any]:
        """Return the gradients of the mean of these ranks' losses, summed over the passes of a
        step, or None."""
        layers = layers_of(self.letters)
        for rank in ranks:
            for loss in self.losses(layers, step, rank):
                (loss / len(ranks)).backward()
        return {name: parameter.grad for name, parameter in layers.named_parameters()}

    def observe(self) -> list[Step]:
        from labkit import dp

        self.layers = layers_of(self.letters)  # gone through as they are: the reducer's forward is not the student's
        for name, parameter in self.layers.named_parameters():
            if parameter.requires_grad:  # the reducer's hooks come later, so they are called after these
                parameter.register_post_accumulate_grad_hook(lambda _, name=name: self.note(READY, name))
        self.reducer = dp.BucketedDataParallel(self.layers, CAP_MB, self.send)
        together: dict[str, Any] = {"wait_all": lambda futures: [each.wait() for each in futures]}
        together["collect_all"] = lambda futures: Arriving(lambda: futures, *futures)
        with mock.patch.multiple(torch.futures, **together):
            return [self.take(step) for step in range(len(self.steps))]

    def take(self, step: int) -> Step:
        """Take a step.

        Without a marked gradient it has no finish, which would only raise that there is none.
        """
        self.events: list[Any] = []
        rank, reducer, buckets = dist.get_rank(), self.reducer, self.reducer.buckets
        reducer.zero_grad(set_to_none=step % 2 == 0)  # both ways must do
        *earlier, last = self.losses(self.layers, step, rank)
        with recorded(carry_out=self.summed) as calls:
            self.part = NO_SYNC
            with reducer.no_sync():
                for loss in earlier:
                    loss.backward()
            self.part = BACKWARD
            last.backward()
            if marked := any(len(bucket.missing) < len(bucket.parameters) for bucket in buckets):
                self.part = FINISH
                reducer.finish_gradient_synchronization()
        gradients = {
            name: copy.deepcopy((parameter.grad, parameter.grad is not None and parameter.grad.is_set_to(view)))
            for bucket in buckets
            for name, parameter, view in zip(bucket.names, bucket.parameters, bucket.views, strict=True)
        }
        called = sorted({call.name for call in calls})
        return Step(rank, step, [bucket.names for bucket in buckets], self.events, marked, called, gradients)

    def note(self, kind: str, what: Any) -> None:
        self.events.append((self.part, kind, what))

    def send(self, buffer: Any) -> Any:
        """Be the communication hook, whose sum arrives only when somebody waits for it."""
        number = next((each.number for each in self.reducer.buckets if each.buffer.is_set_to(buffer)), None)
        self.note(SENT, number)
        own, total = buffer.clone(), buffer.clone()
        work = dist.all_reduce(total, async_op=True) if self.summed else None

        def arrive() -> Any:
            self.note(WAITED, number)
            if work:
                work.wait()
            return buffer.add_(total - own)  # no copy_: a change to the buffer while it was on its way would be lost

        return Arriving(arrive)


class Arriving(torch.futures.Future[Any]):
    """A future that is done as soon as somebody waits for it, and not before.

    Those in ``first`` are done then too.
    """

    def __init__(self, arrive: Callable[[], Any], *first: Any):
        super().__init__()
        self._arrive, self._first, self._asked = arrive, first, False

    def wait(self) -> Any:
        for each in self._first:
            each.wait()
        if not super().done():
            self.set_result(self._arrive())
        return super().wait()

    def done(self) -> bool:
        if self._asked:  # who asks again and again waits
            self.wait()
        self._asked = True
        return super().done()

    def then(self, callback: Callable[[Any], Any]) -> Any:
        return Arriving(lambda: callback(self), self)


# --- what must hold in each step of each rank -----------------------------------------------------


def _claim(cases: Sequence[Case], after: Any = ()) -> Any:
    """Make a claim of what must hold in each step of these cases."""

    def add(holds: Callable[[Case, Step], str | None]) -> Any:
        @functools.wraps(holds)
        def claim(case: Case, seen: Any) -> str | None:
            steps = [Step(*found) for steps in seen for found in steps]
            wrong = ((step, holds(case, step)) for step in steps)
            return next((f"rank {step.rank}, step {step.number}: {what}" for step, what in wrong if what), None)

        return TASK.claim(cases, after)(claim)

    return add


OLD = "the buffer may still hold the last step's gradients: collect what is missing before the bucket is sent"
EARLIER = "collect what is missing, rather than set it to zero: a gradient may be there from inside no_sync"
ALONE = [
    Case("where all ranks do the same", "abc", ["abc"] * 3),
    Case("where ranks use their layers in different orders", "abc", ["abc cab bca", "cba abc bac"]),
    Case("with a tied weight, a frozen layer and one in bfloat16", "atfh", ["hatf"] * 2),
    Case("where each rank leaves out another layer", "abc", ["ab ac abc", "ac ab bc", "a b c"], OLD),
    Case("where two backward passes inside no_sync come first", "abc", ["abc | abc | abc"] * 2, EARLIER),
    Case("where layers are used inside no_sync alone", "abc", ["ab ac abc | a", "abc ab c | b"], EARLIER),
]
SUMMED = [replace(case, summed=True) for case in ALONE]


@_claim(ALONE)
def each_bucket_is_sent_once_and_in_order(case: Case, step: Step) -> str | None:
    """In each step each bucket is sent once, in the order of their numbers, and nothing inside
    no_sync."""
    if not step.marked:
        return "nothing was taken out of bucket.missing in the backward pass. Do so in _gradient_is_ready"
    if step.which(SENT, NO_SYNC):
        return "a bucket was sent inside no_sync. Leave the gradients alone while self._synchronize is False"
    sent, hook = step.which(SENT), "Send each bucket with bucket.send(self.comm_hook)"
    if None in sent:
        return f"comm_hook was given something else than a bucket's whole buffer. {hook}"
    for number in range(len(step.buckets)):
        if (times := sent.count(number)) > 1:
            return f"bucket {number} was sent {times} times. Count in self._sent those that have gone"
        if not times and step.called:
            return f"{step.called[0]} was called, but not by self.comm_hook, which decides how a bucket travels. {hook}"
        if not times:
            rest = "finish_gradient_synchronization sends what is left"
            return f"bucket {number} was not sent, and the other ranks would wait for it: {rest}"
    if sent != sorted(sent):
        advice = "Ranks would add up different buckets: let a bucket that is full wait until all before it have gone"
        return f"buckets were sent in the order {', '.join(map(str, sent))}. {advice}"
    return None


@_claim(ALONE, after=[each_bucket_is_sent_once_and_in_order])
def a_bucket_leaves_once_it_is_full(case: Case, step: Step) -> str | None:
    """A bucket leaves as soon as nothing is missing in it and all before it have gone, not earlier:
    the overlap."""
    ready, sent = list[str](), 0
    backward = [(kind, what) for part, kind, what in step.events if part == BACKWARD and kind != WAITED]
    for kind, what in [*backward, (READY, "")]:
        if kind == SENT:
            sent += 1
            continue
        full = next((k for k, names in enumerate(step.buckets) if not {*names} <= {*ready}), len(step.buckets))
        if sent > full:
            early = f"bucket {full} was sent before the gradients of {' and '.join(step.buckets[full])} were ready"
            return f"{early}, so without one. A bucket may go once nothing of it is missing"
        if sent < full:
            late = f"when the gradient of {ready[-1]} was ready, {full} of the buckets could have gone, and {sent} had"
            never = "" if step.which(SENT, BACKWARD) else ". Nothing overlaps: all was sent after the backward pass"
            return f"{late}{never}. Mark the gradient as ready first, then send every bucket that can go"
        ready.append(what)
    return None


@_claim(ALONE, after=[each_bucket_is_sent_once_and_in_order])
def finish_waits_and_backward_does_not(case: Case, step: Step) -> str | None:
    """The backward pass goes on while buckets are on their way; finish_gradient_synchronization
    waits for all."""
    if step.which(WAITED, BACKWARD):
        return "the backward pass stood still until a bucket had arrived. Wait in finish_gradient_synchronization alone"
    if late := len(step.buckets) - len(set(step.which(WAITED))):
        return f"it ended while {late} of the buckets were still on their way. Wait for each in finish_gradient_synchronization"
    return None


@_claim(SUMMED, after=[finish_waits_and_backward_does_not])
def gradients_are_averaged(case: Case, step: Step) -> str | None:
    """Afterwards each gradient, also if unused or from no_sync, is the mean over the ranks, and in
    its bucket's buffer."""
    alone = case.of_a_single_process(step.number, [step.rank])
    mean = case.of_a_single_process(step.number, range(WORLD_SIZE))
    for name, (found, in_buffer) in step.gradients.items():
        if wrong := _compare(found, in_buffer, alone[name], mean[name], case.advice):
            return f"the gradient of {name} {wrong}"
    return None


def _compare(found: Any, in_buffer: bool, alone: Any, mean: Any, advice: str) -> str | None:
    """Return in what way a gradient is wrong, and what to do.

    ``alone`` is that of the rank by itself, or None.
    """
    if found is None:
        return "is None, and should be the part of the buffer in which the mean is: collect it, used or not"
    n, own = WORLD_SIZE, mean * torch.nan if alone is None else alone
    apart = "is a tensor of its own. Collect it, and change the bucket's buffer in place rather than put new tensors into grad"
    for numbers, wrong in (
        (mean, None if in_buffer else apart),
        (own, "is still the rank's own: collect it into its bucket, send the bucket, and wait for it"),
        (own / n, f"is the rank's own divided by {n}, which is its share of the mean: wait for the bucket"),
        (mean * n, f"is {n} times too large: nobody has divided it by the world size, or it was added up twice"),
        (mean / n, f"is {n} times too small: it was divided by the world size twice. Bucket.collect has done it"),
    ):
        relative = 1e-9 if found.element_size() > 2 else 2e-2  # float64, or bfloat16 with three digits
        if found.double().allclose(numbers.double(), rtol=relative, atol=relative * float(mean.abs().max())):
            return wrong
    return f"is neither the mean over the ranks, nor their sum, nor its own: {advice}"
