"""A rank's count of its collectives, over backends that number their calls as gloo and NCCL do."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from labkit.ranks import collective_count


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

    def send(self, tensors, rank, tag=0):
        self._get_backend(tensors[0].device).message()

    recv, recv_anysource = send, send

    def _start_coalescing(self, device):
        NCCL.begun, NCCL.coalesces = NCCL.begun + NCCL.numbers_starts, True

    def _end_coalescing(self, device):
        NCCL.coalesces = False


ON_GPU, ON_CPU = ([SimpleNamespace(device=torch.device(where))] for where in ("cuda", "cpu"))


def batch(group, *tensors):
    """As batch_isend_irecv, or the coalescing manager."""
    group._start_coalescing(torch.device("cuda"))
    for each in tensors:
        group.send(each, 1)
    group._end_coalescing(torch.device("cuda"))


@pytest.fixture(params=[True, False], ids=["starts count", "starts do not"])
def count(monkeypatch, request):
    monkeypatch.setattr(NCCL, "numbers_starts", request.param)
    for backend in (Gloo, NCCL):
        monkeypatch.setattr(backend, "begun", 0)
    for name in ("send", "recv", "recv_anysource", "_start_coalescing", "_end_coalescing"):
        monkeypatch.setattr(Group, name, getattr(Group, name))  # puts back what counting replaces
    group = Group()
    monkeypatch.setattr(collective_count, "dist", SimpleNamespace(GroupMember=SimpleNamespace(WORLD=group)))
    counted = collective_count.CollectiveCount(group)
    return group, counted


def test_messages_batched_or_not_are_no_collectives_on_either_backend(count):
    group, counted = count
    for how_many in (1, 3):
        batch(group, *[ON_GPU] * how_many)
    group.send(ON_GPU, 1)
    group.recv(ON_CPU, 1)
    group.recv_anysource(ON_CPU, 1)
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
    group.send(ON_GPU, 1)  # after it, so no part of it
    assert counted() == (2, 1)
