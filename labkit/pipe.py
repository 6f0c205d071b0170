"""Pipeline parallelism by hand: a model cut into stages that work at the same time.

This is a student file: it holds the tasks pipe.1 to pipe.5. From the top to the bottom: where to
cut, who computes what in which clock cycle, the pipeline with a worker thread for each stage, GPT-2
in it, and the pipeline with a process for each.
"""

# ruff: noqa: F401, F841, RUF100  (the student edition keeps the imports and variables that its
# TODOs will need)

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from labkit.base.checks import check_counts
from labkit.parallel.pipe.agreement import check_together
from labkit.parallel.pipe.batch import agreed_rows, check_input, check_no_grad, check_no_transform, cut, rows_of
from labkit.parallel.pipe.gpt2 import PipedBlocks, check_ready, take_out_of_pipe
from labkit.parallel.pipe.p2p import P2P
from labkit.parallel.pipe.placement import WithDevice, check_modules, placed
from labkit.parallel.pipe.row_mean import LossFunction
from labkit.parallel.pipe.scheduled_stage import MeanLoss, Stage, checked_step
from labkit.parallel.pipe.sequence_layers import check_sequence_layers
from labkit.parallel.pipe.stage_assignment import assign_stages
from labkit.parallel.pipe.worker import Task, Worker, create_workers, end_workers, wait_for_end
from labkit.parallel.pipe.worker_stage import concatenate, run_stage
from labkit.schedule import Schedule
from labkit.todo import TodoError

if TYPE_CHECKING:
    from transformers import GPT2LMHeadModel

# --- stages: where the model is cut ---------------------------------------------------------------


def split_module(modules: nn.Sequential) -> tuple[list[nn.Sequential], list[torch.device]]:
    """Cut ``modules`` wherever the device changes: return the partitions and their devices.

    A partition is a run of neighbours on one device. The device of a :class:`WithDevice` is the one
    it was given, that of another module is where its parameters and buffers are. A device may come
    again: ``cpu:0``, ``cpu:1``, ``cpu:0`` are three partitions. Modules keep the names that they
    have in ``modules``.

    A module without parameters and buffers names no device, and one on plain ``cpu`` names none
    among virtual ones. It stays with the one before it, and at the front with the first that names
    one; if none does, all is one partition on ``cpu``.

    Raises TypeError for anything but an nn.Sequential, ValueError for an empty one and, by its name, for
    a module whose parameters are on more than one device.
    """
    check_modules(modules)
    partitions: list[nn.Sequential] = []
    devices: list[torch.device] = []
    ### TODO pipe.1 (15 minutes): Fill partitions and devices. placed(modules) gives (name, module,
    ### device) for each module, in order; the device is None where a module names none and stays
    ### with the one before it, and the first one's is never None. A partition is an nn.Sequential,
    ### in which each module keeps its name.
    ### BEGIN SOLUTION pipe.1
    for name, module, device in placed(modules):
        if device is not None and (not devices or device != devices[-1]):
            partitions.append(nn.Sequential())
            devices.append(device)
        partitions[-1].add_module(name, module)
    ### END SOLUTION
    return partitions, devices


# --- clock cycles: who computes what at the same time ---------------------------------------------


def clock_cycles(num_batches: int, num_partitions: int) -> Iterator[list[tuple[int, int]]]:
    """Return the clocks of a forward pass: in each, the (micro_batch, partition) pairs that run.

    A partition takes one micro-batch in a clock, and passes it on in the next. With 4 micro-batches
    and 3 partitions,

        clock          0      1      2      3      4      5
        partition 0  (0,0)  (1,0)  (2,0)  (3,0)
        partition 1         (0,1)  (1,1)  (2,1)  (3,1)
        partition 2                (0,2)  (1,2)  (2,2)  (3,2)

    each column is a clock, top down. There are ``num_batches + num_partitions - 1`` of them, none
    is empty, and the empty corners are the bubble (Huang et al. 2019, GPipe, arXiv 1811.06965; Kim
    et al. 2020, torchgpipe, arXiv 2004.09910).

    Raises ValueError for a count below 1 and TypeError for anything but an int, at once.
    """
    check_counts(num_batches=num_batches, num_partitions=num_partitions)
    return _clock_cycles(num_batches, num_partitions)


def _clock_cycles(num_batches: int, num_partitions: int) -> Iterator[list[tuple[int, int]]]:
    ### TODO pipe.2 (10 minutes): Yield one list for each clock, made anew each time, with its pairs
    ### in any order.
    ### BEGIN SOLUTION pipe.2
    for clock in range(num_batches + num_partitions - 1):
        yield [(clock - j, j) for j in range(num_partitions) if 0 <= clock - j < num_batches]
    ### END SOLUTION


# --- the pipeline: a worker thread for each partition ---------------------------------------------


class Pipe(nn.Module):
    """A model whose partitions work at the same time, each on a micro-batch of its own.

        model = nn.Sequential(WithDevice(first, "cuda:0"), WithDevice(second, "cuda:1"))
        with Pipe(model, split_size=8) as pipe:
            loss(pipe(x), target).backward()     # target is on the last device, where pipe(x) is

    Arguments:

    - ``module``: an nn.Sequential, which :func:`split_module` cuts into ``partitions``, an
      nn.ModuleList of nn.Sequential, on ``devices``. The modules are those of ``module``, not
      copies. Between partitions goes one tensor, whose first dimension is the rows.
    - ``split_size``: how many rows a micro-batch has; the last one of a batch may have fewer.

    Output and gradients are those of ``module``, as long as a row's output depends on that row
    alone. There is a thread for each partition until :meth:`close`, the end of the ``with`` block,
    or the end of the Pipe itself. A copy (copy.deepcopy, pickle) has threads of its own.

    Raises TypeError and ValueError as :func:`split_module` does, and for a split_size that is not
    an int, 1 or more. In the first batch, attention and recurrent layers are asked for their
    ``batch_first``: one that takes the rows for a sequence raises ValueError. Other layers in which
    rows depend on each other give other numbers than ``module``, and nothing can tell.

    Caveats:

    - nn.BatchNorm, while training, normalises each micro-batch by itself, and its running
      statistics move with each. So does what else changes in every forward, such as spectral_norm's
      vectors.
    - Dropout, while training, draws its masks for each micro-batch, in threads that share one
      generator, so a seed does not repeat them.
    - There are no second derivatives: see :func:`labkit.parallel.pipe.worker_stage.run_stage`. Backward
      runs a stage's micro-batches from the last to the first. torch.func (grad, jacrev, jvp, vmap)
      is refused, and torch.compile is for the stages, not for the Pipe.
    - Stages run in threads of their own. Of the caller's modes, those of grad, inference and
      autocast come along. Others, such as a FlopCounterMode, saved_tensors_hooks or ``with
      torch.device(...)``, see nothing of them.
    - A module that is put into ``module`` afterwards is not in the Pipe: put it into
      ``partitions``.
    - It pays off only if the partitions are large. Every clock cycle waits for the worker threads,
      so a Pipe of two stages of 512 x 512 layers, on one H100, took twelve times as long as the
      plain module (benchmarks/RESULTS.md).
    - CPUs work in parallel in the forward pass alone, as autograd runs their backward in one
      thread. On GPUs each partition has a stream of its own, and copies have theirs.

    After Huang et al. 2019, GPipe, arXiv 1811.06965, and Kim et al. 2020, torchgpipe, arXiv
    2004.09910.
    """

    moves_tensors = True  # to its devices and between them: see labkit/parallel/pipe/placement.py

    def __init__(self, module: nn.Sequential, split_size: int = 1):
        super().__init__()
        check_counts(split_size=split_size)
        self.split_size = split_size
        partitions, self.devices = split_module(module)
        self.partitions = nn.ModuleList(partitions)
        self._is_checked = False  # whether its layers are, with a batch
        self._start()

    def compute(self, batches: list[torch.Tensor], schedule: Sequence[tuple[int, int]]) -> None:
        """Do one clock: for each pair (i, j), replace ``batches[i]`` by partition j's output.

        A pair of ``schedule`` is a micro-batch and a partition; all of them run at once, in the
        worker threads. Returns when all are done. If some have failed, it raises the exception of
        the first of them in ``schedule``, and not before all are done.
        """
        self._check_open()
        self._check_clock(batches, schedule)
        ### TODO pipe.3 (20 minutes): Do the clock, all of its pairs at the same time, each in the
        ### worker of its partition: self._workers[j]. A worker makes a call that it is handed
        ### as a Task (labkit/parallel/pipe/worker.py). The call to make is run_stage
        ### (labkit/parallel/pipe/worker_stage.py), with the partition, its input, its device and both
        ### numbers. Afterwards batches has the outputs; the docstring says what must hold if a
        ### call fails.
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
        """Return the model's output for ``x``, on the last device. The first dimension is the rows.

        What a partition raises, in forward or backward, is raised with a note that names stage and
        micro-batch. Raises TypeError for anything but a dense tensor and for a partition that does
        not return one, ValueError for a batch without rows, for outputs that do not fit together
        and for a layer that takes the rows for a sequence, RuntimeError after :meth:`close` and
        inside torch.func.
        """
        self._check_open()
        self._check_batch(x)
        ### TODO pipe.3 (10 minutes): Send x through all partitions, in micro-batches of split_size
        ### rows, by the clocks of clock_cycles. self.compute does one clock; concatenate, in
        ### labkit/parallel/pipe/worker_stage.py, makes one tensor of outputs that fit together.
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
        """End the worker threads. Waits for what they are doing, up to a limit."""
        self._ending()
        wait_for_end(self._workers)

    def _check_open(self) -> None:
        if not self._ending.alive:
            raise RuntimeError(
                "this Pipe is closed, its worker threads have ended: build a new one, of the same modules"
            )
        check_no_transform("a Pipe")
        if threading.current_thread() in self._workers:
            raise RuntimeError(
                "a stage of this Pipe calls the Pipe itself, and would wait for itself: build another one"
            )

    def _check_batch(self, x: torch.Tensor) -> None:
        check_input(x)
        if not self._is_checked and len(x) > self.split_size:
            check_sequence_layers(self.partitions, self.devices, x[: self.split_size])
            self._is_checked = True

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


# --- GPT-2 in it ----------------------------------------------------------------------------------


def prepare_pipeline_parallel(gpt2: GPT2LMHeadModel, split_size: int) -> GPT2LMHeadModel:
    """Send the blocks of ``gpt2`` through a :class:`Pipe`, in place, and return the model.

        gpt2 = models.parallelize(models.gpt2("gpt2"), ["cuda:0", "cuda:1"])
        prepare_pipeline_parallel(gpt2, split_size=8)
        logits = gpt2(tokens, use_cache=False).logits     # as before

    ``split_size`` is how many rows a micro-batch has. Output and gradients are those of the model
    as it was, and so are the names of its parameters; the caveats of :class:`Pipe` hold. Embeddings
    and output layer see the whole batch. With a cache or a mask, as in generation, the blocks run
    one after the other. Calling it again takes the blocks out of their Pipe, closes that, and makes
    a new one.

    Raises TypeError for anything but a GPT2LMHeadModel, ValueError for one that
    :func:`labkit.models.parallelize` has not placed and for one with an attention that needs a mask
    (``"eager"``), both for a split_size that is not an int, 1 or more.
    """
    check_ready(gpt2)
    check_counts(split_size=split_size)
    take_out_of_pipe(gpt2)
    ### TODO pipe.4 (15 minutes): Put a Pipe where GPT-2 has its blocks. They are in
    ### gpt2.transformer.h, in the order in which they run, each in a WithDevice. GPT-2 goes through
    ### what it finds there, and calls it with hidden states and some other things, but a Pipe takes
    ### one tensor: PipedBlocks, in labkit/parallel/pipe/gpt2.py, stands between the two.
    ### BEGIN SOLUTION pipe.4
    pipe = Pipe(nn.Sequential(*gpt2.transformer.h), split_size)
    gpt2.transformer.h = PipedBlocks(pipe)
    ### END SOLUTION
    return gpt2


# --- the pipeline of processes: any schedule, over send and receive -------------------------------


class ScheduledPipeline:
    """A model whose stages are on several ranks, each of which does its ops of ``schedule``.

        pipeline = ScheduledPipeline([stage], one_f_one_b(n_stages=2, n_micro=4), loss_fn)
        loss = pipeline.step(x, target)          # on every rank, each with a stage of its own
        optimizer.step()

    Arguments:

    - ``stages``: this rank's modules, in ascending order of their stages. Between stages goes one
      tensor, whose first dimension is the rows.
    - ``schedule``: who computes what in which order, the same on all ranks. One without backward
      passes computes the loss under torch.no_grad.
    - ``loss_fn(output, target)``: a mean over rows; only the rank of the last stage calls it. A mean
      over valid tokens is not one: divide a sum by a number of the whole batch, set before a step.

          tokens_per_row = (target != -100).sum() / len(target)

          def loss_fn(output, target):
              total = cross_entropy(output.flatten(0, 1), target.flatten(), reduction="sum")
              return total / (len(target) * tokens_per_row)

    - ``process_group``: the ranks, by default all; a schedule of one rank needs none.

    A step adds to the parameters' ``.grad`` what one process would, as long as a row's output
    depends on that row alone (see :class:`Pipe`). Each op is a span with the labels stage and
    micro_batch; messages are ``send`` and ``recv``, in the lane comm. A loop that records several
    steps calls :func:`labkit.trace.set_step` before each.

    Raises, before anything is sent: ScheduleError for a schedule that cannot run, ValueError for
    one of another number of ranks or stages than there are, or if the ranks were given different
    ones or ``loss_fn`` is a sum, TypeError for anything but modules. If one rank raises, all do.

    The first step compares the loss of each micro-batch with the mean of its rows', in float64 where
    that is possible. It leaves no trace in random numbers, modules and spans, but a ``loss_fn`` that
    counts its calls counts these. It cannot see what an even first batch hides, whose rows all have
    as many valid tokens, and cannot judge a loss with random numbers in it, or one that cannot take
    a single row.

    Caveats:

    - Where a later stage makes no use of its input, gradients are zeros, not None.
    - A weight that stages on two ranks share is two weights. Each gets its own stage's part of the
      gradient: add the two, with ``dist.all_reduce(weight.grad)`` over these ranks, before the
      optimizer's step. Stages on one rank may share a weight.
    - What looks at all gradients, such as clip_grad_norm_ or a GradScaler, sees those of this
      rank's stages alone.
    - Hooks of a parameter run for each micro-batch, as when gradients are accumulated, and what
      :class:`Pipe` says of layers whose rows depend on each other holds here, too.
    - With split backward passes torch.utils.checkpoint needs ``use_reentrant=False``.
    - To evaluate between steps, make a second ScheduledPipeline of the same stages, with a schedule
      without backward passes.
    - In a script of your own on GPUs, call torch.cuda.set_device first; labkit.launch does.

    After Huang et al. 2019, GPipe; Narayanan et al. 2021, Megatron-LM, arXiv 2104.04473; Qi et al.
    2024, arXiv 2401.10241.
    """

    def __init__(
        self,
        stages: Sequence[nn.Module],
        schedule: Schedule,
        loss_fn: LossFunction,
        process_group: Any = None,
    ):
        rank, modules = assign_stages(stages, schedule, loss_fn, process_group)
        self.schedule, self.rank = schedule, rank
        self._loss_fn, self._group = loss_fn, process_group
        self._stages = {number: Stage(module, number) for number, module in modules.items()}
        self._p2p = P2P(schedule, rank, process_group, {n: stage.device for n, stage in self._stages.items()})
        self._trains = any(op.kind != "F" for op in schedule.ops[rank])
        self._is_first, self._rows = True, 0  # rows of a batch, which the first step fixes
        self._loss: MeanLoss | None = None  # of the step, on the rank of the last stage
        self._failed = False

    def step(self, x: torch.Tensor | None = None, target: torch.Tensor | None = None) -> torch.Tensor | None:
        """Do forward and backward for all micro-batches of ``x``, and return the loss.

        It is a mean over all rows, on the rank of the last stage; other ranks get None. ``x`` is
        for the rank of stage 0, ``target`` for that of the last one; what other ranks are given
        does not matter. Rows are shared out evenly, as torch.tensor_split does; in every step there
        are as many as in the first.

        What a stage raises has a note with stage and micro-batch; after that the pipeline is of no
        use. Raises, before anything is sent: TypeError for a missing ``x`` or ``target``,
        ValueError for fewer rows than micro-batches, another number of rows than in the first step,
        and an ``x`` that requires grad, as its gradient goes nowhere; RuntimeError if the schedule has
        backward passes and gradients are switched off. The first step raises this on all ranks, and
        at its end, again on all, ValueError for a ``loss_fn`` that is not a mean over rows and for a
        layer that takes the rows for a sequence; gradients are then as before it. In later steps
        each rank raises by itself, and ranks that have raised nothing wait for it.
        """
        inputs, last = self._begin(x, target), self.schedule.n_stages - 1
        with self._running():
            ### TODO pipe.5 (30 minutes): Do this rank's ops, self.schedule.ops[self.rank], in their
            ### order: each gets what it needs, and what others wait for is sent. self._stages has
            ### the Stage (labkit/parallel/pipe/scheduled_stage.py) of each number that this rank has,
            ### maybe several. self._p2p (labkit/parallel/pipe/p2p.py) sends and receives; it knows on
            ### which rank the other stage is. inputs are the micro-batches of stage 0, and last is
            ### the number of the last stage, whose forward pass gives the loss.
            ### BEGIN SOLUTION pipe.5
            for op in self.schedule.ops[self.rank]:
                stage, i = self._stages[op.stage], op.micro_batch
                if op.kind == "F":
                    y = stage.forward(i, inputs[i] if op.stage == 0 else self._p2p.receive(op))
                    if op.stage != last:
                        self._p2p.send(op, y)
                elif op.kind == "W":
                    stage.weight_grad(i)
                else:
                    dy = self._p2p.receive(op) if op.stage != last else None
                    dx = stage.backward(i, dy) if op.kind == "B" else stage.input_grad(i, dy)
                    if op.stage != 0:
                        self._p2p.send(op, dx)
            ### END SOLUTION
            self._p2p.finish()
        return self._loss.total() if self._loss else None

    def _begin(self, x: torch.Tensor | None, target: torch.Tensor | None) -> list[torch.Tensor]:
        """Check what was given. Return the micro-batches of ``x``, on the rank of stage 0."""
        if self._failed:
            raise RuntimeError(
                "an earlier step of this ScheduledPipeline has failed, and its messages may still be on their way: launch again"
            )
        m, n = self.schedule.n_micro, self.schedule.n_stages
        if self._is_first:
            self._rows = agreed_rows(check_together(lambda: rows_of(self._cut(x, target)), self._group))
        inputs, targets = self._cut(x, target)
        first, last, is_checked = self._stages.get(0), self._stages.get(n - 1), self._is_first and m > 1
        for stage in self._stages.values():
            stage.check_rows = -(-self._rows // m) if is_checked else 0
        if last:
            targets = [part.to(last.device) for part in targets]  # here, not in the span of an op
            self._loss = last.loss = MeanLoss(self._loss_fn, targets)
            last.check_loss = self._loss.check if is_checked else None
        return [part.to(first.device) for part in inputs] if first else []

    def _cut(self, x: Any, target: Any) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Check what was given, and return the micro-batches of ``x`` and ``target`` that are here."""
        self._check_ready()
        m, n, rows = self.schedule.n_micro, self.schedule.n_stages, None if self._is_first else self._rows
        inputs = cut("x", x, m, rows) if 0 in self._stages else []
        targets = cut("target", target, m, rows) if n - 1 in self._stages else []
        if self._trains:
            check_no_grad("x", inputs)
        return inputs, targets

    def _check_ready(self) -> None:
        check_no_transform("a ScheduledPipeline")
        if self._trains and not torch.is_grad_enabled():
            raise RuntimeError(
                f"the schedule {self.schedule.name} has backward passes, and gradients are switched off: call step outside of "
                "torch.no_grad, or make another ScheduledPipeline of these stages, with forward_only(n_stages, n_micro)"
            )

    @contextlib.contextmanager
    def _running(self) -> Iterator[None]:
        """Run a step: if it fails it is the last one.

        If the first one is refused at its end, the next one is the first.
        """
        stages = self._stages.values()
        self._p2p.formats_are_known = not self._is_first
        self._failed = True
        checked = checked_step(stages, self._loss, self._group) if self._is_first else contextlib.nullcontext()
        with torch.set_grad_enabled(self._trains), checked:
            yield
            self._failed = False
        self._is_first = False
