### INSTRUCTORS ONLY: this file holds answers, so it is not in the student edition
"""Wrong answers to pipe.3, each with the claim that rejects it and a phrase of the finding; and right ones."""

from __future__ import annotations

import textwrap

from labkit.judging import pipe_claims as claims

HAND_OUT = """
tasks = []
for i, j in schedule:
    task = Task(run_stage, self.partitions[j], batches[i], self.devices[j], stage=j, micro_batch=i)
    self._workers[j].put(task)
    tasks.append(task)
"""
WAIT = """
for task in tasks:
    task.wait()
"""
TAKE = """
for (i, j), task in zip(schedule, tasks):
    batches[i] = task.result()
"""
COMPUTE = HAND_OUT + WAIT + TAKE
FORWARD = """
batches = list(x.split(self.split_size))
for schedule in clock_cycles(len(batches), len(self.partitions)):
    self.compute(batches, schedule)
return concatenate(batches)
"""


def pipe(compute: str = COMPUTE, forward: str = FORWARD) -> str:
    """Both methods of Pipe with these lines where the student writes, after the checks that are given."""
    return f"""
def compute(self, batches, schedule):
    self._check_open()
    self._check_clock(batches, schedule)
{textwrap.indent(compute.strip(), "    ")}

def forward(self, x):
    self._check_open()
    _check_batch(x)
{textwrap.indent(forward.strip(), "    ")}

Pipe.compute, Pipe.forward = compute, forward
"""


IN_THE_CALLER = """
for i, j in schedule:
    batches[i] = run_stage(self.partitions[j], batches[i], self.devices[j], stage=j, micro_batch=i)
"""
ONE_BY_ONE = HAND_OUT.replace("tasks.append(task)", "batches[i] = task.result()")
OWN_THREADS = """
import threading
def work(i, j):
    batches[i] = run_stage(self.partitions[j], batches[i], self.devices[j], stage=j, micro_batch=i)
threads = [threading.Thread(target=work, args=task) for task in schedule]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""
EVERYTHING = "schedule = [(i, j) for i in range(len(batches)) for j in range(len(self.partitions))]"
TAKE_WHAT_GOES = """
for (i, j), task in zip(schedule, tasks):
    try:
        batches[i] = task.result()
    except Exception:
        print(f"partition {j} failed")
"""
OTHER_TYPE = TAKE_WHAT_GOES.replace("Exception:", "Exception as error:").replace(
    'print(f"partition {j} failed")', 'raise RuntimeError(f"partition {j} failed") from error'
)
NEW_ERROR = OTHER_TYPE.replace('RuntimeError(f"partition {j} failed") from error', "type(error)(str(error)) from None")
CLOSES = TAKE_WHAT_GOES.replace('print(f"partition {j} failed")', "self.close(); raise")
KEEPS_TASKS = """
waiting = self.__dict__.setdefault("_waiting", [])
for i, j in schedule:
    waiting.append((i, Task(run_stage, self.partitions[j], batches[i], self.devices[j], stage=j, micro_batch=i)))
    self._workers[j].put(waiting[-1][1])
for i, task in waiting:
    task.wait()
for i, task in waiting:
    batches[i] = task.result()
waiting.clear()
"""
BY_INDEX = """
n = len(schedule)
tasks = [None] * n
for k in range(n):
    (i, j) = schedule[k]
    tasks[k] = Task(lambda i=i, j=j: run_stage(self.partitions[j], batches[i], self.devices[j], j, i))
for k in reversed(range(n)):
    self._workers[schedule[k][1]].put(tasks[k])
done = [(task.wait(), task)[1] for task in tasks]
results = [task.result() for task in done]
for k, result in enumerate(results):
    batches[schedule[k][0]] = result
"""
BY_SLICES = """
s = self.split_size
batches = [x[start : start + s] for start in range(0, len(x), s)]
clocks = list(clock_cycles(len(batches), len(self.partitions)))
while clocks:
    self.compute(batches, clocks.pop(0))
return concatenate(batches)
"""
WAITS_FOR_NOTHING = COMPUTE.replace("    self._workers[j].put(task)\n", "")

WRONG = {
    "does nothing": (
        claims.compute_does_the_tasks_of_its_schedule,
        pipe("pass"),
        "compute(batches, [(0, 0)]) did not call partition 0 with micro-batch 0 as it came",
    ),
    "takes no notice of the schedule": (
        claims.compute_does_the_tasks_of_its_schedule,
        pipe(EVERYTHING + COMPUTE),
        "compute(batches, [(0, 0)]) called partition 0 with micro-batch 1 as it came",
    ),
    "each micro-batch through all partitions": (
        claims.compute_does_the_tasks_of_its_schedule,
        pipe("schedule = [(i, k) for i, _ in schedule for k in range(len(self.partitions))]" + COMPUTE),
        "compute(batches, [(0, 0)]) called partition 1 with micro-batch 0 as it came",
    ),
    "partitions by their position": (
        claims.compute_does_the_tasks_of_its_schedule,
        pipe("schedule = [(i, k) for k, (i, _) in enumerate(schedule)]" + COMPUTE),
        "compute(batches, [(0, 2), (1, 1), (2, 0)]) called partition 0 with micro-batch 0 after partitions 0, 1",
    ),
    "does each task twice": (
        claims.compute_does_the_tasks_of_its_schedule,
        pipe(HAND_OUT + HAND_OUT.replace("tasks = []", "") + WAIT + TAKE),
        "compute(batches, [(0, 0)]) called partitions 2 times, expected 1",
    ),
    "takes the partition for the micro-batch": (
        claims.compute_does_the_tasks_of_its_schedule,
        pipe("schedule = [(j, i) for i, j in schedule]" + COMPUTE),
        "it raised IndexError",
    ),
    "forgets the results": (
        claims.results_take_the_place_of_their_micro_batches,
        pipe(COMPUTE.replace("batches[i] = ", "")),
        "after compute(batches, [(0, 0)]), batches[0] is micro-batch 0 as it came, expected micro-batch 0 after partition 0",
    ),
    "results by their position": (
        claims.results_take_the_place_of_their_micro_batches,
        pipe(COMPUTE.replace("for (i, j), task in zip(schedule, tasks)", "for i, task in enumerate(tasks)")),
        "after compute(batches, [(1, 0), (0, 1)]), batches[0] is micro-batch 1 after partition 0",
    ),
    "in the thread that calls": (
        claims.a_partition_has_a_worker_of_its_own,
        pipe(IN_THE_CALLER),
        "compute(batches, [(0, 0)]) ran partition 0 in the thread that called compute",
    ),
    "whichever worker": (
        claims.a_partition_has_a_worker_of_its_own,
        pipe(COMPUTE.replace("self._workers[j]", "self._workers[len(tasks)]")),
        "in another thread than in the clocks before",
    ),
    "one worker for all": (
        claims.a_partition_has_a_worker_of_its_own,
        pipe(COMPUTE.replace("self._workers[j]", "self._workers[0]")),
        "two partitions ran in the same thread",
    ),
    "waits for each before the next": (
        claims.tasks_of_a_clock_run_at_the_same_time,
        pipe(ONE_BY_ONE),
        "did not run at the same time. Hand out all tasks of the clock before you wait",
    ),
    "numbers in the wrong order": (
        claims.tasks_have_their_numbers,
        pipe(COMPUTE.replace("stage=j, micro_batch=i", "stage=i, micro_batch=j")),
        "was recorded as (stage, micro_batch) [(1, 2), (2, 1), (3, 0)], expected [(0, 3), (1, 2), (2, 1)]",
    ),
    "split_size micro-batches": (
        claims.micro_batches_have_split_size_rows,
        pipe(forward=FORWARD.replace("x.split", "x.chunk")),
        "8 rows with split_size=2: the first partition was given micro-batches of [4, 4] rows, expected [2, 2, 2, 2]",
    ),
    "leaves the remainder out": (
        claims.micro_batches_have_split_size_rows,
        pipe(forward=FORWARD.replace("x.split", "x[: len(x) // self.split_size * self.split_size].split")),
        "7 rows with split_size=3: the first partition was given micro-batches of [3, 3] rows, expected [3, 3, 1]",
    ),
    "a tuple of micro-batches": (
        claims.micro_batches_have_split_size_rows,
        pipe(forward=FORWARD.replace("list(x.split(self.split_size))", "x.split(self.split_size)")),
        "8 rows with split_size=2: it raised TypeError: 'tuple' object does not support item assignment (labkit/pipe.py, line ",
    ),
    "partitions before micro-batches": (
        claims.micro_batches_have_split_size_rows,
        pipe(forward=FORWARD.replace("len(batches), len(self.partitions)", "len(self.partitions), len(batches)")),
        "8 rows with split_size=2: it raised ValueError: schedule is [(2, 1), (1, 2), (0, 3)], expected",
    ),
    "the whole batch at once": (
        claims.micro_batches_have_split_size_rows,
        pipe(forward=FORWARD.replace("list(x.split(self.split_size))", "[x]")),
        "micro-batches of [8] rows",
    ),
    "gives a list": (
        claims.output_is_that_of_the_module,
        pipe(forward=FORWARD.replace("concatenate(batches)", "batches")),
        "the output is a list, expected a Tensor",
    ),
    "gives the last micro-batch": (
        claims.output_is_that_of_the_module,
        pipe(forward=FORWARD.replace("concatenate(batches)", "batches[-1]")),
        "the output has the shape (2, 3), expected (8, 3)",
    ),
    "side by side": (
        claims.output_is_that_of_the_module,
        pipe(forward=FORWARD.replace("concatenate(batches)", "torch.cat(batches, dim=-1)")),
        "the output has the shape (2, 12), expected (8, 3)",
    ),
    "from the last to the first": (
        claims.output_is_that_of_the_module,
        pipe(forward=FORWARD.replace("concatenate(batches)", "torch.cat(batches[::-1])")),
        "the output is not that of the plain module. After the last clock, put the results together in the order",
    ),
    "forgets the last clocks": (
        claims.output_is_that_of_the_module,
        pipe(forward=FORWARD.replace("len(self.partitions))", "len(self.partitions) - 1)")),
        "the output has the shape (8, 5), expected (8, 3)",
    ),
    "detaches the output": (
        claims.gradients_are_those_of_the_module,
        pipe(forward=FORWARD.replace("concatenate(batches)", "concatenate(batches).detach()")),
        "the gradient of the weight of partition 0 is missing. Autograd has to see everything",
    ),
    "detaches the input": (
        claims.gradients_are_those_of_the_module,
        pipe(forward=FORWARD.replace("x.split", "x.detach().split")),
        "the gradient of the input is missing",
    ),
    "detaches between partitions": (
        claims.gradients_are_those_of_the_module,
        pipe(COMPUTE.replace("batches[i], self", "batches[i].detach(), self")),
        "the gradient of the weight of partition 0 is missing",
    ),
    "task by task": (
        claims.forward_goes_clock_by_clock,
        pipe(
            forward=FORWARD.replace("self.compute(batches, schedule)", "[self.compute(batches, [t]) for t in schedule]")
        ),
        "4 micro-batches: [(1, 0), (0, 1)] did not run at the same time. Give each clock of clock_cycles as a whole",
    ),
    "threads of its own": (
        claims.no_grad_holds_in_the_workers,
        pipe(OWN_THREADS),
        "a Task takes that of the thread in which it is made along",
    ),
    "all on the first device": (
        claims.each_partition_has_its_input_on_its_device,
        pipe(COMPUTE.replace("self.devices[j]", "self.devices[0]")),
        "partition 2 is on the meta device, and was given a micro-batch on the cpu device",
    ),
    "brings the output back": (
        claims.result_is_on_the_last_device,
        pipe(forward=FORWARD.replace("concatenate(batches)", "concatenate(batches).to(x.device)")),
        "the last partition is on the meta device, and the output was put on another device",
    ),
    "torch.cat": (
        claims.concatenate_puts_the_results_together,
        pipe(forward=FORWARD.replace("concatenate(batches)", "torch.cat(batches)")),
        "results of float32 and of float64 gave an output, expected a ValueError. torch.cat does not look",
    ),
    "goes on after an error": (
        claims.an_error_is_raised_again,
        pipe(HAND_OUT + WAIT + TAKE_WHAT_GOES),
        "where partition 0 raised a ValueError: nothing was raised",
    ),
    "an error of another type": (
        claims.an_error_is_raised_again,
        pipe(HAND_OUT + WAIT + OTHER_TYPE),
        "where partition 0 raised a ValueError: RuntimeError came out instead",
    ),
    "a new error": (
        claims.an_error_is_raised_again,
        pipe(HAND_OUT + WAIT + NEW_ERROR),
        "the traceback of what came out does not lead to the partition",
    ),
    "raises before all have ended": (
        claims.compute_raises_once_all_have_ended,
        pipe(HAND_OUT + TAKE),
        "the error came out while partition 1 was still running",
    ),
    "waits for the last task only": (
        claims.compute_raises_once_all_have_ended,
        pipe(HAND_OUT + "tasks[-1].wait()" + TAKE),
        "compute(batches, [(3, 0), (2, 1), (1, 2)]), where partition 0 raised a ValueError: the error came out while partition 1",
    ),
    "closes after an error": (
        claims.all_is_right_after_an_error,
        pipe(HAND_OUT + WAIT + CLOSES),
        "and then the same without an error: it raised RuntimeError",
    ),
    "keeps the tasks of a clock that failed": (
        claims.all_is_right_after_an_error,
        pipe(KEEPS_TASKS),
        "and then the same without an error: it raised RuntimeError. Keep nothing of a clock that failed",
    ),
    "hands out no task": (
        None,
        pipe(WAITS_FOR_NOTHING),
        "or for a task that you wait for and that no worker has been given",
    ),
}
RIGHT = {
    "handed out from the last to the first": pipe(BY_INDEX),
    "micro-batches by slices": pipe(forward=BY_SLICES),
}
