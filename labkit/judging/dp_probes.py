"""What runs in ranks to judge dp.1, dp.2 and dp.4: it calls the student's labkit.dp and reports what happened.

Imports nothing heavy and nothing of the student's at the top: processes that the student's code starts import this too.
"""

from __future__ import annotations

import functools
import json
import os
import random
import signal
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from labkit.judging.evidence import attempt

FILE = "labkit/dp.py"

# --- dp.1: shards ----------------------------------------------------------------------------------------------------

THIRDS, QUARTERS, TENTHS = (1 / 3,) * 3, (0.25,) * 4, (0.1,) * 10
CUTS = [
    (10, THIRDS),
    (103, QUARTERS),
    (7, (0.5, 0.5)),
    (10, (0.7, 0.2, 0.1)),
    (11, (0.7, 0.2, 0.1)),
    (2, THIRDS),
    (1000, TENTHS),
]
LOADERS = [(103, 4, 32), (100, 3, 32), (64, 2, 64), (5, 2, 2)]  # samples, world size, global batch size


def samples(count: int) -> list[int]:
    """A data set whose samples cannot be taken for their numbers."""
    return [1000 + 7 * number for number in range(count)]


def probe_shards() -> dict[str, Any]:
    """In each rank: cut data sets and load them. Ranks start from different random states, as real ones may."""
    import torch

    from labkit import dp

    random.seed(f"rank {os.environ['RANK']}")
    torch.manual_seed(int(os.environ["RANK"]))

    def cut(count: int, sizes: tuple[float, ...], data: list[int] | None = None, **seed: int) -> list[list[int]]:
        partitioner = dp.DataPartitioner(samples(count) if data is None else data, list(sizes), **seed)
        shards = [partitioner.use(rank) for rank in range(len(sizes))]
        return [[shard[i] for i in range(len(shard))] for shard in shards]

    def load(count: int, world_size: int, batch_size: int) -> list[list[list[int]]]:
        data = samples(count)
        loaders = [dp.partition_dataset(rank, world_size, data, batch_size) for rank in range(world_size)]
        return [[[int(sample) for sample in batch] for batch in loader] for loader in loaders]

    def kind_of_batch(**collate_fn: Any) -> str:
        return type(next(iter(dp.partition_dataset(0, 2, samples(8), 4, **collate_fn)))).__name__

    def indexed() -> tuple[int, list[int]]:
        shard = dp.Partition(samples(10), [4, 9, 0, 4])
        return len(shard), [shard[i] for i in range(4)]

    data = samples(103)
    return {
        "indexed": attempt(indexed, FILE),
        "cuts": attempt(lambda: [cut(*case) for case in CUTS], FILE),
        "another seed": attempt(lambda: cut(*CUTS[-1], seed=99), FILE),
        "once more": attempt(lambda: cut(*CUTS[-1]), FILE),
        "data afterwards": attempt(lambda: (cut(len(data), QUARTERS, data), data)[1], FILE),
        "loaded": attempt(lambda: [load(*case) for case in LOADERS], FILE),
        "collated": attempt(lambda: kind_of_batch(collate_fn=tuple), FILE),
        "stacked": attempt(kind_of_batch, FILE),
    }


# --- dp.2: processes -------------------------------------------------------------------------------------------------

RANKS = 3
SLEEP_S = 6.0  # how long the rank that does not fail would go on by itself
TOLD_TO_FAIL = "this rank was told to fail"


def probe_processes() -> dict[str, Any]:
    """In three ranks at once: run_processes with ranks that work, with one that fails, and interrupted by the keyboard."""
    import tempfile

    from labkit import dp

    _mute()
    fn, world_size = ((_work, RANKS), (_fail_or_sleep, 2), (_sleep, 1))[int(os.environ["RANK"])]
    os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)  # the processes to come are nobody's ranks yet
    with tempfile.TemporaryDirectory() as folder:
        try:
            returned = threading.Event()
            if fn is _sleep:
                _interrupt_once_started(folder, returned)
            failure = attempt(
                lambda: dp.run_processes(functools.partial(fn, folder, _free_port()), world_size, "gloo"), FILE
            )
            returned.set()
            started = len(_process_ids(folder))
            left = [process for process in _process_ids(folder) if _is_running(process)]
            reports = [json.loads(file.read_text()) for file in sorted(Path(folder).glob("*.json"))]
        finally:
            for process in _process_ids(folder):
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
        return {
            "outcome": failure,
            "left": len(left),
            "started": started,
            "reports": reports,
            "own process": os.getpid(),
        }


def _work(folder: str, port: int, rank: int, world_size: int, backend: str) -> None:
    """What a rank that works does: join the group, add something up, take its time, report."""
    import psutil
    import torch
    import torch.distributed as dist

    from labkit import dp

    _note_process(folder)
    torch.set_num_threads(1)
    dp.setup(rank, world_size, backend, master_port=port)
    total = torch.tensor([10**rank])
    dist.all_reduce(total)
    addresses = {c.laddr.ip for c in psutil.Process().net_connections("inet") if c.status == psutil.CONN_LISTEN}
    report = {
        "process": os.getpid(),
        "given": [rank, world_size, backend],
        "group": [dist.get_rank(), dist.get_world_size(), dist.get_backend()],
        "total": total.item(),
        "open to others": any(not a.startswith("127.") and a != "::1" for a in addresses),
    }
    time.sleep(0.3)  # whoever does not wait for the ranks will find no report
    _write(Path(folder, f"{rank}.json"), report)


def _fail_or_sleep(folder: str, port: int, rank: int, world_size: int, backend: str) -> None:
    """The last rank raises, once the first is there; the first would sleep on and then report that nobody ended it."""
    _note_process(folder)
    if rank == world_size - 1:
        while len(_process_ids(folder)) < world_size:
            time.sleep(0.02)
        raise RuntimeError(TOLD_TO_FAIL)
    time.sleep(SLEEP_S)
    _write(Path(folder, f"{rank}.json"), {"slept to the end": True})


def _sleep(folder: str, port: int, rank: int, world_size: int, backend: str) -> None:
    _note_process(folder)
    time.sleep(SLEEP_S)


def _interrupt_once_started(folder: str, returned: threading.Event) -> None:
    """Interrupt this process, and not its children, as soon as one of them runs, unless run_processes has returned."""

    def interrupt() -> None:
        while not _process_ids(folder) and not returned.is_set():
            time.sleep(0.02)
        if not returned.is_set():
            os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()


def _write(file: Path, report: dict[str, Any]) -> None:
    unfinished = file.with_suffix(".part")
    unfinished.write_text(json.dumps(report))
    unfinished.rename(file)


def _note_process(folder: str) -> None:
    Path(folder, f"{os.getpid()}.pid").touch()


def _process_ids(folder: str) -> list[int]:
    return [int(file.stem) for file in Path(folder).glob("*.pid")]


def _is_running(process: int) -> bool:
    import psutil

    try:
        return psutil.Process(process).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def _mute() -> None:
    """torch reports process ids while it ends processes, so what is printed here would differ every time."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    os.close(null)


# --- dp.4: gradients -------------------------------------------------------------------------------------------------

BATCH = 12


def small_model() -> Any:
    """The same small model everywhere, in float64: two layers that learn, a frozen one, and one that is not used."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        model = torch.nn.ModuleDict(
            {name: torch.nn.Linear(4, 4) for name in ("first", "frozen", "unused", "last")}
        ).double()
    model["frozen"].requires_grad_(False)
    return model


def gradients(model: Any, rows: slice) -> None:
    """Put the gradients of the mean loss over some rows of the one batch into the model's parameters."""
    import torch

    generator = torch.Generator().manual_seed(11)
    inputs, targets = torch.randn(2, BATCH, 4, generator=generator, dtype=torch.float64)
    outputs = model["last"](torch.tanh(model["frozen"](model["first"](inputs[rows]))))
    torch.nn.functional.mse_loss(outputs, targets[rows]).backward()


def probe_gradients() -> dict[str, Any]:
    """In each rank: the gradients of its shard of the batch, before and after average_gradients."""
    import torch.distributed as dist

    from labkit import dp

    model, size = small_model(), BATCH // dist.get_world_size()
    gradients(model, slice(dist.get_rank() * size, (dist.get_rank() + 1) * size))
    own = gradients_by_name(model)
    dp.average_gradients(model)
    return {"own": own, "averaged": gradients_by_name(model), "weights": dict(model.state_dict())}


def gradients_by_name(model: Any) -> dict[str, Any]:
    """Each parameter's gradient, or None, by the parameter's name."""
    return {name: None if p.grad is None else p.grad.detach().clone() for name, p in model.named_parameters()}
