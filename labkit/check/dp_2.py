"""dp.2: setup makes a process group of three ranks, at a port that it is given."""

from __future__ import annotations

import json
import os
import socket
import sys
from datetime import timedelta
from typing import Any, NamedTuple
from unittest import mock

from labkit.base.rendezvous import free_port
from labkit.base.texts import listed
from labkit.check.harness import Finding, Task

ADDRESS = "127.0.0.1"  # and not localhost: torch would ask a name server for it
MEET_S = 3.0  # until all ranks say where they wait; they mostly do at once
ENVIRONMENT = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE")


class Case(NamedTuple):
    """Ranks that leave the group that they are in, and call setup.

    With ``others`` the environment says other things than setup is given, as where a run in the
    same process went before.
    """

    others: bool = False
    world_size: int = 3

    def __str__(self) -> str:
        return "where MASTER_PORT, RANK and WORLD_SIZE are already set" if self.others else ""

    @property
    def backend(self) -> str:
        """Return gloo, in another way of writing it if there are ``others``."""
        return "cpu:gloo" if self.others else "gloo"

    def observe(self) -> Any:
        import torch.distributed as dist

        from labkit import dp

        rank, ports = dist.get_rank(), [free_port(), free_port()]
        dist.broadcast_object_list(ports)
        earlier = dist.distributed_c10d._get_default_store()
        dist.destroy_process_group()
        for name in ENVIRONMENT:
            os.environ.pop(name, None)  # as in a terminal
        if self.others:
            there = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": ports[1], "RANK": 0, "WORLD_SIZE": 1}
            os.environ.update({name: str(value) for name, value in there.items()})
        rendezvous = sys.modules["torch.distributed.rendezvous"]  # its package has a function of this name
        stores, places = getattr(rendezvous, "_create_c10d_store", None), list[str]()

        def noted(hostname: str, port: int, *args: Any, **options: Any) -> Any:
            places.append(hostname)
            _check_they_meet(earlier, rank, self.world_size, [port, *args[:2]])
            return stores(hostname, port, *args, **options)  # type: ignore[misc]

        noting = mock.patch.object(rendezvous, "_create_c10d_store", noted, create=True)
        with mock.patch.object(dp, "_check_backend"), noting:
            dp.setup(rank, self.world_size, self.backend, ADDRESS, ports[0])
        ranks: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(ranks, dist.get_rank())
        return {
            "there": ranks,
            "found": (dist.get_rank(), dist.get_backend()),
            "at_port": _is_open(ports[0]),
            "places": places,
        }


def _check_they_meet(store: Any, rank: int, world_size: int, place: list[Any]) -> None:
    """Raise TimeoutError if ranks will wait for ever at these places: port, rank, world size."""
    store.set(f"rank {rank}", json.dumps(place))
    everyone = [f"rank {each}" for each in range(world_size)]
    try:
        store.wait(everyone, timedelta(seconds=MEET_S))
    except RuntimeError:  # one has a store of its own, or is slow: then the time tells
        return
    places = [json.loads(store.get(each)) for each in everyone]
    ports, ranks, world_sizes = map(list, zip(*places, strict=True))
    if [len({*ports}), sorted(ranks), {*world_sizes}] != [1, [*range(world_size)], {world_size}]:
        where = f"at ports {listed(ports)}, as ranks {listed(ranks)} of {listed(world_sizes)}"
        raise TimeoutError(f"{world_size} ranks would wait for each other for ever: they wait {where}")


def _is_open(port: int) -> bool:
    """Return whether somebody listens at a port of this machine."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


ALONE, OTHERS = Case(), Case(others=True)
CALLS = ["_check_backend(backend)", "_check_rank(rank, world_size)", "_prepare_to_meet(master_addr, master_port)"]
TASK = Task(
    writes="setup",
    minutes=5,
    points=5,
    notebooks="00, 03",
    given=["_check_backend", "_check_rank", "_prepare_to_meet", *CALLS],
    waits="a rank that waits for others than world_size says, or in another place than they",
    hints=(
        """A process group exists once every rank has come to the same place. Who has to know the place
beforehand, and who waits for whom?""",
        """There are two steps: first where to meet, for torch to read, then the group, for which each rank
says which one it is, and of how many.""",
        """Environment variables are text, and the port is a number. Pass on what you are given: the same
address and port on all ranks, and this process's own rank, with the world size and the backend.""",
    ),
)


@TASK.claim([ALONE], core=True)
def ranks_form_a_group(case: Case, seen: Any) -> Finding:
    """setup makes one process group of all ranks, in which each has its rank."""
    everyone = list(range(case.world_size))
    for rank, each in enumerate(seen):
        if each["found"] != [rank, case.backend] or each["there"] != everyone:
            found, backend = each["found"]
            given = f"a rank told that it is rank {rank} of {case.world_size}, on {case.backend}"
            itself = f"found itself rank {found} in a group of ranks {each['there']}, on {backend}"
            return f"{given}, {itself}: pass on its rank, world size and backend"


@TASK.claim([ALONE])
def ranks_meet_at_the_port(case: Case, seen: Any) -> Finding:
    """The ranks meet at the port that setup is given."""
    why = "nobody listens there, so they have met at another, which may be taken: use master_port"
    return not seen[0]["at_port"] and why


@TASK.claim([OTHERS])
def what_it_is_given_counts(case: Case, seen: Any) -> Finding:
    """What setup is given counts, whatever the environment says."""
    return ranks_form_a_group(case, seen) or ranks_meet_at_the_port(case, seen)


@TASK.remark([ALONE, OTHERS])
def ranks_meet_at_the_address(case: Case, seen: Any) -> Finding:
    """The ranks meet at the address that setup is given."""
    for rank, found in enumerate(seen):
        for place in found["places"]:
            if place != ADDRESS:
                where = f"rank {rank} meets the others at {place}, and was given {ADDRESS}"
                return f"{where}: on two machines they would not meet"
