"""dp.7: BucketedDataParallel takes steps of training; what becomes ready and what is sent is noted.

Nothing is communicated, so no rank waits for another one: when a bucket arrives, 1 is added to each
of its numbers, as though the other ranks had sent that.
"""

from __future__ import annotations

import copy
import functools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import nn

from labkit.base.texts import listed
from labkit.check.closeness import times_off
from labkit.check.harness import Finding, Task

LAYERS, CAP_MB = "abcde", 256 / 2**20  # a layer has 160 bytes: buckets have e and d, c and b, and a
# Events; the last three begin a part of a step.
READY, SENT, CHANGED = "gradient ready", "bucket sent", "bucket changed on its way"
BACKWARD, FINISH, END = "last backward pass", "finish", "end"
TASK = Task(
    writes="BucketedDataParallel",
    minutes=30,
    points=15,
    notebooks="04, 05",
    needs=["dp.6"],
    hints=(
        """Suppose bucket 1 is full on rank 0 while bucket 0 is full on rank 1. If each sends what it has, what
is added up?""",
        """A single gradient can free several buckets that have waited behind it, so it takes a loop and not
one question. Collect before you send, and wait only at the end, or backward stands still.""",
        """A gradient that is ready is collected, and is not missing any more. Then look at the bucket whose
turn it is: as long as nothing of it is missing, send it and go on to the next. In the other place,
collect what is still missing in the buckets that are left, send those, wait for all, and leave each
sum where it is, as collect has divided already.""",
    ),
)


class Step(NamedTuple):
    """One step of training, as it was seen."""

    buckets: list[list[str]]  # names of parameters
    events: list[Any]  # each with a parameter, a bucket's number, or how many buckets have arrived
    gradients: dict[str, Any]  # each with that of one process, and whether it is in its buffer
    past_send: list[Any]  # buckets that went to comm_hook without Bucket.send


@dataclass(eq=False)
class Case:
    """Steps of training. A step is passes through these layers, all but the last inside no_sync."""

    what: str
    steps: Sequence[str]
    cap_mb: float = CAP_MB
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
        from labkit.parallel.dp import bucket

        torch.manual_seed(3)
        self.layers = nn.ModuleDict({letter: nn.Linear(4, 4).double() for letter in LAYERS})
        for name, parameter in self.layers.named_parameters():  # the reducer's hooks come later
            parameter.register_post_accumulate_grad_hook(functools.partial(self.ready, name))
        self.reducer = dp.BucketedDataParallel(self.layers, self.cap_mb, self.send)
        waits: dict[str, Any] = {"wait_all": lambda futures: [each.wait() for each in futures]}
        waits["collect_all"] = lambda futures: Arriving(lambda: futures, *futures)
        untouched = mock.patch.object(bucket.Bucket, "check_untouched")  # findings tell more than its error
        self.sending: list[Any] = []  # buckets whose send has been called and goes on
        noted = mock.patch.object(bucket.Bucket, "send", self.noting(bucket.Bucket.send))
        with mock.patch.multiple(torch.futures, **waits), untouched, noted:
            return [self.take(step) for step in range(len(self.steps))]

    def noting(self, send: Any) -> Any:
        """Return ``Bucket.send`` that notes which bucket it is about."""

        def noted(bucket: Any, comm_hook: Any) -> None:
            self.sending.append(bucket.number)
            send(bucket, comm_hook)
            self.sending.pop()

        return noted

    def take(self, step: int) -> Step:
        self.arrived, self.events, reducer = 0, list[Any](), self.reducer
        self.past_send: list[Any] = []
        reducer.zero_grad(set_to_none=step % 2 == 0)  # both ways must do
        *earlier, last = self.losses(step)
        with reducer.no_sync():
            for loss in earlier:
                loss.backward()
        self.events = [event for event in self.events if event[0] != READY]
        self.events.append((BACKWARD, self.arrived))
        last.backward()
        if reducer._has_ready_gradients():  # else finish would only raise that there are none
            self.events.append((FINISH, self.arrived))
            reducer.finish_gradient_synchronization()
        self.events.append((END, self.arrived))
        gradients, loss = {}, torch.stack([*self.losses(step)]).sum()
        for each in reducer.buckets:
            own = torch.autograd.grad(loss, each.parameters, retain_graph=True, materialize_grads=True)
            for i, name in enumerate(each.names):
                grad = each.parameters[i].grad
                in_buffer = grad is not None and grad.is_set_to(each.views[i])
                gradients[name] = copy.deepcopy(grad), own[i], in_buffer
        return Step([each.names for each in reducer.buckets], self.events, gradients, self.past_send)

    def ready(self, name: str, _: torch.Tensor) -> None:
        self.events.append((READY, name))
        bucket = next(each for each in self.reducer.buckets if name in each.names)
        if bucket.names.index(name) not in bucket.missing:
            lost = f"bucket.missing had lost {name} before that was ready"
            raise ValueError(f"{lost}: remove position, and nothing else")

    def send(self, buffer: torch.Tensor) -> Arriving:
        """Be the communication hook."""
        numbers = [each.number for each in self.reducer.buckets if each.buffer.is_set_to(buffer)]
        number = next(iter(numbers), None)
        self.events.append((SENT, number))
        if number not in self.sending:
            self.past_send.append(number)
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


def drawn(draw: random.Random) -> list[Case]:
    """Return steps with a bucket for each layer, in some order, all but one of them or some."""
    orders = ["".join(draw.sample(LAYERS, n)) for n in (5, 4, 3, 5)]
    return [Case(f"with a bucket for each layer, {listed(orders)} in turn", orders, cap_mb=100 / 2**20)]


CASES: list[Any] = [
    Case("where all layers are used, in different orders", ["abcde", "edcba", "caebd"]),
    Case("where each step leaves out another layer", ["abcd", "abce", "abde", "acde", "bcde", "a", "e"]),
    Case("where backward passes inside no_sync come first", ["abcde " * 3, "abcd abde ad", "abcde c b"]),
    drawn,
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


@TASK.claim(CASES, core=True)
@in_each_step
def each_bucket_leaves_in_turn_and_in_time(step: Step) -> Finding:
    """In each step each bucket is sent once, in order, as soon as it is full; only finish waits."""
    right_events = _right_events(step)
    at = next((at for at, event in enumerate(step.events) if event != right_events[at]), None)
    if at is None:
        past = "comm_hook was called past its send, which times it and waits for other streams"
        return step.past_send and f"bucket {step.past_send[0]}: {past}. Use bucket.send(self.comm_hook)"
    (kind, what), (right, expected) = step.events[at], right_events[at]
    sent = [what for each, what in step.events[:at] if each == SENT]
    ready = [what for each, what in step.events[:at] if each == READY]
    if FINISH not in [kind for kind, _ in step.events]:
        return "nothing was taken out of bucket.missing in backward. Do so in _gradient_is_ready"
    if kind == CHANGED:
        return f"bucket {what} was changed while it was on its way: what was sent is not all of it"
    if right == BACKWARD:
        return "a bucket was sent inside no_sync, where gradients only add up"
    if kind == SENT and what is None:
        return "comm_hook was given something other than a whole buffer: use bucket.send(self.comm_hook)"
    if kind == SENT and what in sent:
        times = step.events.count([SENT, what])
        return f"bucket {what} was sent {times} times. One that has gone has a future: bucket.future"
    if right == SENT and [SENT, expected] not in step.events:
        when = "neither when it was full nor by finish_gradient_synchronization"
        return f"bucket {expected} was not sent with bucket.send(self.comm_hook), {when}"
    if kind == SENT and what == len(sent):
        return f"bucket {what} was sent before all of it was ready"
    if kind == SENT:
        return f"bucket {what} was sent before bucket {len(sent)}. Ranks may add up different ones"
    if right == SENT:
        return f"bucket {expected} could have gone when the gradient of {ready[-1]} was ready, and has not"
    if right == FINISH:
        return "the backward pass stood still until a bucket had arrived. Only finish may wait"
    return f"it ended while {expected - what} of the buckets were still on their way. Wait for each"


@TASK.claim(CASES)
@in_each_step
def gradients_are_averaged(step: Step) -> Finding:
    """Afterwards each gradient, also if unused or from no_sync, is the mean over the ranks, and in
    its bucket's buffer."""
    n = Case.world_size
    for name, (found, own, in_buffer) in step.gradients.items():
        mean = own / n + 1
        if found is None:
            wrong = "is None, and should be its part of the buffer, used or not"
        elif in_buffer and found.allclose(mean):
            continue
        elif found.allclose(mean):
            wrong = "is the mean, in a tensor of its own: whatever shows the buffer misses it"
        elif found.allclose(own):
            wrong = "is still the rank's own"
        elif times := times_off(found, mean, n) or times_off(found - 1, own / n, n):
            wrong = f"{times}. Bucket.collect does that, once"
        else:
            old = "one from the last step, or from inside no_sync, may be there"
            wrong = f"is neither the mean nor its own: {old}"
        return f"the gradient of {name} {wrong}"
