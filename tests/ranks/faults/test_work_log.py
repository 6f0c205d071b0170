"""A rank's log of its collectives and messages: gloo's, and those of a backend such as NCCL."""

from __future__ import annotations

import gc
import sys
import weakref
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from labkit.launch import launch
from labkit.ranks.faults import work_log
from labkit.ranks.faults.work_log import WORK_LOG, WorkLog


class Gloo:
    """Numbers messages like collectives."""

    supports_coalescing, begun = False, 0

    def message(self) -> None:
        type(self).begun += 1

    def _get_sequence_number_for_group(self) -> int:
        return self.begun


class NCCL(Gloo):
    """Numbers messages apart, and coalesced calls once: as they start, or (torch 2.11) where there
    was a collective among them."""

    supports_coalescing, begun, coalesces = True, 0, False
    numbers_starts = True

    def message(self) -> None:
        pass


class Group:
    """A process group ``cpu:gloo,cuda:nccl`` without ranks. As torch's, it gives new objects."""

    _device_types = (torch.device("cuda"), torch.device("cpu"))

    def _get_backend(self, device):
        return {"cpu": Gloo, "cuda": NCCL}[device.type]()

    def all_reduce(self, tensor):
        if not (tensor.device.type == "cuda" and NCCL.coalesces and NCCL.numbers_starts):
            type(self._get_backend(tensor.device)).begun += 1

    def send(self, tensors, rank, tag):
        self._get_backend(tensors[0].device).message()
        return None if NCCL.coalesces else self.works()

    recv, works = send, type("Works", (), {})

    def recv_anysource(self, tensors, tag):
        self._get_backend(tensors[0].device).message()

    def _start_coalescing(self, device):
        NCCL.begun, NCCL.coalesces = NCCL.begun + NCCL.numbers_starts, True

    def _end_coalescing(self, device):
        NCCL.coalesces = False


ON_GPU, ON_CPU = (
    [SimpleNamespace(device=torch.device(where), shape=(3,), dtype=torch.float32)] for where in ("cuda", "cpu")
)


def batch(group, *tensors):
    """As batch_isend_irecv, or the coalescing manager."""
    group._start_coalescing(torch.device("cuda"))
    for each in tensors:
        group.send(each, 1, 0)
    group._end_coalescing(torch.device("cuda"))


@pytest.fixture(params=[True, False], ids=["starts count", "starts do not"])
def count(monkeypatch, request):
    monkeypatch.setattr(NCCL, "numbers_starts", request.param)
    for backend in (Gloo, NCCL):
        monkeypatch.setattr(backend, "begun", 0)
    for name in ("send", "recv", "recv_anysource", "_start_coalescing", "_end_coalescing"):
        monkeypatch.setattr(Group, name, getattr(Group, name))  # puts back what the log replaces
    group, log = Group(), WorkLog()
    monkeypatch.setattr(work_log, "dist", SimpleNamespace(GroupMember=SimpleNamespace(WORLD=group), Work=object))
    monkeypatch.setattr(torch._C, "Future", object)
    log.begin(Group)
    return group, log.n_collectives


def test_messages_batched_or_not_are_no_collectives_on_either_backend(count):
    group, counted = count
    for how_many in (1, 3):
        batch(group, *[ON_GPU] * how_many)
    group.send(ON_GPU, 1, 0)
    group.recv(ON_CPU, 1, 0)
    group.recv_anysource(ON_CPU, 0)
    assert (NCCL.begun, Gloo.begun) == (2 * NCCL.numbers_starts, 2)  # which differ between the ranks of a pipeline
    assert counted() == (0, 0)


def test_a_collective_counts_on_the_backend_of_its_tensor_coalesced_or_not(count):
    group, counted = count
    group.all_reduce(*ON_CPU)
    assert counted() == (0, 1)
    group.all_reduce(*ON_GPU)
    batch(group, ON_GPU)
    group._start_coalescing(torch.device("cuda"))
    group.all_reduce(*ON_GPU)
    group._end_coalescing(torch.device("cuda"))
    group.send(ON_GPU, 1, 0)  # after it, so no part of it
    assert counted() == (2, 1)


# --- which messages a rank waits for --------------------------------------------------------------


class Work:
    """Work of NCCL: ``wait()`` returns at once, and the GPU waits until it is completed."""

    completed = False

    def wait(self):
        return True

    def is_completed(self):
        return self.completed


@pytest.fixture
def log(monkeypatch):
    """The log of a group of its own class, whose messages give Work."""

    class OneGroup(Group):
        works = type("Work", (Work,), dict(vars(Work)))

        def send(self, tensors, rank, tag):
            return self.works()

    monkeypatch.setattr(work_log, "_recorded_collectives", lambda left_s: ([], ""))
    log = WorkLog()
    log.watch(OneGroup)
    return log, OneGroup()


def test_a_program_that_gives_each_message_a_tag_of_its_own_is_kept_in_bounds(log, monkeypatch):
    monkeypatch.setattr(work_log, "MAX_MESSAGES", 3)
    log, group = log
    for tag in (0, 1, 0, 2, 3, 0, 4):
        group.send(ON_CPU, 1, tag)
    assert {each.tag: each.number for each in log.begun()[0]} == {3: 1, 0: 3, 4: 1}


def waited_for(log):
    return [(each.peer, each.number) for each in log.begun()[0] if not each.done]


def test_a_message_is_waited_for_once_wait_is_called_and_not_before(log):
    log, group = log
    work = group.send(ON_GPU, 1, 0)
    assert waited_for(log) == []
    work.wait()
    assert waited_for(log) == [(1, 1)]
    work.completed = True
    assert waited_for(log) == []


def sends_with_tags_of_their_own():
    rank, sent = dist.get_rank(), []
    for tag in range(5):
        tensor = torch.ones(3)
        dist.send(tensor, 1, tag=tag) if rank == 0 else dist.recv(tensor, 0, tag=tag)
        sent.append(weakref.ref(tensor))
    del tensor
    gc.collect()
    return sum(each() is not None for each in sent)


def test_what_was_sent_and_received_is_not_kept():
    assert launch(sends_with_tags_of_their_own, world_size=2, backend="gloo").values == [0, 0]


def what_reading_the_log_imports() -> tuple[str, set[str]]:
    dist.all_reduce(torch.ones(1))
    before = set(sys.modules)
    (*_, last), _ = WORK_LOG.begun()
    assert "_inductor" not in vars(torch) or "torch._inductor" in before  # nothing else stands in its place
    return last.name, set(sys.modules) - before


def test_to_read_the_log_torch_imports_no_compiler():
    for name, imported in launch(what_reading_the_log_imports, world_size=2, backend="gloo").values:
        assert name == "all_reduce" and not [each for each in imported if each.startswith("torch._")]
