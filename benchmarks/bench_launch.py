"""Time until two gloo ranks have done one all_reduce: labkit.launch and the usual alternatives.

    python benchmarks/bench_launch.py [--rounds 5]

Each round runs all of them one after the other, in a drawn order; the table gives medians and each
one's ratio to labkit.launch in the same round. The function is defined in ``__main__``, so the
peers do what they do for a script. The fork server is up, as it is by the time a reader runs a
second cell; the first line says what the first launch cost.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import pathlib
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

if __name__ == "__main__" and "--as-rank" not in sys.argv:  # the peers' processes import torch alone
    from labkit.base.rendezvous import free_port
    from labkit.launch import launch, workers
    from labkit.ranks.notebook.cells import Ranks
    from labkit.ranks.processes.plan import decide

TARGETS = {
    "accelerate.notebook_launcher": 3,
    "torch.multiprocessing.spawn": 60,
    "torchrun": 100,
}  # at least, × labkit.launch
WARM_TARGET_MS = 1.5
CELL_TARGET = 1.5  # at most, × workers().run
MANY, MANY_TARGET_S = 64, 1.5


def all_reduce() -> None:
    dist.all_reduce(torch.ones(1000))


def all_reduce_with_group() -> None:
    """What a function does whose launcher leaves the process group to it."""
    dist.init_process_group("gloo")
    all_reduce()
    dist.destroy_process_group()


def spawned(rank: int, port: int) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    all_reduce_with_group()


def with_launch() -> None:
    launch(all_reduce, world_size=2)


def with_many() -> None:
    launch(all_reduce, world_size=MANY)


def with_notebook_launcher() -> None:
    from accelerate import notebook_launcher

    with contextlib.redirect_stdout(io.StringIO()):
        notebook_launcher(all_reduce_with_group, num_processes=2, use_port=str(free_port()))


def with_spawn() -> None:
    torch.multiprocessing.spawn(spawned, args=(free_port(),), nprocs=2)


def with_torchrun() -> None:
    torchrun = pathlib.Path(sys.executable).with_name("torchrun")
    command = [torchrun, "--standalone", "--nproc-per-node", "2", __file__, "--as-rank"]
    subprocess.run(command, check=True, capture_output=True)


def seconds(call: Callable[[], None]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def warm_run_s(runs: int = 50) -> float:
    with workers(world_size=2) as ranks:
        ranks.run(all_reduce)
        return statistics.median(seconds(lambda: ranks.run(all_reduce) and None) for _ in range(runs))


def cell_ratio(runs: int = 50) -> float:
    """Return how much longer a cell on ranks takes than a warm run: the median over pairs."""
    source = "%%ranks\ndist.all_reduce(torch.ones(1000))"
    cells = Ranks(decide(2, timeout_s=60.0))
    cells.run_cell("import torch, torch.distributed as dist", "cell")
    with workers(world_size=2) as ranks:
        ranks.run(all_reduce)
        pairs = [
            (seconds(lambda: cells.run_cell(source, "cell") and None), seconds(lambda: ranks.run(all_reduce) and None))
            for _ in range(runs)
        ]
    cells.stop()
    return statistics.median(cell / run for cell, run in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--as-rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_rank:
        all_reduce_with_group()
        return

    print(
        f"first launch, fork server still importing: {seconds(with_launch):.2f} s; "
        f"torch {torch.__version__}, {os.cpu_count()} cores"
    )
    peers = {
        "labkit.launch": with_launch,
        "accelerate.notebook_launcher": with_notebook_launcher,
        "torch.multiprocessing.spawn": with_spawn,
        "torchrun": with_torchrun,
    }
    order = random.Random(0)  # what ran before tells on what comes next
    rounds = [{name: seconds(peers[name]) for name in order.sample([*peers], 4)} for _ in range(options.rounds)]
    missed = []
    print(f"{'':30} {'median s':>9} {'× launch':>9} {'wanted':>8}   of {options.rounds} rounds")
    for name in peers:
        ratio = statistics.median(times[name] / times["labkit.launch"] for times in rounds)
        wanted = TARGETS.get(name, 1)
        missed += [name] if ratio < wanted else []
        print(f"{name:30} {statistics.median(t[name] for t in rounds):9.3f} {ratio:9.1f} {'>= ' + str(wanted):>8}")
    warm_ms = warm_run_s() * 1e3
    missed += ["workers().run"] if warm_ms > WARM_TARGET_MS else []
    print(f"{'workers().run, warm':30} {warm_ms / 1e3:9.4f} {'':9} {'<= ' + str(WARM_TARGET_MS / 1e3):>8}")
    cell = cell_ratio()
    missed += ["a cell on ranks"] if cell > CELL_TARGET else []
    print(f"{'a cell on ranks':30} {warm_ms * cell / 1e3:9.4f} {'':9} {f'<= {CELL_TARGET} × warm':>8}, is {cell:.2f} ×")
    many_s = min(seconds(with_many) for _ in range(3))  # others run on this machine, too, and 64 ranks need all of it
    missed += [f"{MANY} ranks"] if many_s > MANY_TARGET_S else []
    print(f"{f'labkit.launch, {MANY} ranks':30} {many_s:9.3f} {'':9} {'<= ' + str(MANY_TARGET_S):>8}")
    print("missed: " + ", ".join(missed) if missed else "all as wanted")


if __name__ == "__main__":
    main()
