### INSTRUCTORS ONLY: this file holds answers, so it is not in the student edition
"""Wrong and right answers to pipe.3; test_answers.py says how they are written."""

from labkit.check import pipe_3 as claims

BEGIN, PUT = "tasks = []\n", "self._workers[j].put(task)"
TASK = "Task(run_stage, self.partitions[j], batches[i], self.devices[j], stage=j, micro_batch=i)"
WAIT, TAKE = "for task in tasks:\n            task.wait()", "for (i, _), task in zip(schedule, tasks, strict=True):\n"
RESULT = "batches[i] = task.result()"
SPLIT, CYCLES = "list(x.split(self.split_size))", "clock_cycles(len(batches), len(self.partitions))"
COMPUTE, OUTPUT = "self.compute(batches, schedule)", "concatenate(batches)"


def other(schedule: str) -> tuple[str, str]:
    """compute with another schedule than the one that it was given."""
    return BEGIN, f"schedule = {schedule}\n        {BEGIN}"


def where_it_fails(code: str) -> tuple[str, str]:
    return RESULT, f"try:\n                {RESULT}\n            except Exception as error:\n                {code}"


OWN_TASKS = """class Task(Task):
    def __init__(self, function, *arguments, **options):
        super().__init__(torch.enable_grad()(function), *arguments, **options)
"""
LAST_FAILURE = "failed = error\n        if 'failed' in locals(): raise failed"
LATER = f"for (_, j), task in reversed(list(zip(schedule, tasks))):\n            {PUT}\n        {WAIT}"

WRONG = {
    claims.compute_does_its_schedule: {
        "does each task twice": ("it called partitions [0, 0], expected [0]", other("sorted(schedule * 2)")),
        "j for i": ("2 with micro-batch 0 as it came. For each pair (i, j)", other("[(j, i) for i, j in schedule]")),
        "in the thread that calls": ("it ran partition 0 in a thread that is not a worker", (PUT, "task.run()")),
        "one worker for all": ("in the worker of partition 0. A worker runs its own", (PUT, PUT.replace("[j]", "[0]"))),
    },
    claims.results_take_their_places: {
        "tasks that keep everything": ("A Task takes along to the worker that of the thread", OWN_TASKS),
        "writes into what was there": (
            "has changed, and is the caller's still",
            (RESULT, f"if torch.is_grad_enabled(): {RESULT}\n            else: batches[i].copy_(task.result())"),
        ),
        "results by position": ("batches[0] is micro-batch 2 after", (TAKE, "for i, task in enumerate(tasks):\n")),
    },
    claims.tasks_have_their_numbers: {
        "numbers in the wrong order": (
            "(stage, micro_batch) [(1, 1), (2, 0)]",
            (TASK, TASK.replace("stage=j, micro_batch=i", "stage=i, micro_batch=j")),
        ),
        "no number of its own": (
            "'forward' was recorded as (stage, micro_batch) [(0, 0), (0, 0)]",
            (TASK, TASK.replace("stage=j, micro_batch=i", "stage=0, micro_batch=0")),
        ),
    },
    None: {
        "closes itself": ("(8, 1) with split_size=2: it raised", (OUTPUT, f"self.close() or {OUTPUT}")),
        "hands out no task": ("a task that you wait for and that no worker has been given", (PUT, "")),
        "closes after an error": ("it raised RuntimeError: this Pipe is closed", where_it_fails("self.close(); raise")),
    },
    claims.output_is_that_of_the_module: {
        "leaves the remainder out": (
            "of [3, 3] rows, expected [3, 3, 1]. split_size",
            ("x.split", "x[: len(x) // self.split_size * self.split_size].split"),
        ),
        "gives a list": ("the output is a list, expected a Tensor", (OUTPUT, "batches")),
        "from the last to the first": ("partitions 0, 1, 2, expected row 0", (OUTPUT, "concatenate(batches[::-1])")),
        "knows one partition": ("after partition 0, expected row 0 after", (CYCLES, "clock_cycles(len(batches), 1)")),
    },
    claims.gradients_are_those_of_the_module: {
        "detaches the output": ("missing. Autograd has to see everything", (OUTPUT, "concatenate(batches).detach()"))
    },
    claims.tasks_of_a_clock_run_at_the_same_time: {
        "task by task": ("2, 0)] did not run at the same", (COMPUTE, "[self.compute(batches, [x]) for x in schedule]"))
    },
    claims.each_partition_works_on_its_device: {
        "all on the first device": ("given a micro-batch on cpu", (TASK, TASK.replace("devices[j]", "devices[0]"))),
        "torch.cat": ("results of float32 and of float64 gave an output", (OUTPUT, "torch.cat(batches)")),
        "brings the output back": ("the output was put on another", (OUTPUT, f"{OUTPUT}.to(x.device)")),
    },
    claims.the_first_error_is_raised: {
        "goes on after an error": (
            "raised a ValueError: nothing was raised, though a partition",
            where_it_fails("pass"),
        ),
        "a new error": ("another ValueError came out", where_it_fails("raise type(error)(str(error)) from None")),
        "raises the last failure": ("0 came out, expected that of partition 1", where_it_fails(LAST_FAILURE)),
        "waits for all but the last": ("raised a ValueError: the error came", ("in tasks:", "in tasks[:-1]:")),
    },
}
RIGHT = {
    "numbers by position": [(TASK, TASK.replace("stage=j, micro_batch=i", "j, i"))],
    "handed out from the last to the first": [(PUT, ""), (WAIT, LATER)],
    "keeps the first failure": [where_it_fails(LAST_FAILURE.replace("= error", "= locals().get('failed') or error"))],
    "micro-batches by slices": [
        (SPLIT, "[x[start : start + self.split_size] for start in range(0, len(x), self.split_size)]")
    ],
}
CALL = "run_stage(self.partitions[j], batches[i], self.devices[j], j, i)"
INNER = f"""tasks = []
        def call(): return {CALL}
"""
WRONG[claims.compute_does_its_schedule] |= {
    "a lambda that looks up": (
        "each task has the partition and micro-batch of the last pair, (1, 1)",
        (TASK, f"Task(lambda: {CALL})"),
    ),
    "an inner function that looks up": ("of the last pair, (1, 1)", (TASK, "Task(call)"), (BEGIN, INNER)),
    "a lambda that looks up one": (
        "each task has the micro-batch of the last pair",
        (TASK, f"Task(lambda j: {CALL}, j)"),
    ),
}
WRONG[claims.output_is_that_of_the_module] |= {
    "chunks": ("of [3, 3, 3] rows, expected [4, 4, 1]", (SPLIT, "list(x.chunk(-(-len(x) // self.split_size)))")),
}
WRONG[None] |= {"knows three partitions": ("(drawn with seed=", (CYCLES, "clock_cycles(len(batches), 3)"))}
OTHER_CLOCKS = """
def clock_cycles(m, n):
    for clock in range(m + n - 1):
        yield [(i, clock - i) for i in range(m) if 0 <= clock - i < n]
"""
RIGHT |= {
    "a function around run_stage": [
        (
            TASK,
            TASK.replace("(run_stage", "(lambda *given: run_stage(*given)").replace("stage=j, micro_batch=i", "j, i"),
        )
    ],
    "a lambda with values of its own": [(TASK, f"Task(lambda i=i, j=j: {CALL})")],
    "an inner function that takes them": [
        (TASK, "Task(call, i, j)"),
        (BEGIN, INNER.replace("call()", "call(i, j)")),
    ],
    "a partial": [(TASK, f"Task(partial({TASK[5:-1]}))"), "from functools import partial\n"],
    "clocks by micro-batch": [OTHER_CLOCKS],
    "a list of pairs and tasks": [
        (TAKE, "for i, task in [(i, task) for (i, _), task in zip(schedule, tasks)]:\n"),
        (RESULT, "batches[i : i + 1] = [task.result()]"),
    ],
}
