"""P2P: everything arrives, in whatever order the network insists on; what was sent is let go; what
is wrong is said."""

from __future__ import annotations

import gc
import threading
import weakref
from collections import defaultdict, deque

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pipelines import feeder, random_schedules, schedules
from scheduled_runs import all_kinds_of_tensors, send_all_kinds_of_tensors

from labkit.parallel import devices
from labkit.parallel.pipe import p2p
from labkit.parallel.pipe.p2p import P2P
from labkit.schedule import Op, gpipe, interleaved, one_f_one_b

any_schedule = st.one_of(schedules(), random_schedules())
CPU = torch.device("cpu")


# --- a network that does no more than it must -----------------------------------------------------


class WaitsForEver(Exception):
    pass


class Work:
    def __init__(self, network, tensor, peer, sends):
        self.network, self.tensor, self.peer, self.sends, self.done = network, tensor, peer, sends, False

    def wait(self):
        self.network.wait_for(self)


class Network:
    """Stands in for torch.distributed, between threads: each side's messages queue up, and one gets
    through only while it is the first in the queues of both its ranks. No byte moves before both
    ask for it.

    ``lane(rank, peer)`` is which queue a message goes into: on NCCL one for each pair of ranks, or
    a single one for all of a rank's messages. If ``patient``, a rank does not even go on before its
    message is through. When all ranks wait, none can go on, and all are told so.
    """

    def __init__(self, n_ranks, lane, patient):
        self._lane, self._patient = lane, patient
        self._queues = defaultdict(deque)
        self._here = threading.local()
        self._changed = threading.Condition()
        self._at_work, self._for_ever = n_ranks, False
        self._awaited = {}  # by rank, what it waits for
        self.payloads = defaultdict(list)  # by rank, weak references to what it has sent

    def is_initialized(self):
        return True

    def get_backend_config(self, group=None):
        return "cpu:gloo,cuda:gloo"

    def isend(self, tensor, group=None, group_dst=None):
        self.payloads[self._here.rank].append(weakref.ref(tensor.untyped_storage()))
        return self._post(tensor, group_dst, sends=True)

    def irecv(self, tensor, group=None, group_src=None):
        return self._post(tensor, group_src, sends=False)

    def recv(self, tensor, group=None, group_src=None):
        self.irecv(tensor, group, group_src).wait()

    def _post(self, tensor, peer, sends):
        rank, work = self._here.rank, Work(self, tensor, peer, sends)
        with self._changed:
            self._queues[self._lane(rank, peer)].append((rank, work))
            self._match()
        if self._patient:
            work.wait()
        return work

    def _match(self):
        heads = {(rank, work.peer): work for queue in self._queues.values() if queue for rank, work in [queue[0]]}
        for (rank, peer), work in heads.items():
            other = heads.get((peer, rank))
            if other and work.sends and not other.sends:
                assert work.tensor.nbytes == other.tensor.nbytes
                other.tensor.view(torch.uint8).copy_(work.tensor.view(torch.uint8))
                for side, it in ((rank, work), (peer, other)):
                    self._queues[self._lane(side, it.peer)].popleft()
                    it.done, it.tensor = True, None
                self._changed.notify_all()
                return self._match()

    def wait_for(self, work):
        with self._changed:
            self._awaited[self._here.rank] = work
            self._look_for_a_circle()
            while not work.done:
                if self._for_ever:
                    raise WaitsForEver
                self._changed.wait()
            del self._awaited[self._here.rank]

    def _look_for_a_circle(self):
        waiting = sum(not work.done for work in self._awaited.values())
        self._for_ever = self._for_ever or waiting == self._at_work > 0
        self._changed.notify_all()

    def play(self, rank, program, failures):
        self._here.rank = rank
        try:
            program(rank)
        except BaseException as error:
            failures.append(error)
        finally:
            with self._changed:
                self._at_work -= 1
                self._awaited.pop(rank, None)
                self._look_for_a_circle()


def run(network, n_ranks, program):
    """``program(rank)`` on every rank, over ``network``."""
    failures: list[BaseException] = []
    threads = [threading.Thread(target=network.play, args=(rank, program, failures)) for rank in range(n_ranks)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(p2p, "dist", network)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for error in failures:
        raise error


def devices_of(schedule, rank):
    return {op.stage: CPU for op in schedule.ops[rank]}


def number(op):
    """What ``op`` gives, in these tests: a number of its own."""
    return 1.0 + "FBI".index(op.kind) + 10 * op.stage + 1000 * op.micro_batch


def steps_of(schedule, steps, frozen=frozenset(), after=lambda rank, step: None):
    """A program for each rank: the ops of some steps, in which every tensor is a number that tells
    who gave it. Stages that are ``frozen`` give activations that want no gradient. ``after`` is
    called after each op."""

    def program(rank):
        channel = P2P(schedule, rank, None, devices_of(schedule, rank))
        for step in range(steps):
            for op in schedule.ops[rank]:
                source = feeder(schedule, op)
                if op.kind != "W" and source and source.stage != op.stage:
                    check(op, source, channel.receive(op), step)
                if op.kind != "W" and op.stage != (schedule.n_stages - 1 if op.kind == "F" else 0):
                    channel.send(op, given(op, step))
                after(rank, step)
            channel.finish()

    def given(op, step):
        numbers = torch.full((2,), number(op) + step / 8, requires_grad=op.kind == "F")
        return numbers.detach() if op.stage in frozen else numbers

    def check(op, source, found, step):
        wanted = op.kind == "F" or op.stage not in frozen
        assert (found.tolist() if wanted else found) == ([number(source) + step / 8] * 2 if wanted else None)
        assert not wanted or found.requires_grad == (op.kind == "F" and source.stage not in frozen)

    return program


LANES = {"a lane for each pair of ranks": lambda rank, peer: (rank, peer), "one lane a rank": lambda rank, peer: rank}


@pytest.mark.parametrize("patient", [False, True], ids=["queued", "handshake"])
@pytest.mark.parametrize("lane", LANES.values(), ids=LANES)
def test_everything_arrives_and_nobody_waits_for_ever_on_lanes_that_keep_their_order(lane, patient):
    @settings(max_examples=30, deadline=None)
    @given(any_schedule, st.frozensets(st.integers(0, 5)))
    def holds(schedule, frozen):
        network = Network(schedule.n_ranks, lane, patient)
        run(network, schedule.n_ranks, steps_of(schedule, 2, frozen))

    holds()


# --- memory ---------------------------------------------------------------------------------------


def max_kept(schedule, rank):
    """The most payloads that ``rank`` holds at a time, in a second step of ``schedule``: alive,
    though it has sent them."""
    network, alive = Network(schedule.n_ranks, LANES["a lane for each pair of ranks"], patient=False), []

    def count(mine, step):
        if mine == rank and step == 1:
            alive.append(sum(payload() is not None for payload in network.payloads[rank]))

    gc.disable()  # what is let go is gone at once
    try:
        run(network, schedule.n_ranks, steps_of(schedule, 2, after=count))
    finally:
        gc.enable()
    return max(alive)


@pytest.mark.parametrize("n", [2, 3, 4])
def test_in_1f1b_the_first_rank_keeps_no_more_sent_activations_than_are_in_flight(n):
    assert max_kept(one_f_one_b(n, 8), rank=0) <= n
    assert max_kept(gpipe(n, 8), rank=0) == 8  # nothing comes back before all is sent


# --- what can be sent -----------------------------------------------------------------------------


def test_a_tensor_of_any_dtype_shape_and_strides_arrives(ranks):
    received = ranks(2).run(send_all_kinds_of_tensors).values[1]
    for found, expected in zip(received, all_kinds_of_tensors() * 2, strict=True):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        assert torch.equal(found, expected) and found.requires_grad == expected.requires_grad


# --- used the wrong way ---------------------------------------------------------------------------


def alone():
    """The messages of a rank that has both stages: everything is handed over."""
    return P2P(interleaved(1, 2, n_chunks=2), 0, None, {0: CPU, 1: CPU})


def test_what_a_stage_gives_another_one_of_its_rank_is_handed_over_as_it_is():
    channel, y = alone(), torch.ones(2, requires_grad=True)
    channel.send(Op("F", 0, 0), y)
    assert channel.receive(Op("F", 1, 0)) is y
    channel.send(Op("B", 1, 0), None)
    assert torch.equal(channel.receive(Op("B", 0, 0)), torch.zeros(2))


def test_a_sparse_gradient_arrives_as_a_dense_one():
    channel = alone()
    channel.send(Op("F", 0, 0), torch.ones(2, 2, requires_grad=True))
    channel.receive(Op("F", 1, 0))
    channel.send(Op("B", 1, 0), torch.eye(2).to_sparse())
    assert torch.equal(channel.receive(Op("B", 0, 0)), torch.eye(2))


def make(channel, call):
    what, _, op = call.partition(" ")
    if what == "finish":
        channel.finish()
    elif what == "send":
        channel.send(Op.parse(op), torch.ones(2, requires_grad=True))
    else:
        channel.receive(Op.parse(op))


@pytest.mark.parametrize(
    "calls, error, message",
    [
        ("receive 1F0", RuntimeError, "1F0 takes the activation for stage 1, micro-batch 0, .* not sent yet"),
        ("send 0F0, receive 1F0, receive 1F0", RuntimeError, "micro-batch 0, and that was received already"),
        ("send 0F0, send 0F0", RuntimeError, "0F0 has sent the activation for stage 1, .* 0 already"),
        ("receive 0B0", RuntimeError, "the gradient for stage 0, .* cannot be sent or received before"),
        ("send 0F0, finish", RuntimeError, "the step is over, and the activation .* was not"),
        ("receive 0F0", ValueError, "0F0 takes nothing from another stage"),
        ("send 1F0", ValueError, "1F0 gives nothing to another stage"),
    ],
)
def test_an_op_out_of_its_turn_or_place_is_said_by_name(calls, error, message):
    channel = alone()
    with pytest.raises(error, match=message):
        for call in calls.split(", "):
            make(channel, call)


@pytest.mark.parametrize(
    "other, error, message",
    [
        (None, TypeError, "stage 0 gives a NoneType for micro-batch 0, expected a dense"),
        (torch.eye(2).to_sparse(), TypeError, "gives a torch.sparse_coo for micro-batch 0, expected"),
        (torch.ones([1] * 14), ValueError, "gives 14 dimensions for micro-batch 0, .* 13"),
        (torch.ones(3), ValueError, r"gives \(3,\) .* without gradient .* gave \(2,\) .*: pad"),
        (torch.ones(2).double(), ValueError, r"gives \(2,\) torch.float64"),
        (torch.ones(2, requires_grad=True), ValueError, "after freezing or unfreezing"),
    ],
    ids=["nothing", "sparse", "too many dimensions", "shape", "dtype", "requires_grad"],
)
def test_an_activation_unlike_that_of_the_first_step_is_refused(other, error, message):
    channel = alone()
    for i in range(2):
        channel.send(Op("F", 0, i), torch.ones(2))
        channel.receive(Op("F", 1, i))
    channel.finish()
    with pytest.raises(error, match=message):
        channel.send(Op("F", 0, 0), other)


def test_over_nccl_tensors_go_from_gpu_to_gpu_and_otherwise_through_the_cpu(monkeypatch):
    network = Network(2, LANES["one lane a rank"], patient=False)
    monkeypatch.setattr(p2p, "dist", network)
    monkeypatch.setattr(devices, "dist", network)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert P2P(gpipe(2, 2), 0, None, {0: CPU})._sending_device == CPU
    network.get_backend_config = lambda group=None: "cpu:gloo,cuda:nccl"  # of the default group, too
    assert P2P(gpipe(2, 2), 0, None, {0: CPU})._sending_device == torch.device("cuda", 1)
