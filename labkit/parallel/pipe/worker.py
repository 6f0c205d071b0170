"""Given code under Pipe: worker threads, one for each partition, that take tasks from a queue.

    (worker,) = create_workers([torch.device("cpu")])
    task = Task(torch.add, 1, 2)
    worker.put(task)                             # returns at once
    task.result()                                # waits for it

torch releases Python's global lock while it computes, so threads of one process do compute at the
same time.
"""

from __future__ import annotations

import atexit
import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch

from labkit.parallel.pipe.streams import mark_ready
from labkit.parallel.pipe.task_waits import TaskWaits

JOIN_TIMEOUT_S = 2.0  # for the end of a worker that is still busy; it ends after its task in any case

# --- tasks: a call, and how it went ---------------------------------------------------------------


class Task:
    """A call for a worker, ``function(*arguments, **options)``, under the caller's modes.

    Grad mode, inference mode and autocast belong to a thread, so a worker would otherwise not know
    of the ``no_grad`` around the caller. Other contexts, such as
    torch.autograd.graph.saved_tensors_hooks, do not come along. A task holds its own result, so it
    does no harm if nobody fetches it.
    """

    def __init__(self, function: Callable[..., Any], *arguments: Any, **options: Any):
        self._call: Callable[[], Any] | None = partial(function, *arguments, **options)
        self._modes = _modes()
        self._done = threading.Event()
        self._value: Any = None
        self._error: BaseException | None = None
        self.waits = TaskWaits()
        for argument in arguments:
            if isinstance(argument, torch.Tensor) and not hasattr(argument, "ready"):
                mark_ready(argument)  # the caller has queued what computes it

    def run(self) -> None:
        """Make the call. Whatever it raises, even SystemExit, is kept for the caller."""
        assert self._call is not None
        call, self._call = self._call, None  # what a task has used is not kept for as long as its result
        try:
            with contextlib.ExitStack() as modes:
                for mode in self._modes:
                    modes.enter_context(mode())
                self._value = call()
        except BaseException as error:
            self._error = error
        finally:
            self.waits.begin("result waits")
            self._done.set()
            del self, call  # the traceback has this frame, and so would keep the task, which keeps the traceback

    def fail(self, error: BaseException) -> None:
        """Have the caller get an error, since the call cannot be made."""
        self._call, self._error = None, error
        self._done.set()

    def wait(self) -> None:
        """Wait until a worker has done the task. An interrupt ends the waiting, not the task."""
        self._done.wait()

    def result(self) -> Any:
        """Wait for the task, and return what the function returned, or raise what it raised.

        That is raised once, with the traceback from the worker.
        """
        self.wait()
        self.waits.end()
        if self._error is None:
            return self._value
        # The caller has the task, and is in the traceback: both would be kept until a garbage
        # collection.
        error, self._error = self._error, RuntimeError("what this task raised has been raised already")
        try:
            raise error
        finally:
            del error


def _modes() -> list[Callable[[], Any]]:
    """Return this thread's modes that change what an operation does, in the order to enter them."""
    modes: list[Callable[[], Any]] = [
        partial(torch.inference_mode, torch.is_inference_mode_enabled()),
        partial(torch.set_grad_enabled, torch.is_grad_enabled()),  # after inference_mode, which sets it too
    ]
    for kind in ("cpu", "cuda"):
        if torch.is_autocast_enabled(kind):
            dtype, cached = torch.get_autocast_dtype(kind), torch.is_autocast_cache_enabled()
            modes.append(partial(torch.autocast, kind, dtype, cache_enabled=cached))
    return modes


# --- workers: threads that do tasks ---------------------------------------------------------------


class Worker(threading.Thread):
    """A thread that does tasks for one device, in the order in which they were put.

    On a GPU it has a stream of its own, so that what it queues there does not wait for the other
    workers' kernels. It ends after :meth:`end`, once the tasks before that are done.
    """

    def __init__(self, name: str, device: torch.device):
        super().__init__(name=name, daemon=True)  # a stage that never returns must not keep Python from exiting
        self.device = device
        self.task: Task | None = None  # that it is doing
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # here the caller gets its errors
        self._tasks: queue.SimpleQueue[tuple[Task, Any] | None] = queue.SimpleQueue()
        self._ending = False
        # No task may be put after the end. Reentrant, because a garbage collection may end a worker
        # in the middle of a put.
        self._lock = threading.RLock()

    def put(self, task: Task) -> None:
        """Have the task done, and return at once. Raises RuntimeError if the thread has ended."""
        with self._lock:
            if self._ending or not self.is_alive():
                raise RuntimeError(
                    f"the worker thread {self.name!r} has ended: it was closed, or it belongs to the process that "
                    "this one was forked from. Make new workers here"
                )
            task.waits.begin("queued")
            # What the caller has queued on the GPU so far, such as an optimizer's step, comes
            # first.
            self._tasks.put((task, torch.cuda.current_stream(self.device).record_event() if self._stream else None))

    def end(self) -> None:
        """Have the thread end after what was put before. Returns at once; may be called again."""
        with self._lock:
            self._ending = True
            self._tasks.put(None)

    def run(self) -> None:
        try:
            with torch.cuda.stream(self._stream) if self._stream else contextlib.nullcontext():  # and its device
                while (item := self._tasks.get()) is not None:
                    self.task, before = item
                    if self._stream:
                        self._stream.wait_event(before)
                    self.task.run()
                    del item, before  # else an idle worker keeps the last micro-batch
                    self.task = None
        except BaseException as error:  # CUDA's, of the stream
            self.end()
            for task in [self.task, *(task for task, _ in iter(self._tasks.get, None))]:
                if task is not None:
                    task.fail(error)


def this_task() -> Task | None:
    """Return the task that this thread does, if it is a worker."""
    return getattr(threading.current_thread(), "task", None)


_creating = threading.Lock()


def create_workers(devices: Sequence[torch.device]) -> list[Worker]:
    """Start one worker for each of ``devices``, which may repeat.

    Workers of one device have a thread each. Workers on the CPU share the caller's threads: of n
    that torch uses for one operation here (torch.get_num_threads()), each of w workers uses n // w,
    at least 1. Every thread has a number of its own, but torch.set_num_threads also sets the
    default of threads that have not looked for theirs yet. So the caller sets its own again
    afterwards.

    Raises RuntimeError where a process may have no more threads, and CUDA's error for a device
    without memory; then no worker is left.
    """
    num_threads = torch.get_num_threads()
    share = max(1, num_threads // max(1, sum(device.type != "cuda" for device in devices)))
    workers = [Worker(f"stage {j} on {device}", device) for j, device in enumerate(devices)]
    with _creating:
        try:
            for worker in workers:
                worker.start()
            first = {worker: Task(_use_threads, share) for worker in workers if worker.device.type != "cuda"}
            for worker, task in first.items():
                worker.put(task)
            for task in first.values():
                task.result()
        except BaseException:
            end_workers(workers)
            raise
        finally:
            torch.set_num_threads(num_threads)
    return workers


def _use_threads(number: int) -> None:
    """Have torch use ``number`` threads for an operation that this thread begins."""
    torch.get_num_threads()  # a thread's first look sets its number to the process's default, so look before
    torch.set_num_threads(number)


def end_workers(workers: Iterable[Worker]) -> None:
    """Have the workers end, and do not wait. Safe also during garbage collection."""
    for worker in workers:
        worker.end()


def wait_for_end(workers: Iterable[Worker]) -> None:
    """Wait until workers told to end have ended, for JOIN_TIMEOUT_S at most.

    A busy one ends later, after its task.
    """
    until = time.monotonic() + JOIN_TIMEOUT_S
    for worker in workers:
        if worker is not threading.current_thread():
            worker.join(max(0.0, until - time.monotonic()))


@atexit.register
def _at_exit() -> None:
    """End all workers: threads that compute while Python is taken apart can crash it."""
    workers = [thread for thread in threading.enumerate() if isinstance(thread, Worker)]
    end_workers(workers)
    wait_for_end(workers)
