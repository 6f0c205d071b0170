"""What must hold of dp.2, the processes. Each claim is a function: its docstring says what must hold, and it gives None
where that holds, else what is wrong and what to do."""

from __future__ import annotations

from typing import Any

from labkit.judging import processes_probes as probes
from labkit.judging.evidence import Evidence, EvidenceMissing
from labkit.judging.in_ranks import try_in_ranks


def gather() -> dict[str, Evidence]:
    """What run_processes did with ranks that work, with one that fails, and interrupted: each tried in a rank of its own."""
    runs = try_in_ranks(probes.probe_processes, world_size=3, init=False)
    return {name: Evidence(run) for name, run in zip(("working", "failing", "interrupted"), runs, strict=True)}


def a_process_for_each_rank(runs: dict[str, Evidence]) -> str | None:
    """Each rank runs once, in a process of its own, and is told its rank, world size and backend."""
    run = runs["working"]
    run["outcome"]
    given = sorted(report["given"] for report in run["reports"])
    expected = [[rank, probes.RANKS, "gloo"] for rank in range(probes.RANKS)]
    if given != expected:
        return (
            f'run_processes(fn, {probes.RANKS}, "gloo") returned after fn was done for {len(given)} ranks {given}, expected '
            f"{expected}: start one process for each rank, and join all of them before returning"
        )
    if len({report["process"] for report in run["reports"]} | {run["own process"]}) <= probes.RANKS:
        return "two ranks ran in the same process: each needs one of its own"
    return None


def ranks_form_a_group(runs: dict[str, Evidence]) -> str | None:
    """setup makes one process group of all ranks, in which each has its rank."""
    reports = _reports(runs)
    for report in reports:
        if report["group"] != report["given"]:
            return (
                f"a rank told (rank, world size, backend) = {tuple(report['given'])} found itself {tuple(report['group'])} in "
                "the process group: pass on what setup is given"
            )
        if report["total"] != int("1" * probes.RANKS):
            return f"an all_reduce of 1, 10, 100 gave {report['total']}, expected 111: the ranks are not in one group"
    return None


def nothing_listens_to_others(runs: dict[str, Evidence]) -> str | None:
    """Nothing listens beyond this machine."""
    if any(report["open to others"] for report in _reports(runs)):
        return "a rank accepted connections from other machines: form the group through a loopback_store"
    return None


def no_process_is_left(runs: dict[str, Evidence]) -> str | None:
    """When run_processes is done, so are its processes."""
    _reports(runs)
    if left := runs["working"]["left"]:
        return f"{left} of {probes.RANKS} were still running: join every process"
    return None


def failure_is_raised(runs: dict[str, Evidence]) -> str | None:
    """A rank that fails makes run_processes raise."""
    try:
        runs["failing"]["outcome"]
    except Exception:
        return None
    return "a rank raised RuntimeError, and run_processes returned as if all were well: look at how each process ended"


def failure_ends_the_others(runs: dict[str, Evidence]) -> str | None:
    """A rank that fails ends the others, at once."""
    run = runs["failing"]
    if not run["started"]:
        raise EvidenceMissing("no rank had begun when run_processes returned: join the processes")
    if run["reports"]:
        return (
            "rank 1 failed, and rank 0 went on to its end all the same. Joined one after the other, rank 0 is waited for "
            "first: wait for whichever ends first (context.join does), then end the rest"
        )
    if run["left"]:
        return "rank 1 failed, and rank 0 was still running when run_processes was done: end it, and join it"
    return None


def an_interrupt_ends_the_ranks(runs: dict[str, Evidence]) -> str | None:
    """A keyboard interrupt ends the ranks."""
    run = runs["interrupted"]
    if not run["started"]:
        raise EvidenceMissing("no rank had begun when run_processes returned: join the processes")
    if run["left"]:
        return (
            "a keyboard interrupt while run_processes was waiting left the rank running: wait in a try block, and end "
            "and join every process in its finally block"
        )
    return None


def _reports(runs: dict[str, Evidence]) -> list[dict[str, Any]]:
    runs["working"]["outcome"]
    if not (reports := runs["working"]["reports"]):
        raise EvidenceMissing("no rank had come to its end when run_processes returned: join the processes")
    return reports


CLAIMS = (
    a_process_for_each_rank,
    ranks_form_a_group,
    nothing_listens_to_others,
    no_process_is_left,
    failure_is_raised,
    failure_ends_the_others,
    an_interrupt_ends_the_ranks,
)
