"""What must hold of pipe.3, the Pipe. Each claim is a function: its docstring says what must hold, and it gives None where
that holds, else what is wrong and what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from labkit.judging import clock_claims, split_claims
from labkit.judging import pipe_probes as probes
from labkit.judging.evidence import Evidence, EvidenceMissing, Failure, NotTried, holds
from labkit.judging.in_ranks import try_in_ranks
from labkit.judging.pipe_probes import described

Claim = Callable[[Evidence], str | None]


class Clock(NamedTuple):
    """One clock of compute: what it called with what, and what the micro-batches became; and what it should have been."""

    where: str
    calls: list[Any]  # pipe_model.Call
    batches: list[str]
    expected_calls: list[tuple[int, str]]  # (partition, what it is given)
    expected_batches: list[str]

    @property
    def given(self) -> list[tuple[int, str]]:
        """What each partition was given, in the form of ``expected_calls``."""
        return sorted((call.stage, call.given) for call in self.calls)


def gather() -> Evidence:
    """What the answer's Pipe did in one rank."""
    (found,) = try_in_ranks(probes.probe_pipe, FIRST, world_size=1, init=False)
    return Evidence(found)


def _splits() -> bool:
    evidence = Evidence(split_claims.probes.probe_split())
    return all(holds(claim, evidence) for claim in split_claims.CLAIMS)


def _clocks() -> bool:
    evidence = clock_claims.probes.probe_clocks()
    return all(holds(claim, evidence) for claim in clock_claims.CLAIMS)


FIRST = {"pipe.1": _splits, "pipe.2": _clocks}  # what a Pipe is made of, and whether it is right


# --- compute ---------------------------------------------------------------------------------------------------------


def compute_does_the_tasks_of_its_schedule(evidence: Evidence) -> str | None:
    """compute calls partition j with micro-batch i for each (i, j) of its schedule, and does nothing else."""
    for clock in _clock_by_clock(evidence):
        for partition, given in clock.given:
            if (partition, given) not in clock.expected_calls:
                return (
                    f"{clock.where} called partition {partition} with {given}. For each pair (i, j), partition j gets "
                    "batches[i], and nothing else is to be done"
                )
        if missing := [task for task in clock.expected_calls if task not in clock.given]:
            return f"{clock.where} did not call partition {missing[0][0]} with {missing[0][1]}"
        if len(clock.given) > len(clock.expected_calls):
            return f"{clock.where} called partitions {len(clock.given)} times, expected {len(clock.expected_calls)}"
    return None


def results_take_the_place_of_their_micro_batches(evidence: Evidence) -> str | None:
    """compute puts each result in the place of its micro-batch, and leaves the others as they are."""
    _only_where(compute_does_the_tasks_of_its_schedule, evidence)
    for clock in _clock_by_clock(evidence):
        for number, (found, expected) in enumerate(zip(clock.batches, clock.expected_batches, strict=True)):
            if found != expected:
                return f"after {clock.where}, batches[{number}] is {found}, expected {expected}"
    return None


def a_partition_has_a_worker_of_its_own(evidence: Evidence) -> str | None:
    """Each partition runs in a worker thread of its own, the same in every clock."""
    _only_where(compute_does_the_tasks_of_its_schedule, evidence)
    thread_of: dict[int, int] = {}
    for clock in _clock_by_clock(evidence):
        for call in clock.calls:
            if call.thread == 0:
                return f"{clock.where} ran partition {call.stage} in the thread that called compute. {HAND_OUT}"
            if thread_of.setdefault(call.stage, call.thread) != call.thread:
                return (
                    f"{clock.where} ran partition {call.stage} in another thread than in the clocks before. {HAND_OUT}"
                )
    if len(set(thread_of.values())) < len(thread_of):
        return f"two partitions ran in the same thread. {HAND_OUT}"
    return None


def tasks_of_a_clock_run_at_the_same_time(evidence: Evidence) -> str | None:
    """The tasks of a clock run at the same time."""
    _only_where(a_partition_has_a_worker_of_its_own, evidence)
    if not evidence["at once"]:
        return (
            f"compute(batches, {probes.AT_ONCE}): the partitions did not run at the same time. Hand out all tasks of the clock "
            "before you wait for one of them"
        )
    return None


def tasks_have_their_numbers(evidence: Evidence) -> str | None:
    """A task is recorded as what it is: stage j, micro-batch i."""
    _only_where(compute_does_the_tasks_of_its_schedule, evidence)
    expected = sorted((partition, number) for number, partition in probes.AT_ONCE)
    if (found := evidence["recorded"]) != expected:
        return (
            f"compute(batches, {probes.AT_ONCE}) was recorded as (stage, micro_batch) {found}, expected {expected}. Timelines "
            "are drawn of what is recorded: give run_stage both numbers"
        )
    return None


def no_grad_holds_in_the_workers(evidence: Evidence) -> str | None:
    """Inside torch.no_grad() nothing is kept for a backward pass."""
    _only_where(results_take_the_place_of_their_micro_batches, evidence)
    if evidence["requires grad"]:
        return (
            "compute inside torch.no_grad() gave a result that requires gradients. Grad mode belongs to a thread: a Task takes "
            "that of the thread in which it is made along to the worker"
        )
    return None


# --- forward ---------------------------------------------------------------------------------------------------------


def micro_batches_have_split_size_rows(evidence: Evidence) -> str | None:
    """A micro-batch has split_size rows, the last one those that are left."""
    _only_where(results_take_the_place_of_their_micro_batches, evidence)
    for case, found in zip(probes.BATCHES, evidence["forward"], strict=True):
        whole, rest = divmod(case.rows, case.split_size)
        expected = [case.split_size] * whole + [rest] * (rest > 0)
        if found["rows"] != expected:
            if isinstance(found["found"], Failure):  # then it need not be the cut that is wrong
                raise EvidenceMissing(found["found"].what)
            return (
                f"{case}: the first partition was given micro-batches of {found['rows']} rows, expected {expected}. split_size "
                "is the rows of a micro-batch, not how many there are; and no row is left out"
            )
    return None


def output_is_that_of_the_module(evidence: Evidence) -> str | None:
    """The output is that of the plain module: all rows, in their order."""
    _only_where(micro_batches_have_split_size_rows, evidence)
    for case, found in zip(probes.BATCHES, evidence["forward"], strict=True):
        if wrong := _differs(found, "the output"):
            return f"{case}: {wrong}. After the last clock, put the results together in the order of the micro-batches"
    return None


def gradients_are_those_of_the_module(evidence: Evidence) -> str | None:
    """The backward pass gives the gradients of the plain module, of its parameters and of the input."""
    _only_where(output_is_that_of_the_module, evidence)
    for case, found in zip(probes.BATCHES, evidence["forward"], strict=True):
        for name in found["expected"]:
            if wrong := _differs(found, name):
                return f"{case}: {wrong}. Autograd has to see everything between the input and the output"
    return None


def forward_goes_clock_by_clock(evidence: Evidence) -> str | None:
    """In forward too, the tasks of each clock run at the same time."""
    _only_where(tasks_of_a_clock_run_at_the_same_time, evidence)
    _only_where(output_is_that_of_the_module, evidence)
    if missed := evidence["clocks at once"]:
        return (
            f"{probes.MICRO_BATCHES} micro-batches: {probes.CLOCKS[missed[0]]} did not run at the same time. Give each clock of "
            "clock_cycles as a whole to compute"
        )
    return None


def each_partition_has_its_input_on_its_device(evidence: Evidence) -> str | None:
    """A micro-batch is moved to the device of a partition before the partition runs."""
    _only_where(output_is_that_of_the_module, evidence)
    for stage, device in evidence["devices"]["given"]:
        if device != (expected := probes.DEVICES[stage]):
            return (
                f"partition {stage} is on the {expected} device, and was given a micro-batch on the {device} device. Give "
                "run_stage the device of the partition"
            )
    return None


def result_is_on_the_last_device(evidence: Evidence) -> str | None:
    """The output is on the device of the last partition."""
    _only_where(each_partition_has_its_input_on_its_device, evidence)
    if (device := evidence["devices"]["result"]) != probes.DEVICES[-1]:
        return (
            f"the last partition is on the {probes.DEVICES[-1]} device, and the output was put on {device}. Leave it where it "
            "is: the loss and the backward pass begin there"
        )
    return None


def concatenate_puts_the_results_together(evidence: Evidence) -> str | None:
    """The results are put together by concatenate, which sees whether they fit, and waits for those that GPUs still compute."""
    _only_where(output_is_that_of_the_module, evidence)
    error = evidence["uneven"]
    if error is None or error["type"] != "ValueError":
        return (
            f"results of float32 and of float64 gave {'an output' if error is None else error['type']}, expected a ValueError. "
            "torch.cat does not look, and does not wait: take concatenate(batches)"
        )
    return None


# --- errors ----------------------------------------------------------------------------------------------------------

FAILURES = {
    "first fails": f"compute(batches, {probes.CLOCKS[1]}), where partition 0 raised a ValueError",
    "second fails": f"compute(batches, {probes.CLOCKS[1]}), where partition 1 raised a ValueError",
    "first of three fails": f"compute(batches, {probes.AT_ONCE}), where partition 0 raised a ValueError",
    "forward fails": "forward, where partition 1 raised a ValueError",
}


def an_error_is_raised_again(evidence: Evidence) -> str | None:
    """An error in a partition is raised again by compute and by forward, with the traceback that leads to its cause."""
    _only_where(output_is_that_of_the_module, evidence)
    for name, where in FAILURES.items():
        error = evidence[name]["error"]
        if error is None:
            return f"{where}: nothing was raised. Ask every task for its result, which raises what went wrong"
        if not error["is the stage's"]:
            return f"{where}: {error['type']} came out instead. {LET_THROUGH}"
        if not error["leads to the stage"]:
            return f"{where}: the traceback of what came out does not lead to the partition. {LET_THROUGH}"
    return None


def compute_raises_once_all_have_ended(evidence: Evidence) -> str | None:
    """compute raises only once all tasks of the clock have ended."""
    _only_where(an_error_is_raised_again, evidence)
    for name, failure in probes.FAILURES.items():
        if evidence[name]["still running"]:
            return (
                f"{FAILURES[name]}: the error came out while partition {failure.slow} was still running, on tensors that the "
                "caller may go on to change. Wait for all tasks before you ask for a result"
            )
    return None


def all_is_right_after_an_error(evidence: Evidence) -> str | None:
    """After an error, the next clock and the next forward are right."""
    _only_where(an_error_is_raised_again, evidence)
    for name, where in FAILURES.items():
        if again := evidence[name]["again"]:
            return f"{where}, and then the same without an error: it raised {again['type']}. {NEXT}"
        for what in evidence[name]["expected"]:
            if wrong := _differs(evidence[name], what):
                return f"{where}, and then the same without an error: {wrong}. {NEXT}"
    return None


# --- helpers ---------------------------------------------------------------------------------------------------------

HAND_OUT = "Hand each task to the worker of its partition: self._workers[j].put(task)"
LET_THROUGH = "Let the error itself through, as task.result() raises it, so that everybody sees where it went wrong"
NEXT = "Keep nothing of a clock that failed"
NOT_YET: dict[Claim, str] = {
    compute_does_the_tasks_of_its_schedule: "compute does not do the tasks of its schedule yet",
    results_take_the_place_of_their_micro_batches: "results are not in their places yet",
    a_partition_has_a_worker_of_its_own: "partitions do not run in workers of their own yet",
    tasks_of_a_clock_run_at_the_same_time: "compute does not run the tasks of a clock at the same time yet",
    micro_batches_have_split_size_rows: "the input is not cut into micro-batches of split_size rows yet",
    output_is_that_of_the_module: "the output is not that of the plain module yet",
    each_partition_has_its_input_on_its_device: "partitions do not have their input on their device yet",
    an_error_is_raised_again: "an error is not raised again yet",
}


def _only_where(claim: Claim, evidence: Evidence) -> None:
    """Raises NotTried where what the claim says does not hold: what follows would only say it again."""
    evidence["clocks"]  # raises what is said once: why there is no evidence at all
    if not holds(claim, evidence):
        raise NotTried(f"not tried, because {NOT_YET[claim]}")


def _clock_by_clock(evidence: Evidence) -> Iterator[Clock]:
    """Each clock of compute, beside what follows from the schedules alone."""
    for number, (schedule, found) in enumerate(zip(probes.CLOCKS, evidence["clocks"], strict=True)):
        if isinstance(found, Failure):
            raise EvidenceMissing(f"compute(batches, {schedule}): {found.what}")
        calls, batches = found
        before, after = probes.reached(number), probes.reached(number + 1)
        expected = sorted((partition, described(i, before[i])) for i, partition in schedule)
        yield Clock(
            f"compute(batches, {schedule})", calls, batches, expected, list(map(described, range(len(after)), after))
        )


def _differs(outcome: dict[str, Any], name: str) -> str | None:
    """How what was ``found`` differs from what was ``expected``, or None."""
    found, expected = outcome["found"], outcome["expected"][name]
    if isinstance(found, Failure):
        raise EvidenceMissing(found.what)
    found = found.get(name)
    if found is None:
        return f"{name} is missing"
    if isinstance(found, str):
        expected = expected if isinstance(expected, str) else "a Tensor"
        return None if found == expected else f"{name} is {found}, expected {expected}"
    if found.shape != expected.shape:
        return f"{name} has the shape {tuple(found.shape)}, expected {tuple(expected.shape)}"
    return None if found.allclose(expected) else f"{name} is not that of the plain module"


CLAIMS = (  # causes before what follows from them
    compute_does_the_tasks_of_its_schedule,
    results_take_the_place_of_their_micro_batches,
    a_partition_has_a_worker_of_its_own,
    tasks_of_a_clock_run_at_the_same_time,
    tasks_have_their_numbers,
    no_grad_holds_in_the_workers,
    micro_batches_have_split_size_rows,
    output_is_that_of_the_module,
    gradients_are_those_of_the_module,
    forward_goes_clock_by_clock,
    each_partition_has_its_input_on_its_device,
    result_is_on_the_last_device,
    concatenate_puts_the_results_together,
    an_error_is_raised_again,
    compute_raises_once_all_have_ended,
    all_is_right_after_an_error,
)
