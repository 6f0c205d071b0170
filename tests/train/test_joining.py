"""A process that somebody started is a rank inside joined, and what it was before afterwards."""

from __future__ import annotations

import os
import socket
import weakref

import pytest
import torch
import torch.distributed as dist
from torch.distributed import HashStore
from torch.nn.parallel import DistributedDataParallel

from labkit.base.rendezvous import MeetingError
from labkit.train import joining
from labkit.train.joining import INTERFACES, VARIABLES, ByHand, joined, local_place


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in (*VARIABLES, *INTERFACES):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WORLD_SIZE", "as before")


def alone() -> ByHand:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return ByHand(0, 1, "127.0.0.1", server.getsockname()[1])


def train(how: ByHand, fail: bool = False) -> tuple[object, weakref.ref]:
    model = DistributedDataParallel(torch.nn.Linear(2, 2))
    model(torch.ones(1, 2)).sum().backward()
    if fail:
        raise KeyError(weakref.ref(model))
    return {name: os.environ.get(name) for name in VARIABLES}, weakref.ref(model)


def test_inside_the_environment_is_torchruns_and_a_group_is_up_and_afterwards_neither():
    how = alone()
    with joined(how, device=torch.device("cpu")) as device:
        assert (dist.get_backend(), device) == ("gloo", torch.device("cpu"))
        environment, _ = train(how)
    values = ["0", "0", "1", "1", "127.0.0.1", str(how.port)]
    assert environment == dict(zip(VARIABLES, values, strict=True))
    assert not dist.is_initialized()
    left = {name: os.environ[name] for name in (*VARIABLES, *INTERFACES) if name in os.environ}
    assert left == {"WORLD_SIZE": "as before"}


@pytest.mark.parametrize("fail", [False, True], ids=["returns", "raises"])
def test_the_group_ends_only_when_the_model_on_it_is_gone_however_the_function_ends(fail, monkeypatch):
    alive, end = [], dist.destroy_process_group
    models = []
    monkeypatch.setattr(dist, "destroy_process_group", lambda: (alive.append(models[0]() is not None), end()))
    try:
        with joined(how := alone(), device=torch.device("cpu")):
            try:
                models.append(train(how, fail)[1])
            except KeyError as error:
                models.append(error.args[0])
                raise
    except KeyError:
        assert fail
    assert alive == [False] and not dist.is_initialized()


def test_a_group_that_cannot_be_formed_leaves_the_environment_as_it_was():
    with pytest.raises(ValueError, match="rank is 3, expected 0 to 1"), joined(ByHand(3, 2)):
        pytest.fail("is no rank")
    assert os.environ["WORLD_SIZE"] == "as before" and "RANK" not in os.environ


def test_the_timeout_of_each_collective_is_the_one_that_was_given():
    with joined(alone(), device=torch.device("cpu"), timeout_s=77.0):
        assert (
            dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu")).options._timeout.seconds == 77
        )


@pytest.mark.parametrize(
    ("machines", "places"),
    [
        (["a"], [(0, 1)]),
        (["a", "a", "a"], [(0, 3), (1, 3), (2, 3)]),
        (["a", "b", "a", "c", "b"], [(0, 2), (0, 2), (1, 2), (0, 1), (1, 2)]),
    ],
)
def test_a_local_rank_counts_the_ranks_of_its_own_machine(machines, places):
    assert [local_place(machines, rank) for rank in range(len(machines))] == places


@pytest.mark.parametrize(
    ("plans", "complaint"),
    [
        (["gloo", "nccl"], r"rank 0: gloo, rank 1: nccl"),
        (["nccl", "nccl without a GPU"], r"rank 0: nccl, rank 1: nccl without a GPU"),
    ],
)
def test_every_rank_is_told_of_those_whose_backend_does_not_fit(plans, complaint):
    store = HashStore()
    for rank, plan in enumerate(plans):
        store.set(f"plan/{rank}", f'"{plan}"')
    for rank, plan in enumerate(plans):
        told = joining._told_by_all(store, rank, 2, "plan", plan)
        with pytest.raises(MeetingError, match=complaint):
            joining._check_plans(dict(enumerate(told)))


def test_nccl_without_a_gpu_is_refused_before_a_group_is_formed():
    complaint = r"rank 0: nccl without a GPU\): expected NCCL with a GPU for each"
    with pytest.raises(MeetingError, match=complaint), joined(alone(), "nccl", device=torch.device("cpu")):
        pytest.fail("no group can be here")
    assert not dist.is_initialized()
