"""dp.7: BucketedDataParallel takes steps of training; what becomes ready, is sent and is waited for is noted.

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
WIDTH = 4  # of a layer, whose bias has 32 bytes, and its weight 128
CAP_MB = 96 / 2**20  # reached by both together, so each layer has a bucket
NO_SYNC, BACKWARD, FINISH = "inside no_sync", "last backward pass", "finish"  # parts of a step
READY, SENT, WAITED = "ready", "sent", "waited for"  # what happens to a gradient, and to a bucket
TASK = Task()


class Layers(nn.ModuleDict):
    """Layers named by letters, in float64: ``f`` is frozen, ``t`` has the weight of ``a``, ``h`` is in bfloat16."""

    @torch.random.fork_rng(devices=[])
    def __init__(self, letters: str):
        torch.manual_seed(3)
        super().__init__({letter: nn.Linear(WIDTH, WIDTH).double() for letter in letters})
        if "t" in letters:
            self["t"].weight = self["a"].weight
            self["h"].bfloat16()
        if "f" in letters:
            self["f"].requires_grad_(False)

    def forward(self, rows: torch.Tensor, route: str) -> torch.Tensor:
        for letter in route:
            layer = self[letter]
            rows = layer(rows.to(next(layer.parameters()).dtype)).tanh().double()
        return rows


@dataclass(eq=False)
class Case:
    """The student's reducer in steps of training, of ``layers`` registered in that order.

    A step is passes, all but the last inside no_sync; a pass is the layers that the rows of each
    rank go through, in that order, or of all ranks, if they do the same. ``advice`` is for a
    gradient whose numbers do not tell what became of it. If ``summed``, ranks communicate.
    """

    what: str
    layers: str
    steps: Sequence[str]
    advice: str = "is it collected once, before its bucket is sent?"
    summed: bool = False

    world_size = WORLD_SIZE

    def __str__(self) -> str:
        return self.what

    def losses(self, model: nn.Module, step: int, rank: int) -> Iterator[torch.Tensor]:
        """Compute the mean loss over the rank's rows, in one pass of the step after the other."""
        for number, routes in enumerate(self.steps[step].split(" | ")):
            generator = torch.Generator().manual_seed(1000 * step + 100 * number + rank)
            rows, targets = torch.randn(2, WIDTH, WIDTH, generator=generator, dtype=torch.float64)
            route = (routes.split() * WORLD_SIZE)[rank]
            yield nn.functional.mse_loss(model(rows, route), targets)

    def of_a_single_process(self, step: int, ranks: Sequence[int]) -> dict[str, Any]:
        """Return the gradients of the mean of these ranks' losses, summed over the passes of a step, or None."""
        model = Layers(self.layers)
        for rank in ranks:
            for loss in self.losses(model, step, rank):
                (loss / len(ranks)).backward()
        return {name: parameter.grad for name, parameter in model.named_parameters()}

    def observe(self) -> list[dict[str, Any]]:
        """Return the fields of :class:`Step` for each step."""
        from labkit import dp

        model = Layers(self.layers)
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:  # the reducer's hooks come later, so they are called after these
                parameter.register_post_accumulate_grad_hook(lambda _, name=name: self.note(READY, name))
        self.reducer = dp.BucketedDataParallel(model, CAP_MB, self.send)
        with mock.patch.multiple(
            torch.futures,
            collect_all=lambda futures: Arriving(lambda: futures, *futures),
            wait_all=lambda futures: [each.wait() for each in futures],
        ):
            return [self.take(step) for step in range(len(self.steps))]

    def take(self, step: int) -> dict[str, Any]:
        """Take a step. Without a marked gradient it has no finish, which would only raise that there is none."""
        self.events: list[Any] = []
        reducer, buckets = self.reducer, self.reducer.buckets
        reducer.zero_grad(set_to_none=step % 2 == 0)  # both ways must do
        *earlier, last = self.losses(reducer, step, dist.get_rank())
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
        return {
            "buckets": [bucket.names for bucket in buckets],
            "events": self.events,
            "marked": marked,
            "called": sorted({call.name for call in calls}),
            "gradients": {
                name: copy.deepcopy((parameter.grad, _address(parameter.grad) == _address(view)))
                for bucket in buckets
                for name, parameter, view in zip(bucket.names, bucket.parameters, bucket.views, strict=True)
            },
        }

    def note(self, kind: str, what: Any) -> None:
        self.events.append((self.part, kind, what))

    def send(self, buffer: Any) -> Any:
        """Be the communication hook, whose sum arrives only when somebody waits for it."""
        numbers = {(each.buffer.data_ptr(), each.buffer.numel()): each.number for each in self.reducer.buckets}
        number = numbers.get((buffer.data_ptr(), buffer.numel()))
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
    """A future that is done as soon as somebody waits for it, and not before. Those in ``first`` are done then too."""

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


def _address(gradient: Any) -> int | None:
    return None if gradient is None else gradient.data_ptr()


# --- what must hold in each step of each rank ------------------------------------------------------------------------


class Step(NamedTuple):
    """One step of one rank.

    ``buckets`` has the names of their parameters, ``events`` triples of part, kind, and a
    parameter's name or a bucket's number, None for what is no bucket's buffer. ``called`` are
    functions of torch.distributed. Of each gradient it is known whether it is in its bucket's buffer.
    """

    rank: int
    number: int
    buckets: list[list[str]]
    events: list[Any]
    marked: bool
    called: list[str]
    gradients: dict[str, tuple[Any, bool]]

    def which(self, kind: str, *parts: str) -> list[Any]:
        """Return what this happened to, in order, in some parts of the step, by default in all."""
        return [what for part, each, what in self.events if each == kind and (not parts or part in parts)]

    def full(self, ready: Sequence[str]) -> int:
        """Return how many buckets can go once these gradients are ready: the first ones of which nothing is missing."""
        full = [set(names).issubset(ready) for names in self.buckets]
        return [*full, False].index(False)


def _claim(cases: Sequence[Case], after: Any = ()) -> Any:
    """Make a claim of what must hold in each step of these cases."""

    def add(holds: Callable[[Case, Step], str | None]) -> Any:
        @functools.wraps(holds)
        def claim(case: Case, seen: Any) -> str | None:
            for rank, steps in enumerate(seen):
                for number, found in enumerate(steps):
                    if wrong := holds(case, Step(rank, number, **found)):
                        return f"rank {rank}, step {number}: {wrong}"
            return None

        return TASK.claim(cases, after)(claim)

    return add


OLD = "the buffer may still hold the last step's gradients: collect what is missing before the bucket is sent"
EARLIER = "collect what is missing, rather than set it to zero: a gradient may be there from inside no_sync"
ALONE = [
    Case("where all ranks do the same", "abfc", ["abfc"] * 3),
    Case("where ranks use their layers in different orders", "abc", ["abc cab bca", "cba abc bac"]),
    Case("with a tied weight and a layer in bfloat16", "atfh", ["hatf"] * 2),
    Case("where each rank leaves out another layer", "abc", ["ab ac abc", "ac ab bc", "a b c"], OLD),
    Case("where two backward passes inside no_sync come first", "abc", ["abc | abc | abc"] * 2, EARLIER),
    Case("where layers are used inside no_sync alone", "abc", ["ab ac abc | a", "abc ab c | b"], EARLIER),
]
SUMMED = [replace(case, summed=True) for case in ALONE]


@_claim(ALONE)
def each_bucket_is_sent_once_and_in_order(case: Case, step: Step) -> str | None:
    """In each step each bucket is sent once, in the order of their numbers, and nothing inside no_sync."""
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
            called = " and ".join(step.called)
            return f"{called} was called, but not by self.comm_hook, which decides how a bucket travels. {hook}"
        if not times:
            rest = "What the backward pass has not sent, finish_gradient_synchronization has to"
            return f"bucket {number} was not sent, and the other ranks would wait for it. {rest}"
    if sent != sorted(sent):
        advice = "Ranks would add up different buckets: let a bucket that is full wait until all before it have gone"
        return f"buckets were sent in the order {', '.join(map(str, sent))}. {advice}"
    return None


@_claim(ALONE, after=[each_bucket_is_sent_once_and_in_order])
def a_bucket_leaves_once_it_is_full(case: Case, step: Step) -> str | None:
    """A bucket leaves at once, not earlier, when nothing is missing in it and all before it have gone: the overlap."""
    ready, sent = list[str](), 0
    backward = [(kind, what) for part, kind, what in step.events if part == BACKWARD and kind != WAITED]
    for kind, what in [*backward, (READY, "")]:
        full = step.full(ready)
        if kind == SENT:
            sent += 1
        elif sent > full:
            missing = next(name for name in step.buckets[full] if name not in ready)
            advice = "A bucket may go once nothing of it is missing"
            return f"bucket {full} was sent before the gradient of {missing} was ready, so without it. {advice}"
        elif sent < full:
            late = f"when the gradient of {ready[-1]} was ready, {full} of the buckets could have gone, and {sent} had"
            never = ": nothing was sent before the backward pass was over, so nothing overlaps"
            advice = "Mark the gradient as ready first, then send every bucket that can go"
            return f"{late}{'' if step.which(SENT, BACKWARD) else never}. {advice}"
        else:
            ready.append(what)
    return None


@_claim(ALONE, after=[each_bucket_is_sent_once_and_in_order])
def finish_waits_and_backward_does_not(case: Case, step: Step) -> str | None:
    """The backward pass goes on while buckets are on their way; finish_gradient_synchronization waits for all."""
    if step.which(WAITED, BACKWARD):
        advice = "Only send there, and wait in finish_gradient_synchronization"
        return f"the backward pass stood still until a bucket had arrived. {advice}"
    if missing := set(range(len(step.buckets))).difference(step.which(WAITED)):
        what = f"finish_gradient_synchronization returned while {len(missing)} of the buckets were still on their way"
        return f"{what}: wait for each of them"
    return None


@_claim(SUMMED, after=[finish_waits_and_backward_does_not])
def gradients_are_averaged(case: Case, step: Step) -> str | None:
    """After each step each gradient, used, unused or from no_sync, is the mean over the ranks, in its bucket's buffer."""
    alone = case.of_a_single_process(step.number, [step.rank])
    mean = case.of_a_single_process(step.number, range(WORLD_SIZE))
    for name, (found, in_buffer) in step.gradients.items():
        if wrong := _compare(found, alone[name], mean[name]):
            return f"the gradient of {name} {wrong.format(n=WORLD_SIZE, advice=case.advice)}"
        if not in_buffer:
            advice = "Collect it, and change the bucket's buffer in place rather than put new tensors into grad"
            return f"the gradient of {name} is a tensor of its own. {advice}"
    return None


def _compare(found: Any, alone: Any, mean: Any) -> str | None:
    """Return in what way a gradient is wrong, and what to do. ``alone`` is that of the rank by itself, or None."""
    if found is None:
        return "is None, and should be the part of the buffer in which the mean is: collect it, used or not"
    n, own = WORLD_SIZE, mean * torch.nan if alone is None else alone
    for numbers, wrong in (
        (mean, None),
        (own, "is still the rank's own: collect it into its bucket, send the bucket, and wait for it"),
        (own / n, "is the rank's own divided by {n}, which is its share of the mean: wait for the bucket"),
        (mean * n, "is {n} times too large: nobody has divided it by the world size, or it was added up twice"),
        (mean / n, "is {n} times too small: it was divided by the world size twice. Bucket.collect has done it"),
    ):
        relative = 1e-9 if found.element_size() > 2 else 2e-2  # float64, or bfloat16 with three digits
        if found.double().allclose(numbers.double(), rtol=relative, atol=relative * float(mean.abs().max())):
            return wrong
    return "is neither the mean over the ranks, nor their sum, nor its own: {advice}"
