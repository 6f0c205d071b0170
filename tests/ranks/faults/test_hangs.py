"""Deadlocked ranks are named: which, where, and what for; others are left alone.

Each mistake is a function with its line marked: ``# rank 1`` is where rank 1 stands when nobody can
go on, and what is said must name the two together.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import queue
import re
import signal
import threading

import pytest
import torch
import torch.distributed as dist
from side_by_side import Case, launched, much_runs_beside, on_this_rank, selected
from torch import nn
from torch.utils.data._utils import signal_handling

from labkit.cost import Link
from labkit.launch import LaunchTimeout, RankError, launch, workers
from labkit.ranks.faults import rank_watch
from labkit.ranks.faults.hang import find_hang
from labkit.ranks.messages.message import GPU, RANKS, THREADS, Begun, Place, RankState


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


def after_another_group(rank):
    for _ in range(5):
        dist.broadcast(x(), 0)
    dist.destroy_process_group()
    dist.init_process_group("gloo")
    dist.barrier()
    if rank:
        dist.all_reduce(x())  # rank 1
    else:
        dist.recv(x(), 1)  # rank 0


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


def waits_in_a_list(rank):
    works = [dist.irecv(x(), 1 - rank) for _ in range(2)]
    assert [work.wait() for work in works]  # rank 0 # rank 1


def waits_by_another_name(rank):
    done = dist.irecv(x(), 1 - rank).wait
    done()  # rank 0 # rank 1


def waits_by_no_name(rank):
    list(map(dist.Work.wait, [dist.irecv(x(), 1 - rank)]))  # rank 0 # rank 1


def waits_for_a_future(rank):
    if rank == 0:
        dist.all_reduce(x(), async_op=True).get_future().wait()  # rank 0


def waits_in_a_with_block(rank):
    lock = threading.Lock()
    lock.acquire()
    with lock:  # rank 0 # rank 1
        dist.barrier()


def takes_from_a_simple_queue(rank):
    results = queue.SimpleQueue()
    if rank == 0:
        results.get()  # rank 0
    dist.barrier()  # rank 1


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


def in_a_group_of_its_own(rank):
    dist.init_process_group("gloo", init_method="env://")
    work = dist.irecv(x(), 1 - rank)
    work.wait()  # rank 0 # rank 1


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


MISTAKES = [
    each for each in list(globals().values()) if inspect.isfunction(each) and "# rank" in inspect.getsource(each)
]
ON_THREE = {
    rank_2_leaves_one_out,
    ring_that_only_sends,
    ring_turned_around,
    from_the_wrong_rank,
    pair_forgets_the_third,
}
QUICK = {leaves_one_out, returns_early, both_receive, queue_that_stays_empty}
ON_A_LINK = [leaves_one_out, returns_early, both_receive, more_batches, waits_for_both]
CASES = [
    *[Case(fn, world_size=3 if fn in ON_THREE else 2, init=fn is not in_a_group_of_its_own) for fn in MISTAKES],
    *[Case(fn, link=Link(1e-3, 10e6)) for fn in ON_A_LINK],
]


# --- beside it --------------------------------------------------------------------------------


def beside_much(fn):
    """Return the same run, after what leaves threads behind."""

    @functools.wraps(fn)
    def run(rank):
        much_runs_beside()
        return fn(rank)

    run.__name__ = f"{fn.__name__}_beside_much"
    return run


BESIDE = {case: case._replace(fn=beside_much(case.fn)) for case in CASES}


def marked(fn):
    """Return which rank stands in which line."""
    lines, first = inspect.getsourcelines(fn)
    return [(int(rank), first + n) for n, line in enumerate(lines) for rank in re.findall(r"# rank (\d)", line)]


def hang_in(ended):
    assert isinstance(ended, LaunchTimeout) and ended.hang is not None, ended
    return ended.hang


def check_named(hang, fn):
    for rank, line in marked(fn):
        assert re.search(rf"line {line}\b", hang.lines[rank]), (rank, line, hang)
        assert re.search(rf"ranks? [\d, and]*{rank}\b|all ranks", hang.cause), hang


@pytest.fixture(scope="module")
def ended(request):
    with launched(selected(request)) as launches:
        yield launches


def quick(cases, names=QUICK):
    return [
        pytest.param(case, marks=[] if inspect.unwrap(case.fn) in names else pytest.mark.slow, id=str(case))
        for case in cases
    ]


@pytest.mark.parametrize("case", quick(CASES))
def test_a_mistake_is_named_with_its_ranks_and_lines(case, ended):
    check_named(hang_in(ended[case].result()), case.fn)


@pytest.mark.parametrize("case", quick(BESIDE.values(), [more_batches, event_never_set]))
def test_a_mistake_is_named_whatever_runs_beside_it(case, ended):
    check_named(hang_in(ended[case].result()), inspect.unwrap(case.fn))


def test_what_is_said_is_the_cause_a_line_for_each_rank_and_the_stacks():
    with pytest.raises(LaunchTimeout) as raised:
        launch(on_this_rank, rank_2_leaves_one_out, world_size=3, backend="gloo")
    one, other = (line for rank, line in marked(rank_2_leaves_one_out) if rank in (0, 2))
    assert str(raised.value) == (
        "deadlock: no rank can go on; all were ended. collective 2: "
        f"ranks 0 and 1 are in all_reduce of 1000 float32 (test_hangs.py, line {one}); "
        f"rank 2 is in broadcast of 10 float32, root 0 (test_hangs.py, line {other}). "
        f"The `if` in line {one - 1} was not the same on all ranks"
    )
    lines, *stacks = raised.value.__notes__
    assert lines.splitlines()[1].startswith(f"rank 0 waits in all_reduce of 1000 float32, test_hangs.py, line {one}: ")
    assert "dist.broadcast(x(10), 0)" in "".join(stacks)


@pytest.mark.parametrize("case", [Case(after_another_group)], ids=str)
def test_what_another_group_did_before_is_not_counted(case, ended):
    assert hang_in(ended[case].result()).cause.startswith("collective 2: rank 1 waits in all_reduce of 3 float32")


def names_its_root_in_two_ways(rank):
    group = dist.new_group([1, 2, 3])
    if rank == 1:
        dist.broadcast(x(), src=3, group=group)  # rank 1
    elif rank == 2:
        dist.broadcast(x(), group_src=2, group=group)  # rank 2


@pytest.mark.parametrize("case", [Case(names_its_root_in_two_ways, world_size=4)], ids=str)
def test_a_root_is_the_same_by_either_name_so_the_rank_that_is_missing_is_named(case, ended):
    assert re.search(
        r"ranks 1 and 2 wait in broadcast.*, root 3 .*rank 3 has returned", hang_in(ended[case].result()).cause
    )


def test_after_a_hang_warm_ranks_are_started_anew():
    with workers(world_size=2, backend="gloo") as ranks:
        with pytest.raises(LaunchTimeout, match="no rank can go on"):
            ranks.run(on_this_rank, both_receive)
        assert ranks.run(dist.get_rank).values == [0, 1]


# --- how it is told -------------------------------------------------------------------------------


@pytest.mark.slow
def test_when_only_the_time_is_up_it_says_who_was_at_work():
    def loops():
        while dist.get_rank() == 0:
            pass
        dist.barrier()

    with pytest.raises(LaunchTimeout) as raised:
        launch(loops, world_size=2, backend="gloo", timeout_s=8)
    assert raised.value.hang is None
    assert "Rank 0 was at work or asleep then; the others waited." in "".join(raised.value.__notes__)


class OnGpu:
    """A number on a GPU that never comes: reading it uses a core, as CUDA's own waiting does."""

    item = functools.partial(hashlib.pbkdf2_hmac, "sha256", b"", b"", 1 << 30)


def reads_what_never_comes(rank):
    torch.cuda.is_initialized = lambda: True
    if rank == 0:
        work = dist.all_reduce(x(7), async_op=True)  # rank 0
        assert OnGpu.item() and work


@pytest.mark.parametrize("case", [Case(reads_what_never_comes)], ids=str)
def test_a_rank_that_uses_a_core_to_wait_for_its_gpu_is_named_with_what_its_gpu_is_in(case, ended):
    hang = hang_in(ended[case].result())
    check_named(hang, reads_what_never_comes)
    assert hang.cause.startswith("collective 1: rank 0 waits in all_reduce of 7 float32")
    assert hang.lines[0].endswith("its GPU does not come back from there")


def a_group_in_which_one_has_begun_nothing(rank):
    dist.all_reduce(x(8))
    dist.destroy_process_group()
    dist.init_process_group("gloo")
    if rank:
        dist.broadcast(x(9), 0)  # rank 1


@pytest.mark.parametrize("case", [Case(a_group_in_which_one_has_begun_nothing)], ids=str)
def test_a_group_in_which_a_rank_has_begun_nothing_has_nothing_of_the_one_before(case, ended):
    assert "all_reduce" not in hang_in(ended[case].result()).cause


def test_where_the_recorder_is_off_it_is_said_that_collectives_are_not_known():
    def without_recorder():
        del torch._C._distributed_c10d._dump_fr_trace
        while dist.get_rank() == 0:
            pass
        dist.barrier()

    with pytest.raises(LaunchTimeout) as raised:
        launch(without_recorder, world_size=2, backend="gloo", timeout_s=5)
    notes = "".join(raised.value.__notes__)
    assert "this torch has no flight recorder" in notes and "Rank 0 was at work" in notes


# --- without ranks -----------------------------------------------------------------------

LINE = Place(__file__, 1)


def state(*begun, since=0.0, at=5.0, function="all_reduce", in_call=True, wait=RANKS, can_progress=False):
    return RankState(1, in_call, int(since * 1e9), int(at * 1e9), LINE, function, -1, wait, can_progress, begun, "")


def on_gpu(*begun):
    return state(*begun, function="", wait=GPU)


def collective(number, name="all_reduce", size=3, done=False):
    return Begun("0", (0, 1), number, name, ((size,),), ("float",), done, LINE, at_ns=number)


ONE, OTHER, DONE = collective(1), collective(1, "broadcast"), collective(1, done=True)
LIMITED = ONE._replace(is_limited=True)
IN_ONE, AWAY = state(ONE), {"in_call": False}


@pytest.mark.parametrize(
    ("states", "is_one"),
    {
        "different operations": ([IN_ONE, state(OTHER)], True),
        "different sizes": ([IN_ONE, state(collective(1, size=4))], True),
        "the same one": ([IN_ONE, IN_ONE], False),
        "one has not come to it, and sleeps": ([IN_ONE, state(function="", can_progress=True)], False),
        "one has said nothing": ([IN_ONE, None], False),
        "one is through, and gone": ([IN_ONE, state(DONE, **AWAY)], False),
        "one has gone without it": ([IN_ONE, state(**AWAY)], True),
        "one has gone, and a thread of it has not": ([IN_ONE, state(**AWAY, can_progress=True)], False),
        "one is in a lock": ([IN_ONE, state(wait=THREADS, function="")], True),
        "one is in a backward pass, and has begun nothing": ([IN_ONE, state(function="")], False),
        "one is through, and in the next": ([IN_ONE, state(DONE, collective(2))], False),
        "not still for long enough": ([IN_ONE, state(OTHER, since=4.0)], False),
        "not still together": ([state(ONE, at=3.0), state(OTHER, since=2.0)], False),
        "GPUs in different operations": ([on_gpu(ONE, collective(2)), on_gpu(OTHER, collective(2))], True),
        "GPUs in the same operation": ([on_gpu(ONE, collective(2)), on_gpu(ONE)], False),
        "a GPU that is at work before it comes to the operation": ([on_gpu(ONE), on_gpu()], False),
        "one has gone without it, but its own time limit ends it": ([state(LIMITED), state(**AWAY)], False),
        "so far on that the first is not known": ([IN_ONE, state(collective(99))], False),
    }.values(),
)
def test_a_hang_is_what_cannot_meet_any_more(states, is_one):
    assert (find_hang(dict(enumerate(states)), quiet_s=2.0) is not None) == is_one


def test_torch_s_handler_of_a_worker_s_end_ends_no_wait_unless_it_calls_another(monkeypatch):
    before = signal.getsignal(signal.SIGCHLD)
    try:
        for handler in (signal.SIG_DFL, print):
            monkeypatch.setattr(signal_handling, "_SIGCHLD_handler_set", False)
            signal.signal(signal.SIGCHLD, handler)
            signal_handling._set_SIGCHLD_handler()
            assert rank_watch._may_interrupt(signal.getsignal(signal.SIGCHLD)) == (handler is print)
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_torch_s_own_check_reaches_ranks_and_names_shapes_that_differ(monkeypatch):
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "DETAIL")
    with pytest.raises(RankError, match="mismatch between collectives"):
        launch(lambda: dist.all_reduce(x(3 + dist.get_rank())), world_size=2, backend="gloo")
