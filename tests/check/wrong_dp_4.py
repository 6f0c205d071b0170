### INSTRUCTORS ONLY: this file holds answers, so it is not in the student edition
"""Wrong and right answers to dp.4; test_answers.py says how they are written."""

from labkit.check import dp_4 as claims
from labkit.check import gradients
from labkit.check.calls import calls_have_ended

SOME = "if parameter.grad is not None:"
SUM = "dist.all_reduce(parameter.grad, group=process_group)"
DIVIDE = "parameter.grad /= dist.get_world_size(group=process_group)"
N = "dist.get_world_size(group=process_group)"
LAST_BITS = DIVIDE + "; parameter.grad *= 1 + dist.get_rank() * 1e-15"
ZEROS = "if parameter.grad is None: parameter.grad = torch.zeros_like(parameter)\n        if True:"
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
    gradients.mean_is_the_gradient_of_the_batch: {
        "does nothing": ("still that of the rank's own shard", (SUM, "pass"), (DIVIDE, "pass")),
        "sum": ("3 times too large: it is the sum over 3 ranks", (DIVIDE, "pass")),
        "divides twice": ("3 times too small", (SUM, f"parameter.grad /= {N}; {SUM}")),
        "divides only": ("own shard divided by 3", (SUM, "pass")),
        "divides by two": ("neither the mean over the ranks", (DIVIDE, "parameter.grad /= 2")),
        "first parameter only": ("Others are right: go through every", (DIVIDE, DIVIDE + "; break")),
        "rank 0 decides": (
            "rank 0's shard, on every rank",
            (SUM, "dist.broadcast(parameter.grad, 0)"),
            (DIVIDE, "pass"),
        ),
        "removes the gradients": ("is gone (None)", (DIVIDE, "parameter.grad = None")),
        "only rank 0 knows": (
            "on rank 1, the gradient",
            (SUM, f"dist.reduce(parameter.grad.div_({N}), 0)"),
            (DIVIDE, "pass"),
        ),
        "differs in the last bits": ("ranks differ in the last bits of first.weight", (DIVIDE, LAST_BITS)),
        "zeros for None": ("frozen.weight was None, and it was given one, so an optimizer", (SOME, ZEROS)),
    },
    calls_have_ended: {
        "does not wait": (
            "rank 0 began all_reduce and never called wait()",
            (SUM, "dist.all_reduce(parameter.grad, group=process_group, async_op=True)"),
        ),
    },
    gradients.gradients_change_in_place: {
        "makes a new gradient": (
            "is another tensor than before",
            (DIVIDE, f"parameter.grad = parameter.grad / {N}"),
        ),
    },
    None: {
        "forgets None": ("parameters without a gradient (grad is None): it raised ", (SOME, "if True:")),
    },
    gradients.weights_stay: {
        "averages the weights": (
            "average parameter.grad, not the parameter",
            (SUM, "parameter.data += 1e-3; dist.all_reduce(parameter.data)"),
            (DIVIDE, f"parameter.data /= {N}"),
        ),
    },
    gradients.each_gradient_travels_by_itself: {
        "one flat all_reduce": (
            "rank 0 called all_reduce 1 times, with [320] bytes, and its gradients have [32,",
            FLAT,
        ),
        "reduces and broadcasts": (
            "rank 0 called broadcast and reduce: sum with all_reduce, divide",
            (SUM, "dist.reduce(parameter.grad, 0); dist.broadcast(parameter.grad, 0)"),
        ),
    },
    claims.a_group_averages_among_its_ranks: {
        "takes no notice of the group": (
            "on rank 0, whose group has 2 of 3 ranks",
            (SUM, "dist.all_reduce(parameter.grad)"),
            (DIVIDE, "parameter.grad /= dist.get_world_size()"),
        ),
        "divides the group's sum by the number of all ranks": (
            "both take group=process_group",
            (DIVIDE, "parameter.grad /= dist.get_world_size()"),
        ),
    },
}
RIGHT = {
    "divides first": [(f"{SUM}\n            {DIVIDE}", f"{DIVIDE}; {SUM}")],
    "all at once": [ALL_AT_ONCE],
}
