"""What runs in ranks to judge pipe.5: each rank of a schedule by itself, on stand-ins; and two ranks together on real stages."""

from __future__ import annotations

from typing import Any, NamedTuple

from labkit.judging.evidence import PIPE, Failure, attempt
from labkit.schedule import (
    EVENT_NAMES,
    Op,
    Schedule,
    forward_only,
    gpipe,
    interleaved,
    one_f_one_b,
    zero_bubble_h1,
    zero_bubble_v,
)

METHODS = EVENT_NAMES  # those of a Stage are called as their events are

ONE_STAGE_A_RANK = {
    "GPipe": gpipe(3, 3),
    "1F1B": one_f_one_b(3, 4),
    "forward only": forward_only(3, 2),
    "GPipe on a single rank": gpipe(1, 2),
}
SPLIT = {"ZB-H1": zero_bubble_h1(3, 4)}
INTERLEAVED = {"interleaved 1F1B": interleaved(2, 4, 2)}
V = {"ZB-V": zero_bubble_v(2, 4)}
ALONE = ONE_STAGE_A_RANK | SPLIT | INTERLEAVED | V

FAILING = [Op("F", 1, 1), Op("B", 1, 0)]  # of rank 1 of 1F1B
NO_GRADIENT = Op("B", 1, 1)

WORLD_SIZE, ROWS, STEPS = 2, 11, 2
TOGETHER = {"1F1B": one_f_one_b(2, 4), "ZB-H1": zero_bubble_h1(2, 4)} | INTERLEAVED | V
NOTHING, ONE = "nothing", "a 1"  # words for what an op was given


class Note(NamedTuple):
    """One call: ``what`` is ``"run"`` (of a stage), ``"receive"``, ``"send"`` or ``"finish"`` (of the mail), for ``op``.

    ``given`` says in words which tensor was given along.
    """

    what: str
    op: Op | None = None
    given: str = NOTHING


# --- what the schedule says of an op ---------------------------------------------------------------------------------


def source_of(op: Op, schedule: Schedule) -> Op | None:
    """The op of another stage whose result ``op`` takes, if there is one."""
    neighbour = op.stage - 1 if op.kind == "F" else op.stage + 1
    return _of_stage(neighbour, op, schedule)


def target_of(op: Op, schedule: Schedule) -> Op | None:
    """The op of another stage that takes the result of ``op``, if there is one."""
    neighbour = op.stage + 1 if op.kind == "F" else op.stage - 1
    return _of_stage(neighbour, op, schedule)


def _of_stage(stage: int, op: Op, schedule: Schedule) -> Op | None:
    same_way = {"F": "F", "B": "BI", "I": "BI", "W": ""}[op.kind]
    ops = (other for ops in schedule.ops for other in ops)
    return next((o for o in ops if (o.stage, o.micro_batch) == (stage, op.micro_batch) and o.kind in same_way), None)


def gives(op: Op, schedule: Schedule) -> str:
    """In words, what an op gives."""
    if op.kind == "F" and op.stage == schedule.n_stages - 1:
        return f"the loss of micro-batch {op.micro_batch}"
    return f"what {op} gives"


# --- one rank after the other, by itself -----------------------------------------------------------------------------


def probe_alone() -> dict[str, Any]:
    """What each rank of each schedule called; what came of a stage that raised, and of one without a gradient."""
    from labkit import pipe  # noqa: F401  (what is wrong with the file as a whole is said once)

    one_f_one_b = ALONE["1F1B"]
    return {
        "ranks": {name: [_alone(one, rank) for rank in range(one.n_ranks)] for name, one in ALONE.items()},
        "fails": [_alone_with_failure(op) for op in FAILING],
        "no gradient": _alone(one_f_one_b, 1, no_gradient=NO_GRADIENT),
    }


def _alone(schedule: Schedule, rank: int, **special: Op) -> tuple[list[Note], Failure | None, list[str]]:
    """The notes of one rank's step, the Failure that ended it, if one did, and what it called of torch.distributed."""
    from labkit.judging.scheduled_model import Alone

    alone = Alone(schedule, rank, **special)
    failure = attempt(alone.step, PIPE)
    return alone.notes, failure, sorted(alone.called)


def _alone_with_failure(op: Op) -> dict[str, Any]:
    """What was called in a step in which the stage raised at ``op``, and what came out of it."""
    from labkit.judging.scheduled_model import TOLD_TO_FAIL, Alone

    alone = Alone(ALONE["1F1B"], 1, fails=op)
    error = None
    try:
        alone.step()
    except Exception as caught:
        error = caught
    is_the_stages = isinstance(error, ArithmeticError) and TOLD_TO_FAIL in str(error)
    return {"notes": alone.notes, "error": error and type(error).__name__, "is the stage's": is_the_stages}


# --- two ranks together ----------------------------------------------------------------------------------------------


def probe_together() -> dict[str, Any]:
    """In each rank: the losses and gradients of some steps of each schedule, beside those of one process."""
    return {name: _together(schedule) for name, schedule in TOGETHER.items()}


def _together(schedule: Schedule) -> list[dict[str, Any]]:
    import copy

    import torch.distributed as dist
    from torch import nn

    from labkit import pipe

    numbers = sorted({op.stage for op in schedule.ops[dist.get_rank()]})
    modules = _modules(schedule.n_stages)
    plain = nn.Sequential(*copy.deepcopy(modules))
    x, target = _rows()
    tried = pipe.ScheduledPipeline([modules[number] for number in numbers], schedule, nn.functional.mse_loss)
    found = []
    for _ in range(STEPS):
        loss: Any = tried.step(x, target)
        expected = nn.functional.mse_loss(plain(x), target)
        expected.backward()
        found.append(
            {
                "loss": loss.detach() if hasattr(loss, "detach") else loss,
                "expected loss": expected.detach(),
                "gradients": {number: _gradient(modules[number]) for number in numbers},
                "expected gradients": {number: _gradient(plain[number]) for number in numbers},
            }
        )
    return found


def _gradient(stage: Any) -> Any:
    weight = stage[0].weight
    return None if weight.grad is None else weight.grad.clone()


def _rows() -> tuple[Any, Any]:
    import torch

    generator = torch.Generator().manual_seed(2)
    x, target = torch.randn(2, ROWS, 4, dtype=torch.float64, generator=generator)
    return x, target


def _modules(count: int) -> list[Any]:
    import torch
    from torch import nn

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return [nn.Sequential(nn.Linear(4, 4), nn.Tanh()).double() for _ in range(count)]
