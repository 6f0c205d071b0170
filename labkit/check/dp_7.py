"""dp.7: BucketedDataParallel is brought into situations, and every event is noted.

Each situation is tried without communication first, so that no rank waits for a message that another
one does not send; and then, where all ranks have sent the same, with it.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from labkit.check.calls import recorded
from labkit.check.harness import Task

WORLD_SIZE = 3
HELD_S = 3.0  # who waits for a bucket during the backward pass waits this long
LATE_S = 0.15  # a bucket arrives this long after the one that was sent next, once the backward pass is over
ROWS, WIDTH = 4, 4
LAYER_BYTES = (WIDTH * WIDTH + WIDTH) * 8
CAP_MB = 0.6 * LAYER_BYTES / 2**20  # reached by a layer's bias and weight together, so each layer has a bucket
TASK = Task()

# In order: ("ready", a parameter's name), ("sent", a bucket's number), ("told", a name): the student's hook has returned.
Events = list[Any]

# --- situations ------------------------------------------------------------------------------------------------------


class Situation(NamedTuple):
    """Steps of training, of ``layers`` registered in that order. ``what`` says in words what is special.

    A step is passes, all but the last inside no_sync; a pass is the layers that the rows of each
    rank go through, in that order, or of all ranks, if they do the same.
    """

    what: str
    layers: str
    steps: list[str]

    def routes(self, step: int) -> list[list[str]]:
        """Return for each pass of a step the layers of each rank."""
        passes = [each.split() for each in self.steps[step].split(" | ")]
        return [routes * (WORLD_SIZE // len(routes)) for routes in passes]


SITUATIONS = {
    "plain": Situation("where all ranks do the same", "abfc", ["abfc"] * 3),
    "order": Situation("where ranks use their layers in different orders", "abc", ["abc cab bca", "cba abc bac"]),
    "unused": Situation("where each rank leaves out another layer", "abc", ["ab ac abc", "ac ab bc", "a b c"]),
    "accumulated": Situation(
        "where two backward passes inside no_sync come first", "abc", ["abc | abc | abc", "abc | abc | abc"]
    ),
    "used earlier": Situation(
        "where layers are used inside no_sync, and not in the last backward pass",
        "abc",
        ["ab ac abc | a", "abc ab c | b"],
    ),
    "mixed": Situation("with a tied weight and a layer in bfloat16", "atfh", ["hatf"] * 2),
}


class Layers(nn.Module):
    """Layers named by letters, in float64: ``f`` is frozen, ``t`` has the weight of ``a``, ``h`` is in bfloat16."""

    def __init__(self, letters: str):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            for letter in letters:
                layer = nn.Linear(WIDTH, WIDTH).to(torch.bfloat16 if letter == "h" else torch.float64)
                self.add_module(letter, layer.requires_grad_(letter != "f"))
        if "t" in letters:
            self.get_submodule("t").register_parameter("weight", self.get_submodule("a").get_parameter("weight"))

    def forward(self, rows: torch.Tensor, route: str) -> torch.Tensor:
        for letter in route:
            layer = self.get_submodule(letter)
            rows = torch.tanh(layer(rows.to(next(layer.parameters()).dtype))).double()
        return rows


def loss(model: nn.Module, route: str, rank: int, step: int, number: int) -> torch.Tensor:
    """Return the mean loss over one rank's rows in one pass, through the layers of ``route``."""
    generator = torch.Generator().manual_seed(1000 * step + 100 * number + rank)
    rows, targets = torch.randn(2, ROWS, WIDTH, generator=generator, dtype=torch.float64)
    return nn.functional.mse_loss(model(rows, route), targets)


def gradients(model: nn.Module) -> dict[str, Any]:
    """Return a copy of each parameter's gradient, or None, by name."""
    return {name: None if p.grad is None else p.grad.detach().clone() for name, p in model.named_parameters()}


@functools.cache
def of_a_single_process(situation: str, step: int, *ranks: int) -> dict[str, Any]:
    """Return the gradient of the mean of these ranks' losses, summed over the passes of one step."""
    model = Layers(SITUATIONS[situation].layers)
    for number, routes in enumerate(SITUATIONS[situation].routes(step)):
        for rank in ranks:
            (loss(model, routes[rank], rank, step, number) / len(ranks)).backward()
    return gradients(model)


# --- in ranks --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """The student's reducer in one situation."""

    situation: str
    world_size = WORLD_SIZE

    def __str__(self) -> str:
        return SITUATIONS[self.situation].what


class Silent(Case):
    """Without communication."""

    def observe(self) -> Any:
        """Return the parameters' names in each bucket, and for each step its events, and what else was called to send."""
        tried = _Tried(self.situation, _keep)
        steps = []
        for number in range(len(tried.situation.steps)):
            with recorded(carry_out=False) as calls:
                events = tried.step(number)
            all_given = set(range(len(tried.numbers))).issubset(_sent(events))
            steps.append((events, [] if all_given else sorted({call.name for call in calls})))
        return {"buckets": [bucket.names for bucket in tried.reducer.buckets], "steps": steps}


class Summed(Case):
    """With communication."""

    def observe(self) -> Any:
        """Return for each step the gradients after it, and the names of those that are no part of a bucket's buffer."""
        tried = _Tried(self.situation, lambda buffer: dist.all_reduce(buffer, async_op=True).get_future())
        found = []
        for number in range(len(tried.situation.steps)):
            tried.step(number)
            buffers = {bucket.buffer.untyped_storage().data_ptr() for bucket in tried.reducer.buckets}
            given = {name: p.grad for name, p in tried.model.named_parameters() if p.grad is not None}
            own = [name for name, grad in given.items() if grad.untyped_storage().data_ptr() not in buffers]
            found.append((gradients(tried.model), own))
        return found


class Late(Case):
    """With communication, and buckets that arrive only after the backward pass is over, each at another time."""

    def observe(self) -> Any:
        late = _Late()
        tried = _Tried(self.situation, late)
        try:
            tried.backward(0)
            held_up = late.gave_up
            late.released.set()
            tried.finish(0)
            return {"backward waited": held_up, "on their way": late.on_their_way()}
        finally:
            late.join()


class _Tried:
    """The student's reducer in one situation, its steps taken when asked for, with every event noted."""

    def __init__(self, name: str, comm_hook: Callable[[Any], Any]):
        from labkit import dp

        self.situation, self.rank = SITUATIONS[name], dist.get_rank()
        self.model = Layers(self.situation.layers)
        self.events: Events = []
        self._note_each_gradient("ready")  # autograd calls hooks in the order in which they came
        self.reducer = dp.BucketedDataParallel(self.model, CAP_MB, self._noting(comm_hook))
        self._note_each_gradient("told")
        self.numbers = {bucket.buffer.data_ptr(): number for number, bucket in enumerate(self.reducer.buckets)}

    def step(self, number: int) -> dict[str, Events]:
        """Take one step, and return the events inside no_sync, of the last backward pass, and of its finish."""
        self.reducer.zero_grad(set_to_none=number % 2 == 0)  # both ways must do
        found: dict[str, Events] = {}
        for phase in (self.backward_inside_no_sync, self.backward, self.finish):
            self.events = found[phase.__name__] = []
            phase(number)
        return found

    def backward_inside_no_sync(self, step: int) -> None:
        for number in range(len(self.situation.routes(step)) - 1):
            with self.reducer.no_sync():
                self._pass(step, number)

    def backward(self, step: int) -> None:
        self._pass(step, len(self.situation.routes(step)) - 1)

    def finish(self, _: int) -> None:
        if all(len(bucket.missing) == len(bucket.parameters) for bucket in self.reducer.buckets):
            self.events.append(("unmarked", None))  # it would raise that there is no gradient
        else:
            self.reducer.finish_gradient_synchronization()

    def _pass(self, step: int, number: int) -> None:
        route = self.situation.routes(step)[number][self.rank]
        loss(self.reducer, route, self.rank, step, number).backward()

    def _note_each_gradient(self, kind: str) -> None:
        for name, parameter in self.model.named_parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(lambda _, name=name: self.events.append((kind, name)))

    def _noting(self, comm_hook: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def noted(buffer: Any) -> Any:
            self.events.append(("sent", self.numbers.get(buffer.data_ptr())))
            return comm_hook(buffer)

        return noted


def _keep(buffer: Any) -> Any:
    """Be a communication hook without communication: the buffer stays as it is."""
    future: Any = torch.futures.Future()
    future.set_result(buffer)
    return future


class _Late:
    """A communication hook whose sums arrive some time after they are released.

    They arrive by themselves after HELD_S, lest someone wait for ever.
    """

    def __init__(self) -> None:
        self.released, self.gave_up = threading.Event(), False
        self._futures: list[Any] = []
        self._threads: list[threading.Thread] = []

    def __call__(self, buffer: Any) -> Any:
        total, future = buffer.clone(), torch.futures.Future()  # type: ignore[var-annotated]
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

    def on_their_way(self) -> int:
        """Return how many buckets have been sent and have not arrived yet."""
        return sum(not future.done() for future in self._futures)

    def join(self) -> None:
        self.released.set()
        for thread in self._threads:
            thread.join()


# --- what is sent, and when ------------------------------------------------------------------------------------------


class Step(NamedTuple):
    """One step of one rank: the parameters' names in each bucket, and what happened, by phase.

    ``called``: of torch.distributed, for buckets that comm_hook was not given.
    """

    buckets: list[list[str]]
    events: dict[str, Events]
    called: list[str]

    def can_go(self, ready: set[str]) -> int:
        """Return how many buckets can go once these gradients are ready: the first ones, as far as nothing is missing."""
        return next((k for k, names in enumerate(self.buckets) if not ready.issuperset(names)), len(self.buckets))


def _sent(events: dict[str, Events]) -> list[Any]:
    """Return the numbers of the buckets that were sent, in order; None for what is no bucket's buffer."""
    return [what for phase in events.values() for kind, what in phase if kind == "sent"]


def _step_claim(after: Any = ()) -> Any:
    """Make a claim about every situation of what must hold of each of its steps."""

    def add(holds: Callable[[Step], str | None]) -> Callable[..., str | None]:
        @functools.wraps(holds)
        def claim(case: Case, seen: Any) -> str | None:
            for rank, found in enumerate(seen):
                for number, (events, called) in enumerate(found["steps"]):
                    if wrong := holds(Step(found["buckets"], events, called)):
                        return f"rank {rank}, step {number}: {wrong}"
            return None

        return TASK.claim(SILENT, after)(claim)

    return add


SILENT = list(map(Silent, SITUATIONS))


@_step_claim()
def ready_gradients_are_marked(step: Step) -> str | None:
    """A gradient that is ready is marked: its position is taken out of bucket.missing."""
    if ["unmarked", None] in step.events["finish"]:
        return "nothing was taken out of bucket.missing in the backward pass. Do so in _gradient_is_ready"
    return None


@_step_claim(after=[ready_gradients_are_marked])
def each_bucket_is_sent_once(step: Step) -> str | None:
    """In each step each bucket is sent exactly once, whether its parameters were used or not."""
    sent = _sent(step.events)
    if None in sent:
        return "comm_hook was given something else than a bucket's whole buffer"
    if step.called:
        return (
            f"{' and '.join(step.called)} was called, but not by self.comm_hook, which decides how a bucket travels. Send "
            "each bucket with bucket.send(self.comm_hook)"
        )
    for number in range(len(step.buckets)):
        if (times := sent.count(number)) > 1:
            return f"bucket {number} was sent {times} times. Count in self._sent those that have gone"
        if not times:
            return (
                f"bucket {number} was not sent, and the other ranks would wait for it. What the backward pass has not sent, "
                "finish_gradient_synchronization has to"
            )
    return None


@_step_claim(after=[each_bucket_is_sent_once])
def buckets_leave_in_order(step: Step) -> str | None:
    """Buckets are sent in the order of their numbers, whatever order their gradients become ready in."""
    if (sent := _sent(step.events)) == sorted(sent):
        return None
    return (
        f"buckets were sent in the order {', '.join(map(str, sent))}. Ranks would add up different buckets: let a bucket "
        "that is full wait until all before it have gone"
    )


@_step_claim(after=[each_bucket_is_sent_once])
def no_bucket_leaves_unfinished(step: Step) -> str | None:
    """During the backward pass, no bucket is sent before all of its gradients are ready."""
    ready: set[str] = set()
    for kind, what in step.events["backward"]:
        if kind == "ready":
            ready.add(what)
        if kind == "sent" and (early := [name for name in step.buckets[what] if name not in ready]):
            return (
                f"bucket {what} was sent before the gradient of {early[0]} was ready, so without it. A bucket may go once "
                "nothing of it is missing"
            )
    return None


@_step_claim(after=[ready_gradients_are_marked])
def nothing_is_sent_inside_no_sync(step: Step) -> str | None:
    """Inside no_sync nothing is sent."""
    if any(kind == "sent" for kind, _ in step.events["backward_inside_no_sync"]):
        return "a bucket was sent inside no_sync. Leave the gradients alone while self._synchronize is False"
    return None


# --- gradients, on ranks that have sent the same ---------------------------------------------------------------------

ALIKE = [each_bucket_is_sent_once, buckets_leave_in_order]


def _summed(*situations: str) -> list[Summed]:
    return list(map(Summed, situations))


@TASK.claim(_summed("plain", "order", "mixed"), after=ALIKE)
def gradients_are_averaged(case: Case, seen: Any) -> str | None:
    """After each step, every rank has the mean of the ranks' gradients, as a single process computes it."""
    return _wrong(case, seen, "is it collected once, before its bucket is sent?")


@TASK.claim(_summed("unused"), after=[gradients_are_averaged])
def unused_parameters_count_as_zero(case: Case, seen: Any) -> str | None:
    """A parameter that a rank did not use in a step counts as zero there."""
    return _wrong(
        case,
        seen,
        "the buffer may still hold the last step's gradients: collect what is missing before the bucket is sent",
    )


@TASK.claim(_summed("accumulated", "used earlier"), after=[gradients_are_averaged])
def accumulated_gradients_are_averaged(case: Case, seen: Any) -> str | None:
    """Gradients that were accumulated inside no_sync are averaged too, also of parameters that are used only there."""
    return _wrong(
        case, seen, "collect what is missing, rather than set it to zero: a gradient may be there from inside no_sync"
    )


def _wrong(case: Case, seen: Any, advice: str) -> str | None:
    """Return what is wrong with the first gradient that is wrong. One that no rank has may be None or zero.

    ``advice`` is for a gradient whose numbers do not tell what became of it.
    """
    for rank, steps in enumerate(seen):
        for step, (found, _) in enumerate(steps):
            own = of_a_single_process(case.situation, step, rank)
            for name, expected in of_a_single_process(case.situation, step, *range(WORLD_SIZE)).items():
                if how := _compare(found[name], own[name], expected, advice):
                    return f"rank {rank}, step {step}: the gradient of {name} {how}"
    return None


def _compare(found: Any, own: Any, expected: Any, advice: str) -> str | None:
    """Return in what way a gradient is wrong, and what to do."""
    n = WORLD_SIZE
    if expected is None:
        nothing = found is None or not bool(found.any())
        return None if nothing else f"is not zero, although no rank used it: {advice}"
    if found is None:
        return "is None, and should be the part of the buffer in which the mean is: collect it, used or not"
    if _close(found, expected):
        return None
    if own is not None and _close(found, own):
        return "is still the rank's own: collect it into its bucket, send the bucket, and wait for it"
    if own is not None and _close(found, own / n):
        return f"is the rank's own divided by {n}, which is its share of the mean: wait for the bucket"
    if _close(found, expected * n):
        return f"is {n} times too large: nobody has divided it by the world size, or it was added up twice"
    if _close(found, expected / n):
        return f"is {n} times too small: it was divided by the world size twice. Bucket.collect has done it"
    return f"is neither the mean over the ranks, nor their sum, nor its own: {advice}"


def _close(found: Any, expected: Any) -> bool:
    """Return whether they are equal up to the rounding of what was found: float64, or bfloat16 with three digits."""
    relative = 1e-9 if found.element_size() > 2 else 2e-2
    scale = float(expected.double().abs().max())
    return bool(found.double().allclose(expected.double(), rtol=relative, atol=relative * scale))


@TASK.claim(_summed("plain"), after=[gradients_are_averaged])
def gradients_stay_in_their_buckets(case: Case, seen: Any) -> str | None:
    """After a step, each gradient is still a part of its bucket's buffer, which is how the mean gets into it."""
    for rank, steps in enumerate(seen):
        for step, (_, own) in enumerate(steps):
            if own:
                return (
                    f"rank {rank}, step {step}: the gradient of {own[0]} is a tensor of its own. Collect it, and change the "
                    "bucket's buffer in place rather than put new tensors into grad"
                )
    return None


# --- overlap ---------------------------------------------------------------------------------------------------------


@_step_claim(after=[each_bucket_is_sent_once])
def a_bucket_leaves_at_once(step: Step) -> str | None:
    """A bucket is sent as soon as its last gradient is ready and the buckets before it have gone: this is the overlap."""
    ready: set[str] = set()
    sent = 0
    for kind, what in step.events["backward"]:
        sent += kind == "sent"
        if kind == "ready":
            ready.add(what)
        if kind == "told" and sent < (could := step.can_go(ready)):
            never = all(kind != "sent" for kind, _ in step.events["backward"])
            return (
                f"when the gradient of {what} was ready, {could} of the buckets could have gone, and {sent} had"
                + (": nothing was sent before the backward pass was over, so nothing overlaps" if never else "")
                + ". Mark the gradient as ready first, then send every bucket that can go"
            )
    return None


@TASK.claim([LATE := Late("plain")], after=ALIKE)
def backward_does_not_wait(case: Case, seen: Any) -> str | None:
    """The backward pass goes on while buckets are on their way."""
    if not any(found["backward waited"] for found in seen):
        return None
    return (
        "the backward pass stood still until a bucket had arrived. Only send there, and wait in "
        "finish_gradient_synchronization"
    )


@TASK.claim([LATE], after=ALIKE)
def finish_waits(case: Case, seen: Any) -> str | None:
    """When finish_gradient_synchronization is done, all sums have arrived."""
    for rank, found in enumerate(seen):
        if missing := found["on their way"]:
            return f"rank {rank}: it returned while {missing} of the buckets were still on their way: wait for each of them"
    return None
