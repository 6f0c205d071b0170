"""Read off a step when its gradients are ready and its buckets travel."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any

import pandas as pd
import torch

from labkit import dp
from labkit.lab.turns import Turns
from labkit.launch import device
from labkit.models import gpt2
from labkit.trace import span


def small_gpt2() -> Any:
    """Return the model whose step is drawn: 4 layers, 3.5 MB of parameters."""
    return gpt2("mini", n_layer=4, n_embd=128, vocab_size=512, n_positions=64)


def marked_gpt2() -> Any:
    """Return the small GPT-2. Each gradient leaves a span "ready", its number as bucket."""
    model = small_gpt2().to(device())

    def mark(i: int, _: torch.Tensor) -> None:
        with span("ready", lane="host", bucket=i):
            pass

    for i, parameter in enumerate(model.parameters()):
        parameter.register_post_accumulate_grad_hook(partial(mark, i))
    return model


def average_buckets(model: torch.nn.Module, cap_mb: float) -> None:
    """Average the gradients after the backward pass, by dp.4: a bucket of dp.6 as one gradient."""
    parameters: Any = list(model.parameters())
    for k, bucket in enumerate(dp.assign_buckets([each.nbytes for each in parameters], cap_mb * dp.MIB)):
        gradients = [parameters[i].grad for i in bucket]
        whole = torch.nn.ParameterList([torch.cat([gradient.flatten() for gradient in gradients])])
        whole[0].grad = whole[0].detach()
        with span("all_reduce", lane="comm", bucket=k, bytes=whole[0].nbytes):
            dp.average_gradients(whole)
        for gradient, mean in zip(gradients, whole[0].grad.split([each.numel() for each in gradients]), strict=True):
            gradient.copy_(mean.view_as(gradient))


def ready_s(turns: Turns, way: Any) -> list[float]:
    """Return when each gradient is ready, in seconds from the start of rank 0's backward: medians.

    ``way`` trains a :func:`marked_gpt2`.
    """
    seconds: list[pd.Series] = []
    for step in turns.steps(way):
        own = step[step["rank"] == 0]
        began_s = own.loc[own["name"] == "backward", "start_s"].min()
        seconds.append(own[own["name"] == "ready"].set_index("bucket")["start_s"] - began_s)
    medians: list[float] = pd.concat(seconds, axis=1).median(axis=1).sort_index().tolist()
    return medians


def bytes_ready(ready_s: Sequence[float], sizes_bytes: Sequence[int]) -> dict[float, int]:
    """Return how many bytes of gradients are ready, by seconds from the start of backward."""
    in_order = sorted(zip(ready_s, sizes_bytes, strict=True))
    return dict(zip(sorted(ready_s), itertools.accumulate(size for _, size in in_order), strict=True))


_SHORTEST_S = 1e-10  # a bar this short is drawn in the row of the next one


def waiting_apart(step: pd.DataFrame, ranks: int = 1) -> pd.DataFrame:
    """Return backward, wait and all_reduce of a step, from backward's start on, as it is drawn.

    On a link that carries one bucket after the other, an ``all_reduce`` begins once the one before
    is done and all ranks have called it; a span ``waiting`` before it is what its rank waits for
    the others. Each bucket has one, however short: so all runs have the same bars.
    A predicted step, of rank 0, can stand for that of several ``ranks``.
    """
    step = step[step["name"].isin(["backward", "wait", "all_reduce"])].copy()
    is_bucket = step["name"] == "all_reduce"
    sent = step[is_bucket].sort_values(["rank", "bucket"])
    joined_s = sent.groupby("bucket")["start_s"].transform("max")
    free_s = sent.groupby("rank")["end_s"].shift().fillna(0.0)
    own_s, begun_s = sent["start_s"].clip(lower=free_s), joined_s.clip(lower=free_s)
    waited = sent.assign(name="waiting", start_s=own_s.clip(upper=begun_s - _SHORTEST_S), end_s=begun_s)
    shown = pd.concat([step[~is_bucket], waited, sent.assign(start_s=begun_s)], ignore_index=True)
    zero_s = shown.loc[shown["name"] == "backward", "start_s"].min()
    shown = shown.assign(start_s=shown["start_s"] - zero_s, end_s=shown["end_s"] - zero_s)
    shown = pd.concat([shown.assign(rank=shown["rank"] + rank) for rank in range(ranks)], ignore_index=True)
    shown.attrs = dict(step.attrs)
    return shown
