"""Read and write torch's CSV of a schedule: one row per rank, one cell per action.

torch.distributed.pipelining writes it with ``_dump_csv`` and runs it after ``_load_csv``. What only
it has, sending and receiving, sharding, and empty cells for time slots in which a rank idles,
computes nothing and has no op here.
"""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Sequence
from pathlib import Path

from labkit.schedule.ops import Op

_COMPUTES_NOTHING = re.compile(r"\d+(UNSHARD|RESHARD|REDUCE_GRAD|SEND_F|RECV_F|SEND_B|RECV_B)\d*")
_SEVERAL = re.compile(r"\((.*)\)OVERLAP_F_B")


def write_csv(ranks: Sequence[Sequence[Op]]) -> str:
    """Return the ops of each rank as a line of cells, such as ``0F0,0B0``."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([map(str, ops) for ops in ranks])
    return text.getvalue()


def read_csv(text_or_path: str | os.PathLike[str]) -> list[list[Op]]:
    """Return for each row its ops.

    Raises ValueError for a cell that is no action, FileNotFoundError for a path to nowhere.
    """
    ranks: list[list[Op]] = []
    for row, cells in enumerate(csv.reader(_text(text_or_path).splitlines()), start=1):
        ranks.append([])
        for column, cell in enumerate(cells, start=1):
            try:
                ranks[-1] += _ops(cell)
            except ValueError:
                raise ValueError(
                    f"row {row}, column {column}: {cell!r} is no action, expected stage, kind (F, B, I, W) and "
                    f"micro-batch, such as 2F0, or one of torch's other actions, such as 2RECV_F0"
                ) from None
    return ranks


def _ops(cell: str) -> list[Op]:
    """Return the ops that ``cell`` computes. Raises ValueError for what is no action."""
    cell = cell.strip()
    if not cell or _COMPUTES_NOTHING.fullmatch(cell):
        return []
    if several := _SEVERAL.fullmatch(cell):
        return [op for part in several[1].split(";") for op in _ops(part)]
    return [Op.parse(cell)]


def _text(text_or_path: str | os.PathLike[str]) -> str:
    if isinstance(text_or_path, str) and _is_schedule(text_or_path):
        return text_or_path
    path = Path(text_or_path)
    if not os.path.isfile(path):  # also false, where Path.is_file raises, for what is too long to be a path
        raise FileNotFoundError(
            f"there is no file {str(path)!r}, and as text it is no schedule: no cell of it is an action"
        )
    return path.read_text(encoding="utf-8-sig")  # a spreadsheet may have put its mark in front


def _is_schedule(text: str) -> bool:
    """Return whether a str is meant as rows, not as a path.

    Rows have a line break, or a cell that is an action.
    """

    def is_action(cell: str) -> bool:
        try:
            _ops(cell)
        except ValueError:
            return False
        return True

    return "\n" in text or any(map(is_action, text.split(",")))
