### INSTRUCTORS ONLY: this file holds answers, so it is not in the student edition
"""Wrong and right answers to dp.3; test_answers.py says how they are written."""

from labkit.check import dp_3 as claims
from labkit.check import gradients
from labkit.check.calls import calls_have_ended

SOME = "if parameter.grad is not None:"
GRADIENT = "gradient = parameter.grad.contiguous()"
COPY = (GRADIENT, "gradient = parameter.grad.clone()")
LIST = "[torch.empty_like(gradient) for _ in range(world_size)]"
GATHER = "dist.gather(gradient, gathered)"
MEANS = "[torch.stack(gathered).mean(dim=0)] * world_size"
SCATTER = "dist.scatter(gradient, means)"
KEEP = "parameter.grad.copy_(gradient)"
IN_ONE_MESSAGE = """
def gather_scatter_gradients(model):
    from torch.distributed import gather, get_rank, get_world_size, scatter
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    if get_rank() == 0:
        rows = torch.empty(get_world_size(), flat.numel(), dtype=flat.dtype)
        gather(flat, list(rows))
        scatter(flat, list((rows.sum(0) / get_world_size()).expand_as(rows).contiguous()))
    else:
        gather(flat)
        scatter(flat)
    for gradient, mean in zip(gradients, flat.split([gradient.numel() for gradient in gradients])):
        gradient.copy_(mean.view_as(gradient))
"""
ROOT_BY_ROOT = """
def gather_scatter_gradients(model):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for gradient in [p.grad for p in model.parameters() if p.grad is not None]:
        if rank == 0:
            rows = torch.empty(world_size, gradient.numel(), dtype=gradient.dtype)
            dist.gather(gradient.reshape(-1).clone(), list(rows))
            rows[:] = rows.sum(0) / world_size
        mean = torch.empty(gradient.numel(), dtype=gradient.dtype)
        if rank:
            dist.gather(gradient.flatten())
        dist.scatter(mean, list(rows) if rank == 0 else None)
        gradient[:] = mean.view(gradient.shape)
"""

LAST_BITS = KEEP + "; parameter.grad *= 1 + rank * 1e-15"
ZEROS = "parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad; "
SCATTERS_ALL = "parts = gradient.new_empty(3, *gradient.shape); dist.scatter(parts, means); gradient = parts.mean(0)"

WRONG = {
    gradients.mean_is_the_gradient_of_the_batch: {
        "scatters what it gathered": ("still that of the rank's own shard: gather on rank 0,", (MEANS, "gathered")),
        "scatters the sum": ("3 times too large", (".mean(dim=0)", ".sum(dim=0)")),
        "does not keep what it scattered": ("put what arrives into the gradient", COPY, (KEEP, "pass")),
        "gathers into one tensor": ("its own for each rank", (LIST, "[torch.empty_like(gradient)] * world_size")),
        "averages on rank 0 only": (
            "on rank 1, the gradient of first.weight is still that of the rank's own shard",
            (SCATTER, "gradient = means[0] if means else gradient"),
        ),
        "differs in the last bits": ("ranks differ in the last bits of first.weight", (KEEP, LAST_BITS)),
        "zeros for None": (
            "parameters without a gradient (grad is None): on rank 0, the gradient of frozen.weight was None",
            (SOME, "if True:"),
            (GRADIENT, ZEROS + GRADIENT),
        ),
    },
    calls_have_ended: {
        "does not wait": ("and never called wait()", (SCATTER, "dist.scatter(gradient, means, async_op=True)")),
    },
    gradients.gradients_change_in_place: {
        "puts a new tensor in place": (
            "on rank 0, the grad of first.weight is another tensor than before",
            COPY,
            (KEEP, "parameter.grad = gradient"),
        ),
    },
    None: {
        "forgets None": ("None): it raised AttributeError", (SOME, "if True:")),
    },
    gradients.weights_stay: {
        "averages the weights": (
            "average parameter.grad, not the parameter",
            (GRADIENT, "gradient = parameter.data + rank"),
            (KEEP, "parameter.data.copy_(gradient)"),
        ),
    },
    gradients.each_gradient_travels_by_itself: {
        "uses all_reduce": (
            "rank 0 called all_reduce: gather on rank 0",
            (GATHER, "dist.all_reduce(gradient)"),
            (MEANS, "None"),
            (SCATTER, "gradient = gradient / world_size"),
        ),
        "broadcasts": (
            "rank 0 called broadcast: gather on rank 0",
            (SCATTER, "rank or gradient.copy_(means[0]); dist.broadcast(gradient, 0)"),
        ),
        "goes through the last rank": (
            "gathered on or scattered from rank 2",
            ("if rank == 0", "if rank == 2"),
            (GATHER, "dist.gather(gradient, gathered, dst=2)"),
            (SCATTER, "dist.scatter(gradient, means, src=2)"),
        ),
        "scatters everything to everyone": (
            "rank 0 called scatter 4 times, with [96, 96, 384, 384] bytes, and its gradients have [32, 32, 128, 128]",
            (MEANS, "[torch.stack(gathered)] * world_size"),
            (SCATTER, SCATTERS_ALL),
        ),
        "all gradients in one message": ("rank 0 called gather 1 times, with [320] bytes, and its", IN_ONE_MESSAGE),
    },
    claims.any_strides_do: {
        "forgets that reshape may copy": (
            "gradients that lie transposed in memory: on rank 0, the gradient of first.weight is not the mean",
            (GRADIENT, "gradient = parameter.grad.reshape(-1)"),
            (KEEP, "pass"),
        ),
        "ignores strides": ("gradients that lie transposed in memory: on", (GRADIENT, "gradient = parameter.grad")),
        "turns round what lies transposed": (
            "gradients that lie transposed in memory on rank 0 alone: on rank ",
            (GRADIENT, "gradient = parameter.grad if parameter.grad.is_contiguous() else parameter.grad.t()"),
            (KEEP, "pass"),
        ),
    },
}
RIGHT = {"row by row": [ROOT_BY_ROOT]}
