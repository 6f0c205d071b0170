"""What must hold of dp.7, the reducer. Each claim is a function: its docstring says what must hold, and it gives None where
that holds, else what is wrong and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from labkit.judging import reducer_probes as probes
from labkit.judging.evidence import Evidence, EvidenceMissing, NotTried
from labkit.judging.in_ranks import try_in_ranks


class Step(NamedTuple):
    """One step of one rank without communication: the parameters' names in each bucket, and what happened, by phase."""

    where: str
    buckets: list[list[str]]
    events: dict[str, probes.Events]
    called: list[str]  # of torch.distributed, for buckets that comm_hook was not given

    @property
    def sent(self) -> list[Any]:
        """The numbers of the buckets that were sent, in order; None for what is no bucket's buffer."""
        return [what for events in self.events.values() for kind, what in events if kind == "sent"]

    def can_go(self, ready: set[str]) -> int:
        """How many buckets can go once these gradients are ready: the first ones, as far as nothing is missing."""
        return next((k for k, names in enumerate(self.buckets) if not ready.issuperset(names)), len(self.buckets))


class Outcome(NamedTuple):
    """The gradients of one step of one rank with communication, and what they should be: by name, or None."""

    where: str
    found: dict[str, Any]
    own: dict[str, Any]
    expected: dict[str, Any]


@dataclass(frozen=True)
class Reduced:
    """What the ranks brought back, in rank order, and the words for each situation; gradients from a single process."""

    ranks: list[Evidence]
    what: dict[str, str]
    own: dict[str, list[list[dict[str, Any]]]]  # situation, step, rank
    whole: dict[str, list[dict[str, Any]]]  # situation, step

    def steps(self) -> Iterator[Step]:
        for name in self.what:
            for rank, found in enumerate(self.ranks):
                tried = Evidence(found["events"])[name]
                for number, (events, called) in enumerate(zip(tried["steps"], tried["called"], strict=True)):
                    yield Step(f"{self.what[name]}, rank {rank}, step {number}", tried["buckets"], events, called)

    def steps_by_hook(self) -> Iterator[Step]:
        """The same, as long as all that is sent is seen."""
        for step in self.steps():
            if step.called:
                raise NotTried(probes.UNSENT)
            yield step

    def outcomes(self, *situations: str) -> Iterator[Outcome]:
        for name in situations:
            for rank, found in enumerate(self.ranks):
                for step, tried in enumerate(Evidence(found["summed"])[name]):
                    where = f"{self.what[name]}, rank {rank}, step {step}"
                    yield Outcome(where, tried["gradients"], self.own[name][step][rank], self.whole[name][step])


def gather() -> Reduced:
    """Three ranks take some steps in each situation; and what a single process makes of the same steps."""
    ranks = [Evidence(found) for found in try_in_ranks(probes.probe_reducer, world_size=probes.WORLD_SIZE)]
    from labkit.judging import reducer_model as model  # loads torch, which check need not do before it is called

    everyone = list(range(probes.WORLD_SIZE))
    steps = {name: range(len(situation.steps)) for name, situation in model.SITUATIONS.items()}

    def single(name: str, step: int, ranks: list[int]) -> dict[str, Any]:
        return model.of_a_single_process(model.SITUATIONS[name], step, ranks)

    return Reduced(
        ranks,
        {name: situation.what for name, situation in model.SITUATIONS.items()},
        {
            name: [[single(name, step, [rank]) for rank in everyone] for step in numbers]
            for name, numbers in steps.items()
        },
        {name: [single(name, step, everyone) for step in numbers] for name, numbers in steps.items()},
    )


# --- gradients -------------------------------------------------------------------------------------------------------


def gradients_are_averaged(reduced: Reduced) -> str | None:
    """After each step, every rank has the mean of the ranks' gradients, as a single process computes it."""
    return _first_wrong(reduced.outcomes("plain", "order", "mixed"), ASK)


def unused_parameters_count_as_zero(reduced: Reduced) -> str | None:
    """A parameter that a rank did not use in a step counts as zero there."""
    return _first_wrong(
        reduced.outcomes("unused"),
        "the buffer may still hold the last step's gradients: collect what is missing before the bucket is sent"
        if _right_where_all_are_used(reduced)
        else ASK,
    )


def accumulated_gradients_are_averaged(reduced: Reduced) -> str | None:
    """Gradients that were accumulated inside no_sync are averaged too, also of parameters that are used only there."""
    return _first_wrong(
        reduced.outcomes("accumulated", "used earlier"),
        "collect what is missing, rather than set it to zero: a gradient may be there from inside no_sync"
        if _right_where_all_are_used(reduced)
        else ASK,
    )


ASK = "is it collected once, before its bucket is sent?"


def _right_where_all_are_used(reduced: Reduced) -> bool:
    """Whether gradients are right as long as nothing is missing in the end, so that what is missing is the cause."""
    try:
        return gradients_are_averaged(reduced) is None
    except (EvidenceMissing, NotTried):
        return False


def _first_wrong(outcomes: Iterator[Outcome], advice: str) -> str | None:
    """What is wrong with the first gradient that is wrong. One that no rank has may be None or zero.

    ``advice`` is for a gradient whose numbers do not tell what became of it.
    """
    for outcome in outcomes:
        for name, expected in outcome.expected.items():
            found = outcome.found[name]
            if expected is None and (found is None or not bool(found.any())):
                continue
            if expected is None or not _close(found, expected):
                how = _compare(found, outcome.own[name], expected, advice)
                return f"{outcome.where}: the gradient of {name} {how}"
    return None


def _compare(found: Any, own: Any, expected: Any, advice: str) -> str:
    """In what way a gradient is wrong, and what to do."""
    n = probes.WORLD_SIZE
    if expected is None:
        return f"is not zero, although no rank used it: {advice}"
    if found is None:
        return (
            "is None, and should be the part of the buffer in which the mean is: collect it, whether it was used or not"
        )
    if own is not None and _close(found, own):
        return "is still the rank's own: collect it into its bucket, send the bucket, and wait for it"
    if own is not None and _close(found, own / n):
        return f"is the rank's own divided by {n}, which is its share of the mean: send the bucket, and wait for it"
    if _close(found, expected * n):
        return f"is {n} times too large: nobody has divided it by the world size, or it was added up twice"
    if _close(found, expected / n):
        return f"is {n} times too small: it was divided by the world size twice. Bucket.collect has divided it already"
    return f"is neither the mean over the ranks, nor their sum, nor its own: {advice}"


def gradients_stay_in_their_buckets(reduced: Reduced) -> str | None:
    """After a step, each gradient is still a part of its bucket's buffer, which is how the mean gets into it."""
    for rank, found in enumerate(reduced.ranks):
        for step, tried in enumerate(Evidence(found["summed"])["plain"]):
            if names := tried["not in a bucket"]:
                return (
                    f"rank {rank}, step {step}: the gradient of {names[0]} is a tensor of its own. Collect it, and change the "
                    "bucket's buffer in place rather than put new tensors into grad"
                )
    return None


# --- what is sent, and when ------------------------------------------------------------------------------------------


def each_bucket_is_sent_once(reduced: Reduced) -> str | None:
    """In each step each bucket is sent exactly once, whether its parameters were used or not."""
    for step in reduced.steps():
        if None in step.sent:
            return f"{step.where}: comm_hook was given something else than a bucket's whole buffer"
        if step.called:
            return (
                f"{step.where}: {' and '.join(step.called)} was called, but not by self.comm_hook, which decides how a bucket "
                "travels. Send each bucket with bucket.send(self.comm_hook)"
            )
        for number in range(len(step.buckets)):
            if (times := step.sent.count(number)) > 1:
                return f"{step.where}: bucket {number} was sent {times} times. Count in self._sent those that have gone"
            if not times:
                return (
                    f"{step.where}: bucket {number} was not sent, and the other ranks would wait for it. What the backward pass "
                    "has not sent, finish_gradient_synchronization has to"
                )
    return None


def buckets_leave_in_order(reduced: Reduced) -> str | None:
    """Buckets are sent in the order of their numbers, whatever order their gradients become ready in."""
    for step in reduced.steps_by_hook():
        numbers = [number for number in step.sent if number is not None]
        if numbers != sorted(numbers):
            return (
                f"{step.where}: buckets were sent in the order {', '.join(map(str, numbers))}. Ranks would add up different "
                "buckets: let a bucket that is full wait until all before it have gone"
            )
    return None


def no_bucket_leaves_unfinished(reduced: Reduced) -> str | None:
    """During the backward pass, no bucket is sent before all of its gradients are ready."""
    for step in reduced.steps_by_hook():
        ready: set[str] = set()
        for kind, what in step.events["backward"]:
            if kind == "ready":
                ready.add(what)
            if kind == "sent" and what is not None and (early := [n for n in step.buckets[what] if n not in ready]):
                return (
                    f"{step.where}: bucket {what} was sent before the gradient of {early[0]} was ready, so without it. A "
                    "bucket may go once nothing of it is missing"
                )
    return None


def a_bucket_leaves_at_once(reduced: Reduced) -> str | None:
    """A bucket is sent as soon as its last gradient is ready and the buckets before it have gone: this is the overlap."""
    for step in reduced.steps_by_hook():
        ready: set[str] = set()
        sent = 0
        for kind, what in step.events["backward"]:
            sent += kind == "sent"
            if kind == "ready":
                ready.add(what)
            if kind == "told" and sent < (could := step.can_go(ready)):
                never = all(kind != "sent" for kind, _ in step.events["backward"])
                return (
                    f"{step.where}: when the gradient of {what} was ready, {could} of the buckets could have gone, and {sent} had"
                    + (": nothing was sent before the backward pass was over, so nothing overlaps" if never else "")
                    + ". Mark the gradient as ready first, then send every bucket that can go"
                )
    return None


def nothing_is_sent_inside_no_sync(reduced: Reduced) -> str | None:
    """Inside no_sync nothing is sent."""
    for step in reduced.steps_by_hook():
        if any(kind == "sent" for kind, _ in step.events["no_sync"]):
            return f"{step.where}: a bucket was sent inside no_sync. Leave the gradients alone while self._synchronize is False"
    return None


def backward_does_not_wait(reduced: Reduced) -> str | None:
    """The backward pass goes on while buckets are on their way."""
    if any(found["late"]["backward waited"] for found in reduced.ranks):
        return (
            "the backward pass stood still until a bucket had arrived. Only send there, and wait in "
            "finish_gradient_synchronization"
        )
    return None


def finish_waits(reduced: Reduced) -> str | None:
    """When finish_gradient_synchronization is done, all sums have arrived."""
    for rank, found in enumerate(reduced.ranks):
        if missing := found["late"]["on their way"]:
            return f"rank {rank}: it returned while {missing} of the buckets were still on their way: wait for each of them"
    return None


def _close(found: Any, expected: Any) -> bool:
    """Equal up to the rounding of what was found: float64, or bfloat16, which has about three digits."""
    if found is None:
        return False
    relative = 1e-9 if found.element_size() > 2 else 2e-2
    scale = float(expected.double().abs().max())
    return bool(found.double().allclose(expected.double(), rtol=relative, atol=relative * scale))


CLAIMS = (  # causes before what follows from them
    each_bucket_is_sent_once,
    buckets_leave_in_order,
    no_bucket_leaves_unfinished,
    nothing_is_sent_inside_no_sync,
    gradients_are_averaged,
    unused_parameters_count_as_zero,
    accumulated_gradients_are_averaged,
    gradients_stay_in_their_buckets,
    a_bucket_leaves_at_once,
    backward_does_not_wait,
    finish_waits,
)
