"""Data parallelism by hand: shards of the data, a process for each rank, gradients that agree.

This is a student file: it holds the tasks dp.1 to dp.8. From the top to the bottom: shards,
processes, then how to agree on gradients: through rank 0, with an all_reduce a parameter, what an
all_reduce is made of, and buckets that overlap with backward.

Run it in two terminals to see two processes wait for each other (-w is the world size, -nr this
process's rank):

    python -m labkit.dp -w 2 -nr 0
    python -m labkit.dp -w 2 -nr 1
"""

# ruff: noqa: F401, RUF100  (the student edition keeps the imports that its TODOs will need)

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import random
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn  # else an optimizer imports it, and it keeps the group that is up, with gloo's threads, for ever
import torch.multiprocessing as mp
from torch.utils.data import DataLoader, Dataset

from labkit.base.checks import check_number
from labkit.base.lab import start_again_in_own
from labkit.base.parent import end_with_parent
from labkit.base.rendezvous import LOOPBACK_INTERFACE, check_free, is_loopback, keep_on, own_port
from labkit.base.units import MIB
from labkit.parallel.dp.bucket import Bucket, CommHook, all_reduce_hook
from labkit.parallel.guard import Guard, check_unwrapped, check_whole
from labkit.parallel.same_model import check_same_model, forms_of, take_buffers_from_rank_0, take_from_rank_0
from labkit.todo import TodoError

# --- shards: every rank gets its own part of the data ---------------------------------------------


class Partition(Dataset[Any]):
    """A shard: the samples of ``data`` with the numbers in ``index``, in their order."""

    def __init__(self, data: Any, index: Sequence[int]):
        self.data, self.index = data, index

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, i: int) -> Any:
        ### TODO dp.1 (2 minutes): Give sample i of this shard. It is in the data set under the
        ### i-th number of the index.
        ### BEGIN SOLUTION dp.1
        return self.data[self.index[i]]
        ### END SOLUTION


class DataPartitioner:
    """Cuts ``data`` into shards of the given ``sizes``, fractions with sum 1, such as [0.5, 0.5].

    The samples are shuffled with ``seed`` first. Every rank cuts the same shards, without a word to
    the others, because every rank draws the same order. Each sample is in exactly one shard; a
    shard is within one sample of its fraction, so equal fractions give shards that differ by at
    most one sample.

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
        ### TODO dp.1 (15 minutes): Draw an order of the sample numbers 0, 1, …, len(data) - 1 with
        ### random.Random(seed), and cut it into one list of numbers for each size: self.shards.
        ### len(data) times a size is seldom a whole number: think about where to cut so that no
        ### sample is lost or repeated, and no shard is off by more than one.
        ### BEGIN SOLUTION dp.1
        order = list(range(len(data)))
        random.Random(seed).shuffle(order)
        cuts = [round(sum(sizes[:i]) * len(data)) for i in range(len(sizes) + 1)]
        self.shards = [order[cuts[i] : cuts[i + 1]] for i in range(len(sizes))]
        ### END SOLUTION

    def use(self, rank: int) -> Partition:
        """Return the shard of ``rank``, from 0 on. Raises ValueError if there are fewer shards."""
        _check_rank(rank, len(self.shards))
        return Partition(self.data, self.shards[rank])


def partition_dataset(
    rank: int,
    world_size: int,
    dataset: Any,
    batch_size: int = 128,
    collate_fn: Callable[[list[Any]], Any] | None = None,
) -> DataLoader[Any]:
    """Return a loader over this rank's shard, one of ``world_size`` equal parts, in its order.

    A shard may be empty. ``batch_size`` is the global one, what all ranks together take in one
    step: floor(batch_size / world_size) samples a rank; the last batch may have fewer.
    ``collate_fn`` makes a batch of a list of samples; None stacks tensors.

    Raises ValueError for an empty data set, a rank that is not in the world, and fewer samples in a
    batch than ranks.
    """
    _check_rank(rank, world_size)
    if batch_size < world_size:
        raise ValueError(
            f"batch_size is {batch_size}, expected at least world_size, {world_size}: it is the batch of all ranks "
            "together, and each of them needs a sample of it"
        )
    ### TODO dp.1 (5 minutes): Cut the data set into world_size equal shards and give a DataLoader
    ### over the rank's own, with the rank's share of the global batch. Every rank calls this with
    ### the same data set.
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


# --- processes: one for each rank -----------------------------------------------------------------


def setup(rank: int, world_size: int, backend: str, master_addr: str = "127.0.0.1", master_port: int = 11868) -> None:
    """Make this process a rank: wait for the others and form the default process group.

    It is rank ``rank`` of ``world_size``. The ranks meet at ``master_addr:master_port``: an address
    of rank 0's machine, and a port that is free there. ``backend`` is ``"gloo"`` (CPU) or
    ``"nccl"`` (one GPU a rank).

    Raises ValueError for an unknown backend and a rank that is not in the world,
    torch.distributed.DistNetworkError if the port is taken.

    Caveats: the store through which the ranks meet is torch's, which listens on all interfaces of
    rank 0's machine, not on ``master_addr`` alone, for as long as the run lasts. A TCPStore whose
    ``master_listen_fd`` is from :func:`labkit.base.rendezvous.listen` listens on ``master_addr``
    alone; init_process_group takes it as ``store``.
    """
    _check_backend(backend)
    _check_rank(rank, world_size)
    _prepare_to_meet(master_addr, master_port)
    ### TODO dp.2 (5 minutes): Form the default process group, with dist.init_process_group. It reads
    ### where the ranks meet from the environment variables MASTER_ADDR and MASTER_PORT, so set
    ### those first. Rank and world size it reads from RANK and WORLD_SIZE, or takes as arguments.
    ### BEGIN SOLUTION dp.2
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = master_addr, str(master_port)
    dist.init_process_group(backend, rank=rank, world_size=world_size)
    ### END SOLUTION


def _prepare_to_meet(master_addr: str, master_port: int) -> None:
    """Keep the ranks of one machine on loopback; have rank 0 open the store where there is none."""
    if is_loopback(master_addr):
        keep_on(LOOPBACK_INTERFACE)
    if os.environ.get("MASTER_PORT") != str(master_port):  # the store of launch or torchrun is elsewhere
        os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)


def run_processes(fn: Callable[[int, int, str], object], world_size: int, backend: str) -> None:
    """Run ``fn(rank, world_size, backend)`` in a new process for each rank; return when all end.

    ``fn`` calls :func:`setup` itself. Where a rank fails, the others are ended and its traceback is
    raised (torch.multiprocessing.ProcessRaisedException). No process is left behind; on Linux, not
    even if this one is killed.

    Notes: ``fn`` must be a function of a module, because each process is a new interpreter that
    imports it. A script that calls this needs its ``if __name__ == "__main__":`` guard.

    Raises ValueError for an unknown backend and a world size below 1, before any process starts.
    """
    _check_backend(backend)
    if world_size < 1:
        raise ValueError(f"world_size is {world_size}, expected at least 1")
    ### TODO dp.8 (15 minutes): Start a process for each rank, which does _run_rank(rank, fn,
    ### world_size, backend), and come back when all have ended. mp.start_processes starts them,
    ### with start_method="spawn"; what it returns can be asked whether they have ended. Whatever
    ### happens meanwhile, a keyboard interrupt too: leave no process behind.
    ### BEGIN SOLUTION dp.8
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
    """Run ``fn`` in a process of :func:`run_processes`, and end the group that it has formed."""
    end_with_parent()
    fn(rank, world_size, backend)
    if dist.is_initialized():
        dist.destroy_process_group()


def _check_backend(backend: str) -> None:
    if backend not in ("gloo", "nccl"):
        raise ValueError(f'backend is {backend!r}, expected "gloo" (CPU) or "nccl" (one GPU a rank)')
    if not dist.is_backend_available(backend):
        raise ValueError(f'backend is {backend!r}, but this torch was built without it; use "gloo"')


# --- gradients: every rank ends up with the mean --------------------------------------------------


def gather_scatter_gradients(model: torch.nn.Module) -> None:
    """Replace each parameter's gradient by its mean over all ranks, in place, through rank 0.

    One gather and one scatter a parameter. Rank 0 gathers, averages and scatters; its link is busy
    while the others wait: a parameter server. Parameters without a gradient are left out, as in
    :func:`average_gradients`.
    """
    check_whole(model.parameters())
    ### TODO dp.3 (15 minutes): Give every rank the mean of each gradient. Rank 0 alone averages:
    ### what it needs comes by dist.gather, and what it has goes out by dist.scatter, once each for
    ### a parameter. A gradient may be None, on all ranks, and it may not be contiguous, which not
    ### every back end takes.
    ### BEGIN SOLUTION dp.3
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for parameter in model.parameters():
        if parameter.grad is not None:
            gradient = parameter.grad.contiguous()
            gathered = [torch.empty_like(gradient) for _ in range(world_size)] if rank == 0 else None
            dist.gather(gradient, gathered)
            means = [torch.stack(gathered).mean(dim=0)] * world_size if gathered else None
            dist.scatter(gradient, means)
            parameter.grad.copy_(gradient)
    ### END SOLUTION


def average_gradients(model: torch.nn.Module) -> None:
    """Replace each parameter's gradient by its mean over all ranks, in place.

    One all_reduce a parameter. Where every rank's loss is the mean over a shard of equal size, the
    result is the gradient of the whole batch. A parameter without a gradient (frozen, or not used
    in this step) is left as it is; that must be so on all ranks.
    """
    check_whole(model.parameters())
    ### TODO dp.4 (10 minutes): Make each gradient the mean over all ranks, with one dist.all_reduce
    ### for a parameter. A gradient may be None.
    ### BEGIN SOLUTION dp.4
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
    ### END SOLUTION


# --- the ring: what an all_reduce is made of ------------------------------------------------------


@torch.no_grad()
def ring_all_reduce(tensor: torch.Tensor) -> None:
    """Replace ``tensor`` by its sum over all ranks, in place, by messages between neighbours only.

    The tensor is cut into one chunk for each of the N ranks. In N - 1 steps of *reduce-scatter*
    every rank passes a chunk to the right and adds what comes from the left to its own; then each
    rank has the whole sum of one chunk. In N - 1 steps of *all-gather* those go round once more. A
    rank sends 2 (N - 1) / N of the tensor, however many ranks there are. Any shape, strides and
    floating-point dtype, the same on all ranks (Patarasu and Yuan 2009).
    """
    ### TODO dp.5 (30 minutes): Send the chunks around the ring, in the two halves that stand above.
    ### _exchange, below, sends one tensor to the right while another comes from the left;
    ### torch.tensor_split cuts a tensor, also where its length is not a multiple of the number of
    ### ranks. Before you write a line, write down for three ranks which chunk each of them sends in
    ### each step. The tensor need not be contiguous, but it is to change in place.
    ### BEGIN SOLUTION dp.5
    rank, world_size = dist.get_rank(), dist.get_world_size()
    flat = tensor.contiguous().view(-1)  # of a copy if the tensor is not contiguous
    chunks = flat.tensor_split(world_size)
    for step in range(world_size - 1):  # reduce-scatter
        outgoing, mine = chunks[(rank - step) % world_size], chunks[(rank - step - 1) % world_size]
        incoming = torch.empty_like(mine)
        _exchange(outgoing, incoming)
        mine += incoming
    for step in range(world_size - 1):  # all-gather
        _exchange(chunks[(rank + 1 - step) % world_size], chunks[(rank - step) % world_size])
    if not tensor.is_contiguous():
        tensor.copy_(flat.view(tensor.shape))
    ### END SOLUTION


def _exchange(outgoing: torch.Tensor, incoming: torch.Tensor) -> None:
    """Send ``outgoing`` to the right neighbour while ``incoming`` comes from the left one."""
    right, left = ((dist.get_rank() + step) % dist.get_world_size() for step in (1, -1))
    messages = [dist.P2POp(dist.isend, outgoing, right), dist.P2POp(dist.irecv, incoming, left)]
    for work in dist.batch_isend_irecv(messages):
        work.wait()


# --- buckets: many small messages become a few large ones -----------------------------------------

DEFAULT_CAPS_MB = 1.0, 25.0  # of the first bucket and of the others, as torch's


def assign_buckets(
    sizes_bytes: Sequence[int], cap_bytes: float, first_cap_bytes: float | None = None
) -> list[list[int]]:
    """Return which gradients travel together: a list of buckets, lists of parameter numbers.

    ``sizes_bytes`` are the sizes of the gradients, in the order of ``model.parameters()``. Buckets
    are filled from the last parameter to the first, because the backward pass makes the gradients
    in about that order. A bucket takes parameters, each of them whole, until it has reached
    ``cap_bytes``; so it may end up larger than that. ``first_cap_bytes``, if given, holds for the
    first bucket instead. The rule is that of torch's DistributedDataParallel (Li et al. 2020, arXiv
    2006.15704, section 3.2.3).

    Raises ValueError for a capacity that is not more than 0, and for a size below 0; TypeError for
    anything but a number.
    """
    _check_capacities(sizes_bytes, cap_bytes, first_cap_bytes)
    ### TODO dp.6 (15 minutes): Fill the buckets by the rule above. Try it on paper first: sizes 1,
    ### 9 and 1 with a capacity of 8 give two buckets, [2, 1] and [0].
    ### BEGIN SOLUTION dp.6
    buckets: list[list[int]] = []
    room = 0.0  # what the open bucket still takes
    for index in reversed(range(len(sizes_bytes))):
        if room <= 0:
            room = cap_bytes if buckets or first_cap_bytes is None else first_cap_bytes
            buckets.append([])
        buckets[-1].append(index)
        room -= sizes_bytes[index]
    return buckets
    ### END SOLUTION


def _check_capacities(sizes_bytes: Sequence[int], cap_bytes: float, first_cap_bytes: float | None) -> None:
    for name, capacity in (("cap_bytes", cap_bytes), ("first_cap_bytes", first_cap_bytes)):
        if capacity is not None:
            _check_capacity(name, capacity)
    for number, size in enumerate(sizes_bytes):
        check_number(f"sizes_bytes[{number}]", size, lambda size: size >= 0, "a size in bytes, 0 or more")


def _check_capacity(name: str, capacity: float) -> None:
    check_number(name, capacity, lambda capacity: capacity > 0, "more than 0: a bucket must have room for a parameter")


# --- overlap: send a bucket while the backward pass makes the next one ----------------------------


class BucketedDataParallel(torch.nn.Module):
    """A model whose gradients are averaged over all ranks while the backward pass is still running.

        model = BucketedDataParallel(model)
        loss(model(inputs)).backward()           # a bucket leaves once its gradients are ready
        model.finish_gradient_synchronization()  # wait; gradients are now means over ranks
        optimizer.step()

    Arguments:

    - ``module``: the model. Its parameters and buffers are taken from rank 0, the buffers again in
      each forward pass while training.
    - ``bucket_cap_mb``: a bucket closes once it has so many MiB. Of two numbers, one is for the
      first bucket and one for the others; None stands for 1 and 25, as in torch's. ``buckets``
      lists each :class:`Bucket`, in the order of sending.
    - ``comm_hook``: takes a buffer of gradients, 1-D, starts replacing it by its sum over all
      ranks, and returns a torch.futures.Future that is done when the sum is there. None stands for
      an all_reduce.

    Raises ValueError where ranks have different models, for a capacity that is not more than 0, for
    a model without a parameter to train, and for one that is in a living wrapper already. What was
    wrapped is what runs: ``forward`` raises RuntimeError, while training, after a layer or a
    parameter was replaced, converted or unfrozen, where a buffer came or has another size, and in a
    copy of the wrapper. Gradients are to be clipped, and optimizers to step, after
    finish_gradient_synchronization(): RuntimeError.

    Caveats: a parameter that is not used in a step counts as zero on that rank. One that no rank
    uses gets a gradient of zero, so that an optimizer with momentum or weight decay still moves it;
    one that is frozen after wrapping does not move.
    (torch's DDP leaves it alone with find_unused_parameters=True, and takes one more all_reduce a
    step to know; without that it refuses the next step.)
    A forward pass that changes weights in place, as an nn.Embedding with ``max_norm`` does, changes
    them on its own rank. A mean over ranks is that of the batch where shards are of equal size (see
    :func:`average_gradients`).

    After Li et al. 2020, "PyTorch Distributed: Experiences on Accelerating Data Parallel Training",
    arXiv 2006.15704.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        bucket_cap_mb: float | tuple[float, float] | None = None,
        comm_hook: CommHook | None = None,
    ):
        super().__init__()
        check_whole(module.parameters())
        check_unwrapped(module)
        self.buckets = _make_buckets(module, bucket_cap_mb)
        check_same_model(module, [len(bucket.parameters) for bucket in self.buckets])
        for tensor in [*module.parameters(), *module.buffers()]:
            take_from_rank_0(tensor)
        self.module = module
        self.comm_hook = comm_hook or all_reduce_hook
        self._synchronize = True  # False inside no_sync
        self._buffer_forms = forms_of(module.named_buffers())
        averaged = [parameter for bucket in self.buckets for parameter in bucket.parameters]
        self._guard = Guard(self, module, averaged, self._listen_to_autograd())

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.training and torch.is_grad_enabled():
            self._guard.check_averaged(then=". To accumulate gradients, run backward() inside no_sync() as well")
            if self._synchronize:
                self._guard.check()
                take_buffers_from_rank_0(self.module, self._buffer_forms)
        return self.module(*args, **kwargs)

    def _listen_to_autograd(self) -> list[Any]:
        """Have autograd call _gradient_is_ready for each parameter, while this object lives.

        Return the hooks' handles.
        """
        ready = weakref.WeakMethod(self._gradient_is_ready)  # weak, so that the hooks do not keep this object alive
        lock = threading.Lock()  # autograd has a thread for each GPU, and they share the buckets
        handles = [
            bucket.parameters[position].register_post_accumulate_grad_hook(
                functools.partial(_tell, ready, lock, bucket, position)
            )
            for bucket in self.buckets
            for position in range(len(bucket.parameters))
        ]
        weakref.finalize(self, lambda: [handle.remove() for handle in handles])
        return handles

    def _gradient_is_ready(self, bucket: Bucket, position: int) -> None:
        """Send what can go, now that ``bucket.parameters[position]`` has its gradient."""
        if position not in bucket.missing:
            raise RuntimeError(
                f"the gradient of {bucket.names[position]} became ready twice: after each backward() call "
                "finish_gradient_synchronization(), or run the earlier ones inside no_sync(). A checkpoint around a block "
                "that is used twice needs use_reentrant=False"
            )
        if not self._synchronize:
            return
        ### TODO dp.7 (20 minutes): This gradient is ready: put it into its bucket, then send every
        ### bucket that can go now, with self.comm_hook. Ranks must send in the same order, whatever
        ### becomes ready first, or they would add up different buckets. self.buckets is that order;
        ### one that has gone has a future. What a Bucket can do is in labkit/parallel/dp/bucket.py.
        ### BEGIN SOLUTION dp.7
        bucket.collect(position)
        bucket.missing.remove(position)
        for each in self.buckets:
            if each.missing:
                break
            if each.future is None:
                each.send(self.comm_hook)
        ### END SOLUTION

    def finish_gradient_synchronization(self) -> None:
        """Wait until every bucket has been summed over the ranks. Then each gradient is the mean.

        Call it after the backward pass and before the optimizer's step. Raises RuntimeError if
        there was no backward pass since the last time.
        """
        self._guard.check_ready(" outside no_sync()")
        if not self.training:  # else forward has checked
            self._guard.check()
        ### TODO dp.7 (10 minutes): Come back when the sum of every bucket is there. Some have not
        ### gone, because a parameter in them was not used in this step: they have to go too, on
        ### every rank and in order.
        ### BEGIN SOLUTION dp.7
        for bucket in self.buckets:
            if bucket.future is None:
                for position in bucket.missing:
                    bucket.collect(position)
                bucket.send(self.comm_hook)
        for bucket in self.buckets:
            bucket.wait()
        ### END SOLUTION
        try:
            for each in self.buckets:
                each.check_untouched()
        finally:
            for each in self.buckets:
                each.reset()

    def _has_ready_gradients(self) -> bool:
        return any(len(bucket.missing) < len(bucket.parameters) for bucket in self.buckets)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate gradients: backward passes inside add to this rank's own, and send nothing.

        The first backward pass outside sends the sum of all of them. It is where backward runs that
        counts, not where forward does (in torch's DDP it is forward).
        """
        before, self._synchronize = self._synchronize, False
        try:
            yield
        finally:
            self._synchronize = before


def _tell(ready: weakref.WeakMethod[Any], lock: threading.Lock, bucket: Bucket, position: int, _: torch.Tensor) -> None:
    """Call ``ready`` from the hook on a parameter, if its object still lives, in one thread at a
    time."""
    if method := ready():
        with lock:
            method(bucket, position)


def _make_buckets(module: torch.nn.Module, cap_mb: float | tuple[float, float] | None) -> list[Bucket]:
    """Return buckets for the parameters that learn, in the order in which backward completes them.

    A message has one dtype and lies on one device, so parameters of each kind have buckets of their
    own.
    """
    # By default the first bucket is small, so that a message leaves early. One capacity holds for
    # all.
    caps_mb = DEFAULT_CAPS_MB if cap_mb is None else cap_mb if isinstance(cap_mb, tuple) else (cap_mb, cap_mb)
    for each in caps_mb:
        _check_capacity("bucket_cap_mb", each)
    first_cap, cap = (each * MIB for each in caps_mb)
    named = [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]
    if not named:
        raise ValueError(
            "no parameter of the model requires a gradient, so there is nothing to average: use it as it is"
        )
    kinds: dict[Any, list[int]] = {}
    for number, (_, parameter) in enumerate(named):
        kinds.setdefault((parameter.dtype, parameter.device), []).append(number)
    groups = [
        [numbers[i] for i in bucket]
        for numbers in kinds.values()
        for bucket in assign_buckets([named[number][1].nbytes for number in numbers], cap, first_cap)
    ]
    groups.sort(key=min, reverse=True)  # its first parameter is the last one to be ready
    return [
        Bucket(k, [named[number][0] for number in group], [named[number][1] for number in group])
        for k, group in enumerate(groups)
    ]


# --- two terminals: processes that wait for each other --------------------------------------------


def main(argv: Sequence[str] | None = None) -> None:
    """Be a rank of the lecture's demonstration: wait for the others, add up all numbers, end."""
    parser = argparse.ArgumentParser(prog="python -m labkit.dp", description=main.__doc__)
    parser.add_argument("-w", "--world-size", "--world_size", type=int, default=2, help="how many processes take part")
    parser.add_argument("-nr", "--rank", type=int, default=0, help="which one this is, from 0 on")
    parser.add_argument("--backend", default="gloo", help="gloo (CPU) or nccl (one GPU a rank)")
    where = "the port where all of them meet; by default your own, by your user id"
    parser.add_argument("--master-port", "--master_port", type=int, default=own_port(), help=where)
    args = parser.parse_args(argv)

    print(f"rank {args.rank} of {args.world_size}: waiting until all are there", flush=True)
    try:
        if args.rank == 0:
            check_free(args.master_port)
        setup(args.rank, args.world_size, args.backend, master_port=args.master_port)
    except (TodoError, ValueError, OSError, dist.DistError) as error:
        raise SystemExit(str(error)) from None
    total = torch.tensor([args.rank], device=f"cuda:{args.rank}" if args.backend == "nccl" else "cpu")
    dist.all_reduce(total)
    print(f"rank {args.rank} of {args.world_size}: all are there, and their ranks add up to {total.item()}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    start_again_in_own()
    main()
