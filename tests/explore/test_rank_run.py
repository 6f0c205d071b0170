"""Explorers run nothing on ranks while a task is to do that the run needs, and say which."""

import subprocess
import sys

import pytest

from labkit import todo
from labkit.explore.grids.ring_recording import record_ring
from labkit.explore.schedules.measure import run_schedules
from labkit.schedule import gpipe
from labkit.simulate import TimedSchedule


@pytest.mark.parametrize(
    ("run", "task"), [(lambda: run_schedules(TimedSchedule(gpipe(2, 2))), "pipe.5"), (lambda: record_ring(2), "dp.5")]
)
def test_a_task_that_is_to_do_is_named_before_any_rank_starts(run, task, monkeypatch):
    monkeypatch.setattr(todo, "missing", lambda name: f"TODO {name}: labkit/it.py, line 7" if name == task else None)
    monkeypatch.setattr("labkit.launch.launch", lambda *_, **__: pytest.fail("ranks were started"))
    with pytest.raises(todo.TodoError, match=rf"^TODO {task}: labkit/it\.py, line 7$"):
        run()


def test_rank_files_load_no_widgets_and_draw_nothing():
    grids, schedules = (f"from labkit.explore.{package} import" for package in ("grids", "schedules"))
    code = f"import sys; {grids} collectives_rank, ring_rank; {schedules} pipeline_rank; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"ipywidgets", "anywidget", "matplotlib"} & set(done.stdout.split())
