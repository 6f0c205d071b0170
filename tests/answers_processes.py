### INSTRUCTORS ONLY: this file holds answers, so it is not in the student edition
"""Wrong answers to dp.2, each with the claim that rejects it and a phrase of the finding; and right ones."""

from __future__ import annotations

from labkit.judging import processes_claims as claims

SPAWN = 'mp.start_processes(_run_rank, (fn, world_size, backend), nprocs=world_size, join=False, start_method="spawn")'
NO_WAIT = f"def run_processes(fn, world_size, backend):\n    {SPAWN}\n"
ONE_BY_ONE = (
    f"def run_processes(fn, world_size, backend):\n    for process in {SPAWN}.processes:\n        process.join()\n"
)
LEAVES_OTHERS = f"""
def run_processes(fn, world_size, backend):
    import time
    processes = {SPAWN}.processes
    while any(process.is_alive() for process in processes):
        if any(process.exitcode for process in processes):
            raise RuntimeError("a rank failed")
        time.sleep(0.05)
"""
NOT_THE_LAST = f"""
def _run_rank(rank, fn, world_size, backend):
    import time
    fn(rank, world_size, backend)
    time.sleep(20 * (rank == 2))

def run_processes(fn, world_size, backend):
    for process in {SPAWN}.processes[:2]:
        process.join()
"""
HIDES_ALL = """
def run_processes(fn, world_size, backend):
    try:
        mp.spawn(_run_rank, (fn, world_size, backend), nprocs=world_size)
    except Exception:
        pass
"""
OWN_GROUPS = """
def setup(rank, world_size, backend, master_addr="127.0.0.1", master_port=11868):
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
"""
OPEN_TO_ALL = """
def setup(rank, world_size, backend, master_addr="127.0.0.1", master_port=11868):
    dist.init_process_group(backend, init_method=f"tcp://127.0.0.1:{master_port}", rank=rank, world_size=world_size)
"""
NO_FINALLY = (
    f"def run_processes(fn, world_size, backend):\n    context = {SPAWN}\n    while not context.join():\n        pass\n"
)
TWO_AT_MOST = "def run_processes(fn, world_size, backend):\n    mp.spawn(_run_rank, (fn, 2, backend), nprocs=2)\n"

WRONG = {
    "does not wait": (claims.a_process_for_each_rank, NO_WAIT, "join all of them before returning"),
    "two ranks, whatever is asked for": (claims.a_process_for_each_rank, TWO_AT_MOST, "expected [[0, 3, 'gloo']"),
    "a group for each rank": (claims.ranks_form_a_group, OWN_GROUPS, "found itself (0, 1, 'gloo')"),
    "listens on every interface": (claims.nothing_listens_to_others, OPEN_TO_ALL, "connections from other machines"),
    "leaves processes running": (claims.no_process_is_left, NOT_THE_LAST, "1 of 3 were still running"),
    "hides a failure": (claims.failure_is_raised, HIDES_ALL, "as if all were well"),
    "waits for one after the other": (claims.failure_ends_the_others, ONE_BY_ONE, "went on to its end all the same"),
    "is not ready for an interrupt": (claims.an_interrupt_ends_the_ranks, NO_FINALLY, "in its finally block"),
    "raises and leaves the others": (claims.failure_ends_the_others, LEAVES_OTHERS, "rank 0 was still running"),
}

RIGHT = {
    "ends the others only after an error": f"""
def run_processes(fn, world_size, backend):
    context = {SPAWN}
    try:
        while not context.join(timeout=0.1):
            pass
    except BaseException:
        for process in context.processes:
            process.terminate()
        for process in context.processes:
            process.join()
        raise
"""
}
