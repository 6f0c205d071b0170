"""Tell what went wrong in a call: which rank failed first, why none can go on, where each is."""

from __future__ import annotations

import time
from collections.abc import Sequence

import psutil

from labkit.base.texts import listed
from labkit.ranks.faults.errors import RankError
from labkit.ranks.faults.hang import FRESH_S, QUIET_S, Hang, find_hang
from labkit.ranks.faults.rank_watch import STACKS_SIGNAL
from labkit.ranks.faults.stacks import FINISHED
from labkit.ranks.messages.message import NOWHERE, Failed, RankState
from labkit.ranks.processes.rank_handle import Died, RankHandle, how_it_ended
from labkit.ranks.processes.rank_process import STUCK_SIGNAL

STACKS_S = 1.0  # how long a rank may take to write its stack

NOT_YET_STARTED = "not started yet: the server that starts ranks is still importing torch or another package"
NO_STACK_YET = "no Python stack: still starting"
STOPPED = "no Python stack: its process is stopped by a signal (SIGSTOP, or Ctrl-Z in its terminal)"
STOPPED_SERVER = (
    "not started yet: process {0}, from which ranks are started, is stopped by a signal (SIGSTOP). Continue it: "
    "kill -CONT {0}"
)

# What is known of a rank that the call is not for, and that has said nothing since its last.
RETURNED = RankState(0, False, 0, 0, NOWHERE, "", -1, "", False, (), "")


def first_failure(handles: Sequence[RankHandle]) -> RankError | None:
    """Return the failure that caused the others: the first death, before the first exception.

    What a rank raised only because of another comes last.
    """
    deaths = [(handle.answer, handle) for handle in handles if isinstance(handle.answer, Died)]
    if deaths:
        first_death, handle = min(deaths, key=lambda death: death[0].at_ns)
        error_type, sentence = how_it_ended(first_death.status)
        return RankError(handle.rank, error_type, sentence, handle.stack(), handle.output.last_lines)
    failures = {handle.rank: handle.answer for handle in handles if isinstance(handle.answer, Failed)}
    if not failures:
        return None
    first = min(failures.values(), key=lambda failure: (failure.is_consequence, failure.at_ns))
    raised = f"{first.error_type}: {first.message}"
    rank, *alike = [r for r, failure in failures.items() if f"{failure.error_type}: {failure.message}" == raised]
    others = f" (and so did rank {', '.join(map(str, alike))})" if alike else ""
    return RankError(rank, first.error_type, f"raised {raised}{others}", failures[rank].traceback)


def hang(handles: Sequence[RankHandle], called: Sequence[RankHandle]) -> Hang | None:
    """Return why no rank can go on, if that is so and all have stood still for a while."""
    earliest_ns = time.perf_counter_ns() - int(FRESH_S * 1e9)
    states = {handle.rank: handle.state for handle in handles}
    for handle in handles:
        if handle not in called:
            state = handle.state if handle.exit_status is None else None
            states[handle.rank] = (state or RETURNED)._replace(called=False)
    if any(state is None or (state.in_call and state.at_ns < earliest_ns) for state in states.values()):
        return None
    return find_hang(states, QUIET_S)


def at_work(unanswered: Sequence[RankHandle]) -> str:
    """Return which ranks were not waiting when the time was up."""
    earliest_ns = time.perf_counter_ns() - int(FRESH_S * 1e9)
    waiting = [h for h in unanswered if h.state and h.state.at_ns > earliest_ns and not h.state.can_progress]
    ranks = [str(handle.rank) for handle in unanswered if handle not in waiting]
    unknown = [f"Their collectives are not known: {h.state.unknown}." for h in waiting if h.state and h.state.unknown]
    busy = f"Rank {listed(ranks)} {'was' if len(ranks) == 1 else 'were'} at work or asleep then; the others waited."
    return " ".join([busy] * bool(ranks and waiting) + unknown[:1])


# --- stacks ---------------------------------------------------------------------------------------


def stacks(handles: Sequence[RankHandle], unanswered: Sequence[RankHandle], server: int | None) -> dict[int, str]:
    """Return every rank's Python stack, now; ``server`` is the process that starts them."""
    stuck = [handle for handle in unanswered if handle.pid is not None]
    _ask_for_stacks(stuck, STACKS_SIGNAL)
    # One whose C code keeps Python's lock writes none, nor does one that has not begun.
    _ask_for_stacks([handle for handle in stuck if not handle.stack_bytes()], STUCK_SIGNAL)
    not_yet = STOPPED_SERVER.format(server) if server and _is_stopped(server) else NOT_YET_STARTED
    return {handle.rank: _where(handle, not_yet) for handle in handles}


def _ask_for_stacks(handles: Sequence[RankHandle], number: int) -> None:
    """Send a signal; wait until every stack is there and none grows any more, for STACKS_S."""
    for handle in handles:
        handle.signal(number)
    end, sizes = time.monotonic() + STACKS_S, [-1]
    while handles and time.monotonic() < end:
        time.sleep(0.05)
        previous, sizes = sizes, [handle.stack_bytes() for handle in handles]
        if sizes == previous and all(sizes):
            break


def _where(handle: RankHandle, not_yet: str) -> str:
    """Return where a rank is when the time is up; ``not_yet`` if it has not started."""
    if handle.answer is not None:
        return FINISHED
    if handle.pid is None:
        return not_yet
    if _is_stopped(handle.pid):
        return STOPPED
    return handle.stack() or NO_STACK_YET


def _is_stopped(pid: int) -> bool:
    """Return whether a process is held by a signal such as SIGSTOP."""
    try:
        return psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
    except psutil.Error:  # it has ended
        return False
