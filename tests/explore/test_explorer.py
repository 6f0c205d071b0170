"""What all explorers share: an error has a sentence, and a run goes on while the reader does."""

import os
import threading
import time

import ipywidgets
import psutil
import pytest

from labkit.explore.explorer import Explorer
from labkit.explore.run_buttons import RunButtons
from labkit.explore.timeline import Timeline
from labkit.launch import launch, progress
from labkit.schedule import gpipe
from labkit.simulate import simulate


@pytest.fixture
def messages():
    return []


def test_a_run_goes_on_in_a_thread_of_its_own_and_says_how_it_went(messages):
    seen, free = [], threading.Event()

    def action():
        seen.append(threading.current_thread())
        free.wait()
        return "33 ms on two ranks."

    run = RunButtons("Run it", action, messages.append)
    run.start.click()
    assert run.start.disabled and not run.stop.disabled
    free.set()
    run.wait()
    assert seen != [threading.main_thread()] and messages == ["Running on real ranks …", "33 ms on two ranks."]
    assert not run.start.disabled and run.stop.disabled


def test_a_second_start_meanwhile_runs_nothing(messages):
    runs, free = [], threading.Event()
    run = RunButtons("Run it", lambda: (runs.append(1), free.wait(), "done")[-1], messages.append)
    run.begin()
    run.begin()
    free.set()
    run.wait()
    assert runs == [1] and messages[1] == "A run is under way already: wait for it, or stop it."
    run.begin()  # and now it may start again
    run.wait()
    assert runs == [1, 1]


def test_a_bar_says_what_runs_and_stop_ends_its_ranks(messages, tmp_path):
    def report_and_sleep():
        for _ in progress(range(3), desc="Naps"):
            (tmp_path / str(os.getpid())).touch()
            time.sleep(60)

    run = RunButtons("Run it", lambda: str(launch(report_and_sleep, world_size=2, backend="gloo")), messages.append)
    run.begin()
    assert run.bar.description == "Starting ranks …" and run.bar.layout.display == ""
    while len(ranks := list(tmp_path.iterdir())) < 2 or run.bar.max == 1:
        time.sleep(0.01)
    assert run.bar.description == "Naps: 0 of 3"
    run.stop.click()
    run.stop.click()  # which does no more than the first one
    run.wait()
    assert messages[-1] == "Stopped: its ranks have ended."
    assert run.bar.layout.display == "none" and not run.start.disabled
    alive = [process for process in psutil.process_iter() if process.pid in {int(rank.name) for rank in ranks}]
    assert psutil.wait_procs(alive, timeout=10)[1] == []
    assert launch(lambda: 7, world_size=2, backend="gloo").values == [7, 7]


def test_what_fails_in_a_rank_is_said_in_a_line(messages):
    run = RunButtons("Run it", lambda: str(launch(lambda: 1 / 0, world_size=1, backend="gloo")), messages.append)
    run.begin()
    run.wait()
    assert messages[-1] == "RankError: rank 0 raised ZeroDivisionError: division by zero"
    assert not run.start.disabled


def test_what_a_callback_raises_is_said_and_goes_no_further():
    slider = ipywidgets.IntSlider(1)
    explorer = Explorer([slider], Timeline(simulate(gpipe(2, 2))))
    slider.observe(explorer.guarded(lambda _: int("many")), "value")
    slider.value = 2
    assert explorer.timeline.narration == "ValueError: invalid literal for int() with base 10: 'many'"
