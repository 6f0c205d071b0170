"""Where an answer is tried: on new ranks on the CPU, which are ended if it does not end by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from labkit.launch import launch

TIMEOUT_S = 30.0  # an answer that is right takes a few seconds at most


def try_in_ranks(probe: Callable[..., Any], *args: Any, world_size: int, init: bool = True) -> list[Any]:
    """What ``probe(*args)`` gives on each of ``world_size`` ranks, in rank order. ``init=False`` forms no process group.

    Raises what :func:`labkit.launch.launch` raises.
    """
    return launch(probe, *args, world_size=world_size, backend="gloo", init=init, threads=1, timeout_s=TIMEOUT_S).values
