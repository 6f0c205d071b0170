"""Ranks that wait for ever are named: who, where, and for whom; others are left alone.

Each mistake is a function with its line marked: ``# rank 1`` is where rank 1 stands when nobody can
go on, and what is said must name the two together.
"""

from __future__ import annotations

import inspect
import queue
import re
import threading
import time

import pytest
import torch
import torch.distributed as dist
from torch import nn

from labkit.cost import Link
from labkit.launch import LaunchTimeout, launch, workers

SLOW_LINK = Link(latency_s=0.01, bytes_per_s=1e6)


def x(n=3):
    return torch.ones(n)


# --- two ranks ------------------------------------------------------------------------------------


def leaves_one_out(rank):
    if rank == 0:
        dist.all_reduce(x(100))  # rank 0
    dist.broadcast(x(), 0)  # rank 1


def returns_early(rank):
    if rank == 0:
        return
    dist.all_reduce(x())  # rank 1


def another_order(rank):
    for name in ("all_reduce", "barrier") if rank else ("barrier", "all_reduce"):
        if name == "barrier":
            dist.barrier()  # rank 0
        else:
            dist.all_reduce(x())  # rank 1


def another_operation(rank):
    out = [torch.zeros(3), torch.zeros(3)]
    if rank:
        dist.all_gather(out, x())  # rank 1
    else:
        dist.reduce_scatter(x(), out)  # rank 0


def another_root(rank):
    parts = [torch.zeros(3), torch.zeros(3)] if True else None
    dist.gather(x(), parts, dst=rank)  # rank 0 # rank 1


def gather_on_rank_0_only(rank):
    if rank == 0:
        dist.gather(x(), [torch.zeros(3), torch.zeros(3)], dst=0)  # rank 0


def scatter_on_rank_1_only(rank):
    if rank == 1:
        dist.scatter(torch.zeros(3), None, src=0)  # rank 1


def barrier_on_rank_0_only(rank):
    if rank == 0:
        dist.barrier()  # rank 0


def object_on_one_rank(rank):
    if rank == 1:
        dist.broadcast_object_list([None], src=0)  # rank 1


def more_batches(rank):
    for _ in range(2 + rank):
        dist.all_reduce(x())  # rank 1


def breaks_out(rank):
    for step in range(4):
        if rank == 0 and step == 2:
            break
        dist.all_reduce(x())  # rank 1


def own_condition(rank):
    loss = 4.0
    while loss > 1:
        loss -= 1 + rank
        dist.all_reduce(x())  # rank 0


def swallows_an_error(rank):
    try:
        if rank == 0:
            raise ValueError
        dist.all_reduce(x())  # rank 1
    except ValueError:
        pass


def group_of_others(rank):
    alone = dist.new_group([0])
    dist.all_reduce(x(), group=alone if rank == 0 else None)
    dist.barrier() if rank == 0 else None  # rank 0


def groups_in_another_order(rank):
    a, b = dist.new_group([0, 1]), dist.new_group([0, 1])
    dist.all_reduce(x(), group=b if rank else a)  # rank 0 # rank 1


def new_group_on_one_rank(rank):
    if rank == 0:
        dist.new_group([0, 1])  # rank 0


def uneven_ddp(rank):
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4))
    for _ in range(2 + rank):
        model(torch.ones(2, 4)).sum().backward()  # rank 1


def no_sync_on_rank_0(rank):
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4))
    model.require_backward_grad_sync = rank == 1
    model(torch.ones(2, 4)).sum().backward()  # rank 1
    dist.barrier()  # rank 0


def extra_async(rank):
    if rank == 0:
        dist.all_reduce(x(7), async_op=True)
    dist.broadcast(x(), 0)  # rank 0 # rank 1


def async_in_another_order(rank):
    first, second = x(5), x(6)
    works = [dist.all_reduce(each, async_op=True) for each in ((first, second) if rank else ())]
    works += [dist.broadcast(each, 0, async_op=True) for each in (() if rank else (first, second))]
    for work in works:
        work.wait()  # rank 0 # rank 1


def receives_nothing(rank):
    if rank == 0:
        dist.recv(x(), 1)  # rank 0


def sends_to_nobody(rank):
    if rank == 0:
        dist.send(x(), 1)  # rank 0


def both_receive(rank):
    dist.recv(x(), 1 - rank)  # rank 0 # rank 1


def both_send(rank):
    dist.send(x(), 1 - rank)  # rank 0 # rank 1


def another_tag(rank):
    if rank == 0:
        dist.send(x(), 1, tag=1)  # rank 0
    else:
        dist.recv(x(), 0, tag=2)  # rank 1


def one_message_too_many(rank):
    for _ in range(3 - rank):
        if rank == 0:
            dist.recv(x(), 1)  # rank 0
        else:
            dist.send(x(), 0)


def from_anybody(rank):
    if rank == 1:
        dist.recv(x())  # rank 1


def waits_for_both(rank):
    work = dist.irecv(x(), 1 - rank)
    work.wait()  # rank 0 # rank 1


def batch_of_receives(rank):
    operations = [dist.P2POp(dist.irecv, x(), 1 - rank)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()  # rank 0 # rank 1


def message_against_collective(rank):
    if rank == 0:
        dist.recv(x(), 1)  # rank 0
    else:
        dist.all_reduce(x())  # rank 1


def queue_that_stays_empty(rank):
    if rank == 0:
        queue.Queue().get()  # rank 0
    dist.barrier()  # rank 1


def lock_taken_twice(rank):
    lock = threading.Lock()
    with lock:
        if rank == 0:
            lock.acquire()  # rank 0
    dist.barrier()  # rank 1


def event_never_set(rank):
    if rank == 1:
        threading.Event().wait()  # rank 1
    dist.barrier()  # rank 0


def collective_in_a_thread(rank):
    if rank == 0:
        thread = threading.Thread(target=dist.all_reduce, args=(x(9),))
        thread.start()
        thread.join()  # rank 0
    dist.barrier()  # rank 1


def all_wait_for_threads(rank):
    results: queue.Queue = queue.Queue()
    results.get()  # rank 0 # rank 1


# --- three ranks ----------------------------------------------------------------------------------


def rank_2_leaves_one_out(rank):
    dist.all_reduce(x())
    if rank != 2:
        dist.all_reduce(x(1000))  # rank 0 # rank 1
    dist.broadcast(x(10), 0)  # rank 2


def ring_that_only_sends(rank):
    dist.send(x(), (rank + 1) % 3)  # rank 0 # rank 1 # rank 2


def ring_turned_around(rank):
    to, source = ((rank + 1) % 3, (rank - 1) % 3) if rank != 1 else (0, 2)
    work = dist.isend(x(), to)
    dist.recv(x(), source)  # rank 2
    work.wait()  # rank 0


def from_the_wrong_rank(rank):
    if rank == 0:
        dist.recv(x(), 2)  # rank 0
    elif rank == 1:
        dist.send(x(), 0)  # rank 1


def pair_forgets_the_third(rank):
    pair = dist.new_group([0, 1])
    if rank < 2:
        dist.all_reduce(x(), group=pair)
    else:
        dist.all_reduce(x())  # rank 2


TWO = [each for each in list(globals().values()) if inspect.isfunction(each) and "# rank" in inspect.getsource(each)]
QUICK = {leaves_one_out, returns_early, both_receive, queue_that_stays_empty}


def marked(fn):
    """Return which rank stands in which line."""
    lines, first = inspect.getsourcelines(fn)
    return [(int(rank), first + n) for n, line in enumerate(lines) for rank in re.findall(r"# rank (\d)", line)]


def on_this_rank(fn):
    return fn(dist.get_rank())


def hang_of(fn, **options):
    n_ranks = 3 if max(rank for rank, _ in marked(fn)) == 2 or "rank == 1" in inspect.getsource(fn) and fn in THREE else 2
    with pytest.raises(LaunchTimeout) as raised:
        launch(on_this_rank, fn, world_size=n_ranks, backend="gloo", timeout_s=60, **options)
    assert raised.value.hang is not None, raised.value
    return raised.value.hang


THREE = {from_the_wrong_rank, ring_turned_around}


@pytest.mark.parametrize("fn", [pytest.param(fn, marks=[] if fn in QUICK else pytest.mark.slow) for fn in TWO])
def test_a_mistake_is_named_with_its_ranks_and_lines(fn):
    hang = hang_of(fn)
    for rank, line in marked(fn):
        assert re.search(rf"line {line}\b", hang.lines[rank]), (rank, line, hang)
        assert re.search(rf"ranks? [\d, and]*{rank}\b", hang.cause), hang
    print(hang.cause)
