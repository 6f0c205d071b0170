"""labkit.link: on an emulated link everything gives what it gives on gloo, and takes what the α–β
model says."""

from __future__ import annotations

import contextlib
import functools
import gc
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import psutil
import pytest
import torch
import torch.distributed as dist
from rank_functions import all_reduce_works
from torch import nn
from torch.distributed import _functional_collectives as collectives
from torch.nn.parallel import DistributedDataParallel

from labkit import launch as launch_module
from labkit import link as link_module
from labkit.cost import NVLINK4, Link
from labkit.launch import RankError, WarmRanks, launch, workers
from labkit.trace import span

ALPHA_S, BETA = 1e-3, 10e6  # so slow that the model's times are far above what gloo itself takes
LINK = Link(ALPHA_S, BETA, "SLOW")
BYTES = 120_000  # of a whole tensor, which two ranks and three can cut into equal parts

clock = time.perf_counter  # one clock for all ranks of a machine


@pytest.fixture(scope="module")
def ranks(ranks: Callable[..., WarmRanks]) -> Callable[..., WarmRanks]:
    """ranks(n, link): as in conftest, but on a link, or on gloo where it is None, and hung ranks
    are ended soon."""
    return lambda world_size=2, link=LINK: ranks(world_size, timeout_s=20, link=link)


def whole(n_bytes: int = BYTES, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A tensor of so many bytes, another on each rank."""
    n = n_bytes // dtype.itemsize
    return ((torch.arange(n) % 50 + 7 * dist.get_rank()) / 8).to(dtype)


def timed(call: Callable[[], object], late_s: float = 0.0) -> tuple[float, float]:
    """When this rank began the call and when it was done, in seconds of the common clock. All ranks
    come out of a barrier."""
    dist.barrier()
    time.sleep(late_s)
    start = clock()
    call()
    return start, clock()


@contextlib.contextmanager
def clock_by_hand(begin_ns: int, channels: Any = link_module) -> Iterator[Callable[[], int]]:
    """In a rank: the link is idle, its clock stands at ``begin_ns``, and goes on by its sleeps."""
    names = ("_now", "_sleep_until", "_outgoing", "_incoming")
    now, before = begin_ns, {name: getattr(channels, name) for name in names}

    def sleep_until(end: int) -> None:
        nonlocal now
        now = max(now, end)

    channels._now, channels._sleep_until = (lambda: now), sleep_until
    channels._outgoing, channels._incoming = channels.OutgoingChannel(), channels.IncomingChannel()
    try:
        yield channels._now
    finally:
        vars(channels).update(before)


# --- links that cannot be, and links that need not be ---------------------------------------------


@pytest.mark.parametrize(
    ("link", "transport", "says"),
    [
        (
            LINK,
            lambda: 8e6 if dist.get_rank() else 9e6,
            r"SLOW \(10 MB/s, 1 ms\), faster .*: gloo moves 8 MB/s between 2.* such as Link\(0.001, 4e\+06\)",
        ),
        (Link(1e-3, math.inf), lambda: 1e9, "no limit, 1 ms, faster than the transport under it"),
        (NVLINK4, link_module.measure_transport, r"NVLINK4 \(450 GB/s, 0.6 µs\), faster than the transport under it"),
    ],
)
def test_a_link_faster_than_gloo_on_this_machine_is_refused_by_name_with_what_gloo_moves(
    link, transport, says, monkeypatch
):
    monkeypatch.setattr(launch_module, "_transport", {})
    monkeypatch.setattr(link_module, "measure_transport", transport)
    for start in (functools.partial(launch, dist.barrier), workers):
        with pytest.raises(ValueError, match=f"link is {says}"):
            start(link=link)


@pytest.mark.parametrize("before", [{}, {2: 1e6}], ids=["not measured", "slow once"])
def test_a_slower_link_is_taken_and_a_transport_that_was_slow_once_is_measured_again(before, monkeypatch):
    monkeypatch.setattr(launch_module, "_transport", before)
    monkeypatch.setattr(link_module, "measure_transport", lambda: 20e6)
    assert launch(dist.get_backend, link=LINK).values == ["link", "link"]


def a_span_and_the_backend() -> str:
    with span("all_reduce", lane="comm"):
        dist.all_reduce(torch.ones(1))
    return dist.get_backend()


@pytest.mark.parametrize(
    "options", [{}, {"link": Link(0.0, math.inf)}, {"world_size": 1, "link": LINK}], ids=["none", "free", "one rank"]
)
def test_where_nothing_is_emulated_ranks_run_on_gloo_and_nothing_says_otherwise(options):
    run = launch(a_span_and_the_backend, backend="auto" if options else "gloo", **options)
    assert set(run.values) == {"gloo"}
    assert "emulated" not in repr(run) and not run.events.attrs.get("emulated")


def test_a_run_on_an_emulated_link_says_so_and_hands_it_on_to_every_table(ranks):
    run = ranks().run(a_span_and_the_backend)
    assert run.values == ["link", "link"] and run.backend == "gloo"
    words = "emulated link: SLOW (10 MB/s, 1 ms)"
    assert run.events.attrs["emulated"] == run.timings.attrs["emulated"] == words
    assert all(words in text for text in (run.header, repr(run), run._repr_html_()))


# --- collectives ----------------------------------------------------------------------------------


class Tensors:
    """What this rank puts into a collective, and where its result will be."""

    def __init__(self) -> None:
        n, self.root = dist.get_world_size(), dist.get_rank() == 1
        self.x, self.xs, self.part = whole(), list(whole().chunk(n)), whole(BYTES // n)
        self.bf16 = whole(BYTES // 2, torch.bfloat16)  # as many numbers
        self.out, self.out_part = torch.empty(BYTES // 4), torch.empty(BYTES // n // 4)
        self.outs = [torch.empty(BYTES // n // 4) for _ in range(n)]
        self.bytes, self.objects = bytes([dist.get_rank()]) * BYTES, [None] * n


def all_reduce_coalesced(t: Tensors) -> None:
    with dist._coalescing_manager(async_ops=True) as works:
        for tensor in t.xs:
            dist.all_reduce(tensor)
    works.wait()


def broadcast_object(t: Tensors) -> None:
    t.objects = [t.bytes]
    dist.broadcast_object_list(t.objects, src=1)


def sparse_all_reduce(t: Tensors) -> None:
    x = torch.sparse_coo_tensor([[dist.get_rank(), 5]], [1.0, 2.0], (6,), check_invariants=True)
    dist.all_reduce(x)
    t.out = x.to_dense()


def functional_all_reduce(t: Tensors) -> None:
    t.out = collectives.wait_tensor(collectives.all_reduce(t.x, "sum", dist.group.WORLD))


Messages = Callable[[int], tuple[int, float]]
ONCE: Messages = lambda n: (n - 1, (n - 1) * BYTES / n)  # noqa: E731
TWICE: Messages = lambda n: (2 * (n - 1), 2 * (n - 1) * BYTES / n)  # noqa: E731
CHAIN: Messages = lambda n: (n - 1, BYTES)  # noqa: E731

# What to call, what holds its result, and for n ranks how many messages follow one another and how
# many bytes pass the busiest port, counted by hand.
CASES: dict[str, tuple[Callable[[Tensors], object], Callable[[Tensors], Any], Messages]] = {
    "all_reduce": (lambda t: dist.all_reduce(t.x), lambda t: t.x, TWICE),
    "all_reduce_bf16": (lambda t: dist.all_reduce(t.bf16), lambda t: t.bf16, lambda n: (TWICE(n)[0], ONCE(n)[1])),
    "all_reduce_coalesced": (all_reduce_coalesced, lambda t: t.xs, TWICE),
    "functional_all_reduce": (functional_all_reduce, lambda t: t.out, TWICE),
    "sparse_all_reduce": (sparse_all_reduce, lambda t: t.out, lambda n: (2 * (n - 1), 0)),
    "broadcast": (lambda t: dist.broadcast(t.x, src=1), lambda t: t.x, CHAIN),
    "reduce": (lambda t: dist.reduce(t.x, dst=1), lambda t: t.x if t.root else None, CHAIN),
    "all_gather": (lambda t: dist.all_gather(t.outs, t.part), lambda t: t.outs, ONCE),
    "all_gather_into_tensor": (lambda t: dist.all_gather_into_tensor(t.out, t.part), lambda t: t.out, ONCE),
    "gather": (
        lambda t: dist.gather(t.part, t.outs if t.root else None, dst=1),
        lambda t: t.outs if t.root else None,
        ONCE,
    ),
    "scatter": (lambda t: dist.scatter(t.out_part, t.xs if t.root else None, src=1), lambda t: t.out_part, ONCE),
    "reduce_scatter": (lambda t: dist.reduce_scatter(t.out_part, t.xs), lambda t: t.out_part, ONCE),
    "reduce_scatter_tensor": (lambda t: dist.reduce_scatter_tensor(t.out_part, t.x), lambda t: t.out_part, ONCE),
    "all_to_all": (lambda t: dist.all_to_all(t.outs, t.xs), lambda t: t.outs, ONCE),
    "all_to_all_single": (lambda t: dist.all_to_all_single(t.out, t.x), lambda t: t.out, ONCE),
    "barrier": (lambda t: dist.barrier(), lambda t: None, lambda n: (2 * (n - 1), 0)),
    "all_gather_object": (  # the objects' sizes go first, on their own
        lambda t: dist.all_gather_object(t.objects, t.bytes[: BYTES // len(t.xs)]),
        lambda t: t.objects,
        lambda n: (2 * (n - 1), ONCE(n)[1]),
    ),
    "broadcast_object_list": (broadcast_object, lambda t: t.objects, lambda n: (2 * (n - 1), BYTES)),
}


def model_s(name: str, n: int) -> float:
    messages, n_bytes = CASES[name][2](n)
    return messages * ALPHA_S + n_bytes / BETA


def run_case(name: str) -> tuple[Any, float, float]:
    """In each rank: the result, and when the call began and ended. The last rank comes 30 ms
    late."""
    call, result, _ = CASES[name]
    tensors = Tensors()
    start, end = timed(lambda: call(tensors), late_s=0.03 * (dist.get_rank() == dist.get_world_size() - 1))
    return result(tensors), start, end


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("name", CASES)
def test_a_collective_gives_what_gloo_gives_and_ends_no_earlier_than_the_model_after_the_last_rank_joined(
    ranks, name, n
):
    if name == "all_to_all" and torch.__version__ < (2, 13):
        pytest.skip("gloo before torch 2.13 has no all_to_all of lists")
    on_gloo, on_link = (ranks(n, link).run(run_case, name).values for link in (None, LINK))
    assert same([result for result, *_ in on_gloo], [result for result, *_ in on_link])
    last_joined = max(start for _, start, _ in on_link)
    assert min(end for *_, end in on_link) - last_joined >= model_s(name, n)


def test_an_all_to_all_of_uneven_parts_takes_as_long_as_its_largest_port(ranks):
    def all_from_rank_0_to_rank_1():
        rank, n = dist.get_rank(), BYTES // 4
        source, out = torch.ones(n * (rank == 0)), torch.empty(n * (rank == 1))
        splits = [0, n] if rank == 0 else [0, 0], [n, 0] if rank == 1 else [0, 0]
        return timed(lambda: dist.all_to_all_single(out, source, splits[1], splits[0]))

    (start, sent), (_, received) = ranks().run(all_from_rank_0_to_rank_1).values
    assert min(sent, received) - start >= ALPHA_S + BYTES / BETA


def test_an_all_to_all_of_nothing_is_over_once_all_have_joined(ranks):
    assert ranks().run(lambda: dist.all_to_all_single(torch.zeros(0), torch.zeros(0))).values == [None, None]


def test_a_subgroup_has_its_own_ranks_and_its_own_time(ranks):
    def within_ranks_0_and_2():
        group, x, took_ns = dist.new_group([0, 2]), None, 0
        dist.barrier()
        with clock_by_hand(begin := 10**9) as now:
            if dist.get_rank() != 1:
                dist.all_reduce(x := whole(3 * BYTES), group=group)
                took_ns = now() - begin
        dist.destroy_process_group(group)
        return x, took_ns

    (x, first), (none, _), (y, third) = ranks(3).run(within_ranks_0_and_2).values
    arange = (torch.arange(3 * BYTES // 4) % 50).float()
    assert none is None and torch.equal(x, y) and torch.equal(x, arange / 4 + 14 / 8)
    assert first == third == round(1e9 * (2 * ALPHA_S + 3 * BYTES / BETA))


# --- one channel ----------------------------------------------------------------------------------


def poll(work: Any) -> None:
    while not (work._work.is_completed() and work._is_known()):
        time.sleep(1e-3)  # until gloo has done it, which moves no clock that is moved by hand
    while not work.is_completed():
        link_module._sleep_until(link_module._now() + POLL_NS)


POLL_NS = 10_000


def all_reduces_at_once(count: int, until_done: Callable[[Any], object]) -> tuple[list[int], list, bool]:
    """How long after they were begun each was done, by a clock moved by hand, the sums, and whether
    all works told the truth of themselves."""
    tensors, ends = [whole() for _ in range(count)], []
    dist.barrier()
    with clock_by_hand(begin := 10**9) as now:
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        truth = not any(work.is_completed() for work in works)
        for work in works:
            until_done(work)
            ends.append(now() - begin)
        return ends, tensors, truth and all(work.is_success() and work.wait() for work in works)


@pytest.mark.parametrize("until_done", [lambda work: work.wait(), lambda work: work.get_future().wait(), poll])
def test_collectives_that_were_begun_at_once_go_one_after_the_other_and_no_slower_however_one_waits(ranks, until_done):
    count, one_ns = 5, round(1e9 * model_s("all_reduce", 2))
    sums = [(torch.arange(BYTES // 4) % 50) / 4 + 7 / 8] * count
    for ends, tensors, truth in ranks().run(all_reduces_at_once, count, until_done).values:
        assert truth and same(tensors, sums)
        assert all(0 <= end - (k + 1) * one_ns < POLL_NS for k, end in enumerate(ends))


def test_a_message_behind_a_collective_that_a_late_rank_held_up_waits_for_the_channel_too(ranks):
    n_bytes = 10 * BYTES  # 120 ms

    def late_collective():
        rank, x = dist.get_rank(), whole(n_bytes)
        dist.barrier()
        time.sleep(0.05 * rank)
        start = clock()
        work = dist.all_reduce(x, async_op=True)
        if rank == 0:
            time.sleep(0.1)  # now the other has joined, and the collective is under way
            assert not work.is_completed()
        dist.send(whole(), 1) if rank == 0 else dist.recv(torch.empty(BYTES // 4), 0)
        end = clock()
        work.wait()
        return start, end

    _, (joined, received) = ranks().run(late_collective).values
    assert received - joined >= 2 * ALPHA_S + n_bytes / BETA + ALPHA_S + BYTES / BETA


def exchange(n_bytes: int, batch: bool) -> tuple[int, float]:
    """Each of two ranks sends and receives at once."""
    other, x, y = 1 - dist.get_rank(), torch.full((n_bytes // 4,), float(dist.get_rank())), torch.empty(n_bytes // 4)
    pair = [(dist.isend, x), (dist.irecv, y)]
    dist.barrier()
    with clock_by_hand(begin := 10**9) as now:
        if batch:
            works = dist.batch_isend_irecv([dist.P2POp(op, tensor, other) for op, tensor in pair])
        else:
            works = [op(tensor, other) for op, tensor in pair]
        for work in works:
            work.wait()
        return now() - begin, y.mean().item()


@pytest.mark.parametrize("batch", [False, True])
def test_sending_and_receiving_at_once_take_no_longer_than_one_of_them(ranks, batch):
    one_ns = round(1e9 * (ALPHA_S + 4 * BYTES / BETA))
    assert ranks().run(exchange, 4 * BYTES, batch).values == [(one_ns, 1.0), (one_ns, 0.0)]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
@pytest.mark.parametrize("late", [False, True], ids=["asked for in advance", "asked for one by one"])
def test_messages_of_one_sender_are_in_at_the_same_time_in_whatever_order_they_are_waited_for(ranks, order, late):
    def three_messages(order: tuple[int, ...], late: bool):
        begin = 10**9
        tensors = [whole() for _ in order]
        dist.barrier()
        with clock_by_hand(begin) as now:
            if dist.get_rank() == 0:
                works = [dist.isend(tensor, 1, tag=tag) for tag, tensor in enumerate(tensors)]
                return [work.wait() and now() - begin for work in works]
            if late:
                for tag in order:
                    dist.recv(tensors[tag], 0, tag=tag)
            else:
                works = [dist.irecv(tensor, 0, tag=tag) for tag, tensor in enumerate(tensors)]
                for tag in order:
                    works[tag].wait()
            return now() - begin

    sent_ns, received_ns = ranks().run(three_messages, order, late).values
    message_ns, alpha_ns = round(1e9 * BYTES / BETA), round(1e9 * ALPHA_S)
    assert sent_ns == [(k + 1) * message_ns + alpha_ns for k in range(3)]
    assert received_ns == 3 * message_ns + alpha_ns


class Line:
    """A rank's incoming channel by itself, and messages of 100 ns on it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.channel, self.now = link_module.IncomingChannel(), 0
        monkeypatch.setattr(link_module, "_now", lambda: self.now)

    def message(self, begin: int | None = None) -> link_module.IncomingMessage:
        """A message that this rank has asked for; gloo has brought it, if it has a begin."""
        message = link_module.IncomingMessage(torch.zeros(4, dtype=torch.uint8), duration=100)
        self.channel.expect(message)
        if begin is not None:
            self.bring(message, begin)
        return message

    def bring(self, message: link_module.IncomingMessage, begin: int) -> None:
        message.buffer.copy_(link_module.IncomingMessage.pack(begin + 100, torch.ones(4, dtype=torch.uint8)))


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> Line:
    return Line(monkeypatch)


def test_of_two_senders_the_message_that_comes_first_is_in_first_whichever_is_asked_for(line):
    first, second = line.message(begin=1000), line.message(begin=1050)
    assert [line.channel.end_of(message) for message in (second, first)] == [1200, 1100]


def test_a_message_that_is_brought_later_and_came_earlier_holds_up_one_whose_end_was_told(line):
    other, message = line.message(), line.message(begin=1050)
    assert line.channel.end_of(message) == 1150
    line.bring(other, begin=1000)
    assert [line.channel.end_of(each) for each in (message, other)] == [1200, 1100]


def test_a_message_that_is_asked_for_late_takes_no_time_in_which_another_came_in(line):
    line.now = 1300
    assert line.channel.end_of(line.message(begin=1050)) == 1150
    assert line.channel.end_of(line.message(begin=1000)) == 1250  # there was no room for it before
    assert line.channel.end_of(line.message(begin=900)) == 1000
    assert line.channel.end_of(line.message(begin=1000)) == 1350


def test_a_message_that_nobody_asks_for_any_more_is_forgotten(line):
    line.message(begin=1000), line.message()
    gc.collect()
    assert not [thing for thing in gc.get_objects() if type(thing) is link_module.IncomingMessage]


def test_messages_that_were_sent_long_ago_are_what_was_sent_and_there_at_once(ranks):
    def late_receiver():
        n, count, rank = BYTES, 3, dist.get_rank()
        dist.barrier()
        with clock_by_hand(begin := (1 + rank) * 10**9) as now:
            if rank == 0:
                works = [dist.isend(torch.full((n,), float(k)), 1) for k in range(count)]
                noise = [torch.full((n + 2,), 99.0) for _ in range(20)]  # where a buffer would lie that nobody keeps
                return [work.wait() for work in works], len(noise)
            time.sleep(0.1)  # until there is noise
            got = [torch.empty(n) for _ in range(count)]
            for x in got:
                dist.recv(x, 0)
            return now() - begin, [(x.min().item(), x.max().item()) for x in got]

    assert ranks().run(late_receiver).values[1] == (0, [(k, k) for k in range(3)])


def test_a_message_has_a_tag_and_a_sender_whichever_is_received_first(ranks):
    def in_rank():
        rank, got = dist.get_rank(), {tag: torch.zeros(1) for tag in (2, 1, 0)}
        if rank == 0:
            works = [dist.isend(torch.tensor([10.0 * tag]), 2, tag=tag) for tag in (1, 2)]
            return [work.wait() for work in works]
        if rank == 1:
            return dist.send(torch.full((1, 7), 5.0)[:, 0], 2)  # one number with a stride
        senders = [dist.recv(got[2], 0, tag=2), dist.recv(got[1], 0, tag=1), dist.recv(got[0])]
        return senders, [x.item() for x in got.values()]

    assert ranks(3).run(in_rank).values[2] == ([0, 0, 1], [20.0, 10.0, 5.0])


def test_a_sender_need_not_wait_until_a_receiver_from_anyone_asks(ranks):
    """On gloo a message is sent once it has a place to go, so this does not deadlock there."""

    def receive_after_a_barrier():
        x = torch.zeros(1)
        if dist.get_rank() == 0:
            work = dist.irecv(x)
            dist.barrier()
            work.wait()
        else:
            dist.send(torch.ones(1), 0)
            dist.barrier()
        return x.item()

    assert [ranks(2, link).run(receive_after_a_barrier).values for link in (None, LINK)] == [[1.0, 0.0]] * 2


# --- works ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("late", [0, 2])
def test_asking_whether_a_work_is_completed_never_waits_for_a_late_rank(ranks, late):
    """It comes once the others have asked: each tells it so."""

    def ask(late: int):
        others = {0, 1, 2} - {late}
        for other in others if dist.get_rank() == late else ():
            dist.recv(torch.empty(1), other)
        work = dist.broadcast(torch.ones(1), 0, async_op=True)
        time.sleep(0.02)
        answer = work.is_completed()
        if dist.get_rank() in others:
            dist.send(torch.ones(1), late)
        work.wait()
        return answer

    answers = ranks(3).run(ask, late).values
    assert [answer for rank, answer in enumerate(answers) if rank != late] == [False, False]


def test_waiting_for_a_later_collective_in_another_thread_does_not_hold_up_an_earlier_one(ranks):
    """Rank 2 joins the later one only after a message that rank 1 sends once the earlier one is
    done."""

    def later_depends_on_earlier():
        rank = dist.get_rank()
        earlier = dist.all_reduce(torch.ones(1), async_op=True)
        if rank == 2:
            earlier.wait()
            dist.recv(torch.empty(1), 1)
        later = dist.broadcast(torch.ones(1), 0, async_op=True)
        future = later.get_future()
        time.sleep(0.1)  # on rank 1 a thread waits for the later one now
        answer = earlier.is_completed()
        earlier.wait()
        if rank == 1:
            dist.send(torch.ones(1), 2)
        future.wait()
        return answer

    assert ranks(3).run(later_depends_on_earlier).values == [True] * 3


def error_of(call: Callable[[], object]) -> str:
    with pytest.raises(Exception) as error:
        call()
    return str(error.value).splitlines()[0]


def test_a_callback_that_raises_breaks_its_own_future_only_and_a_message_has_no_future_as_on_gloo(ranks):
    def futures():
        works = [dist.all_reduce(torch.ones(1), async_op=True) for _ in range(3)]
        bad, *good = [each.get_future().then(lambda f, k=k: f.value()[0].item() / k) for k, each in enumerate(works)]
        found = ["division" in error_of(bad.wait), *(future.wait() for future in good)]
        x, other = torch.zeros(1), 1 - dist.get_rank()
        works = [dist.isend(torch.ones(1), other), dist.irecv(x, other)]
        refused = [error_of(lambda each=each: each.get_future().wait()) for each in works]
        return found, refused, [each.wait() for each in works], x.item()

    on_gloo, on_link = (ranks(2, link).run(futures).values for link in (None, LINK))
    assert on_link == on_gloo and on_gloo[0][0] == [True, 2.0, 1.0] and on_gloo[0][3] == 1


def test_waiting_takes_a_timeout_and_raises_when_the_link_needs_longer():
    def impatient():
        work = dist.all_reduce(torch.ones(1), async_op=True)
        start, error = clock(), ""
        try:
            work.wait(timeout=timedelta(milliseconds=20))
        except RuntimeError as raised:
            error = str(raised)
        took = clock() - start
        return error, took, dist.barrier() or work.wait(timedelta(seconds=10))

    for error, took, waited in launch(impatient, link=Link(0.25, BETA)).values:  # two latencies
        assert "imed out" in error or "imeout" in error
        assert 0.02 <= took < 0.5 and waited


def test_collectives_that_nobody_waits_for_happen_and_leave_nothing_behind(ranks):
    def forgotten(count: int):
        tensors = [torch.ones(1) for _ in range(count)]
        for tensor in tensors:
            dist.all_reduce(tensor, async_op=True)
        dist.barrier()
        gc.collect()
        of_the_link = [thing for thing in gc.get_objects() if type(thing).__module__ == "labkit.link"]
        return [tensor.item() for tensor in tensors], len(of_the_link)

    none, many = ranks().run(forgotten, 0).values, ranks().run(forgotten, 50).values
    assert [sums for sums, _ in many] == [[2.0] * 50] * 2
    assert [left for _, left in many] == [left for _, left in none]


# --- the CPU stays free, and training overlaps ----------------------------------------------------


def test_a_rank_that_waits_for_the_link_leaves_its_cpu_free():
    def wait_and_count():
        dist.all_reduce(torch.ones(1))  # the first one connects
        cpu = time.process_time()
        start, end = timed(lambda: dist.all_reduce(torch.ones(1)))
        return end - start, time.process_time() - cpu

    latency_s = 0.15
    for took, cpu in launch(wait_and_count, link=Link(latency_s, BETA)).values:
        assert took >= 2 * latency_s
        assert cpu < 0.2 * took


LAYERS, WIDTH, SLOW_NS = 4, 270, 30_000_000
LAYER_NS = round(1e9 * (2 * ALPHA_S + WIDTH * WIDTH * 4 / BETA))  # an all_reduce of a layer's gradient: 31 ms


class SlowBackward(torch.autograd.Function):
    """Passes everything on. Its backward calls what it was given."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, compute: Callable[[], object]) -> torch.Tensor:
        ctx.compute = compute
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.compute()
        return gradient, None


class SlowLayer(nn.Linear):
    compute = staticmethod(lambda: None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return SlowBackward.apply(super().forward(x), lambda: self.compute())


def backward_ns() -> tuple[int, float]:
    """A bucket a layer: its all_reduce may run while the layers before it compute their gradients.
    Gives how long a backward pass took, by a clock moved by hand, and a gradient."""
    model = nn.Sequential(*[SlowLayer(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)])
    wrapped, x = DistributedDataParallel(model, bucket_cap_mb=0.25), torch.full((1, WIDTH), dist.get_rank() + 1.0)
    for _ in range(2):  # in the first step torch has one bucket, and before the second it makes new ones
        wrapped(x).sum().backward()
    loss, n_left = wrapped(x).sum(), LAYERS
    dist.barrier()
    with clock_by_hand(begin := 10**9) as now:
        sleep_until, all_computed = link_module._sleep_until, threading.Event()

        def compute() -> None:
            nonlocal n_left
            sleep_until(now() + SLOW_NS)
            if (n_left := n_left - 1) == 0:
                all_computed.set()

        # Another thread waits for the link, by the same clock: it lets the layers go first.
        link_module._sleep_until = lambda end: (all_computed.wait(), sleep_until(end))
        for layer in model:
            layer.compute = compute
        loss.backward()
        return now() - begin, model[0].weight.grad[0, 0].item()


def test_torchs_ddp_averages_and_sends_buckets_while_the_backward_pass_goes_on(ranks):
    first, second = ranks().run(backward_ns).values
    assert (
        first == second and first[0] == SLOW_NS + LAYERS * LAYER_NS
    )  # the link is idle only while the last layer computes


# --- faults ---------------------------------------------------------------------------------------


def test_a_rank_that_dies_is_reported_while_another_waits_for_the_link():
    def in_rank():
        if dist.get_rank() == 1:
            dist.all_reduce(torch.ones(1), async_op=True)
            time.sleep(0.1)
            os._exit(3)
        dist.all_reduce(torch.ones(1))

    latency_s, start = 30.0, clock()
    with pytest.raises(RankError, match=r"rank 1 ended without an answer \(exit status 3\)"):
        launch(in_rank, link=Link(latency_s, BETA))
    assert clock() - start < latency_s


# --- groups come and go ---------------------------------------------------------------------------


def reopen_and_reduce() -> tuple[str, float, float, float]:
    """In each rank: end the process group, form another as under torchrun, and use it."""
    dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()
    dist.init_process_group("link")
    x = whole()
    start, end = timed(lambda: dist.all_reduce(x))
    return dist.get_backend(), start, end, x[0].item()


def test_a_process_group_that_was_ended_and_formed_anew_is_on_the_link_too():
    values = launch(reopen_and_reduce, link=LINK).values
    assert [(backend, x) for backend, _, _, x in values] == [("link", 7 / 8)] * 2
    assert min(end for _, _, end, _ in values) - max(start for _, start, _, _ in values) >= model_s("all_reduce", 2)


def test_warm_ranks_recover_from_a_group_left_broken_or_out_of_step_and_work_that_a_peer_left_raises_each_time(
    ranks, capsys
):
    def pass_along():
        if (rank := dist.get_rank()) < 2:
            (dist.send, dist.recv)[rank](torch.ones(1), 1 - rank)

    def leaves():
        if dist.get_rank() == 2:
            return dist.destroy_process_group()
        work = dist.broadcast(torch.ones(1), 0, async_op=True)
        return [error_of(work.wait) for _ in range(2)] if dist.get_rank() else None

    def out_of_step():
        if dist.get_rank() == 0:
            dist.all_reduce(torch.ones(1), async_op=True)

    for run, n_anew in ((pass_along, 0), (leaves, 1), (out_of_step, 1)):
        ranks(3).run(run)
        assert ranks(3).run(all_reduce_works).values == [3.0] * 3
        assert capsys.readouterr().out.count("left the process group out of step") == n_anew


def use_and_leave() -> None:
    """Everything that has threads or sockets of its own: a group, futures, messages."""
    group = dist.new_group([0, 1])
    dist.all_reduce(torch.ones(1), group=group, async_op=True).get_future().wait()
    for work in [call(torch.ones(1), 1 - dist.get_rank()) for call in (dist.isend, dist.irecv)]:
        work.wait()
    dist.destroy_process_group(group)


def descriptors_and_threads() -> tuple[int, int]:
    gc.collect()
    return psutil.Process().num_fds(), psutil.Process().num_threads()


def test_groups_that_were_ended_leave_no_descriptor_and_no_thread(ranks):
    for _ in range(3):
        ranks().run(use_and_leave)
    time.sleep(0.3)  # a thread that was told to end takes a moment
    before = ranks().run(descriptors_and_threads).values
    for _ in range(15):
        ranks().run(use_and_leave)
    for _ in range(20):
        time.sleep(0.1)
        after = ranks().run(descriptors_and_threads).values
        more = [[now > then for now, then in zip(*counts, strict=True)] for counts in zip(after, before, strict=True)]
        if not any(map(any, more)):
            break
    assert not any(map(any, more)), (before, after)
