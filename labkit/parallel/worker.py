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
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from labkit.trace import span

START_POLL_S = 0.1  # between checks whether a thread still lives that has not begun
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
        self._call: Any = (function, arguments, options)
        self._modes = _modes()
        self._done = threading.Event()
        self._value: Any = None
        self._error: BaseException | None = None
        self._labels: dict[str, int] = {}  # once it has called run_stage
        self._waiting: span | None = None  # while somebody watches
        for argument in arguments:
            if isinstance(argument, torch.Tensor) and not hasattr(argument, "ready"):
                mark_ready(argument)  # the caller has queued what computes it

    def run(self) -> None:
        """Make the call. Whatever it raises, even SystemExit, is kept for the caller."""
        function, arguments, options = self._call
        self._call = None  # what a task has used is not kept for as long as its result
        _this_thread.task = self
        try:
            with contextlib.ExitStack() as modes:
                for mode in self._modes:
                    modes.enter_context(mode())
                self._value = function(*arguments, **options)
        except BaseException as error:
            self._error = error
        finally:
            _this_thread.task = None
            self._end_waiting()
            self.begin_waiting("result waits")
            self._done.set()
            del self  # the traceback has this frame, and so would keep the task, which keeps the traceback

    def wait(self) -> None:
        """Wait until a worker has done the task. An interrupt ends the waiting, not the task."""
        self._done.wait()

    def result(self) -> Any:
        """Wait for the task, and return what the function returned, or raise what it raised.

        That is raised once, with the traceback from the worker.
        """
        self.wait()
        self._end_waiting()
        if self._error is None:
            return self._value
        # The caller has the task, and is in the traceback: both would be kept until a garbage
        # collection.
        error, self._error = self._error, RuntimeError("what this task raised has been raised already")
        try:
            raise error
        finally:
            del error

    def begin_waiting(self, what: str) -> None:
        """Begin a span, while somebody watches, that lasts until the wait is over."""
        if _watched:
            self._waiting = span(what, lane="host").begin()

    def begin_stage(self, stage: int, micro_batch: int) -> None:
        """Note that the task's call has come to a stage: its waits have these numbers."""
        self._labels = {"stage": stage, "micro_batch": micro_batch}
        self._end_waiting()

    def _end_waiting(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.label(**self._labels)
            waiting.end()


_this_thread = threading.local()  # .task: the one that it runs


def this_task() -> Task | None:
    """Return the task that this thread runs, if it runs one."""
    return getattr(_this_thread, "task", None)


_watched = 0  # blocks of watch_queues() that are running


@contextlib.contextmanager
def watch_queues() -> Iterator[None]:
    """Record each task of the block, in any thread, also while it waits.

    Two spans on the lane ``"host"``: ``queued``, from put until a worker calls its stage, and
    ``result waits``, from when it is done until its result is fetched. Labels are those of
    run_stage, wherever the task calls it. Without this block, recordings have no such spans.
    """
    global _watched
    _watched += 1
    try:
        yield
    finally:
        _watched -= 1


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

    def __init__(self, name: str, device: torch.device, num_threads: int):
        super().__init__(name=name, daemon=True)  # a stage that never returns must not keep Python from exiting
        self.device = device
        self._begun = threading.Event()  # or has failed to, with this error
        self._error: BaseException | None = None
        self._num_threads = num_threads
        # Made here, so that the caller gets an error.
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._tasks: queue.SimpleQueue[tuple[Task, Any] | None] = queue.SimpleQueue()
        self._ending = False
        # No task may be put after the end. Reentrant, because a garbage collection may end a worker
        # in the middle of a put.
        self._lock = threading.RLock()

    def wait_for_start(self) -> BaseException | None:
        """Return what has kept the thread from its first task, None once it can take one."""
        while self.is_alive() and not self._begun.wait(START_POLL_S):
            pass
        if not self._begun.is_set():  # such as where a debugger's trace function raises
            return RuntimeError(f"the worker thread {self.name!r} ended before it could begin: Python has printed why")
        return self._error

    def put(self, task: Task) -> None:
        """Have the task done, and return at once. Raises RuntimeError if the thread has ended."""
        with self._lock:
            if self._ending or not self.is_alive():
                raise RuntimeError(
                    f"the worker thread {self.name!r} has ended: it was closed, or it belongs to the process that "
                    "this one was forked from. Make new workers here"
                )
            task.begin_waiting("queued")
            # What the caller has queued on the GPU so far, such as an optimizer's step, comes
            # first.
            self._tasks.put((task, torch.cuda.current_stream(self.device).record_event() if self._stream else None))

    def end(self) -> None:
        """Have the thread end after what was put before. Returns at once; may be called again."""
        with self._lock:
            self._ending = True
            self._tasks.put(None)

    def run(self) -> None:
        with contextlib.ExitStack() as device:
            try:
                device.enter_context(self._on_device())
            except BaseException as error:
                self._error = error
                return
            finally:
                self._begun.set()
            while (item := self._tasks.get()) is not None:
                task, before = item
                if self._stream:
                    self._stream.wait_event(before)
                task.run()
                del item, task, before  # else an idle worker keeps the last micro-batch

    @contextlib.contextmanager
    def _on_device(self) -> Iterator[None]:
        """Give the thread its stream on a GPU, or its share of the cores."""
        if self._stream:
            with torch.cuda.stream(self._stream):  # and its device
                yield
        else:
            torch.get_num_threads()  # a thread's first look sets its number to the process's default, so look before
            torch.set_num_threads(self._num_threads)
            yield


_creating = threading.Lock()


def create_workers(devices: Sequence[torch.device]) -> list[Worker]:
    """Start one worker for each of ``devices``, which may repeat.

    Workers of one device have a thread each. Workers on the CPU share the caller's threads: of n
    that torch uses for one operation here (torch.get_num_threads()), each of w workers uses n // w,
    at least 1. Every thread has a number of its own, but torch.set_num_threads also sets the
    default of threads that have not looked for theirs yet. So the caller sets its own again
    afterwards.

    Raises what a worker raises at its start, such as CUDA's error for a device without memory, and
    RuntimeError where a process may have no more threads; then no worker is left.
    """
    num_threads = torch.get_num_threads()
    share = max(1, num_threads // max(1, sum(device.type != "cuda" for device in devices)))
    workers = [Worker(f"stage {j} on {device}", device, share) for j, device in enumerate(devices)]
    running: list[Worker] = []
    with _creating:
        try:
            for worker in workers:
                worker.start()
                running.append(worker)
        except BaseException:  # there is a limit to how many threads a process may have
            end_workers(running)
            raise
        finally:
            errors = [error for worker in running if (error := worker.wait_for_start())]
            torch.set_num_threads(num_threads)
    if errors:
        end_workers(workers)
        raise errors[0]
    return workers


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


# --- tensors that go from one device or stream to another -----------------------------------------


def mark_ready(tensor: torch.Tensor) -> torch.Tensor:
    """Note that ``tensor`` is ready once this thread's stream has done what is queued so far.

    On the CPU it is ready already.
    """
    if tensor.is_cuda:
        tensor.ready = torch.cuda.current_stream(tensor.device).record_event()  # type: ignore[attr-defined]
    return tensor


def wait_until_ready(tensor: torch.Tensor) -> torch.Tensor:
    """Make this thread's stream, not the thread itself, wait for a tensor from another stream."""
    if tensor.is_cuda and hasattr(tensor, "ready"):
        stream = torch.cuda.current_stream(tensor.device)
        stream.wait_event(tensor.ready)
        tensor.record_stream(stream)  # so that its memory is not given away while this stream still reads it
    return tensor


def move(x: torch.Tensor, device: torch.device, **labels: int) -> torch.Tensor:
    """Return ``x`` on ``device``, to be used on this thread's stream; virtual devices are the CPU.

    Between devices it is copied on streams that do nothing else: neither device's computing waits
    for the copy, and only what needs the copy does. Autograd runs an operation's backward on the
    stream of its forward, so the gradient travels back during the computing too. A copy is a span,
    with ``labels``.
    """
    here, there = x.device, torch.device("cpu") if device.type == "cpu" else device
    if here == there:
        return wait_until_ready(x)
    with contextlib.ExitStack() as copying:
        for end in (here, there):
            if end.type == "cuda":
                copying.enter_context(torch.cuda.stream(_copy_stream(end)))
        wait_until_ready(x)
        gpu = there if there.type == "cuda" else here
        with span("copy", lane="comm", device=gpu, bytes=x.nbytes, **labels):
            y = x.to(there, non_blocking=there.type == "cuda")  # to the CPU it blocks: nothing there waits for an event
        mark_ready(y)
    return wait_until_ready(y)


_streams = threading.local()


def _copy_stream(device: torch.device) -> Any:
    """Return the stream on which this thread copies from and to ``device``."""
    if device not in _streams.__dict__.setdefault("of", {}):
        _streams.of[device] = torch.cuda.Stream(device)
    return _streams.of[device]
