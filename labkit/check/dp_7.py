"""dp.7: BucketedDataParallel takes steps of training; what becomes ready and what is sent is noted.

Nothing is communicated, so no rank waits for another one: when a bucket arrives, 1 is added to each
of its numbers, as though the other ranks had sent that.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import nn

from labkit.check.harness import Finding, TaskClaims

LAYERS, CAP_MB = "abcde", 256 / 2**20  # a layer has 160 bytes, so buckets have e and d, c and b, and a
READY, SENT, CHANGED = "gradient ready", "bucket sent", "bucket changed on its way"  # events
BACKWARD, FINISH, END = "last backward pass", "finish", "end"  # events too: where a part of a step begins
TASK = TaskClaims()


class Step(NamedTuple):
    """One step of training, as it was seen."""

    buckets: list[list[str]]  # names of parameters
    events: list[Any]  # each with a parameter, or the bucket's number, or how many buckets have arrived
    gradients: dict[str, Any]  # each with what it is in a single process, and whether it is in its bucket's buffer


@dataclass(eq=False)
class Case:
    """Steps of training. A step is passes through these layers, all but the last inside no_sync."""

    what: str
    steps: Sequence[str]
    world_size = 3

    def __str__(self) -> str:
        return self.what

    def losses(self, step: int) -> Iterator[torch.Tensor]:
        torch.manual_seed(step)
        for letters in self.steps[step].split():
            rows = torch.randn(4, 4).double()
            for letter in letters:  # not the reducer's forward, which is not the student's
                rows = self.layers[letter](rows).tanh()
            yield rows.square().sum()

    @torch.random.fork_rng(devices=[])
    def observe(self) -> list[Step]:
        from labkit import dp

        torch.manual_seed(3)
        self.layers = nn.ModuleDict({letter: nn.Linear(4, 4).double() for letter in LAYERS})
        for name, parameter in self.layers.named_parameters():  # the reducer's hooks are called after these
            parameter.register_post_accumulate_grad_hook(functools.partial(self.ready, name))
        self.reducer = dp.BucketedDataParallel(self.layers, CAP_MB, self.send)
        waits: dict[str, Any] = {"wait_all": lambda futures: [each.wait() for each in futures]}
        waits["collect_all"] = lambda futures: Arriving(lambda: futures, *futures)
        with mock.patch.multiple(torch.futures, **waits):
            return [self.take(step) for step in range(len(self.steps))]

    def take(self, step: int) -> Step:
        self.arrived, self.events, reducer = 0, list[Any](), self.reducer
        reducer.zero_grad(set_to_none=step % 2 == 0)  # both ways must do
        *earlier, last = self.losses(step)
        with reducer.no_sync():
            for loss in earlier:
                loss.backward()
        self.events = [event for event in self.events if event[0] != READY] + [(BACKWARD, self.arrived)]
        last.backward()
        if reducer._has_ready_gradients():  # else finish would only raise that there are none
            self.events.append((FINISH, self.arrived))
            reducer.finish_gradient_synchronization()
        self.events.append((END, self.arrived))
        gradients, loss = {}, torch.stack([*self.losses(step)]).sum()
        for each in reducer.buckets:
            owns = torch.autograd.grad(loss, each.parameters, retain_graph=True, materialize_grads=True)
            for name, parameter, own, view in zip(each.names, each.parameters, owns, each.views, strict=True):
                in_buffer = parameter.grad is not None and parameter.grad.is_set_to(view)
                gradients[name] = copy.deepcopy(parameter.grad), own, in_buffer
        return Step([each.names for each in reducer.buckets], self.events, gradients)

    def ready(self, name: str, _: torch.Tensor) -> None:
        self.events.append((READY, name))
        bucket = next(each for each in self.reducer.buckets if name in each.names)
        if bucket.names.index(name) not in bucket.missing:
            raise ValueError(f"bucket.missing had lost {name} before that was ready: remove position, and nothing else")

    def send(self, buffer: torch.Tensor) -> Arriving:
        """Be the communication hook."""
        number = next((each.number for each in self.reducer.buckets if each.buffer.is_set_to(buffer)), None)
        self.events.append((SENT, number))
        sent = buffer.clone()

        def arrive() -> torch.Tensor:
            if not buffer.equal(sent):
                self.events.append((CHANGED, number))
            self.arrived += 1
            return buffer.add_(1)

        return Arriving(arrive)


class Arriving(torch.futures.Future[Any]):
    """A future that is done, after those in ``first``, once one waits for it or asks twice."""

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
        if self._asked:
            self.wait()
        self._asked = True
        return super().done()

    def then(self, callback: Callable[[Any], Any]) -> Any:
        return Arriving(lambda: callback(self), self)


# --- what must hold in each step ------------------------------------------------------------------

CASES = [
    Case("where all layers are used, in different orders", ["abcde", "edcba", "caebd"]),
    Case("where each step leaves out another layer", ["abcd", "abce", "abde", "acde", "bcde", "a", "e"]),
    Case("where backward passes inside no_sync come first", ["abcde abcde abcde", "abcd abde ad", "abcde c b"]),
]


def in_each_step(holds: Callable[[Step], Finding]) -> Callable[[Case, Any], Finding]:
    """Make of a claim about a step one about each step of a case, on each rank."""

    @functools.wraps(holds)
    def in_all(case: Case, seen: Any) -> Finding:
        for rank, steps in enumerate(seen):
            for number, found in enumerate(steps):
                if wrong := holds(Step(*found)):
                    return f"rank {rank}, step {number}: {wrong}"

    return in_all


def _right_events(step: Step) -> list[Any]:
    """Return what should happen, of the order in which the gradients become ready."""
    events: list[Any] = [[BACKWARD, 0]]
    unsent, ready = list(range(len(step.buckets))), set[str]()
    for name in [what for kind, what in step.events if kind == READY]:
        events.append([READY, name])
        ready.add(name)
        while unsent and ready.issuperset(step.buckets[unsent[0]]):
            events.append([SENT, unsent.pop(0)])
    return [*events, [FINISH, 0], *([SENT, number] for number in unsent), [END, len(step.buckets)]]


@TASK.claim(CASES)
@in_each_step
def each_bucket_leaves_in_turn_and_in_time(step: Step) -> Finding:
    """In each step each bucket is sent once, in order, as soon as it is full; only finish waits."""
    right_events = _right_events(step)
    at = next((at for at, event in enumerate(step.events) if event != right_events[at]), None)
    if at is None:
        return None
    (kind, what), (right, expected) = step.events[at], right_events[at]
    sent, ready = ([what for each, what in step.events[:at] if each == wanted] for wanted in (SENT, READY))
    if FINISH not in [kind for kind, _ in step.events]:
        return "nothing was taken out of bucket.missing in the backward pass. Do so in _gradient_is_ready"
    if kind == CHANGED:
        return f"bucket {what} was changed while it was on its way. Collect before you send it, and then wait for it"
    if right == BACKWARD:
        return "a bucket was sent inside no_sync. Leave the gradients alone while self._synchronize is False"
    if kind == SENT and what is None:
        return "comm_hook was given something other than a bucket's whole buffer. Use bucket.send(self.comm_hook)"
    if kind == SENT and what in sent:
        times = step.events.count([SENT, what])
        return f"bucket {what} was sent {times} times. Count in self._sent those that have gone"
    if right == SENT and [SENT, expected] not in step.events:
        never = "neither when it was full nor in finish_gradient_synchronization"
        return f"bucket {expected} was not sent with bucket.send(self.comm_hook), {never}"
    if kind == SENT and what == len(sent):
        return f"bucket {what} was sent before all of it was ready. A bucket may go once nothing of it is missing"
    if kind == SENT:
        return f"bucket {what} was sent before bucket {len(sent)}. Keep to the order, or ranks add up different buckets"
    if right == SENT:
        late = f"bucket {expected} could have gone when the gradient of {ready[-1]} was ready, to overlap with backward"
        return f"{late}. Mark the gradient as ready first, then send every bucket that can go"
    if right == FINISH:
        return "the backward pass stood still until a bucket had arrived. Wait in finish_gradient_synchronization alone"
    return f"it ended while {expected - what} of the buckets were still on their way. Wait for each of them"


@TASK.claim(CASES)
@in_each_step
def gradients_are_averaged(step: Step) -> Finding:
    """Afterwards each gradient, also if unused or from no_sync, is the mean over the ranks, and in
    its bucket's buffer."""
    n = Case.world_size
    for name, (found, own, in_buffer) in step.gradients.items():
        mean = own / n + 1
        if found is None:
            wrong = "is None, and should be the part of the buffer in which the mean is: collect it, used or not"
        elif in_buffer and found.allclose(mean):
            continue
        elif found.allclose(mean):
            wrong = "is a tensor of its own. Change the bucket's buffer in place, and put no new tensor into grad"
        elif found.allclose(own):
            wrong = "is still the rank's own: collect it into its bucket, and leave there what arrives"
        elif found.allclose(own + 1) or found.allclose(mean * n):
            wrong = f"is {n} times too large. Bucket.collect divides by the world size, and the sum of all is the mean"
        elif found.allclose(own / n / n + 1) or found.allclose(mean / n):
            wrong = f"is {n} times too small: it was divided by the world size twice. Bucket.collect does that, once"
        else:
            old = "the buffer may still hold the last step's gradients, and one may be there from inside no_sync"
            wrong = f"is neither the mean nor its own. Collect it before its bucket is sent, used or not: {old}"
        return f"the gradient of {name} {wrong}"
