"""Workers: tasks in order, under the caller's modes, at the same time as other workers'; errors
come back; threads end."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from labkit.parallel.pipe.task_waits import watch_queues
from labkit.parallel.pipe.worker import Task, Worker, create_workers, end_workers, wait_for_end
from labkit.parallel.pipe.worker_stage import run_stage
from labkit.trace import record

SECONDS = 20.0  # more than anything here takes; waiting that long is a failure


@contextmanager
def working(count: int = 1) -> Iterator[list[Worker]]:
    workers = create_workers([torch.device("cpu", j) for j in range(count)])
    try:
        yield workers
    finally:
        end_workers(workers)
        wait_for_end(workers)


def done_by(a_worker: Worker, function: Callable[..., Any], *arguments: Any) -> Any:
    task = Task(function, *arguments)
    a_worker.put(task)
    return task.result()


# --- while somebody watches -----------------------------------------------------------------------


def test_a_wait_has_the_numbers_of_run_stage_wherever_a_task_calls_it():
    stage, x, numbers = torch.nn.Linear(1, 1), torch.zeros(1, 1), (2, 5)
    with working() as (a_worker,), record() as recording, watch_queues():
        done_by(a_worker, run_stage, stage, x, a_worker.device, *numbers)
        done_by(a_worker, lambda: [run_stage(stage, x, a_worker.device, *numbers)])
        done_by(a_worker, torch.add, x, 1)
    events = recording.events
    for name in ("queued", "result waits"):
        found = events[events["name"] == name][["stage", "micro_batch"]]
        assert [tuple(row) for row in found.dropna().to_numpy()] == [numbers] * 2 and len(found) == 3


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ValueError("bad"), KeyboardInterrupt(), SystemExit(3), RecursionError()])
def test_whatever_a_task_raises_is_raised_by_result_and_the_worker_goes_on(error):
    def fails():
        raise error

    with working() as (only,):
        only.put(task := Task(fails))
        task.wait()  # which does not raise it
        with pytest.raises(type(error)) as caught:
            task.result()
        assert caught.value is error
        assert "fails" in [frame.name for frame in traceback.extract_tb(error.__traceback__)]
        assert done_by(only, threading.current_thread) is only


# --- tasks ----------------------------------------------------------------------------------------


MODES: dict[str, Callable[[], Any]] = {
    "plain": torch.enable_grad,
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
}


def modes() -> tuple[Any, ...]:
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.is_autocast_enabled("cpu") and (torch.get_autocast_dtype("cpu"), torch.is_autocast_cache_enabled()),
    )


@pytest.mark.parametrize("mode", MODES)
def test_a_task_runs_under_the_modes_of_the_thread_that_made_it_and_they_end_with_it(mode):
    plain = modes()
    with working() as (only,):
        with MODES[mode]():
            here, task = modes(), Task(modes)
        only.put(task)
        assert task.result() == here and (here == plain) == (mode == "plain")
        assert done_by(only, modes) == plain


class Big:
    """Stands for an activation."""


def gone(reference: weakref.ref[Any]) -> bool:
    """Soon: a worker lets go of a task just after its result is there."""
    until = time.monotonic() + SECONDS
    while reference() is not None and time.monotonic() < until:
        time.sleep(0.001)
    return reference() is None


def test_a_task_that_is_done_keeps_its_result_alone_and_an_idle_worker_nothing():
    with working() as (only,):
        big = Big()
        task = Task(lambda given: (Big(), id(given)), big)
        only.put(task)
        task.wait()
        used, result = weakref.ref(big), weakref.ref(task.result()[0])
        del big
        assert gone(used) and result() is not None
        del task
        assert gone(result)


# --- the end --------------------------------------------------------------------------------------


def test_threads_end_once_what_was_put_before_is_done():
    go = threading.Event()
    with working() as (only,):
        task = Task(go.wait, SECONDS)
        only.put(task)
        only.end()
        assert only.is_alive()
        with pytest.raises(RuntimeError, match=r"the worker thread 'stage 0 on cpu:0' has ended: .*Make new workers"):
            only.put(Task(int))  # else this one would be waited for for ever
        go.set()
        assert task.result() is True
        only.join(SECONDS)
        assert not only.is_alive()


def test_when_python_exits_workers_finish_one_that_never_ends_is_left_and_a_fork_has_none():
    code = """
import os, threading, time, torch
from labkit.parallel.pipe import worker
worker.JOIN_TIMEOUT_S = 1.0
busy, idle, stuck = worker.create_workers([torch.device("cpu")] * 3)
idle.put(worker.Task(int))
if os.fork() == 0:
    try:
        idle.put(worker.Task(int))
    except RuntimeError as error:
        print(error, flush=True)
    os._exit(0)
os.wait()
go = threading.Event()
busy.put(worker.Task(lambda: (go.wait(), time.sleep(0.2), print("end of the task", flush=True))))
stuck.put(worker.Task(threading.Event().wait))
print("end of the script", flush=True)
go.set()
"""
    script = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(script, capture_output=True, text=True, timeout=60)
    of_the_fork, *lines = done.stdout.splitlines()
    assert "it belongs to the process that this one was forked from" in of_the_fork
    assert (done.returncode, lines, done.stderr) == (0, ["end of the script", "end of the task"], "")


def test_a_worker_whose_stream_fails_hands_the_error_to_every_task_it_was_given():
    worker, tasks = Worker("stage 0", torch.device("cpu")), [Task(int), Task(int)]
    worker._stream = "no stream"
    for task in tasks:
        worker._tasks.put((task, None))
    worker.start()
    for task in tasks:
        with pytest.raises(Exception, match=r"wait_event|stream"):
            task.result()
    with pytest.raises(RuntimeError, match="has ended"):
        worker.put(Task(int))
