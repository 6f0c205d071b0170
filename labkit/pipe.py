"""Pipeline parallelism by hand: cut a model into stages, and let them work on micro-batches at the same time.

This is a student file: it holds the tasks pipe.1 to pipe.3. From the top to the bottom: where to cut, who computes what in
which clock cycle, and the pipeline itself, a worker thread for each stage.
"""

# ruff: noqa: F401, RUF100  (the student edition keeps the imports that its TODOs will need)

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

from labkit.placement import WithDevice, check_modules, placed
from labkit.schedule import check_counts
from labkit.stage_node import concatenate, run_stage
from labkit.todo import TodoError
from labkit.worker import Task, Worker, create_workers, end_workers, wait_for_end

# --- stages: where the model is cut ----------------------------------------------------------------------------------


def split_module(modules: nn.Sequential) -> tuple[list[nn.Sequential], list[torch.device]]:
    """Cut ``modules`` wherever the device changes: the partitions, in order, and the device of each.

    A partition is a run of neighbours on one device. The device of a :class:`WithDevice` is the one it was given, that of
    another module is where its parameters and buffers are. A module that has none names no device, and one on plain ``cpu``
    names none beside a virtual ``cpu:0``. It stays with the one before it, and at the front with the first that names one;
    if none does, all is one partition on ``cpu``. A device may come again: ``cpu:0``, ``cpu:1``, ``cpu:0`` are three
    partitions. Modules keep the names that they have in ``modules``.

    Raises TypeError for what is no nn.Sequential, ValueError for an empty one and, by its name, for a module whose
    parameters are on more than one device.
    """
    check_modules(modules)
    partitions: list[nn.Sequential] = []
    devices: list[torch.device] = []
    ### TODO pipe.1 (15 minutes): Go through the modules in order. Each goes into the last partition, and where its device is
    ### another one than before, a new partition begins. placed(modules) gives (name, module, device) for each module; the
    ### device is None where a module names none and stays with the one before it. The first one's is never None. Put
    ### a module into a partition, which is an nn.Sequential, with add_module(name, module), so that it keeps its name.
    ### BEGIN SOLUTION pipe.1
    for name, module, device in placed(modules):
        if device is not None and (not devices or device != devices[-1]):
            partitions.append(nn.Sequential())
            devices.append(device)
        partitions[-1].add_module(name, module)
    ### END SOLUTION
    return partitions, devices


# --- clock cycles: who computes what at the same time ----------------------------------------------------------------


def clock_cycles(num_batches: int, num_partitions: int) -> Iterator[list[tuple[int, int]]]:
    """The clocks of a forward pass, one after the other: in each, the (micro_batch, partition) pairs that run at once.

    A partition takes one micro-batch in a clock, and passes it on in the next. With 4 micro-batches and 3 partitions,

        clock          0      1      2      3      4      5
        partition 0  (0,0)  (1,0)  (2,0)  (3,0)
        partition 1         (0,1)  (1,1)  (2,1)  (3,1)
        partition 2                (0,2)  (1,2)  (2,2)  (3,2)

    each column is a clock, top down. There are ``num_batches + num_partitions - 1`` of them, none is empty, and the
    empty corners are the bubble (Huang et al. 2019, GPipe, arXiv 1811.06965; Kim et al. 2020, torchgpipe, arXiv
    2004.09910).

    Raises ValueError for a count below 1 and TypeError for what is no int, at once.
    """
    check_counts(num_batches=num_batches, num_partitions=num_partitions)
    return _clock_cycles(num_batches, num_partitions)


def _clock_cycles(num_batches: int, num_partitions: int) -> Iterator[list[tuple[int, int]]]:
    ### TODO pipe.2 (10 minutes): Yield one list for each clock, made anew each time, with the pairs in the order of their
    ### partitions. Look at a column of the table: what do micro-batch and partition add up to in each of its pairs? And which
    ### partitions have a micro-batch to work on at all?
    ### BEGIN SOLUTION pipe.2
    for clock in range(num_batches + num_partitions - 1):
        yield [(clock - j, j) for j in range(num_partitions) if 0 <= clock - j < num_batches]
    ### END SOLUTION


# --- the pipeline: a worker thread for each partition ----------------------------------------------------------------


class Pipe(nn.Module):
    """A model whose partitions work at the same time, each on a micro-batch of its own.

        model = nn.Sequential(WithDevice(first, "cuda:0"), WithDevice(second, "cuda:1"))
        with Pipe(model, split_size=8) as pipe:
            loss(pipe(x), target).backward()         # target is on the last device, where pipe(x) is

    ``split_size`` is how many rows a micro-batch has; the last one of a batch may have fewer. ``partitions`` is an
    nn.ModuleList of nn.Sequential, ``devices`` the list of their devices, as :func:`split_module` cuts them. The modules are
    those of ``module``, not copies. Between partitions goes one tensor, whose first dimension is the rows.

    Output and gradients are those of ``module``, as long as a row's output depends on that row alone. It does not in
    nn.BatchNorm while training: it normalises each micro-batch by itself, and its running statistics move with each. Dropout
    draws its masks for each micro-batch, in threads that share one generator, so a seed does not repeat them. In eval mode
    both are as in ``module``. No second derivatives: see :func:`labkit.stage_node.run_stage`. Backward runs a stage's
    micro-batches from the last to the first.

    There is a thread for each partition until :meth:`close`, the end of the ``with`` block, or the end of the Pipe itself.
    On GPUs each has a stream of its own, and copies have theirs. CPUs work in parallel in the forward pass alone, as autograd
    runs their backward in one thread. A copy (copy.deepcopy, pickle) has threads of its own.

    Raises TypeError and ValueError as :func:`split_module` does, and for a split_size that is no int, 1 or more. After
    Huang et al. 2019, GPipe, arXiv 1811.06965, and Kim et al. 2020, torchgpipe, arXiv 2004.09910.
    """

    moves_tensors = True  # to its devices and between them: see labkit/placement.py

    def __init__(self, module: nn.Sequential, split_size: int = 1):
        super().__init__()
        check_counts(split_size=split_size)
        self.split_size = split_size
        partitions, self.devices = split_module(module)
        self.partitions = nn.ModuleList(partitions)
        self._start()

    def compute(self, batches: list[torch.Tensor], schedule: Sequence[tuple[int, int]]) -> None:
        """Do one clock: for each (micro_batch i, partition j) of ``schedule``, all at once in the worker threads, replace
        ``batches[i]`` by the output of partition j for it.

        Returns when all are done. If some have failed, it raises the exception of the first of them in ``schedule``, and not
        before all are done.
        """
        self._check_open()
        self._check_clock(batches, schedule)
        ### TODO pipe.3 (20 minutes): A Task is a call that a worker makes: Task(function, *arguments, **options). Here the
        ### function is run_stage, in labkit/stage_node.py, which takes a partition, its input, its device, and the numbers
        ### stage= and micro_batch= to name it by. self._workers[j].put(task) hands it to the thread of partition j, and
        ### returns at once; task.wait() waits until it is done; task.result() gives the output, or raises what went wrong.
        ### Hand out all tasks before you wait for one, or they run one after the other. And wait for all before you ask for
        ### a result, or others are still at work when one that has failed raises.
        ### BEGIN SOLUTION pipe.3
        tasks = []
        for i, j in schedule:
            task = Task(run_stage, self.partitions[j], batches[i], self.devices[j], stage=j, micro_batch=i)
            self._workers[j].put(task)
            tasks.append(task)
        for task in tasks:
            task.wait()
        for (i, _), task in zip(schedule, tasks, strict=True):
            batches[i] = task.result()
        ### END SOLUTION

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The model's output for ``x``, whose first dimension is the batch, on the last device.

        What a partition raises, in forward or backward, is raised with a note that names stage and micro-batch. Raises
        TypeError for what is no tensor and for a partition that does not give one, ValueError for a batch without rows and
        for outputs that do not fit together, RuntimeError after :meth:`close`.
        """
        self._check_open()
        _check_batch(x)
        ### TODO pipe.3 (10 minutes): Cut x into micro-batches of split_size rows: a list that compute changes. Do the clocks of
        ### clock_cycles, one after the other, with self.compute. Then the list holds the outputs of the last partition: give
        ### them as one tensor. concatenate, in labkit/stage_node.py, does that, once it has seen that they fit together.
        ### BEGIN SOLUTION pipe.3
        batches = list(x.split(self.split_size))
        for schedule in clock_cycles(len(batches), len(self.partitions)):
            self.compute(batches, schedule)
        return concatenate(batches)
        ### END SOLUTION

    def _start(self) -> None:
        self._workers: list[Worker] = create_workers(self.devices)
        # Threads know nothing of the Pipe, so it can be collected; that ends them too.
        self._ending = weakref.finalize(self, end_workers, self._workers)

    def close(self) -> None:
        """End the worker threads. They finish what they are doing; that is waited for, but not for ever."""
        self._ending()
        wait_for_end(self._workers)

    def _check_open(self) -> None:
        if not self._ending.alive:
            raise RuntimeError(
                "this Pipe is closed, its worker threads have ended: build a new one, of the same modules"
            )
        if threading.current_thread() in self._workers:
            raise RuntimeError(
                "a stage of this Pipe calls the Pipe itself, and would wait for itself: build another one"
            )

    def _check_clock(self, batches: list[torch.Tensor], schedule: Sequence[tuple[int, int]]) -> None:
        m, n = len(batches), len(self.partitions)
        wrong = [pair for pair in schedule if not (0 <= pair[0] < m and 0 <= pair[1] < n)]
        if wrong or len({i for i, _ in schedule}) < len(schedule):
            raise ValueError(
                f"schedule is {list(schedule)}, expected (micro_batch, partition) pairs of {m} micro-batches and {n} partitions, "
                "each micro-batch at most once in a clock"
            )

    def __enter__(self) -> Pipe:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        threads = ("_workers", "_ending")
        return {name: value for name, value in self.__dict__.items() if name not in threads} | {
            "_open": self._ending.alive
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        was_open = state["_open"]
        super().__setstate__({name: value for name, value in state.items() if name != "_open"})
        self._start()
        if not was_open:
            self.close()


def _check_batch(x: torch.Tensor) -> None:
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"the input is a {type(x).__name__}, expected one tensor whose first dimension is the batch")
    if not x.dim() or not len(x):
        raise ValueError(
            f"the input has shape {tuple(x.shape)}, expected at least one row: the first dimension is the batch, which is cut "
            "into micro-batches"
        )
