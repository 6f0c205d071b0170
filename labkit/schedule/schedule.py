"""A schedule as data: for each rank its ops in order, torch's CSV of it, and whether it can run."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from labkit.schedule.dependencies import Flow, flow_of
from labkit.schedule.ops import Op, check_types
from labkit.schedule.torch_csv import read_csv, write_csv


@dataclass(frozen=True)
class Schedule:
    """For each rank its ops, in the order in which it runs them. ``name`` is what it is called where it is shown.

    A stage is on the rank that has its ops. Whether everything fits together is for :func:`validate` to say; only what is
    no Op is refused here, with a TypeError.
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
        """The schedule as torch's runtime reads it, one row per rank: ``0F0,0F1,0B0,0B1``. Written to ``path`` as well.

        There: ``_PipelineScheduleRuntime(stages, n_micro, loss_fn)._load_csv(path)``, which wants a backward pass in it.
        """
        text = write_csv(self.ops)
        if path is not None:
            Path(path).write_text(text, encoding="utf-8")
        return text

    @classmethod
    def from_csv(cls, text_or_path: str | Path) -> Schedule:
        """A schedule that :meth:`to_csv` or torch has written; ``_dump_csv`` is torch's, with or without communication.

        Cells that compute nothing are skipped: empty ones, and actions such as ``1RECV_F0`` and ``0UNSHARD``. Torch's
        ``(0F1;1B0)OVERLAP_F_B`` becomes its ops, one after the other. A str is text if it has a line break or a
        cell that is an action; otherwise it is a path, as every Path is.

        Raises ValueError with row and column for a cell that is no action, ScheduleError for a schedule that cannot run
        (see :func:`validate`; its position counts ops, not cells), and FileNotFoundError.
        """
        schedule = cls(read_csv(text_or_path))
        validate(schedule)
        return schedule


def validate(schedule: Schedule) -> None:
    """Whether ``schedule`` can run: every op once, on the rank of its stage, behind what it needs, and no deadlock.

    Either no micro-batch has a backward pass, or every one has it in every stage, whole (B) or split (I and later W).
    Raises ScheduleError for the first thing that is wrong, TypeError for what is no Schedule or no Op.
    """
    flow(schedule)


def flow(schedule: Schedule) -> Flow:
    """What waits for what in ``schedule``. Raises as :func:`validate` does."""
    if not isinstance(schedule, Schedule):
        raise TypeError(f"schedule is a {type(schedule).__name__}, expected a Schedule, such as one_f_one_b(4, 8)")
    return flow_of(schedule.ops)
