### INSTRUCTORS ONLY: this file holds answers, so it is not in the student edition
"""Wrong and right answers to dp.3; test_answers.py says how they are written."""

from labkit.check import dp_3 as claims
from labkit.check import dp_4 as gradients
from labkit.check.calls import calls_have_ended

GRADIENT = "gradient = parameter.grad.contiguous()"
LIST = "[torch.empty_like(gradient) for _ in range(world_size)]"
GATHER = "dist.gather(gradient, gathered)"
MEANS = "[torch.stack(gathered).mean(dim=0)] * world_size"
SCATTER = "dist.scatter(gradient, means)"
KEEP = "parameter.grad.copy_(gradient)"
FROM_1 = [(call, call.replace(")", ", 1)")) for call in (GATHER, SCATTER)]

WRONG = {
    gradients.mean_is_the_gradient_of_the_batch: {
        "gathers into one tensor": ("'s shard, on every rank", (LIST, "[torch.empty_like(gradient)] * world_size")),
    },
    calls_have_ended: {
        "does not wait": ("never called wait()", (SCATTER, "dist.scatter(gradient, means, async_op=True)")),
    },
    gradients.gradients_change_in_place: {
        "puts a new tensor there": ("on rank 0, the grad of first.weight", (KEEP, "parameter.grad = gradient.clone()")),
    },
    gradients.each_gradient_travels_by_itself: {
        "goes through rank 1": ("{'gather (rank 1)'", ("if rank == 0", "if rank == 1"), *FROM_1),
    },
    claims.any_strides_do: {
        "leaves the mean in the copy": ("on rank 0, the gradient of first.weight", (KEEP, "pass")),
    },
    None: {
        "ignores strides": ("and strides (1, 4) is not contiguous", (GRADIENT, "gradient = parameter.grad")),
        "ignores strides after rank 0": (
            "scatter: a tensor of shape (4, 4) and strides (1, 4)",
            ("grad.contiguous()", "grad if rank else parameter.grad.contiguous()"),
        ),
    },
}
RIGHT = {
    "row by row": [
        (GRADIENT, "gradient = parameter.grad.flatten()"),
        (LIST, "list(gradient.new_empty(world_size, gradient.numel()))"),
        (MEANS, "[sum(gathered) / world_size] * world_size"),
        (KEEP, "parameter.grad[:] = gradient.view(parameter.grad.shape)"),
    ],
}
WRONG[None] |= {"room for three": ("Output list size should be", ("range(world_size)", "range(3)"))}
WRONG[gradients.mean_is_the_gradient_of_the_batch] |= {
    "leaves out what is frozen": (
        "frozen since (requires_grad is False): on rank 0, the gradient of first.weight is still that of the rank's own",
        ("grad is not None:", "grad is not None and parameter.requires_grad:"),
    ),
    "divides by three": ("neither the mean over the ranks", (MEANS, "[sum(gathered) / 3] * world_size")),
    "stops at the first without": (
        "is still that of the rank's own",
        ("if parameter.grad is not None:", "if parameter.grad is None:\n            break\n        if True:"),
    ),
}
RIGHT |= {
    "adds up in the first": [
        (MEANS, "[gathered[0].add_(sum(gathered[1:])).div_(world_size)] * world_size"),
        (KEEP, "parameter.grad.data.copy_(gradient)"),
    ],
}
