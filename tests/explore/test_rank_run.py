"""Explorers run nothing on ranks while a task is to do that the run needs, and say which."""

from __future__ import annotations

import pytest

from labkit import todo
from labkit.cost import Link
from labkit.explore.buckets.overlap_run import run_overlap
from labkit.explore.schedules.measure import run_schedule
from labkit.schedule import gpipe


def run_buckets() -> None:
    run_overlap("bert", 25, 1, 2, Link(0, 1e9), 0.01)


@pytest.mark.parametrize(
    ("run", "task"), [(lambda: run_schedule(gpipe(2, 2)), "pipe.5"), (run_buckets, "dp.6"), (run_buckets, "dp.7")]
)
def test_a_task_that_is_to_do_is_named_before_any_rank_starts(run, task, monkeypatch):
    monkeypatch.setattr(todo, "missing", lambda name: f"TODO {name}: labkit/it.py, line 7" if name == task else None)
    monkeypatch.setattr("labkit.launch.launch", lambda *_, **__: pytest.fail("ranks were started"))
    with pytest.raises(todo.TodoError, match=rf"^TODO {task}: labkit/it\.py, line 7$"):
        run()
