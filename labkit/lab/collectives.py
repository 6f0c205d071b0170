"""See what collectives leave on each rank, and time them in turns: what notebook 02 measures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pandas as pd
import torch
import torch.distributed as dist

from labkit.launch import device, launch, workers
from labkit.stats.repeated_times import RepeatedTimes
from labkit.trace import barrier, span

Collective = Callable[[torch.Tensor], torch.Tensor | str | None]
Call = Callable[[torch.Tensor], object]


def held_after(collectives: Iterable[Collective], world_size: int) -> pd.DataFrame:
    """Return what each rank holds after each collective: a row per collective, a column per rank.

    Rank r begins with ``[1, 10, 100]`` times r + 1. A collective returns what this rank then holds,
    or None where it has changed its tensor in place.
    """
    with workers(world_size=world_size) as ranks:
        held = {collective.__name__: ranks.run(_hold, collective).values for collective in collectives}
    return pd.DataFrame(held, index=[f"rank {rank} holds" for rank in range(world_size)]).T


def _hold(collective: Collective) -> str:
    mine = torch.tensor([1, 10, 100], device=device()) * (dist.get_rank() + 1)
    after = collective(mine)
    after = mine if after is None else after
    return str(after.tolist() if isinstance(after, torch.Tensor) else after)


def in_turns(
    calls: Mapping[Any, Call], n_bytes: int | Sequence[int], repeats: int = 6, **options: Any
) -> RepeatedTimes:
    """Return the seconds of each call on all ranks: a row per repeat, a column per call.

    Each is called with a float32 tensor of ``n_bytes``, one size for all or one for each. The calls
    take turns, so a slow moment of the machine hits all alike, and all ranks begin together.
    ``options`` are those of :func:`labkit.launch.launch`.
    """
    sizes = [n_bytes] * len(calls) if isinstance(n_bytes, int) else n_bytes
    run = launch(_take_turns, [*calls.values()], sizes, repeats, **options)
    return run.repeats(by="step").set_axis([*calls], axis="columns")


def _take_turns(calls: Sequence[Call], sizes: Sequence[int], repeats: int) -> None:
    tensors = [torch.ones(n_bytes // 4, device=device()) for n_bytes in sizes]
    for _ in range(repeats):
        for number, (call, tensor) in enumerate(zip(calls, tensors, strict=True)):
            barrier()  # waits for all ranks, and for what they have given their GPUs
            with span("call", lane="comm", step=number, bytes=tensor.nbytes):
                call(tensor)
