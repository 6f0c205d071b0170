"""Declare a task's options: the fields of its config, which are the flags of its command, too."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import field, fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

MAX_COUNT = 10**9


def option(default: Any, help: str, *aliases: str, choices: Collection[str] | None = None) -> Any:
    """Return a field of a config, as transformers' HfArgumentParser makes a flag of it.

    Its flag is ``--field-name``; ``aliases`` are others. Hyphens and underscores both work. The
    text can be one of ``choices``, if there are any.
    """
    flags = [form for name in aliases for form in dict.fromkeys((name, "--" + name[2:].replace("-", "_")))]
    metadata: dict[str, Any] = {"help": help, "aliases": flags}
    metadata |= {"choices": list(choices)} if choices else {}
    if isinstance(default, list):
        return field(default_factory=lambda: [*default], metadata=metadata)
    return field(default=default, metadata=metadata)


def check_options(config: Any, bounds: Mapping[str, tuple[int, int]]) -> None:
    """Raise ValueError for an option of ``config`` whose value cannot be.

    A whole number is within its ``bounds``, else from 1 to a billion; another one is above 0 and
    finite, or 0 where its bounds begin there. None can be where it is the default.
    """
    types = get_type_hints(type(config))
    for each in fields(config):
        kinds = get_args(types[each.name]) or (types[each.name],)
        value, expected = getattr(config, each.name), ""
        low, high = bounds.get(each.name, (1, MAX_COUNT))
        if value is None and each.default is None:
            continue
        if int in kinds:
            if isinstance(value, bool) or not isinstance(value, int) or value < low:
                expected = f"a whole number, {low} or more"
            elif value > high:
                expected = f"at most {high:,}"
        elif float in kinds and not (0 < value <= sys.float_info.max or value == low):
            expected = "a finite number, 0 or more" if low == 0 else "a finite number above 0"
        elif (choices := each.metadata.get("choices")) and value not in choices:
            expected = f"one of {', '.join(choices)}"
        if expected:
            raise ValueError(f"{each.name} is {value!r}, expected {expected}")


def check_shares(batch_size: int, world_size: int) -> None:
    """Raise ValueError unless ``world_size`` ranks can share a batch equally."""
    if batch_size % world_size:
        multiple = -(-batch_size // world_size) * world_size
        raise ValueError(
            f"batch_size is {batch_size} and world_size {world_size}: the batch is that of all ranks "
            f"together, expected a multiple of {world_size}, such as {multiple}"
        )


def check_output(folder: str) -> None:
    """Make the folder. Raise ValueError unless files can be written there."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ValueError(f"output_dir is {folder!r}, where no results can be written: {reason}") from None
