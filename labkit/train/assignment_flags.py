"""Take the flags of the assignment's run_glue.py that the lab has by another name, or not at all.

A flag whose value trains what the lab trains anyway is taken; another value is refused, with what
to write instead.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import NamedTuple


class Elsewhere(NamedTuple):
    """A flag of the assignment's: the values that change nothing here, None for all, and advice.

    One without ``takes_value`` is a switch, which only None lets pass.
    """

    harmless: tuple[str, ...] | None
    instead: str
    takes_value: bool = True


NONE_OF_ITS_OWN = "the model's folder has it: give --model-name-or-path alone"
EVERY_STEP = "the lab prints each step's loss and saves the model at the end: leave it out"
FLAGS = {
    "max-steps": Elsewhere(
        ("-1", "0"), "write --iterations, which ends after that many; the learning rate falls over --num-train-epochs"
    ),
    "warmup-steps": Elsewhere(("0",), "the lab has none, its learning rate falls from the first step on: leave it out"),
    "gradient-accumulation-steps": Elsewhere(
        ("1",), "the lab takes a step for each batch: give a batch of as many times the rows"
    ),
    "per-device-eval-batch-size": Elsewhere(None, ""),
    "per-gpu-eval-batch-size": Elsewhere(None, ""),
    "config-name": Elsewhere(("",), NONE_OF_ITS_OWN),
    "tokenizer-name": Elsewhere(("",), NONE_OF_ITS_OWN),
    "cache-dir": Elsewhere(("",), "set the variable HF_HOME to keep downloads in another folder"),
    "do-lower-case": Elsewhere((), "a model's tokenizer knows whether it lower-cases: leave it out", False),
    "overwrite-cache": Elsewhere(None, "", False),
    "fp16": Elsewhere((), "write --precision bf16", False),
    "fp16-opt-level": Elsewhere(None, ""),
    "logging-steps": Elsewhere((), EVERY_STEP),
    "save-steps": Elsewhere((), EVERY_STEP),
    "evaluate-during-training": Elsewhere((), "write --do-eval: the accuracy after each epoch", False),
    "eval-all-checkpoints": Elsewhere((), "write --do-eval: the accuracy after each epoch", False),
}


def without_assignment_flags(flags: Sequence[str]) -> list[str]:
    """Return the flags that are the lab's own. Raises ValueError for one that it has not."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for name, flag in FLAGS.items():
        how = {"nargs": "?", "const": ""} if flag.takes_value else {"action": "store_const", "const": ""}
        parser.add_argument(f"--{name}", f"--{name.replace('-', '_')}", dest=name, **how)  # type: ignore[arg-type]
    parser.add_argument("--no-cuda", "--no_cuda", dest="no_cuda", action="store_true")
    given, own = parser.parse_known_args(flags)
    for name, flag in FLAGS.items():
        value = getattr(given, name)
        if value is not None and flag.harmless is not None and value not in flag.harmless:
            raise ValueError(f"--{name} {value}".rstrip() + f": {flag.instead}")
    if given.no_cuda and {"nccl", "--backend=nccl"} & {*own}:
        raise ValueError("--no-cuda and --backend nccl contradict each other: leave out one")
    return [*own, "--backend", "gloo"] if given.no_cuda else own
