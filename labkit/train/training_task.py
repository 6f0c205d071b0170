"""A task of training as others see it: its options, and what the command line needs of it."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch

from labkit.train.rank_start import Start

# --- options: the fields of a task's config -------------------------------------------------------


def option(
    default: Any,
    help: str = "",
    *flags: str,
    least: int = 1,
    most: float | None = None,
    choices: Collection[str] = (),
    parse: Callable[[str], Any] | None = None,
) -> Any:
    """Return a field of a task's config that is a flag of its command, too, if it has a ``help``.

    - ``flags``: its names; without any, the field's own. A yes or no that ``--no-…`` turns off.
    - ``least``, ``most``: of a number. A whole one has ``least`` or more, and a million at most;
      another one is above 0 and finite.
    - ``choices``: the words that it can be.
    - ``parse(text)``: its value, where that is not what its type makes of the text.
    """
    bounds = {"least": least, "most": most, "choices": choices}
    return field(default=default, metadata={"help": help, "flags": flags, "parse": parse, **bounds})


def check_options(config: Any) -> None:
    """Raise ValueError for an option of ``config`` whose value cannot be.

    None can be where it is the default.
    """
    for each in fields(config):
        value, bounds, expected = getattr(config, each.name), each.metadata, ""
        if not bounds or (value is None and each.default is None):
            continue
        kind = type_of(each)
        most = bounds["most"] or {int: 10**6, float: sys.float_info.max}.get(kind, 0)
        if kind is int:
            if isinstance(value, bool) or not isinstance(value, int) or value < bounds["least"]:
                expected = f"a whole number, {bounds['least']} or more"
            elif value > most:
                expected = f"at most {most:,}"
        elif kind is float and not 0 < value <= most:
            expected = "a finite number above 0"
        elif bounds["choices"] and value not in bounds["choices"]:
            expected = f"one of {', '.join(bounds['choices'])}"
        if expected:
            raise ValueError(f"{each.name} is {value!r}, expected {expected}")


def type_of(each: Any) -> type:
    """Return the type of a config's field: that of ``int | None`` is int."""
    return {"bool": bool, "float": float, "int": int, "str": str}[each.type.partition(" ")[0]]


def check_shares(batch_size: int, world_size: int) -> None:
    """Raise ValueError unless ``world_size`` ranks can share a batch equally."""
    if world_size < 1:
        raise ValueError(f"world_size is {world_size}, expected 1 or more")
    if batch_size % world_size:
        raise ValueError(
            f"batch_size is {batch_size} and world_size {world_size}: the batch is that of all ranks together, "
            f"expected a multiple of {world_size}, such as {-(-batch_size // world_size) * world_size}"
        )


def check_output(flag: str, folder: str) -> None:
    """Make the folder that ``flag`` names. Raise ValueError unless files can be written there."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ValueError(f"{flag} is {folder!r}, where no results can be written: {reason}") from None


# --- the task -------------------------------------------------------------------------------------


def _nothing(*_: Any) -> Any:
    return None


@dataclass(frozen=True)
class TrainingTask:
    """A task of ``python -m labkit.train``: what it does not say is the same for all tasks.

    - ``load(config)``: the data, read by one process for all ranks.
    - ``train(config, data)``: train as one rank. Return its result.
    - ``rank_flags``: names of the rank of a process that somebody starts by hand, if that can be.
    - ``defaults``: of flags, where they differ from the config's.
    - ``add_flags(parser)``: add flags other than those of the config's options.
    - ``complete(args)``: change flags that follow from others.
    - ``check(config, args, start)``: raise ValueError for what cannot be.
    - ``todos(config, world_size)``: the students' tasks that it needs, and what for.
    - ``device(args)``: this process's, if flags name one.
    - ``rank_options(args, device)``: more arguments for ``train``, in a process started by hand or
      by torchrun.
    - ``finish(results, events, args)``: report all ranks' results and write them. None where there
      is nothing to record.
    """

    name: str
    help: str
    description: str
    config: type
    load: Callable[[Any], Any]
    train: Callable[..., Any]
    add_flags: Callable[[argparse.ArgumentParser], None]
    rank_flags: tuple[str, ...] = ()
    defaults: dict[str, Any] = field(default_factory=dict)
    complete: Callable[[argparse.Namespace], None] = _nothing
    check: Callable[[Any, argparse.Namespace, Start], None] = _nothing
    todos: Callable[[Any, int], tuple[Sequence[str], str]] = lambda config, world_size: ((), "")
    device: Callable[[argparse.Namespace], torch.device | None] = _nothing
    rank_options: Callable[[argparse.Namespace, torch.device], dict[str, Any]] = lambda args, device: {}
    finish: Callable[[Sequence[Any], Any, argparse.Namespace], None] | None = None
