"""Check what compare was given, and find the ways by their names, before any rank starts."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from labkit.base.checks import check_counts
from labkit.base.texts import listed
from labkit.parity import ways as start
from labkit.parity.training import Batch, Cut, Training, has_rows, own_draws, rows_of
from labkit.parity.ways import TORCH_SCHEDULES, Way
from labkit.schedule import Schedule, one_f_one_b


class Kind(NamedTuple):
    """A way that has a name: how it starts, the options it takes, and torch's own beside it."""

    start: Callable[..., start.RankTraining]
    options: tuple[str, ...] = ()
    beside: str = ""
    broadcasts: bool = False
    pipeline: bool = False


KINDS = {
    "average_gradients": Kind(start.average_gradients, (), "DDP"),
    "BucketedDataParallel": Kind(start.bucketed, ("bucket_cap_mb", "comm_hook"), "DDP", broadcasts=True),
    "ShardedOptimizer": Kind(start.sharded_optimizer, (), "ZeroRedundancyOptimizer"),
    "ShardedModel": Kind(start.sharded_model, ("shard", "compute_dtype", "prefetch"), "fully_shard", broadcasts=True),
    "Pipe": Kind(start.pipe, ("split_size",), "pipelining", pipeline=True),
    "ScheduledPipeline": Kind(start.scheduled, ("schedule",), "pipelining", pipeline=True),
    "DDP": Kind(
        start.ddp,
        ("bucket_cap_mb", "find_unused_parameters", "gradient_as_bucket_view", "static_graph", "broadcast_buffers"),
        broadcasts=True,
    ),
    "ZeroRedundancyOptimizer": Kind(start.zero, ("parameters_as_bucket_view", "overlap_with_ddp"), broadcasts=True),
    "fully_shard": Kind(start.fully_shard, ("reshard_after_forward", "mp_policy")),
    "pipelining": Kind(start.pipelining, ("schedule", "n_micro"), pipeline=True),
}
ALIASES = {"DistributedDataParallel": "DDP", "torch.distributed.pipelining": "pipelining"}
READERS = ("broadcasts", "whole_batch")  # what a reader says of a function of their own


# --- batches and the rest -------------------------------------------------------------------------


def make_training(
    build: Any, batch: Any, loss: Any, steps: int, optimizer: Any, dtype: Any, stages: Any, output: Any
) -> Training:
    """Return the training. Raises TypeError or ValueError for what cannot be trained."""
    check_counts(steps=steps)
    for name, function in {"build": build, "loss": loss, "stages": stages, "output": output}.items():
        if (not callable(function) or (name == "build" and isinstance(function, torch.nn.Module))) and (
            function is not None or name in ("build", "loss")
        ):
            raise TypeError(f"{name} is {_short(function)}, expected a function")
    cls, options = optimizer if isinstance(optimizer, tuple) and len(optimizer) == 2 else (optimizer, {})
    if not isinstance(cls, type) or not issubclass(cls, torch.optim.Optimizer) or not isinstance(options, dict):
        raise TypeError(f"optimizer is {_short(optimizer)}, expected a pair such as (torch.optim.SGD, {{'lr': 0.1}})")
    if cls is torch.optim.LBFGS:
        raise ValueError("optimizer is LBFGS, which calls the training itself: take one that steps once per batch")
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise TypeError(f"dtype is {_short(dtype)}, expected a floating-point dtype such as torch.float64, or None")
    if callable(batch):
        with own_draws():
            batches = [batch(step) for step in range(steps)]
    else:
        batches = [batch] * steps
    batches = [_checked(each) for each in batches]
    return Training(build, batches, loss, cls, options, dtype, torch.get_default_dtype(), output, stages)


def _checked(batch: Any) -> Batch:
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        raise TypeError(
            f"batch is {_short(batch)}, expected a pair (inputs, target), or a function that makes it of the step"
        )
    sizes = {len(leaf) for leaf in pytree.tree_leaves(tuple(batch)) if has_rows(leaf)}
    if len(sizes) != 1:
        found = f"tensors of {listed(sorted(sizes))} rows" if sizes else "no tensor with rows"
        raise ValueError(f"the batch has {found}, expected as many rows in each: what has none belongs in the module")
    return tuple(batch)


# --- ways -----------------------------------------------------------------------------------------


def find_ways(ways: Any, training: Training, world_size: int) -> list[Way]:
    """Return the ways asked for. Raises TypeError or ValueError for one that cannot be."""
    check_counts(world_size=world_size)
    alone = (
        isinstance(ways, str)
        or callable(ways)
        or (isinstance(ways, tuple) and len(ways) == 2 and isinstance(ways[1], dict))
    )
    asked = [ways] if alone else list(ways) if isinstance(ways, Iterable) else []
    if not asked:
        raise ValueError(f"ways is {_short(ways)}, expected at least one of {', '.join(KINDS)}, or a function")
    found = []
    for each in asked:
        name, options = each if isinstance(each, tuple) and len(each) == 2 else (each, {})
        if not isinstance(options, dict):
            raise TypeError(
                f"a way is {_short(each)}, expected a name, a function, or a pair of it and a dict of options"
            )
        found.append(_find(name, options, training, world_size))
    rows = min(map(rows_of, training.batches))
    for way in found:
        _check_rows(way, rows)
    return found


def _find(asked: Any, options: dict[str, Any], training: Training, world_size: int) -> Way:
    name = asked
    if not isinstance(asked, str) and getattr(asked, "__module__", "").startswith(("labkit.", "torch.")):
        name = asked.__name__  # the class itself
    if callable(asked) and name is asked:
        _check_options(getattr(asked, "__name__", "a function"), options, READERS)
        shards = not options.get("whole_batch", False)
        cut = Cut(world_size, draws=True) if shards else Cut()
        label = _label(getattr(asked, "__name__", type(asked).__name__), options)
        broadcasts = options.get("broadcasts", False)
        return Way("", label, start.of_reader, {"function": asked}, cut, world_size, shards, broadcasts)
    name = ALIASES.get(name, name)
    if name not in KINDS:
        raise ValueError(
            f"there is no way {_short(asked)}{_nearest(name, KINDS)}: expected one of {', '.join(KINDS)}, or a function"
        )
    kind = KINDS[name]
    _check_options(name, options, kind.options)
    if kind.pipeline:
        return _pipeline(name, kind, options, min(map(rows_of, training.batches)), world_size)
    cut = Cut(world_size, draws=True)
    return Way(name, _label(name, options), kind.start, options, cut, world_size, True, kind.broadcasts, 0, kind.beside)


def _pipeline(name: str, kind: Kind, options: dict[str, Any], rows: int, world_size: int) -> Way:
    n_micro, n_stages, n_ranks = min(rows, 2 * world_size), world_size, world_size
    if name == "Pipe":
        options = {"split_size": max(1, rows // n_micro)} | options
        check_counts(split_size=options["split_size"])
        cut, n_ranks = Cut(rows=options["split_size"], mean="batch"), 1  # its stages are threads
        started: dict[str, Any] = options | {"n_stages": n_stages}
    elif name == "ScheduledPipeline":
        schedule = options.get("schedule", one_f_one_b(world_size, n_micro))
        _check_schedule(schedule, world_size)
        cut, n_stages = Cut(schedule.n_micro, mean="rows"), schedule.n_stages
        started = {"schedule": schedule}
    else:
        started = {"schedule": "1F1B", "n_micro": n_micro, **options}
        check_counts(n_micro=started["n_micro"])
        if (chosen := started["schedule"]) not in TORCH_SCHEDULES:
            nearest = _nearest(chosen, TORCH_SCHEDULES)
            raise ValueError(
                f"torch has no schedule {_short(chosen)}{nearest}: expected one of {', '.join(TORCH_SCHEDULES)}"
            )
        started["per_rank"] = TORCH_SCHEDULES[chosen]
        cut, n_stages = Cut(started["n_micro"]), world_size * started["per_rank"]
    label = _label(name, options)
    return Way(name, label, kind.start, started, cut, n_ranks, False, False, n_stages, kind.beside)


def _check_schedule(schedule: Any, world_size: int) -> None:
    if not isinstance(schedule, Schedule):
        raise TypeError(
            f"schedule is {_short(schedule)}, expected a Schedule, such as one_f_one_b(n_stages=2, n_micro=4)"
        )
    if schedule.n_ranks != world_size:
        raise ValueError(
            f"the schedule {schedule.name} is for {schedule.n_ranks} ranks, and world_size is {world_size}: make it for "
            f"{world_size}, or give world_size={schedule.n_ranks}"
        )
    if all(op.kind == "F" for ops in schedule.ops for op in ops):
        raise ValueError(f"the schedule {schedule.name} has no backward passes, so it trains nothing: take another one")


def _check_options(name: str, options: dict[str, Any], known: Iterable[str]) -> None:
    for option in options:
        if option not in known:
            expected = f"expected {listed(known, 'or')}" if known else "it takes none"
            raise ValueError(f"{name} has no option {option!r}{_nearest(option, known)}: {expected}")


def _check_rows(way: Way, rows: int) -> None:
    if way.cut.n > rows:
        parts = f"{way.n_ranks} ranks" if way.shards else f"{way.cut.n} micro-batches"
        raise ValueError(
            f"the batch has {rows} row{'s' * (rows != 1)}, and {way.label} shares it out over {parts}: expected at least one "
            "row for each"
        )


def _nearest(name: Any, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(str(name).lower(), {each.lower(): each for each in known}, n=1, cutoff=0.5)
    return f" (did you mean {next(each for each in known if each.lower() == close[0])}?)" if close else ""


def _label(name: str, options: dict[str, Any]) -> str:
    said = [f"{key}={_value(value)}" for key, value in options.items()]
    return f"{name}({', '.join(said)})" if said else name


def _value(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_value, value))})"
    return str(getattr(value, "name", None) or getattr(value, "__name__", None) or _short(value))


def _short(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"a {type(value).__name__}"
