### INSTRUCTORS ONLY: this file holds answers, so it is not in the student edition
"""Wrong and right answers to dp.8; test_answers.py says how they are written."""

from labkit.check import dp_8 as claims

JOIN = "while not context.join():\n            pass\n"
END = """    finally:
        for process in context.processes:
            process.kill()
            process.join()
"""
WAIT = f"    try:\n        {JOIN}{END}"
ONE_BY_ONE = "    for process in context.processes:\n        process.join()\n"
UNTIL_ONE_IS_LEFT = """    while sum(process.is_alive() for process in context.processes) > 1:
        context.join(timeout=0.1)
"""
RAISES_AND_LEAVES = """    while any(process.is_alive() for process in context.processes):
        if any(process.exitcode for process in context.processes):
            raise RuntimeError("this rank was told to fail")
"""
NOT_THE_LAST = """
def _run_rank(rank, fn, world_size, backend):
    import time
    fn(rank, world_size, backend)
    time.sleep(20 * (rank == 2))
"""
FORKED = """
def _forked(fn, arguments, nprocs, join, start_method):
    return mp.start_processes(fn, arguments, nprocs, join, start_method="fork")
"""
OWN_RANK = """
def _own(rank, fn, world_size, backend):
    fn(rank, world_size, backend)
"""
KILL = "process.kill()\n            process.join()\n"

WRONG = {
    claims.a_process_for_each_rank: {
        "does not wait": ("run_processes returned after fn was done on", (WAIT, "")),
        "two ranks, whatever is asked for": (
            "fn was called with [[0, 2, 'gloo'], [1, 2, 'gloo']], expected [[0, 3, 'gloo']",
            ("arguments = ", "world_size = min(world_size, 2)\n    arguments = "),
        ),
    },
    claims.a_failure_ends_all: {
        "hides a failure": ("as if all were well", (END, "    except Exception:\n        pass\n" + END)),
        "raises an error of its own": (
            "not say why: expected",
            (END, "    except Exception:\n        raise OSError\n" + END),
        ),
        "waits for one after the other": ("rank 0 still ran to its end, though", (WAIT, ONE_BY_ONE)),
    },
    claims.no_process_is_left: {
        "is not ready for an interrupt": ("keyboard: 1 of 1 were still running", (END, "    finally:\n        pass\n")),
        "leaves processes running": (
            "rank 0 ends first: 1 of 3 were still running",
            (WAIT, UNTIL_ONE_IS_LEFT),
            NOT_THE_LAST,
        ),
        "raises and leaves the others": ("rank 1 fails: 1 of 2 were still running", (WAIT, RAISES_AND_LEAVES)),
    },
    claims.each_process_is_spawned: {
        "forks": ("a process was forked", ('start_method="spawn"', 'start_method="fork"')),
        "forks by a context": ("a process was forked", ("mp.start_processes(_run_rank", "_forked(_run_rank"), FORKED),
        "past _run_rank": (
            "past _run_rank",
            ("mp.start_processes(_run_rank, arguments,", "mp.start_processes(fn, arguments[1:],"),
        ),
        "a rank of its own": (
            "past _run_rank",
            ("mp.start_processes(_run_rank,", "mp.start_processes(_own,"),
            OWN_RANK,
        ),
    },
    None: {
        "is rank 0 itself": ("rank 0 ran in", ("arguments = ", "fn(0, world_size, backend)\n    arguments = ")),
        "gives the ranks a function without a name": (
            "Can't pickle local object 'run_processes.<locals>",
            ("mp.start_processes(_run_rank", "mp.start_processes(lambda *given: _run_rank(*given)"),
        ),
    },
}
RIGHT = {
    "ends the others only after an error": [(END, END.replace("finally:", "except BaseException:") + "        raise\n")]
}
WRONG[claims.no_process_is_left] |= {
    "kills and does not join": ("had been ended, and not waited for", (KILL, "process.kill()\n")),
    "terminates and does not join": ("had been ended, and not waited for", (KILL, "process.terminate()\n")),
}
WRONG[claims.number_and_backend_are_the_callers] = {
    "gloo, whatever is asked for": (
        "expected [[0, 1, 'nccl']]",
        ("world_size, backend)\n    context", 'world_size, "gloo")\n    context'),
    ),
    "at least three": ("[1, 1, 'nccl']", ("nprocs=world_size", "nprocs=max(world_size, 3)")),
}
RIGHT |= {
    "terminates and joins": [
        (KILL, "process.terminate()\n        for process in context.processes:\n            process.join()\n")
    ],
    "looks up from time to time": [("while not context.join():", "while not context.join(timeout=0.5):")],
    "spawns by default": [(', start_method="spawn"', "")],
}
