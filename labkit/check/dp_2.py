"""dp.2: setup makes a process group of three ranks, at a port that it is given."""

from __future__ import annotations

import os
import socket
from typing import Any, NamedTuple

from labkit.base.rendezvous import free_port
from labkit.check.harness import Finding, Task

ENVIRONMENT = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE")


class Case(NamedTuple):
    """Ranks that leave the group that they are in, and call setup."""

    world_size: int = 3

    def __str__(self) -> str:
        return ""

    def observe(self) -> Any:
        import torch.distributed as dist

        from labkit import dp

        rank, port = dist.get_rank(), [free_port()]
        dist.broadcast_object_list(port)
        dist.destroy_process_group()
        for name in ENVIRONMENT:
            os.environ.pop(name, None)  # as in a terminal
        dp.setup(rank, self.world_size, "gloo", master_port=port[0])
        there: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(there, dist.get_rank())
        return {"there": there, "found": (dist.get_rank(), dist.get_backend()), "at_port": _is_open(port[0])}


def _is_open(port: int) -> bool:
    """Return whether somebody listens at a port of this machine."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


CASE = Case()
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


@TASK.claim([CASE], core=True)
def ranks_form_a_group(case: Case, seen: Any) -> Finding:
    """setup makes one process group of all ranks, in which each has its rank."""
    everyone = list(range(case.world_size))
    for rank, each in enumerate(seen):
        if each["found"] != [rank, "gloo"] or each["there"] != everyone:
            found, backend = each["found"]
            told = f"a rank told that it is rank {rank} of {case.world_size}, on gloo"
            itself = f"found itself rank {found} in a group of ranks {each['there']}, on {backend}"
            return f"{told}, {itself}: pass on its rank, world size and backend"


@TASK.claim([CASE])
def ranks_meet_at_the_port(case: Case, seen: Any) -> Finding:
    """The ranks meet at the port that setup is given."""
    why = "nobody listens there, so they have met at another, which may be taken: use master_port"
    return not seen[0]["at_port"] and why
