### INSTRUCTORS ONLY: this file holds answers, so it is not in the student edition
"""Wrong answers to dp.3 and dp.4, each with the claim that rejects it and a phrase of the finding; and right ones."""

from __future__ import annotations

from labkit.judging import gradients_claims as claims

# --- dp.3: through rank 0 --------------------------------------------------------------------------------------------


def through_rank_0(body: str, gradient: str = "p.grad.contiguous()") -> str:
    """gather_scatter_gradients that does this for each parameter with a gradient g; n ranks."""
    return f"""
def gather_scatter_gradients(model):
    rank, n = dist.get_rank(), dist.get_world_size()
    for p in model.parameters():
        if p.grad is not None:
            g = {gradient}
            {body}
"""


GATHER = "parts = [torch.empty_like(g) for _ in range(n)] if rank == 0 else None; dist.gather(g, parts); "
KEEP = "; p.grad.copy_(g.view(p.grad.shape))"


def scatter(means: str) -> str:
    return f"dist.scatter(g, {means} if rank == 0 else None)"


ZEROS_FOR_NONE = """
def gather_scatter_gradients(model):
    rank, n = dist.get_rank(), dist.get_world_size()
    for p in model.parameters():
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        parts = [torch.empty_like(p.grad) for _ in range(n)] if rank == 0 else None
        dist.gather(p.grad, parts)
        dist.scatter(p.grad, [sum(parts) / n] * n if rank == 0 else None)
"""
EVERY_RANK_AVERAGES = (
    GATHER + "all_parts = torch.empty(n, *g.shape, dtype=g.dtype); "
    "dist.scatter(all_parts, [torch.stack(parts)] * n if rank == 0 else None); p.grad.copy_(all_parts.mean(0))"
)
THROUGH_THE_LAST = (
    "parts = [torch.empty_like(g) for _ in range(n)] if rank == n - 1 else None; dist.gather(g, parts, dst=n - 1); "
    "dist.scatter(g, [sum(parts) / n] * n if rank == n - 1 else None, src=n - 1)" + KEEP
)
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

WRONG_THROUGH_RANK_0 = {
    "scatters what it gathered": (
        claims.mean_is_the_gradient_of_the_batch,
        through_rank_0(GATHER + scatter("parts") + KEEP),
        "still that of the rank's own shard: gather on rank 0, take the mean there",
    ),
    "scatters the sum": (
        claims.mean_is_the_gradient_of_the_batch,
        through_rank_0(GATHER + scatter("[sum(parts)] * n") + KEEP),
        "3 times too large",
    ),
    "does not keep what it scattered": (
        claims.mean_is_the_gradient_of_the_batch,
        through_rank_0(GATHER + scatter("[sum(parts) / n] * n"), "p.grad.clone()"),
        "put what arrives into the gradient",
    ),
    "averages on rank 0 only": (
        claims.all_ranks_agree,
        through_rank_0(GATHER + "rank or p.grad.copy_(sum(parts) / n)"),
        "rank 0 and rank 1 differ",
    ),
    "zeros for None, by way of rank 0": (claims.no_gradient_stays_none, ZEROS_FOR_NONE, "leave out grad None"),
    "averages the weights, by way of rank 0": (
        claims.weights_stay,
        through_rank_0(GATHER + scatter("[sum(parts) / n] * n") + "; p.data.copy_(g)", "p.data + rank"),
        "average parameter.grad, not the parameter",
    ),
    "uses all_reduce": (
        claims.everything_goes_through_rank_0,
        through_rank_0("dist.all_reduce(g); p.grad.copy_(g / n)"),
        "rank 0 called all_reduce: gather on rank 0",
    ),
    "uses all_gather": (
        claims.everything_goes_through_rank_0,
        through_rank_0(
            "parts = [torch.empty_like(g) for _ in range(n)]; dist.all_gather(parts, g); p.grad.copy_(sum(parts) / n)"
        ),
        "rank 0 called all_gather: gather on rank 0",
    ),
    "broadcasts": (
        claims.everything_goes_through_rank_0,
        through_rank_0(GATHER + "rank or g.copy_(sum(parts) / n); dist.broadcast(g, 0)" + KEEP),
        "rank 0 called broadcast: gather on rank 0",
    ),
    "does not scatter": (
        claims.everything_goes_through_rank_0,
        through_rank_0(GATHER + "rank or p.grad.copy_(sum(parts) / n)"),
        "did not call dist.scatter",
    ),
    "goes through the last rank": (
        claims.everything_goes_through_rank_0,
        through_rank_0(THROUGH_THE_LAST),
        "gathered on or scattered from rank 2",
    ),
    "scatters everything to everyone": (
        claims.each_gradient_travels_once,
        through_rank_0(EVERY_RANK_AVERAGES),
        "rank 0 took 960 bytes from scatter, and its gradients have 320 bytes",
    ),
    "forgets that reshape may copy": (
        claims.any_strides_do,
        through_rank_0(GATHER + scatter("[sum(parts) / n] * n"), "p.grad.reshape(-1)"),
        "if it lies transposed in memory",
    ),
}

# --- dp.4: all_reduce ------------------------------------------------------------------------------------------------


def averaging(body: str) -> str:
    return f"def average_gradients(model):\n    n = dist.get_world_size()\n    for p in model.parameters():\n        {body}\n"


WRONG_BY_ALL_REDUCE = {
    "does nothing": (
        claims.mean_is_the_gradient_of_the_batch,
        averaging("pass"),
        "still that of the rank's own shard",
    ),
    "sum": (
        claims.mean_is_the_gradient_of_the_batch,
        averaging("if p.grad is not None: dist.all_reduce(p.grad)"),
        "3 times too large: it is the sum over 3 ranks",
    ),
    "divides twice": (
        claims.mean_is_the_gradient_of_the_batch,
        averaging("if p.grad is not None: dist.all_reduce(p.grad.div_(n)); p.grad /= n"),
        "3 times too small",
    ),
    "divides only": (
        claims.mean_is_the_gradient_of_the_batch,
        averaging("if p.grad is not None: p.grad /= n"),
        "own shard divided by 3",
    ),
    "divides by two": (
        claims.mean_is_the_gradient_of_the_batch,
        averaging("if p.grad is not None: dist.all_reduce(p.grad); p.grad /= 2"),
        "neither the mean over the ranks",
    ),
    "first parameter only": (
        claims.mean_is_the_gradient_of_the_batch,
        averaging("dist.all_reduce(p.grad); p.grad /= n; break"),
        "go through every parameter",
    ),
    "rank 0 decides": (
        claims.mean_is_the_gradient_of_the_batch,
        averaging("if p.grad is not None: dist.broadcast(p.grad, 0)"),
        "is that of rank 0's shard",
    ),
    "only rank 0 knows": (
        claims.all_ranks_agree,
        averaging("if p.grad is not None: dist.reduce(p.grad.div_(n), 0)"),
        "rank 0 and rank 1 differ",
    ),
    "removes the gradients": (
        claims.mean_is_the_gradient_of_the_batch,
        averaging("p.grad = None"),
        "is gone (None)",
    ),
    "gives zeros for None": (
        claims.no_gradient_stays_none,
        averaging(
            "if p.grad is None: p.grad = torch.zeros_like(p)\n        dist.all_reduce(p.grad)\n        p.grad /= n"
        ),
        "leave out grad None",
    ),
    "averages the weights": (
        claims.weights_stay,
        averaging("p.data += 1e-3; dist.all_reduce(p.data); p.data /= n"),
        "average parameter.grad, not the parameter",
    ),
}

IN_GROUPS = (
    "def average_gradients(model, process_group=None):\n    n = SIZE\n    for p in model.parameters():\n        BODY\n"
)


def in_groups(size: str, body: str) -> str:
    return IN_GROUPS.replace("SIZE", size).replace("BODY", f"if p.grad is not None: {body}; p.grad /= n")


WRONG_BY_ALL_REDUCE |= {
    "takes no notice of the group": (
        claims.a_group_averages_among_its_ranks,
        in_groups("dist.get_world_size()", "dist.all_reduce(p.grad)"),
        "on rank 0, whose group has 2 of 3 ranks",
    ),
    "divides the group's sum by the number of all ranks": (
        claims.a_group_averages_among_its_ranks,
        in_groups("dist.get_world_size()", "dist.all_reduce(p.grad, group=process_group)"),
        "both take group=process_group",
    ),
}

WRONG = {"dp.3": WRONG_THROUGH_RANK_0, "dp.4": WRONG_BY_ALL_REDUCE}
RIGHT = {
    "dp.3": {"all gradients in one message": IN_ONE_MESSAGE},
    "dp.4": {"divides first": averaging("if p.grad is not None: p.grad = p.grad / n; dist.all_reduce(p.grad)")},
}
