"""Hold a schedule as data: for each rank its ops in order; its CSV, and whether it can run."""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from labkit.schedule.dependencies import Dependencies
from labkit.schedule.ops import Op, check_types


@dataclass(frozen=True)
class Schedule:
    """For each rank its ops, in the order in which it runs them. ``name`` is shown with it.

    A stage is on the rank that has its ops. Whether everything fits together is for
    :func:`validate` to say; only what is not an Op is refused here, with a TypeError.
    """

    ops: list[list[Op]]
    name: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        check_types(self.ops)

    @property
    def n_ranks(self) -> int:
        return len(self.ops)

    @property
    def n_stages(self) -> int:
        return 1 + max((op.stage for ops in self.ops for op in ops), default=-1)

    @property
    def n_micro(self) -> int:
        return 1 + max((op.micro_batch for ops in self.ops for op in ops), default=-1)

    def __str__(self) -> str:
        lines = (f"rank {rank}: {' '.join(map(str, ops))}" for rank, ops in enumerate(self.ops))
        return "\n".join([*([self.name] if self.name else []), *lines])

    def to_csv(self, path: str | Path | None = None) -> str:
        """Return the schedule as torch's runtime reads it, and write it to ``path`` if given.

        There is a row per rank, such as ``0F0,0F1,0B0,0B1``. torch reads it by ``_load_csv(path)``
        of a ``_PipelineScheduleRuntime(stages, n_micro, loss_fn)``, which wants a backward pass in
        it.
        """
        text = write_csv(self.ops)
        if path is not None:
            Path(path).write_text(text, encoding="utf-8")
        return text

    @classmethod
    def from_csv(cls, text_or_path: str | Path) -> Schedule:
        """Read a schedule that :meth:`to_csv` or torch has written.

        torch writes it by ``_dump_csv``, with or without communication. Cells that compute nothing
        are skipped: empty ones, and actions such as ``1RECV_F0`` and ``0UNSHARD``. torch's
        ``(0F1;1B0)OVERLAP_F_B`` becomes its ops, one after the other. A str is text if it has a
        line break or a cell that is an action; otherwise it is a path, as every Path is.

        Raises ValueError with row and column for a cell that is not an action, ScheduleError for a
        schedule that cannot run (see :func:`validate`; its position counts ops, not cells), and
        FileNotFoundError.
        """
        schedule = cls(read_csv(text_or_path))
        validate(schedule)
        return schedule


def validate(schedule: Schedule) -> None:
    """Check that ``schedule`` can run.

    It has every op once, on the rank of its stage, after what it needs, and no deadlock. Either no
    micro-batch has a backward pass, or every one has it in every stage, whole (B) or split (I and
    later W).

    Raises ScheduleError for the first thing that is wrong, TypeError for anything but a Schedule of
    Ops.
    """
    find_dependencies(schedule)


def find_dependencies(schedule: Schedule) -> Dependencies:
    """Find what waits for what in ``schedule``. Raises as :func:`validate` does."""
    if not isinstance(schedule, Schedule):
        raise TypeError(f"schedule is a {type(schedule).__name__}, expected a Schedule, such as one_f_one_b(4, 8)")
    return Dependencies.of(schedule.ops)


# --- torch's CSV: one row per rank, one cell per action -------------------------------------------
#
# torch.distributed.pipelining writes it with ``_dump_csv`` and runs it after ``_load_csv``. Some of
# its cells compute nothing and have no op here: sending and receiving, sharding, and empty cells
# for time slots in which a rank idles.


_COMPUTES_NOTHING = re.compile(r"\d+(UNSHARD|RESHARD|REDUCE_GRAD|SEND_F|RECV_F|SEND_B|RECV_B)\d*")
_SEVERAL = re.compile(r"\((.*)\)OVERLAP_F_B")


def write_csv(ranks: Sequence[Sequence[Op]]) -> str:
    """Return the ops of each rank as a line of cells, such as ``0F0,0B0``."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([map(str, ops) for ops in ranks])
    return text.getvalue()


def read_csv(text_or_path: str | os.PathLike[str]) -> list[list[Op]]:
    """Return for each row its ops.

    Raises ValueError for a cell that is not an action, FileNotFoundError for a path to nowhere.
    """
    ranks: list[list[Op]] = []
    for row, cells in enumerate(csv.reader(_text(text_or_path).splitlines()), start=1):
        ranks.append([])
        for column, cell in enumerate(cells, start=1):
            try:
                ranks[-1] += _ops(cell)
            except ValueError:
                raise ValueError(
                    f"row {row}, column {column}: {cell!r} is not an action, expected stage, kind (F, B, I, W) and "
                    f"micro-batch, such as 2F0, or one of torch's other actions, such as 2RECV_F0"
                ) from None
    return ranks


def _ops(cell: str) -> list[Op]:
    """Return the ops that ``cell`` computes. Raises ValueError for anything but an action."""
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
            f"there is no file {str(path)!r}, and as text it is not a schedule: no cell of it is an action"
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
