"""Check what compare was given, and find the ways by their names, before any rank starts."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

from labkit.base.checks import check_counts
from labkit.base.texts import listed
from labkit.parity.training import Batch, Cut, Training, has_rows, own_draws, rows_of
from labkit.parity.ways import ALIASES, KINDS, READERS, TORCH_SCHEDULES, Kind, Way
from labkit.schedule import Schedule, one_f_one_b

# --- batches and the rest -------------------------------------------------------------------------


def make_training(
    build: Any, batch: Any, loss: Any, steps: int, optimizer: Any, dtype: Any, stages: Any, output: Any
) -> Training:
    """Return the training. Raises TypeError or ValueError for what cannot be trained."""
    check_counts(steps=steps)
    optional = {name: given for name, given in (("stages", stages), ("output", output)) if given is not None}
    for name, function in ({"build": build, "loss": loss} | optional).items():
        if not callable(function) or (name == "build" and isinstance(function, torch.nn.Module)):
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
        expected = "expected a pair (inputs, target), or a function that makes it of the step"
        raise TypeError(f"batch is {_short(batch)}, {expected}")
    batch = tuple(dict(part) if isinstance(part, Mapping) else part for part in batch)
    sizes = {len(leaf) for leaf in pytree.tree_leaves(batch) if has_rows(leaf)}
    if len(sizes) != 1:
        found = f"tensors of {listed(sorted(sizes))} rows" if sizes else "no tensor with rows"
        raise ValueError(f"the batch has {found}, expected as many rows in each: what has none belongs in the module")
    return batch[0], batch[1]


# --- ways -----------------------------------------------------------------------------------------


def find_ways(ways: Any, training: Training, world_size: int) -> list[Way]:
    """Return the ways asked for. Raises TypeError or ValueError for one that cannot be."""
    check_counts(world_size=world_size)
    alone = isinstance(ways, str) or callable(ways) or (_is_pair(ways) and isinstance(ways[1], dict))
    given = [ways] if alone else list(ways.items() if isinstance(ways, dict) else ways)
    if not given:
        raise ValueError(f"ways is {_short(ways)}, expected at least one of {', '.join(KINDS)}, or a function")
    rows = min(map(rows_of, training.batches))
    pairs = [each if _is_pair(each) else (each, {}) for each in given]
    found = [_find(name, options, rows, world_size) for name, options in pairs]
    for way in found:
        if way.cut.n > rows:
            parts = f"{world_size} ranks" if way.shards else f"{way.cut.n} micro-batches"
            raise ValueError(
                f"the batch has {rows} row{'s' * (rows != 1)}, and {way.label} shares it out over {parts}: expected at "
                "least one row for each"
            )
    return found


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple | list) and len(value) == 2


def _find(way: Any, options: Any, rows: int, world_size: int) -> Way:
    if not isinstance(options, dict) or not (isinstance(way, str) or callable(way)):
        expected = "expected a name, a function, or a pair of it and a dict of options"
        raise TypeError(f"a way is {_short(way)} with options {_short(options)}, {expected}")
    name = way if isinstance(way, str) else getattr(way, "__name__", type(way).__name__)
    kind = KINDS.get(ALIASES.get(name, name))
    if callable(way) and not getattr(way, "__module__", "").startswith(("labkit.", "torch.")):
        kind = READERS  # whatever its name is; a class of the lab's or of torch's stands for its name
    if kind is None:
        expected = f"expected one of {', '.join(KINDS)}, or a function"
        raise ValueError(f"there is no way {_short(way)}{_nearest(name, KINDS)}: {expected}")
    for option in options:
        if option not in kind.options:
            expected = f"expected {listed(kind.options, 'or')}" if kind.options else "it takes none"
            raise ValueError(f"{name} has no option {option!r}{_nearest(option, kind.options)}: {expected}")
    options_text = ", ".join(f"{key}={_value(value)}" for key, value in options.items())
    label = f"{name}({options_text})" if options_text else name
    if kind.pipeline:
        return _pipeline(kind, label, options, rows, world_size)
    if kind is not READERS:
        return Way(kind, label, options, Cut(world_size, draws=True), world_size, shards=True)
    shards, kind = not options.get("whole_batch"), kind._replace(broadcasts=bool(options.get("broadcasts")))
    cut = Cut(world_size, draws=True) if shards else Cut()
    return Way(kind, label, {"function": way}, cut, world_size, shards)


def _pipeline(kind: Kind, label: str, options: dict[str, Any], rows: int, world_size: int) -> Way:
    """Return a pipeline, by default with twice as many micro-batches as stages."""
    n_micro = min(rows, 2 * world_size)
    if kind.name == "Pipe":  # its stages are threads
        options = {"n_stages": world_size, "split_size": max(1, rows // n_micro)} | options
        check_counts(split_size=options["split_size"])
        return Way(kind, label, options, Cut(rows=options["split_size"], mean="batch"), 1, n_stages=world_size)
    if kind.name == "ScheduledPipeline":
        schedule = options.get("schedule", one_f_one_b(world_size, n_micro))
        _check_schedule(schedule, world_size)
        cut = Cut(schedule.n_micro, mean="rows")
        return Way(kind, label, {"schedule": schedule}, cut, world_size, n_stages=schedule.n_stages)
    chosen: dict[str, Any] = {"schedule": "1F1B", "n_micro": n_micro, **options}
    check_counts(n_micro=chosen["n_micro"])
    if (per_rank := TORCH_SCHEDULES.get(name := chosen["schedule"])) is None:
        expected = f"expected one of {', '.join(TORCH_SCHEDULES)}"
        raise ValueError(f"torch has no schedule {_short(name)}{_nearest(name, TORCH_SCHEDULES)}: {expected}")
    cut = Cut(chosen["n_micro"])
    return Way(kind, label, chosen | {"per_rank": per_rank}, cut, world_size, n_stages=per_rank * world_size)


def _check_schedule(schedule: Any, world_size: int) -> None:
    if not isinstance(schedule, Schedule):
        expected = "expected a Schedule, such as one_f_one_b(n_stages=2, n_micro=4)"
        raise TypeError(f"schedule is {_short(schedule)}, {expected}")
    if schedule.n_ranks != world_size:
        raise ValueError(
            f"the schedule {schedule.name} is for {schedule.n_ranks} ranks, and world_size is {world_size}: make it "
            f"for {world_size}, or give world_size={schedule.n_ranks}"
        )
    if all(op.kind == "F" for ops in schedule.ops for op in ops):
        raise ValueError(f"the schedule {schedule.name} has no backward passes, so it trains nothing: take another")


# --- words ----------------------------------------------------------------------------------------


def _nearest(name: Any, known: Iterable[str]) -> str:
    by_lower = {each.lower(): each for each in known}
    close = difflib.get_close_matches(str(name).lower(), by_lower, n=1, cutoff=0.5)
    return f" (did you mean {by_lower[close[0]]}?)" if close else ""


def _value(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_value, value))})"
    return str(getattr(value, "name", None) or getattr(value, "__name__", None) or _short(value))


def _short(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"a {type(value).__name__}"
