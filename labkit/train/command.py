"""The command line of training: a task's name, and what its own command makes of the rest."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from labkit.launch import RankError
from labkit.train import digits_command, glue_command, translate_command

COMMANDS = (translate_command, glue_command, digits_command)


def main(argv: Sequence[str] | None = None) -> None:
    """Train by command line: own processes, or this process as one rank of those started."""
    parser = argparse.ArgumentParser(
        prog="python -m labkit.train",
        description="Train on real ranks: own processes, or under torchrun. Hyphens and underscores both work in flags.",
    )
    tasks = parser.add_subparsers(dest="task", required=True, metavar="TASK")
    for command in COMMANDS:
        command.add_parser(tasks)
    args = parser.parse_args(with_hyphens(sys.argv[1:] if argv is None else argv))
    try:
        args.run(args)
    except (FloatingPointError, RankError) as error:  # the loss is nan: here, or on a rank
        if isinstance(error, RankError) and error.error_type != FloatingPointError.__name__:
            raise
        raise SystemExit(str(error)) from None
    except KeyboardInterrupt:
        print("interrupted: all processes that this one has started are ended", file=sys.stderr)
        raise SystemExit(130) from None


def with_hyphens(argv: Sequence[str]) -> list[str]:
    """Return flags with hyphens, as argparse knows them; the assignment has --world_size=2."""
    split = [arg.partition("=") for arg in argv]
    return [
        name.replace("_", "-") + eq + value if name.startswith("--") else name + eq + value for name, eq, value in split
    ]
