"""Run what a rank file does on real ranks: the one way in which explorers start them, or refuse to.

A rank file says what a rank does. It imports no widgets and no matplotlib, as every rank loads it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from labkit import todo

if TYPE_CHECKING:
    from labkit.launch import Run


def run_on_ranks(
    function: Callable[..., Any], *args: Any, world_size: int, tasks: Sequence[str] = (), **options: Any
) -> Run:
    """Run ``function(*args)`` on ``world_size`` ranks, each with one thread.

    ``tasks`` are those that the reader must have filled in, and ``options`` are further ones of
    :func:`labkit.launch.launch`. Raises TodoError while a task is to do, before any rank starts,
    and what launch raises.
    """
    for task in tasks:
        if place := todo.missing(task):
            raise todo.TodoError(task, place.removeprefix(f"TODO {task}: "))
    from labkit.launch import launch

    return launch(function, *args, world_size=world_size, threads=1, **options)
