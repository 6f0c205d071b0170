"""What ranks do in the tests of ScheduledPipeline and its messages. Without pytest and hypothesis,
which ranks need not import."""

from __future__ import annotations

import torch
import torch.distributed as dist
from small_modules import Do, gradients
from torch import nn

from labkit.parallel.pipe.p2p import P2P
from labkit.pipe import ScheduledPipeline
from labkit.schedule import forward_only

ROWS, WIDTH = 11, 6
mse = nn.functional.mse_loss


# --- models and batches ---------------------------------------------------------------------------


def block():
    return nn.Sequential(nn.Linear(WIDTH, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, WIDTH))


def frozen(module):
    return module.requires_grad_(False)


def blocks(n):
    return [block() for _ in range(n)]


# Of four stages each, or as many as are asked for.
MODELS = {
    "blocks": blocks,
    "first stage frozen": lambda n: [frozen(block()), *blocks(n - 1)],
    "last stage frozen": lambda n: [*blocks(n - 1), frozen(block())],
    "a stage that cuts the gradient off": lambda n: [block(), Do(torch.Tensor.detach), *blocks(n - 2)],
    "token ids handed on": lambda n: [nn.Identity(), nn.Sequential(nn.Embedding(5, WIDTH), block()), *blocks(n - 2)],
    "an output that is a view": lambda n: [
        nn.Sequential(block(), Do(lambda x: x.unflatten(1, (2, 3)).transpose(0, 2))),
        nn.Sequential(Do(lambda x: x.transpose(0, 2).flatten(1)), block()),
        *blocks(n - 2),
    ],
    "stages that change their input in place": lambda n: [
        nn.Sequential(Do(lambda x: x.mul_(2)), block()) for _ in range(n)
    ],
}


def model(kind, n_stages):
    torch.manual_seed(3)
    return [module.double() for module in MODELS[kind](n_stages)]


def batch(kind="blocks", rows=ROWS):
    x, target = torch.randn(2, rows, WIDTH, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    return (torch.arange(rows) % 5 if kind.startswith("token ids") else x), target


def in_one_process(kind, n_stages, steps=1, backward=True, rows=ROWS):
    """The loss, and for each stage the gradients that ``steps`` steps have added up to."""
    stages, (x, target) = model(kind, n_stages), batch(kind, rows)
    for _ in range(steps):
        loss = mse(nn.Sequential(*stages)(x.clone()), target)
        if backward and loss.requires_grad:
            loss.backward()
    return loss.detach(), dict(enumerate(map(gradients, stages)))


def masked_mse(y, target, numbers_per_row=None):
    """The mean over the numbers of ``target`` that are above 0, so many in a row, by default those
    of these rows."""
    valid = target > 0
    n = valid.sum() if numbers_per_row is None else len(y) * numbers_per_row
    return ((y - target).square() * valid).sum() / n


def masked_in_one_process(n_stages):
    stages, (x, target) = model("blocks", n_stages), batch()
    loss = masked_mse(nn.Sequential(*stages)(x), target)
    loss.backward()
    return loss.detach(), dict(enumerate(map(gradients, stages)))


# --- in a rank ------------------------------------------------------------------------------------


def rank():
    return dist.get_rank() if dist.is_initialized() else 0


def numbers_of(schedule, rank):
    return sorted({op.stage for op in schedule.ops[rank]})


def pipeline(schedule, modules, loss_fn=mse, group=None, **options):
    """This rank's, of all stages of a model. Only the rank of the last stage is given a loss."""
    mine = numbers_of(schedule, dist.get_rank(group) if dist.is_initialized() else 0)
    loss_fn = loss_fn if schedule.n_stages - 1 in mine else None
    return ScheduledPipeline([modules[i] for i in mine], schedule, loss_fn, group, **options)


def train(schedule, kind="blocks", steps=2, rows=ROWS):
    """The losses of some steps, and the gradients of this rank's stages; nobody sets them back. And
    ``x`` afterwards."""
    modules, (x, target) = model(kind, schedule.n_stages), batch(kind, rows)
    pipe = pipeline(schedule, modules)
    losses = [pipe.step(x, target) for _ in range(steps)]
    return losses, {i: gradients(modules[i]) for i in numbers_of(schedule, rank())}, x


def train_two_by_two(schedule, rows):
    """Two pipelines of two ranks, each on half of the batch; ranks of the same stage average its
    gradients."""
    from torch.distributed.algorithms.model_averaging.utils import average_parameters

    me = dist.get_rank()
    rows_of_ranks, columns = [[0, 1], [2, 3]], [[0, 2], [1, 3]]
    pipelines, replicas = ([dist.new_group(ranks) for ranks in groups] for groups in (rows_of_ranks, columns))
    across, down = pipelines[me // 2], replicas[me % 2]
    modules = model("blocks", schedule.n_stages)
    pipe = pipeline(schedule, modules, group=across)
    x, target = (part.chunk(2)[me // 2] for part in batch(rows=rows))
    loss = pipe.step(x, target)
    mine = numbers_of(schedule, pipe.rank)
    for i in mine:
        average_parameters((parameter.grad for parameter in modules[i].parameters()), down)  # takes any tensors
    return loss, {i: gradients(modules[i]) for i in mine}


# --- point to point -------------------------------------------------------------------------------


def all_kinds_of_tensors():
    base = torch.arange(24.0).reshape(4, 6)
    strided = [base.T, base[1:3, ::2], base[:, :1].expand(4, 5), torch.ones([1] * 13), torch.zeros(0, 5), base[:1, 2]]
    return [*strided, base.bfloat16(), base > 7, torch.complex(base, -base).conj(), base[0].clone().requires_grad_()]


def send_all_kinds_of_tensors():
    """From rank 0 to rank 1, in two steps. What has arrived."""
    kinds = all_kinds_of_tensors()
    schedule, received = forward_only(2, len(kinds)), []
    channel = P2P(schedule, rank(), None, {rank(): torch.device("cpu")})
    for _ in range(2):
        for op in schedule.ops[rank()]:
            if rank() == 0:
                channel.send(op, kinds[op.micro_batch])
            else:
                received.append(channel.receive(op))
        channel.finish()
    return received


# --- faults ---------------------------------------------------------------------------------------


class Fails(nn.Module):
    """Hands its input on, and calls ``fail`` in the forward or the backward pass of a
    micro-batch."""

    def __init__(self, micro_batch, fail, in_backward=False):
        super().__init__()
        self.micro_batch, self.fail, self.in_backward, self.seen = micro_batch, fail, in_backward, 0

    def forward(self, x):
        mine, self.seen = self.seen == self.micro_batch, self.seen + 1
        if mine and not self.in_backward:
            self.fail()
        return FailsInBackward.apply(x, self.fail) if mine else x


class FailsInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, fail):
        ctx.fail = fail
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        ctx.fail()


def no_such_luck():
    raise ArithmeticError("no such luck")


def step_with(schedule, stage, failing):
    """One step of a pipeline in which ``stage`` ends with the module ``failing``."""
    modules = model("blocks", schedule.n_stages)
    modules[stage] = nn.Sequential(modules[stage], failing)
    return pipeline(schedule, modules).step(*batch())


def step_with_loss(schedule, loss_fn, **options):
    return pipeline(schedule, model("blocks", schedule.n_stages), loss_fn, **options).step(*batch())


def step_with_attention(schedule):
    """What a step raises in which the first stage attends along the rows."""
    modules = model("blocks", schedule.n_stages)
    modules[0] = nn.Sequential(modules[0], nn.TransformerEncoderLayer(WIDTH, 2, 8, dtype=torch.float64))
    try:
        pipeline(schedule, modules).step(*(torch.ones(8, 5, WIDTH).double() for _ in range(2)))
    except ValueError as error:
        return f"{type(error).__name__}: {error}"


def steps_of_batches(schedule, batches):
    """A step for each batch. For each, this rank's loss, or what it has raised."""
    pipe, found = pipeline(schedule, model("blocks", schedule.n_stages)), []
    for given in batches:
        try:
            found.append(pipe.step(*given))
        except (TypeError, ValueError) as error:
            found.append(f"{type(error).__name__}: {error}")
    return found


def refused_then_right(schedule):
    """A step with a loss that is not a mean over rows, and one with a right loss, on gradients of
    1. What was raised, whether gradients were as before, the loss and the gradients."""
    modules, (x, target), per_row = model("blocks", schedule.n_stages), batch(), {}
    mine = {i: modules[i] for i in numbers_of(schedule, rank())}
    for parameter in nn.ModuleList(mine.values()).parameters():
        parameter.grad = torch.ones_like(parameter)
    before = [parameter.grad for parameter in nn.ModuleList(mine.values()).parameters()]
    pipe = pipeline(schedule, modules, lambda y, t: masked_mse(y, t, **per_row))
    raised = ""
    try:
        pipe.step(x, target)
    except ValueError as error:
        raised = f"{type(error).__name__}: {error}"
    after = [parameter.grad for parameter in nn.ModuleList(mine.values()).parameters()]
    same = all(one is other and one.eq(1).all() for one, other in zip(before, after, strict=True))
    per_row["numbers_per_row"] = (target > 0).sum() / len(target)
    loss = pipe.step(x, target)
    return raised, same, loss, {i: gradients(module) for i, module in mine.items()}


def only_steps(schedule, batches):
    """A step for each batch, of which each rank gets what is for it."""
    pipe = pipeline(schedule, model("blocks", schedule.n_stages))
    for given in batches:
        pipe.step(*given)


def begin(arguments):
    ScheduledPipeline(*arguments[rank()])


def begin_twice(arguments, schedule):
    """First a pipeline of this rank's ``arguments``, a tuple for each rank, and what it has raised;
    then a step of a good one."""
    try:
        raised = begin(arguments)
    except Exception as error:
        raised = f"{type(error).__name__}: {error}"
    return raised, step_with_loss(schedule, mse)
