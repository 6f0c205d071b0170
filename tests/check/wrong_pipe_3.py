### INSTRUCTORS ONLY: this file holds answers, so it is not in the student edition
"""Wrong and right answers to pipe.3; test_answers.py says how they are written."""

from __future__ import annotations

import textwrap

from labkit.check import pipe_3 as claims

BEGIN, LOOP = "tasks = []\n", "for i, j in schedule:"
TASK = "Task(run_stage, self.partitions[j], batches[i], self.devices[j], stage=j, micro_batch=i)"
PUT, APPEND = "self._workers[j].put(task)", "tasks.append(task)"
HAND_OUT = f"{BEGIN}{LOOP}\n    task = {TASK}\n    {PUT}\n    {APPEND}\n"
WAIT, TAKE = "for task in tasks:\n    task.wait()\n", "for (i, _), task in zip(schedule, tasks, strict=True):\n"
RESULT = "batches[i] = task.result()"
SPLIT, CYCLES = "list(x.split(self.split_size))", "clock_cycles(len(batches), len(self.partitions))"
COMPUTE, OUTPUT = "self.compute(batches, schedule)", "concatenate(batches)"


def block(code: str) -> str:
    return textwrap.indent(code, " " * 8).lstrip(" ")


def instead(code: str) -> tuple[str, str]:
    """Another body of compute."""
    return block(f"{HAND_OUT}{WAIT}{TAKE}    {RESULT}\n"), block(code)


def other(schedule: str) -> tuple[str, str]:
    """compute with another schedule than the one that it was given."""
    return BEGIN, f"schedule = {schedule}\n        {BEGIN}"


def where_it_fails(code: str) -> tuple[str, str]:
    return RESULT, f"try:\n                {RESULT}\n            except Exception as error:\n                {code}"


OWN_THREADS = f"""import threading
def work(i, j):
    {RESULT.partition(" = ")[0]} = {TASK.replace("Task(run_stage, ", "run_stage(")}
threads = [threading.Thread(target=work, args=task) for task in schedule]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""
OWN_TASKS = """class Task(Task):
    def run(self):
        self._modes = (False, True, [])
        super().run()
"""
LAST_FAILURE = "failed = error\n        if 'failed' in locals(): raise failed"
KEEPS_TASKS = f"""waiting = self.__dict__.setdefault("_waiting", [])
{LOOP}
    waiting.append((i, {TASK}))
    self._workers[j].put(waiting[-1][1])
for i, task in waiting:
    task.wait()
for i, task in waiting:
    {RESULT}
waiting.clear()
"""
BY_INDEX = """tasks = [None] * len(schedule)
for k, (i, j) in enumerate(schedule):
    tasks[k] = Task(lambda i=i, j=j: run_stage(self.partitions[j], batches[i], self.devices[j], j, i))
for k in reversed(range(len(schedule))):
    self._workers[schedule[k][1]].put(tasks[k])
results = [task.result() for task in [(task.wait(), task)[1] for task in tasks]]
for k, result in enumerate(results):
    batches[schedule[k][0]] = result
"""
SLICES = "[x[start : start + self.split_size] for start in range(0, len(x), self.split_size)]"

WRONG = {
    "does nothing": (
        claims.compute_does_its_schedule,
        "compute(batches, [(0, 0)]): it did not call partition 0 with micro-batch 0 as it came",
        instead("pass\n"),
    ),
    "takes no notice of the schedule": (
        claims.compute_does_its_schedule,
        "compute(batches, [(0, 0)]): it called partition 0 with micro-batch 1 as it came",
        other("[(i, j) for i in range(len(batches)) for j in range(len(self.partitions))]"),
    ),
    "each micro-batch through all partitions": (
        claims.compute_does_its_schedule,
        "compute(batches, [(0, 0)]): it called partition 1 with micro-batch 0 as it came",
        other("[(i, j) for i, _ in schedule for j in range(len(self.partitions))]"),
    ),
    "partitions by their position": (
        claims.compute_does_its_schedule,
        "compute(batches, [(0, 2), (1, 1), (2, 0)]): it called partition 0 with micro-batch 0 after partitions 0, 1",
        other("[(i, k) for k, (i, _) in enumerate(schedule)]"),
    ),
    "does each task twice": (
        claims.compute_does_its_schedule,
        "compute(batches, [(0, 0)]): it called partitions 2 times, expected 1",
        other("[pair for pair in schedule for _ in range(2)]"),
    ),
    "takes the partition for the micro-batch": (
        claims.compute_does_its_schedule,
        "compute(batches, [(2, 0), (1, 1)]): it called partition 2 with micro-batch 0 as it came. For each pair (i, j), partition j",
        other("[(j, i) for i, j in schedule]"),
    ),
    "forgets the results": (
        claims.results_take_their_places,
        "compute(batches, [(0, 0)]): batches[0] is micro-batch 0 as it came afterwards, expected micro-batch 0 after partition 0",
        (RESULT, "task.result()"),
    ),
    "puts tasks in their places": (
        claims.results_take_their_places,
        "batches[0] is a Task afterwards, expected micro-batch 0 after partition 0",
        (RESULT, "batches[i] = task"),
    ),
    "results by their position": (
        claims.results_take_their_places,
        "compute(batches, [(2, 0), (1, 1)]): batches[0] is micro-batch 2 after partition 0",
        (TAKE, "for i, task in enumerate(tasks):\n"),
    ),
    "in the thread that calls": (
        claims.a_partition_has_its_worker,
        "compute(batches, [(0, 0)]): it ran partition 0 in the thread that called compute",
        (PUT, "task.run()"),
    ),
    "whichever worker": (
        claims.a_partition_has_its_worker,
        "compute(batches, [(0, 2), (1, 1), (2, 0)]): it ran partition 2 in the worker of partition 0",
        (PUT, PUT.replace("[j]", "[len(tasks)]")),
    ),
    "one worker for all": (
        claims.a_partition_has_its_worker,
        "it ran partition 1 in the worker of partition 0. Hand each task",
        (PUT, PUT.replace("[j]", "[0]")),
    ),
    "threads of its own": (
        claims.a_partition_has_its_worker,
        "it ran partition 0 in a new thread. Hand each task to the worker",
        instead(OWN_THREADS),
    ),
    "waits for each before the next": (
        claims.tasks_of_a_clock_run_at_the_same_time,
        "did not run at the same time. Hand out all tasks of the clock before you wait",
        (APPEND, f"task.wait(); {APPEND}"),
    ),
    "numbers in the wrong order": (
        claims.tasks_have_their_numbers,
        "compute(batches, [(2, 0), (1, 1)]): it was recorded as (stage, micro_batch) [(1, 1), (2, 0)], expected [(0, 2), (1, 1)]",
        (TASK, TASK.replace("stage=j, micro_batch=i", "stage=i, micro_batch=j")),
    ),
    "tasks that keep everything": (
        claims.no_grad_holds_in_the_workers,
        "a Task takes that of the thread in which it is made along",
        OWN_TASKS,
    ),
    "split_size micro-batches": (
        claims.micro_batches_have_split_size_rows,
        "8 rows with split_size=2: the first partition was given micro-batches of [4, 4] rows, expected [2, 2, 2, 2]",
        ("x.split", "x.chunk"),
    ),
    "leaves the remainder out": (
        claims.micro_batches_have_split_size_rows,
        "7 rows with split_size=3: the first partition was given micro-batches of [3, 3] rows, expected [3, 3, 1]",
        ("x.split", "x[: len(x) // self.split_size * self.split_size].split"),
    ),
    "the whole batch at once": (
        claims.micro_batches_have_split_size_rows,
        "micro-batches of [8] rows",
        (SPLIT, "[x]"),
    ),
    "a tuple of micro-batches": (
        None,
        "8 rows with split_size=2: it raised TypeError: 'tuple' object does not support item assignment (labkit/pipe.py, line ",
        (SPLIT, "x.split(self.split_size)"),
    ),
    "partitions before micro-batches": (
        None,
        "8 rows with split_size=2: it raised ValueError: schedule is [(2, 1), (1, 2), (0, 3)], expected",
        (CYCLES, "clock_cycles(len(self.partitions), len(batches))"),
    ),
    "gives a list": (
        claims.output_is_that_of_the_module,
        "the output is a list, expected a Tensor",
        (OUTPUT, "batches"),
    ),
    "gives the last micro-batch": (
        claims.output_is_that_of_the_module,
        "the output has the shape (2, 1), expected (8, 1)",
        (OUTPUT, "batches[-1]"),
    ),
    "side by side": (
        None,
        "7 rows with split_size=3: it raised RuntimeError: Sizes of tensors must match except in dimension 1",
        (OUTPUT, "torch.cat(batches, dim=-1)"),
    ),
    "from the last to the first": (
        claims.output_is_that_of_the_module,
        "row 0 of the output is row 6 after partitions 0, 1, 2, expected row 0 after partitions 0, 1, 2. After the last clock, put",
        (OUTPUT, "concatenate(batches[::-1])"),
    ),
    "knows one partition": (
        claims.output_is_that_of_the_module,
        "row 0 of the output is row 0 after partition 0, expected row 0 after partitions 0, 1, 2. Do all clocks",
        (CYCLES, "clock_cycles(len(batches), 1)"),
    ),
    "forgets the last clock": (
        claims.output_is_that_of_the_module,
        "row 6 of the output is row 6 after partitions 0, 1, expected row 6 after partitions 0, 1, 2. Do all clocks",
        (CYCLES, f"list({CYCLES})[:-1]"),
    ),
    "detaches the output": (
        claims.gradients_are_those_of_the_module,
        "the gradient of the input is missing. Autograd has to see everything",
        (OUTPUT, "concatenate(batches).detach()"),
    ),
    "detaches the input": (
        claims.gradients_are_those_of_the_module,
        "the gradient of the input is missing",
        ("x.split", "x.detach().split"),
    ),
    "detaches between partitions": (
        claims.gradients_are_those_of_the_module,
        "the gradient of the input is missing",
        (RESULT, f"{RESULT}.detach().requires_grad_(torch.is_grad_enabled())"),
    ),
    "task by task": (
        claims.forward_goes_clock_by_clock,
        "[(1, 0), (0, 1)] did not run at the same time. Give each clock of clock_cycles as a whole",
        (COMPUTE, "[self.compute(batches, [task]) for task in schedule]"),
    ),
    "all on the first device": (
        claims.each_partition_works_on_its_device,
        "partition 2 is on the meta device, and was given a micro-batch on the cpu device",
        (TASK, TASK.replace("devices[j]", "devices[0]")),
    ),
    "brings the output back": (
        claims.each_partition_works_on_its_device,
        "the last partition is on the meta device, and the output was put on another one",
        (OUTPUT, f"{OUTPUT}.to(x.device)"),
    ),
    "torch.cat": (
        claims.concatenate_puts_the_results_together,
        "results of float32 and of float64 gave an output, expected a ValueError. torch.cat does not look",
        (OUTPUT, "torch.cat(batches)"),
    ),
    "goes on after an error": (
        claims.an_error_is_raised_again,
        "where partition 0 raised a ValueError: nothing was raised. Ask every task",
        where_it_fails("pass"),
    ),
    "an error of another type": (
        claims.an_error_is_raised_again,
        "where partition 0 raised a ValueError: RuntimeError came out instead",
        where_it_fails("raise RuntimeError('a partition failed') from error"),
    ),
    "a new error": (
        claims.an_error_is_raised_again,
        "the traceback of what came out does not lead to the partition",
        where_it_fails("raise type(error)(str(error)) from None"),
    ),
    "raises the last failure": (
        claims.an_error_is_raised_again,
        "partitions 2 and 0 raised a ValueError: that of partition 0 came out, expected that of partition 2, which comes first",
        where_it_fails(LAST_FAILURE),
    ),
    "raises before all have ended": (
        claims.compute_raises_once_all_have_ended,
        "the error came out while partition 1 was still running",
        (block(WAIT), "pass\n"),
    ),
    "waits for the last task only": (
        claims.compute_raises_once_all_have_ended,
        "compute(batches, [(0, 2), (1, 1), (2, 0)]), where partition 2 raised a ValueError: the error came out while partition 1",
        (block(WAIT), "tasks[-1].wait()\n"),
    ),
    "closes after an error": (
        claims.all_is_right_after_an_error,
        "and then the same without an error: it raised RuntimeError: this Pipe is closed",
        where_it_fails("self.close(); raise"),
    ),
    "keeps the tasks of a clock that failed": (
        claims.all_is_right_after_an_error,
        "and then the same without an error: it raised RuntimeError: what this task raised has been raised already. Keep nothing",
        instead(KEEPS_TASKS),
    ),
    "hands out no task": (
        None,
        "or for a task that you wait for and that no worker has been given",
        (PUT, ""),
    ),
}
FOLLOWS = ["does nothing", "whichever worker", "gives a list", "goes on after an error", "knows one partition"]
OTHER_CAUSE = {
    "forgets the results": ("After the last clock",),
    "all on the first device": ("Leave it where it is",),
    "knows one partition": ("in the order of the micro-batches",),
}
RIGHT = {
    "handed out from the last to the first": [instead(BY_INDEX)],
    "micro-batches by slices": [(SPLIT, SLICES)],
}
