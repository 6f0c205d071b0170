"""What runs in ranks to judge dp.7: the student's reducer is brought into situations, and every event is noted.

Each situation is tried twice: first without communication, so that no rank waits for a message that another one does not
send; and then, where all ranks would have sent the same, with it.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from typing import Any

from labkit.check.calls import recorded
from labkit.judging.evidence import DP, Failure, Stopped, Untried, attempt

WORLD_SIZE = 3
HELD_S = 3.0  # who waits for a bucket during the backward pass waits this long
LATE_S = 0.15  # a bucket arrives this long after the one that was sent next, once the backward pass is over

# In order: ("ready", a parameter's name), ("sent", a bucket's number), ("told", a name): the student's hook has returned.
Events = list[tuple[str, Any]]
UNEQUAL = "not tried, because the ranks would not have sent the same buckets in the same order"
UNSENT = "not tried, because not all buckets are sent with self.comm_hook"
UNMARKED = (
    "nothing was taken out of bucket.missing in the backward pass, so nobody knows which gradients are ready. Mark a gradient "
    "as ready in _gradient_is_ready: its position is not missing any more"
)


def probe_reducer() -> dict[str, Any]:
    """In each rank: what was sent when, without communication; gradients with it; and what a late bucket did."""
    from labkit import dp  # noqa: F401  (what is wrong with the file as a whole is said once)
    from labkit.judging.reducer_model import SITUATIONS

    events = {name: attempt(functools.partial(_events, name), DP) for name in SITUATIONS}
    refused = _refused(events)
    summed = {name: refused[name] or attempt(functools.partial(_gradients, name), DP) for name in SITUATIONS}
    return {"events": events, "summed": summed, "late": refused["plain"] or attempt(_wait_for_late_buckets, DP)}


def _refused(events: dict[str, Any]) -> dict[str, Failure | Untried | None]:
    """By situation: why it is not tried with communication, the same on all ranks; None where it is."""
    import torch.distributed as dist

    def sent(found: Any) -> Any:
        if isinstance(found, Failure):
            return found
        return UNSENT if any(found["called"]) else [_sent(step) for step in found["steps"]]

    ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(ranks, {name: sent(found) for name, found in events.items()})

    def reason(name: str) -> Failure | Untried | None:
        failures = [found[name] for found in ranks if isinstance(found[name], Failure)]
        if failures:
            return failures[0]
        if any(found[name] == UNSENT for found in ranks):
            return Untried(UNSENT)
        return Untried(UNEQUAL) if any(found[name] != ranks[0][name] for found in ranks) else None

    return {name: reason(name) for name in events}


def _sent(step: dict[str, Events]) -> list[Any]:
    """The numbers of the buckets that were given to the hook in one step, in order."""
    return [what for events in step.values() for kind, what in events if kind == "sent"]


# --- communication hooks ---------------------------------------------------------------------------------------------


def _keep(buffer: Any) -> Any:
    """A communication hook without communication: the buffer stays as it is."""
    import torch

    future: Any = torch.futures.Future()
    future.set_result(buffer)
    return future


def _sum(buffer: Any) -> Any:
    import torch.distributed as dist

    return dist.all_reduce(buffer, async_op=True).get_future()


class _Late:
    """A communication hook whose sums arrive some time after they are released; or by themselves, lest someone wait for ever."""

    def __init__(self) -> None:
        self.released, self.gave_up = threading.Event(), False
        self._futures: list[Any] = []
        self._threads: list[threading.Thread] = []

    def __call__(self, buffer: Any) -> Any:
        import torch
        import torch.distributed as dist

        total = buffer.clone()
        future: Any = torch.futures.Future()
        work = dist.all_reduce(total, async_op=True)
        delay = LATE_S * max(0, 3 - len(self._threads))  # the first one of three arrives last

        def arrive() -> None:
            work.wait()
            if not self.released.wait(HELD_S):
                self.gave_up = True
                self.released.set()
            time.sleep(delay)
            buffer.copy_(total)
            future.set_result(buffer)

        self._futures.append(future)
        self._threads.append(threading.Thread(target=arrive))
        self._threads[-1].start()
        return future

    def sent(self) -> int:
        """How many buckets have been sent."""
        return len(self._futures)

    def on_their_way(self) -> int:
        """How many buckets have been sent and have not arrived yet."""
        return sum(not future.done() for future in self._futures)

    def join(self) -> None:
        self.released.set()
        for thread in self._threads:
            thread.join()


# --- situations ------------------------------------------------------------------------------------------------------


def _events(name: str) -> dict[str, Any]:
    """Without communication: the names of the parameters in each bucket; for each step its events, by phase; and what was
    called of torch.distributed to send the buckets that the hook was not given."""
    tried = _Tried(name, _keep)
    steps, called = [], []
    for number in range(len(tried.steps)):
        with recorded(carry_out=False) as calls:
            steps.append(tried.step(number))
        all_given = set(range(len(tried.numbers))).issubset(_sent(steps[-1]))
        called.append([] if all_given else sorted({call.name for call in calls}))
    return {"buckets": [bucket.names for bucket in tried.reducer.buckets], "steps": steps, "called": called}


def _gradients(name: str) -> list[dict[str, Any]]:
    """For each step what :meth:`_Tried.found` gives after it, with communication."""
    tried = _Tried(name, _sum)
    found = []
    for number in range(len(tried.steps)):
        tried.step(number)
        found.append(tried.found())
    return found


class _Tried:
    """The student's reducer in one situation, its steps taken when asked for, with every event noted."""

    def __init__(self, name: str, comm_hook: Callable[[Any], Any]):
        import torch.distributed as dist

        from labkit import dp
        from labkit.judging import reducer_model

        self.steps, self.rank = reducer_model.SITUATIONS[name].steps, dist.get_rank()
        self.model = reducer_model.Layers(reducer_model.SITUATIONS[name].layers)
        self.events: Events = []
        self._note_each_gradient("ready")  # autograd calls hooks in the order in which they came
        self.reducer = dp.BucketedDataParallel(self.model, reducer_model.CAP_MB, self._noting(comm_hook))
        self._note_each_gradient("told")
        self.numbers = {bucket.buffer.data_ptr(): number for number, bucket in enumerate(self.reducer.buckets)}

    def step(self, number: int) -> dict[str, Events]:
        """One step; the events inside no_sync, of the last backward pass, and of finish_gradient_synchronization."""
        self.reducer.zero_grad(set_to_none=number % 2 == 0)  # both ways must do
        before = self._during(lambda: self.backward_inside_no_sync(number))
        backward = self._during(lambda: self.backward(number))
        return {"no_sync": before, "backward": backward, "finish": self._during(self.finish)}

    def backward_inside_no_sync(self, step: int) -> None:
        for number in range(len(self.steps[step]) - 1):
            with self.reducer.no_sync():
                self._pass(step, number)

    def backward(self, step: int) -> None:
        self._pass(step, len(self.steps[step]) - 1)

    def finish(self) -> None:
        if all(len(bucket.missing) == len(bucket.parameters) for bucket in self.reducer.buckets):
            raise Stopped(UNMARKED)
        self.reducer.finish_gradient_synchronization()

    def found(self) -> dict[str, Any]:
        """The gradients, and the names of those that are no part of a bucket's buffer."""
        from labkit.judging.reducer_model import gradients

        buffers = {bucket.buffer.untyped_storage().data_ptr() for bucket in self.reducer.buckets}
        own = [
            name
            for name, p in self.model.named_parameters()
            if p.grad is not None and p.grad.untyped_storage().data_ptr() not in buffers
        ]
        return {"gradients": gradients(self.model), "not in a bucket": own}

    def _pass(self, step: int, number: int) -> None:
        from labkit.judging.reducer_model import loss

        loss(self.reducer, self.steps[step][number][self.rank], self.rank, step, number).backward()

    def _during(self, phase: Callable[[], None]) -> Events:
        self.events = []
        phase()
        return self.events

    def _note_each_gradient(self, kind: str) -> None:
        def note(name: str, _: Any) -> None:
            self.events.append((kind, name))

        for name, parameter in self.model.named_parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(functools.partial(note, name))

    def _noting(self, comm_hook: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def noted(buffer: Any) -> Any:
            self.events.append(("sent", self.numbers.get(buffer.data_ptr())))
            return comm_hook(buffer)

        return noted


def _wait_for_late_buckets() -> dict[str, Any] | Untried:
    """A step whose buckets arrive only after the backward pass is over, each at another time."""
    late = _Late()
    tried = _Tried("plain", late)
    try:
        tried.backward(0)
        held_up = late.gave_up
        late.released.set()
        tried.finish()
        return {"backward waited": held_up, "on their way": late.on_their_way()} if late.sent() else Untried(UNSENT)
    finally:
        late.join()
