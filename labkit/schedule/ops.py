"""Name what a rank of a pipeline does: an op, and the event that it becomes in an event table."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

KINDS = "FBIW"

EVENT_NAMES = {"F": "forward", "B": "backward", "I": "input_grad", "W": "weight_grad"}  # by kind
EVENT_KINDS = {name: kind for kind, name in EVENT_NAMES.items()}  # by event name

_OP = re.compile(rf"(\d+)([{KINDS}])(\d+)")


class _Op(NamedTuple):
    kind: str
    stage: int
    micro_batch: int


class Op(_Op):
    """One thing a rank does: ``kind`` of ``stage`` for ``micro_batch``, printed as ``2F0``.

    ``F`` is the forward pass and ``B`` the whole backward pass. ``I`` is the gradient of the input
    alone, and ``W`` that of the weights: I and W together replace B.

    Raises ValueError for any other kind and for numbers below 0, TypeError unless stage and
    micro-batch are int.
    """

    __slots__ = ()

    def __new__(cls, kind: str, stage: int, micro_batch: int) -> Op:
        if kind not in ("F", "B", "I", "W"):
            raise ValueError(f"kind is {kind!r}, expected one of {', '.join(KINDS)}")
        if type(stage) is not int or type(micro_batch) is not int:
            raise TypeError(f"stage is {stage!r} and micro_batch {micro_batch!r}, expected two ints")
        if stage < 0 or micro_batch < 0:
            raise ValueError(f"stage is {stage} and micro_batch {micro_batch}; both count from 0")
        return tuple.__new__(cls, (kind, stage, micro_batch))

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.micro_batch}"

    @classmethod
    def parse(cls, text: str) -> Op:
        """Return the op that prints as ``text``, such as ``"2F0"``.

        Raises ValueError for any other text.
        """
        if not (match := _OP.fullmatch(text.strip())):
            raise ValueError(f"{text!r} is not an op, expected stage, kind and micro-batch, such as 2F0")
        return cls(match[2], int(match[1]), int(match[3]))


def check_types(ranks: Sequence[Sequence[object]]) -> None:
    """Raise TypeError unless all that is in the lists is an Op."""
    for rank, ops in enumerate(ranks):
        if set(map(type, ops)) <= {Op}:
            continue
        position, other = next((position, op) for position, op in enumerate(ops) if type(op) is not Op)
        raise TypeError(
            f"rank {rank}, position {position}: {other!r} is not an Op; make one with "
            f'Op("F", 2, 0) or Op.parse("2F0"), or all of them with Schedule.from_csv'
        )
