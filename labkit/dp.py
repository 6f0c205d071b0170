"""Data parallelism by hand: cut the data into shards, start a process for each rank, make the ranks' gradients agree.

This is a student file: it holds the tasks dp.1, dp.2 and dp.4. The numbers between come with later notebooks.

Run it in two terminals to see two processes wait for each other (-w is the world size, -nr this process's rank):

    python -m labkit.dp -w 2 -nr 0
    python -m labkit.dp -w 2 -nr 1
"""

# ruff: noqa: F401, RUF100  (the student edition keeps the imports that its TODOs will need)

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.utils.data import DataLoader, Dataset

from labkit.rendezvous import loopback_store
from labkit.todo import TodoError

# --- shards: every rank gets its own part of the data ----------------------------------------------------------------


class Partition(Dataset[Any]):
    """A shard: the samples of ``data`` whose numbers are in ``index``, in that order, as a data set of its own."""

    def __init__(self, data: Any, index: Sequence[int]):
        self.data, self.index = data, index

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, i: int) -> Any:
        ### TODO dp.1 (2 minutes): Give sample i of this shard. It stands in the data set under the i-th number of the index.
        ### BEGIN SOLUTION dp.1
        return self.data[self.index[i]]
        ### END SOLUTION


class DataPartitioner:
    """Cuts ``data`` into shards of the given ``sizes``, fractions of the whole that add up to 1, such as [0.5, 0.5].

    The samples are shuffled with ``seed`` first. Every rank cuts the same shards, without a word to the others, because
    every rank draws the same order. Each sample is in exactly one shard; a shard is within one sample of its fraction,
    so equal fractions give shards that differ by at most one sample.

    Raises ValueError for an empty data set and for sizes that are not fractions with sum 1.
    """

    def __init__(self, data: Any, sizes: Sequence[float], seed: int = 1234):
        _check_sizes(sizes)
        if len(data) == 0:
            raise ValueError(
                "the data set is empty, expected at least one sample: look at where it was loaded or filtered"
            )
        self.data = data
        self.shards: list[list[int]] = []
        ### TODO dp.1 (15 minutes): Draw an order of the sample numbers 0, 1, …, len(data) - 1 with random.Random(seed), and
        ### cut it into one list of numbers for each size: self.shards. len(data) times a size is seldom a whole number:
        ### think about where to cut so that no sample is lost or repeated, and no shard is off by more than one.
        ### BEGIN SOLUTION dp.1
        order = list(range(len(data)))
        random.Random(seed).shuffle(order)
        cuts = [round(sum(sizes[:i]) * len(data)) for i in range(len(sizes) + 1)]
        self.shards = [order[cuts[i] : cuts[i + 1]] for i in range(len(sizes))]
        ### END SOLUTION

    def use(self, rank: int) -> Partition:
        """The shard of ``rank``, from 0 on. Raises ValueError if there are not that many shards."""
        _check_rank(rank, len(self.shards))
        return Partition(self.data, self.shards[rank])


def partition_dataset(
    rank: int,
    world_size: int,
    dataset: Any,
    batch_size: int = 128,
    collate_fn: Callable[[list[Any]], Any] | None = None,
) -> DataLoader[Any]:
    """A loader over this rank's shard: one of ``world_size`` equal parts of ``dataset``.

    ``batch_size`` is the global one, what all ranks together take in one step: floor(batch_size / world_size) samples
    a rank, the last batch may have fewer. ``collate_fn`` makes a batch of a list of samples; None stacks tensors.

    Raises ValueError for an empty data set, a rank that is not in the world, and fewer samples in a batch than ranks.
    """
    _check_rank(rank, world_size)
    if batch_size < world_size:
        raise ValueError(
            f"batch_size is {batch_size}, expected at least world_size, {world_size}: it is the batch of all ranks "
            "together, and each of them needs a sample of it"
        )
    ### TODO dp.1 (5 minutes): Cut the data set into world_size equal shards and give a DataLoader over the rank's own, with
    ### the rank's share of the global batch. Every rank calls this with the same data set.
    ### BEGIN SOLUTION dp.1
    shard = DataPartitioner(dataset, [1 / world_size] * world_size).use(rank)
    return DataLoader(shard, batch_size=batch_size // world_size, collate_fn=collate_fn)
    ### END SOLUTION


def _check_sizes(sizes: Sequence[float]) -> None:
    if any(not 0 <= size <= 1 for size in sizes) or abs(sum(sizes) - 1) > 1e-9:
        raise ValueError(
            f"sizes are {list(sizes)} with sum {sum(sizes):g}, expected fractions of the data set with sum 1, such as "
            "[0.5, 0.5]: divide each by their sum"
        )


def _check_rank(rank: int, world_size: int) -> None:
    if not 0 <= rank < world_size:
        raise ValueError(
            f"rank is {rank}, expected 0 to {world_size - 1}: ranks count from 0, and there are {world_size}"
        )


# --- processes: one for each rank ------------------------------------------------------------------------------------


def setup(rank: int, world_size: int, backend: str, master_addr: str = "127.0.0.1", master_port: int = 11868) -> None:
    """Make this process rank ``rank`` of ``world_size``: wait for the others and form the default process group.

    The ranks meet at ``master_addr:master_port``, where rank 0 listens; on 127.0.0.1 nobody outside this machine can
    connect. ``backend`` is ``"gloo"`` (CPU) or ``"nccl"`` (one GPU a rank).

    Raises ValueError for an unknown backend and a rank that is not in the world, OSError if the port is taken.
    """
    _check_backend(backend)
    _check_rank(rank, world_size)
    ### TODO dp.2 (5 minutes): Meet the others: loopback_store gives a store once all ranks are there. Then form the default
    ### process group through that store, with this process's rank and the world size: see dist.init_process_group.
    ### BEGIN SOLUTION dp.2
    store = loopback_store(rank, world_size, master_addr, master_port)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size)
    ### END SOLUTION


def run_processes(fn: Callable[[int, int, str], object], world_size: int, backend: str) -> None:
    """Run ``fn(rank, world_size, backend)`` in one new process for each rank, and return when all have ended.

    ``fn`` calls :func:`setup` itself. It must be a function of a module, because each process is a new interpreter that
    imports it; a script that calls this needs its ``if __name__ == "__main__":`` guard. Where a rank fails, the others
    are ended and its traceback is raised (torch.multiprocessing.ProcessRaisedException); no process is left, ever.

    Raises ValueError for an unknown backend and a world size below 1, before any process starts.
    """
    _check_backend(backend)
    if world_size < 1:
        raise ValueError(f"world_size is {world_size}, expected at least 1")
    ### TODO dp.2 (15 minutes): Start world_size processes that each do _run_rank(rank, fn, world_size, backend); see
    ### mp.start_processes, with start_method="spawn" and join=False. It gives a context: join() waits for news and is True
    ### once all have ended; if one has failed it ends the others and raises. Whatever happens meanwhile, a keyboard
    ### interrupt too: leave no process behind (context.processes).
    ### BEGIN SOLUTION dp.2
    arguments = (fn, world_size, backend)
    context = mp.start_processes(_run_rank, arguments, nprocs=world_size, join=False, start_method="spawn")
    try:
        while not context.join():
            pass
    finally:
        for process in context.processes:
            process.kill()
            process.join()
    ### END SOLUTION


def _run_rank(rank: int, fn: Callable[[int, int, str], object], world_size: int, backend: str) -> None:
    """What one process of :func:`run_processes` does: the function, then the end of the process group it has formed."""
    fn(rank, world_size, backend)
    if dist.is_initialized():
        dist.destroy_process_group()


def _check_backend(backend: str) -> None:
    if backend not in ("gloo", "nccl"):
        raise ValueError(f'backend is {backend!r}, expected "gloo" (CPU) or "nccl" (one GPU a rank)')
    if not dist.is_backend_available(backend):
        raise ValueError(f'backend is {backend!r}, but this torch was built without it; use "gloo"')


# --- gradients: every rank ends up with the mean ---------------------------------------------------------------------


def average_gradients(model: torch.nn.Module) -> None:
    """Replace each parameter's gradient by its mean over all ranks, in place: one all_reduce a parameter.

    Where every rank's loss is the mean over a shard of equal size, the result is the gradient of the whole batch. A
    parameter without a gradient (frozen, or not used in this step) is left as it is; that must be so on all ranks.
    """
    ### TODO dp.4 (10 minutes): dist.all_reduce sums a tensor over all ranks, in place. From the sum to the mean is one more
    ### step. Mind the parameters whose grad is None.
    ### BEGIN SOLUTION dp.4
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
    ### END SOLUTION


# --- two terminals: processes that wait for each other ---------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> None:
    """The lecture's demonstration: be one rank, wait for the others, add up all ranks' numbers, end."""
    parser = argparse.ArgumentParser(prog="python -m labkit.dp", description=main.__doc__)
    parser.add_argument("-w", "--world-size", "--world_size", type=int, default=2, help="how many processes take part")
    parser.add_argument("-nr", "--rank", type=int, default=0, help="which one this is, from 0 on")
    parser.add_argument("--backend", default="gloo", help="gloo (CPU) or nccl (one GPU a rank)")
    parser.add_argument(
        "--master-port", "--master_port", type=int, default=11868, help="the port where all of them meet"
    )
    args = parser.parse_args(argv)

    print(f"rank {args.rank} of {args.world_size}: waiting until all are there", flush=True)
    try:
        setup(args.rank, args.world_size, args.backend, master_port=args.master_port)
    except (TodoError, ValueError, OSError, dist.DistError) as error:
        raise SystemExit(str(error)) from None
    total = torch.tensor([args.rank], device=f"cuda:{args.rank}" if args.backend == "nccl" else "cpu")
    dist.all_reduce(total)
    print(f"rank {args.rank} of {args.world_size}: all are there, and their ranks add up to {total.item()}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
