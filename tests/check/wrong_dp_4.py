### INSTRUCTORS ONLY: this file holds answers, so it is not in the student edition
"""Wrong and right answers to dp.4; test_answers.py says how they are written."""

from labkit.check import dp_4 as claims
from labkit.check.calls import calls_have_ended

SOME = "if parameter.grad is not None:"
SUM = "dist.all_reduce(parameter.grad)"
DIVIDE = "parameter.grad /= dist.get_world_size()"
ZEROS = "if parameter.grad is None: parameter.grad = torch.zeros_like(parameter)\n        if True:"
WEIGHTS = "parameter.data += dist.get_rank(); dist.all_reduce(parameter.data)"
LAST_BITS = f"{DIVIDE}; parameter.grad *= 1 + dist.get_rank() * 1e-15"
FLAT = """
def average_gradients(model):
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for gradient, mean in zip(gradients, flat.split([gradient.numel() for gradient in gradients])):
        gradient.copy_(mean.view_as(gradient))
"""
ALL_AT_ONCE = """
def average_gradients(model):
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    works = [dist.all_reduce(gradient, async_op=True) for gradient in gradients]
    for gradient, work in zip(gradients, works):
        work.wait()
        gradient /= dist.get_world_size()
"""
ALL_FROM_ALL = """
def average_gradients(model):
    for parameter in model.parameters():
        if parameter.grad is not None:
            found = [torch.empty_like(parameter.grad) for _ in range(dist.get_world_size())]
            dist.all_gather(found, parameter.grad)
            parameter.grad.copy_(sum(found) / len(found))
"""

WRONG = {
    claims.mean_is_the_gradient_of_the_batch: {
        "sum": ("3 times too large: it is the sum over 3 ranks", (DIVIDE, "pass")),
        "divides twice": ("3 times too small", (SUM, f"parameter.grad /= 3; {SUM}")),
        "divides only": ("own shard divided by 3", (SUM, "pass")),
        "divides by two": ("neither the mean over the ranks", (DIVIDE, "parameter.grad /= 2")),
        "first parameter only": ("the rank's own shard. 9 of 12 gradients are wrong", (DIVIDE, f"{DIVIDE}; break")),
        "rank 0 decides": ("rank 0's shard, on every", (SUM, "dist.broadcast(parameter.grad, 0)"), (DIVIDE, "pass")),
        "removes the gradients": ("is gone: it is None", (DIVIDE, "parameter.grad = None")),
        "differs in the last bits": ("ranks differ in the last bits of first.weight", (DIVIDE, LAST_BITS)),
        "divides by three": ("neither the mean over the ranks", (DIVIDE, "parameter.grad /= 3")),
        "in single precision": (
            "neither the mean over the ranks",
            (SUM, "single = parameter.grad.float(); dist.all_reduce(single); parameter.grad.copy_(single)"),
        ),
        "stops at the first without": (
            "is still that of the rank's own",
            (SOME, "if parameter.grad is None:\n            break\n        if True:"),
        ),
        "zeros for None": ("first.bias was None, and it was given one, so an optimizer", (SOME, ZEROS)),
        "leaves out what is frozen": (
            "frozen since (requires_grad is False): on rank 0, the gradient of first.weight is still that of the rank's own",
            (SOME, f"{SOME[:-1]} and parameter.requires_grad:"),
        ),
        "matrices and biases alone": ("(drawn with seed=", (SOME, f"{SOME[:-1]} and parameter.dim() < 3:")),
        "averages the parameters": ("average parameter.grad, not the parameter", (SUM, WEIGHTS)),
    },
    calls_have_ended: {
        "does not wait": ("rank 0 began all_reduce and never", (SUM, SUM.replace(")", ", async_op=True)")))
    },
    None: {"forgets None": ("torch.distributed was given a gradient that is None (labkit/dp.py", (SOME, "if True:"))},
    claims.all_reduce_adds_up: {
        "through rank 0": ("called gather and scatter, and no", "average_gradients = gather_scatter_gradients\n"),
        "gathers all": ("called all_gather, and no all_reduce", ALL_FROM_ALL),
    },
}
NEW, ONE = "makes a new gradient", "one flat all_reduce"
RIGHT = {
    "divides first": [(f"{SUM}\n            {DIVIDE}", f"{DIVIDE}; {SUM}")],
    "all at once": [ALL_AT_ONCE],
    NEW: [(DIVIDE, DIVIDE.replace("/=", "= parameter.grad /"))],
    ONE: [FLAT],
    "the mean of the backend": [(SUM, SUM.replace(")", ", op=dist.ReduceOp.AVG)")), (DIVIDE, "pass")],
}
REMARKS = {
    NEW: "is another tensor than before",
    ONE: "{'all_reduce': [320]}, expected {'all_reduce': [32, 32, 128, 128]}",
}
