### INSTRUCTORS ONLY: this file holds answers, so it is not in the student edition
"""Wrong and right answers to pipe.3; test_answers.py says how they are written."""

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


EVERYTHING = "[(i, j) for i in range(len(batches)) for j in range(len(self.partitions))]"
ALL_THE_WAY = "[(i, j) for i, _ in schedule for j in range(len(self.partitions))]"
SWAPPED = TASK.replace("stage=j, micro_batch=i", "stage=i, micro_batch=j")
DETACHED = f"{RESULT}.detach().requires_grad_(torch.is_grad_enabled())"
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
    def __init__(self, function, *arguments, **options):
        super().__init__(torch.enable_grad()(function), *arguments, **options)
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
    claims.compute_does_its_schedule: {
        "does nothing": ("with micro-batch 0 as it came 0 times, expected", instead("pass\n")),
        "takes no notice of it": ("[(0, 0)]): it called partition 0 with micro-batch 1", other(EVERYTHING)),
        "through all partitions": ("[(0, 0)]): it called partition 1 with micro-batch 0", other(ALL_THE_WAY)),
        "by position": ("with micro-batch 1 after partition 0", other("[(i, k) for k, (i, _) in enumerate(schedule)]")),
        "does each task twice": ("micro-batch 0 as it came 2 times, expected", other("sorted(schedule * 2)")),
        "j for i": ("2 with micro-batch 0 as it came. For each pair (i, j)", other("[(j, i) for i, j in schedule]")),
        "in the thread that calls": ("it ran partition 0 in the thread that called compute", (PUT, "task.run()")),
        "whichever worker": ("in the worker of partition 2. Hand", (PUT, PUT.replace("[j]", "[len(tasks)]"))),
        "one worker for all": ("in the worker of partition 0. Hand each task", (PUT, PUT.replace("[j]", "[0]"))),
        "threads of its own": ("it ran partition 0 in a new thread. Hand each task", instead(OWN_THREADS)),
    },
    claims.results_take_their_places: {
        "tasks that keep everything": ("a Task takes that of the thread in which it is made along", OWN_TASKS),
        "forgets the results": ("batches[0] is micro-batch 0 as it came afterwards", (RESULT, "task.result()")),
        "puts tasks in their places": ("batches[0] is a Task afterwards, expected", (RESULT, "batches[i] = task")),
        "results by position": ("batches[0] is micro-batch 2 after", (TAKE, "for i, task in enumerate(tasks):\n")),
    },
    claims.tasks_of_a_clock_run_at_the_same_time: {
        "task by task": (
            "[(1, 0), (0, 1)] did not run at the same",
            (COMPUTE, "[self.compute(batches, [x]) for x in schedule]"),
        ),
        "waits for each before the next": ("Hand out all tasks of the clock", (APPEND, f"task.wait(); {APPEND}")),
    },
    claims.tasks_have_their_numbers: {
        "not recorded": ("was recorded as (stage, micro_batch) []", (TASK, "Task(self.partitions[j], batches[i])")),
        "numbers in the wrong order": ("(stage, micro_batch) [(1, 1), (2, 0)]", (TASK, SWAPPED)),
    },
    None: {
        "a tuple of micro-batches": ("support item assignment (labkit/pipe.py", (SPLIT, "x.split(self.split_size)")),
        "partitions before micro-batches": (
            "ValueError: schedule is [(2, 1), (1, 2), (0, 3)], expected",
            (CYCLES, "clock_cycles(len(self.partitions), len(batches))"),
        ),
        "hands out no task": ("a task that you wait for and that no worker has been given", (PUT, "")),
    },
    claims.output_is_that_of_the_module: {
        "split_size micro-batches": ("micro-batches of [4, 4] rows, expected [2, 2, 2, 2]", ("x.split", "x.chunk")),
        "split_size clocks": ("2, 2]. Do all clocks", (CYCLES, CYCLES.replace("len(batches)", "self.split_size"))),
        "leaves the remainder out": (
            "of [3, 3] rows, expected [3, 3, 1]. split_size",
            ("x.split", "x[: len(x) // self.split_size * self.split_size].split"),
        ),
        "the whole batch at once": ("micro-batches of [8] rows", (SPLIT, "[x]")),
        "gives a list": ("the output is a list, expected a Tensor", (OUTPUT, "batches")),
        "side by side": ("is a Tensor of the shape (2, 4), expected", (OUTPUT, "torch.cat(batches, dim=-1)")),
        "gives the last micro-batch": ("the output is a Tensor of the shape (2, 1),", (OUTPUT, "batches[-1]")),
        "from the last to the first": ("partitions 0, 1, 2, expected row 0", (OUTPUT, "concatenate(batches[::-1])")),
        "knows one partition": ("after partition 0, expected row 0 after", (CYCLES, "clock_cycles(len(batches), 1)")),
        "forgets the last clock": ("row 6 of the output is row 6 after partitions", (CYCLES, f"list({CYCLES})[:-1]")),
    },
    claims.gradients_are_those_of_the_module: {
        "detaches the output": ("missing. Autograd has to see everything", (OUTPUT, "concatenate(batches).detach()")),
        "detaches the input": ("the gradient of the input is missing", ("x.split", "x.detach().split")),
        "detaches between partitions": ("the gradient of the input is missing", (RESULT, DETACHED)),
    },
    claims.each_partition_works_on_its_device: {
        "all on the first device": ("given a micro-batch on cpu", (TASK, TASK.replace("devices[j]", "devices[0]"))),
        "brings the output back": ("the output was put on another one. Leave", (OUTPUT, f"{OUTPUT}.to(x.device)")),
    },
    claims.concatenate_puts_the_results_together: {
        "torch.cat": ("results of float32 and of float64 gave an output, expected a", (OUTPUT, "torch.cat(batches)"))
    },
    claims.the_first_error_is_raised: {
        "goes on after an error": ("raised a ValueError: nothing was raised. Ask every task", where_it_fails("pass")),
        "an error of another type": ("RuntimeError came out instead", where_it_fails("raise RuntimeError from error")),
        "a new error": ("does not lead to the partition", where_it_fails("raise type(error)(str(error)) from None")),
        "raises in another order": ("partition 2 came out, expected that of partition 1", other("sorted(schedule)")),
        "raises the last failure": ("0 came out, expected that of partition 1", where_it_fails(LAST_FAILURE)),
        "raises before all have ended": ("came out while partition 2 was still running", (block(WAIT), "pass\n")),
        "waits for the last task only": ("came out while partition 2 was still", (block(WAIT), "tasks[-1].wait()\n")),
    },
    claims.all_is_right_the_next_time: {
        "closes itself": ("with split_size=2: and then once more: it raised", ("return ", "self.close(); return ")),
        "closes after an error": ("it raised RuntimeError: this Pipe is closed", where_it_fails("self.close(); raise")),
        "keeps the tasks of a clock that failed": ("task raised has been raised already. Keep", instead(KEEPS_TASKS)),
    },
}
RIGHT = {
    "handed out from the last to the first": [instead(BY_INDEX)],
    "keeps the first failure": [where_it_fails(LAST_FAILURE.replace("= error", "= locals().get('failed') or error"))],
    "micro-batches by slices": [(SPLIT, SLICES)],
}
