"""What runs in a rank to judge pipe.3: the student's Pipe on small stages that note what happens to them."""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from labkit.judging.evidence import PIPE, Failure, Untried, attempt

STAGES, MICRO_BATCHES = 3, 4
CLOCKS = [  # of (micro_batch, partition), in no special order within a clock
    [(0, 0)],
    [(1, 0), (0, 1)],
    [(0, 2), (1, 1), (2, 0)],
    [(3, 0), (2, 1), (1, 2)],
    [(3, 1), (2, 2)],
    [(3, 2)],
]
AT_ONCE = [(3, 0), (2, 1), (1, 2)]
WIDTHS = (4, 6, 5, 3)  # of the input, and of what each stage gives
DEVICES = ("cpu", "cpu", "meta")  # torch's meta device is another one on every machine; its tensors have no data


class Rows(NamedTuple):
    """A batch, and how it is to be cut into micro-batches."""

    rows: int
    split_size: int

    def __str__(self) -> str:
        return f"{self.rows} row{'s' * (self.rows > 1)} with split_size={self.split_size}"


class Fails(NamedTuple):
    """A clock in which a partition raises while another one is slow."""

    schedule: list[tuple[int, int]]
    failing: int
    slow: int


FAILURES = {
    "first fails": Fails(CLOCKS[1], failing=0, slow=1),
    "second fails": Fails(CLOCKS[1], failing=1, slow=0),
    "first of three fails": Fails(AT_ONCE, failing=0, slow=1),  # neither the one that raises nor the last one is slow
}
BATCHES = [Rows(8, 2), Rows(7, 3), Rows(2, 5), Rows(3, 1), Rows(1, 1)]


def reached(clock: int) -> list[list[int]]:
    """For each micro-batch the partitions that it has gone through before this clock."""
    before = [task for schedule in CLOCKS[:clock] for task in schedule]
    return [[partition for i, partition in before if i == number] for number in range(MICRO_BATCHES)]


def described(number: int, partitions: Sequence[int]) -> str:
    """``micro-batch 2 after partitions 0, 1``."""
    if not partitions:
        return f"micro-batch {number} as it came"
    return f"micro-batch {number} after partition{'s' * (len(partitions) > 1)} {', '.join(map(str, partitions))}"


def probe_pipe(first: dict[str, Callable[[], bool]]) -> dict[str, Any]:
    """What compute and forward made of batches and of errors; or the Failure that they cannot be right yet.

    ``first``: what a Pipe is made of, by task; each says whether it is right. What is not right may not come to an end.
    """
    from labkit import pipe  # noqa: F401  (what is wrong with the file as a whole is said once)

    tries: dict[str, Callable[[], Any]] = {
        "clocks": _compute_clocks,
        "at once": _compute_at_once,
        "recorded": _compute_and_record,
        "requires grad": _compute_without_gradients,
        "forward": lambda: [_forward(case) for case in BATCHES],
        "clocks at once": _forward_clock_by_clock,
        "devices": _forward_over_devices,
        "uneven": _forward_uneven,
        **{name: functools.partial(_compute_with_failure, fails) for name, fails in FAILURES.items()},
        "forward fails": _forward_with_failure,
    }
    for task, is_right in first.items():
        if not is_right():
            return dict.fromkeys(tries, Failure(has_to_come_first(task)))
    found: dict[str, Any] = {}
    for name, code in tries.items():
        late = name == "clocks at once" and found["at once"] is not True  # it would take its time to say so again
        found[name] = (
            Untried("not tried, because compute does one task after the other") if late else attempt(code, PIPE)
        )
    return found


def has_to_come_first(task: str) -> str:
    from labkit.todo import missing

    if todo := missing(task):
        return f"{task} has to be done first ({todo.partition(': ')[2]})"
    return f'{task} has to be right first: check("{task}") says what is wrong'


# --- compute ---------------------------------------------------------------------------------------------------------


def _compute_clocks() -> list[Any]:
    """For each clock the calls of stages, and what each micro-batch is afterwards; or its Failure. It starts from what should
    have come of the clocks before it."""
    from labkit.judging.pipe_model import history, micro_batch

    def computed(clock: int) -> tuple[list[Any], list[str]]:
        notes.anew()
        batches = [micro_batch(number, partitions) for number, partitions in enumerate(reached(clock))]
        tried.compute(batches, list(CLOCKS[clock]))
        return notes.calls, [history(batch) for batch in batches]

    with _digits() as (tried, notes, _):
        return [attempt(functools.partial(computed, clock), PIPE) for clock in range(len(CLOCKS))]


def _compute_at_once() -> bool:
    """Whether the tasks of a clock ran at the same time."""
    with _digits() as (tried, notes, batches):
        notes.anew([partition for _, partition in AT_ONCE])
        tried.compute(batches, list(AT_ONCE))
        return not notes.missed


def _compute_and_record() -> list[tuple[int, int]]:
    """The stage and the micro-batch of each span of a clock, in order."""
    from labkit.trace import Recorder

    recorder = Recorder()
    with _digits() as (tried, _, batches):
        recorder.start()
        try:
            tried.compute(batches, list(AT_ONCE))
        finally:
            rows = recorder.finish()
        return sorted((stage, number) for _, name, _, stage, number, *_ in rows if name == "forward")


def _compute_without_gradients() -> bool:
    """Whether a clock inside torch.no_grad() kept anything for a backward pass."""
    import torch

    with _layers(1) as (tried, _, _):
        batches = [_rows(1)]
        with torch.no_grad():
            tried.compute(batches, [(0, 0)])
        return bool(batches[0].requires_grad)


def _compute_with_failure(fails: Fails) -> dict[str, Any]:
    """What came of a clock in which a stage raised; and of the same clock afterwards, with new batches."""
    from labkit.judging.pipe_model import history, micro_batch

    schedule = fails.schedule
    with _digits() as (tried, notes, batches):
        notes.fail(fails.failing, fails.slow)
        error = _raised_by(functools.partial(tried.compute, batches, list(schedule)))
        still_running = notes.running
        notes.fail(None)
        others = [(number + 2) % MICRO_BATCHES for number in range(MICRO_BATCHES)]
        batches = list(map(micro_batch, others))
        again = _raised_by(functools.partial(tried.compute, batches, list(schedule)))
        return {
            "error": error,
            "still running": still_running,
            "again": again,
            "found": {f"batches[{number}]": history(batch) for number, batch in enumerate(batches)},
            "expected": {
                f"batches[{number}]": described(others[number], [partition]) for number, partition in schedule
            },
        }


# --- forward ---------------------------------------------------------------------------------------------------------


def _forward(case: Rows) -> dict[str, Any]:
    """The micro-batches' rows; and the output and gradients of the pipe, or its Failure, and those of the plain module."""
    import torch

    with _layers(case.split_size) as (tried, notes, layers):
        x = _rows(case.rows)
        expected = _output_and_gradients(torch.nn.Sequential(*layers), x, layers)
        notes.anew()
        found = attempt(lambda: _output_and_gradients(tried, x, layers), PIPE)
        return {
            "rows": [call.rows for call in notes.calls if call.stage == 0],
            "found": Failure(f"{case}: {found.what}") if isinstance(found, Failure) else found,
            "expected": expected,
        }


def _output_and_gradients(module: Any, x: Any, layers: list[Any]) -> dict[str, Any]:
    """By name. The loss weighs each number of the output differently, so it depends on their order."""
    import torch

    for tensor in (x, *(layer.weight for layer in layers)):
        tensor.grad = None
    y = module(x)
    if not isinstance(y, torch.Tensor):
        return {"the output": f"a {type(y).__name__}"}
    if y.requires_grad:
        (y * torch.arange(1.0, 1.0 + y.numel(), dtype=y.dtype).view_as(y)).sum().backward()
    gradients = {f"the gradient of the weight of partition {n}": layer.weight.grad for n, layer in enumerate(layers)}
    return {"the output": y.detach(), **gradients, "the gradient of the input": x.grad}


def _forward_clock_by_clock() -> list[int]:
    """The clocks whose tasks did not run at the same time in a forward pass."""
    with _layers(split_size=1) as (tried, notes, _):
        notes.anew(*[[partition for _, partition in clock] for clock in CLOCKS])
        tried(_rows(MICRO_BATCHES))
        return list(notes.missed)


def _forward_over_devices() -> dict[str, Any]:
    """The device of what each stage was given, and that of the output."""
    with _layers(2, DEVICES) as (tried, notes, _):
        try:
            result = tried(_rows(4)).device.type
        except NotImplementedError:  # "Cannot copy out of meta tensor; no data!"
            result = "another device"
        return {"given": sorted({(call.stage, call.device) for call in notes.calls}), "result": result}


def _forward_uneven() -> dict[str, Any] | None:
    """What was raised where the results of two micro-batches do not fit together."""
    import torch

    from labkit import pipe
    from labkit.judging.pipe_model import Uneven

    with pipe.Pipe(_placed([Uneven()], ("cpu",))) as tried:
        return _raised_by(functools.partial(tried, torch.tensor([[-1.0], [1.0]])))


def _forward_with_failure() -> dict[str, Any]:
    """What came of a forward pass in which a stage raised; and of the next one, beside the plain module."""
    import torch

    with _layers(1) as (tried, notes, layers):
        notes.fail(1)
        error = _raised_by(functools.partial(tried, _rows(MICRO_BATCHES)))
        notes.fail(None)
        x = -_rows(MICRO_BATCHES).detach()
        found: dict[str, Any] = {}
        again = _raised_by(lambda: found.update({"the output": tried(x).detach()}))
        expected = {"the output": torch.nn.Sequential(*layers)(x).detach()}
        return {"error": error, "again": again, "found": found, "expected": expected}


def _raised_by(code: Callable[[], object]) -> dict[str, Any] | None:
    """What came out of a call: whether it is the stage's error, and whether its traceback leads there; None if nothing did."""
    from labkit.judging import pipe_model

    try:
        code()
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        return {
            "type": type(error).__name__,
            "is the stage's": isinstance(error, ValueError) and pipe_model.TOLD_TO_FAIL in str(error),
            "leads to the stage": any(frame.filename == pipe_model.__file__ for frame in frames),
        }
    return None


# --- what is tried ---------------------------------------------------------------------------------------------------


@contextmanager
def _digits() -> Iterator[tuple[Any, Any, list[Any]]]:
    """A Pipe of stages that are a Digit, their notes, and micro-batches for them."""
    from labkit import pipe
    from labkit.judging.pipe_model import Digit, Notes, micro_batch

    notes = Notes()
    modules = [Digit(stage, notes) for stage in range(STAGES)]
    with pipe.Pipe(_placed(modules, ("cpu",) * STAGES)) as tried:
        yield tried, notes, [micro_batch(number) for number in range(MICRO_BATCHES)]


@contextmanager
def _layers(split_size: int, devices: tuple[str, ...] = ("cpu",) * STAGES) -> Iterator[tuple[Any, Any, list[Any]]]:
    """A Pipe of stages that are a Layer, their notes, and the layers themselves."""
    from labkit import pipe
    from labkit.judging.pipe_model import Layer, Notes

    notes = Notes()
    layers = [Layer(n, notes, WIDTHS[n], WIDTHS[n + 1], device) for n, device in enumerate(devices)]
    with pipe.Pipe(_placed(layers, devices), split_size) as tried:
        yield tried, notes, layers


def _placed(modules: list[Any], devices: tuple[str, ...]) -> Any:
    """The modules in a row, those on the CPU each on a virtual device of its own."""
    from torch import nn

    from labkit import pipe

    names = [f"cpu:{number}" if device == "cpu" else device for number, device in enumerate(devices)]
    return nn.Sequential(*map(pipe.WithDevice, modules, names))


def _rows(count: int) -> Any:
    import torch

    rows = torch.linspace(-1, 1, count * WIDTHS[0], dtype=torch.float64).view(count, WIDTHS[0])
    return rows.requires_grad_()
