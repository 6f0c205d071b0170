### INSTRUCTORS ONLY: this file holds answers, so it is not in the student edition
"""Wrong and right answers to dp.4; test_answers.py says how they are written."""

from __future__ import annotations

from labkit.check import dp_4 as claims
from labkit.check import gradients

SOME = "if parameter.grad is not None:"
SUM = "dist.all_reduce(parameter.grad, group=process_group)"
DIVIDE = "parameter.grad /= dist.get_world_size(group=process_group)"
N = "dist.get_world_size(group=process_group)"
FLAT = """
def average_gradients(model, process_group=None):
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    dist.all_reduce(flat, group=process_group)
    flat /= dist.get_world_size(group=process_group)
    for gradient, mean in zip(gradients, flat.split([gradient.numel() for gradient in gradients])):
        gradient.copy_(mean.view_as(gradient))
"""
ALL_AT_ONCE = """
def average_gradients(model, process_group=None):
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    works = [dist.all_reduce(gradient, group=process_group, async_op=True) for gradient in gradients]
    for gradient, work in zip(gradients, works):
        work.wait()
        gradient /= dist.get_world_size(group=process_group)
"""

WRONG = {
    "does nothing": (
        gradients.mean_is_the_gradient_of_the_batch,
        "still that of the rank's own shard",
        (SUM, "pass"),
        (DIVIDE, "pass"),
    ),
    "sum": (
        gradients.mean_is_the_gradient_of_the_batch,
        "3 times too large: it is the sum over 3 ranks",
        (DIVIDE, "pass"),
    ),
    "divides twice": (
        gradients.mean_is_the_gradient_of_the_batch,
        "3 times too small",
        (SUM, f"parameter.grad /= {N}; {SUM}"),
    ),
    "divides only": (
        gradients.mean_is_the_gradient_of_the_batch,
        "own shard divided by 3",
        (SUM, "pass"),
    ),
    "divides by two": (
        gradients.mean_is_the_gradient_of_the_batch,
        "neither the mean over the ranks",
        (DIVIDE, "parameter.grad /= 2"),
    ),
    "first parameter only": (
        gradients.mean_is_the_gradient_of_the_batch,
        "go through every parameter",
        (DIVIDE, DIVIDE + "; break"),
    ),
    "rank 0 decides": (
        gradients.mean_is_the_gradient_of_the_batch,
        "is that of rank 0's shard, on every rank: take the mean over all ranks",
        (SUM, "dist.broadcast(parameter.grad, 0)"),
        (DIVIDE, "pass"),
    ),
    "removes the gradients": (
        gradients.mean_is_the_gradient_of_the_batch,
        "is gone (None)",
        (DIVIDE, "parameter.grad = None"),
    ),
    "only rank 0 knows": (
        gradients.all_ranks_agree,
        "rank 0 and rank 1 differ",
        (SUM, f"dist.reduce(parameter.grad.div_({N}), 0)"),
        (DIVIDE, "pass"),
    ),
    "does not wait": (
        gradients.calls_have_ended,
        "rank 0 began all_reduce with async_op=True and never called wait()",
        (SUM, "dist.all_reduce(parameter.grad, group=process_group, async_op=True)"),
    ),
    "puts a new tensor in place": (
        gradients.gradients_change_in_place,
        "on rank 0, the grad of first.weight is another tensor than before",
        (DIVIDE, f"parameter.grad = parameter.grad / {N}"),
    ),
    "zeros for None": (
        gradients.no_gradient_stays_none,
        "frozen.weight was given one, so an optimizer would change it: leave out grad None",
        (SOME, "if parameter.grad is None: parameter.grad = torch.zeros_like(parameter)\n        if True:"),
    ),
    "forgets None": (None, "parameters without a gradient (grad is None): it raised ", (SOME, "if True:")),
    "averages the weights": (
        gradients.weights_stay,
        "average parameter.grad, not the parameter",
        (SUM, "parameter.data += 1e-3; dist.all_reduce(parameter.data)"),
        (DIVIDE, f"parameter.data /= {N}"),
    ),
    "one flat all_reduce": (
        claims.one_all_reduce_a_parameter,
        "rank 0 gave [320] bytes in 1 calls of all_reduce, and its gradients have [32, 32, 128, 128]",
        FLAT,
    ),
    "reduces and broadcasts": (
        claims.one_all_reduce_a_parameter,
        "rank 0 called broadcast and reduce: sum with all_reduce alone",
        (SUM, "dist.reduce(parameter.grad, 0); dist.broadcast(parameter.grad, 0)"),
    ),
    "takes no notice of the group": (
        claims.a_group_averages_among_its_ranks,
        "on rank 0, whose group has 2 of 3 ranks",
        (SUM, "dist.all_reduce(parameter.grad)"),
        (DIVIDE, "parameter.grad /= dist.get_world_size()"),
    ),
    "divides the group's sum by the number of all ranks": (
        claims.a_group_averages_among_its_ranks,
        "both take group=process_group",
        (DIVIDE, "parameter.grad /= dist.get_world_size()"),
    ),
}
FOLLOWS = ["does not wait", "rank 0 decides"]
OTHER_CAUSE = {"does not wait": ("divide by",), "rank 0 decides": ("[tensor] * n",)}
RIGHT = {
    "divides first": [(f"{SUM}\n            {DIVIDE}", f"{DIVIDE}; {SUM}")],
    "all at once": ALL_AT_ONCE,
}
