"""What dp.3 and dp.4 have in common: a small model on three ranks whose gradients are averaged, and
what must become of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from labkit.check.calls import calls_have_ended, recorded
from labkit.check.harness import Task

BATCH, WORLD_SIZE = 12, 3
KINDS = {  # of gradients
    "plain": "",
    "none": "parameters without a gradient (grad is None)",
    "transposed": "gradients that lie transposed in memory",
    "unlike": "gradients that lie transposed in memory on rank 0 alone",
    "sliced": "gradients that are every second column of a larger tensor",
    "groups": "ranks 0 and 1 in one process_group, rank 2 in another",
}


class Way(NamedTuple):
    """How a function averages: in words, in calls, and what to look for where all ranks have the
    gradient of one."""

    how: str
    calls: list[str]
    one_rank: str


WAYS = {
    "gather_scatter_gradients": Way(
        "gather on rank 0, take the mean there, scatter it, and put what arrives into the gradient",
        ["gather", "scatter"],
        "take the mean over a list that has a tensor of its own for each rank; [tensor] * n is n times the same one",
    ),
    "average_gradients": Way(
        "sum with all_reduce, divide by get_world_size()", ["all_reduce"], "take the mean over all ranks"
    ),
}


@dataclass(frozen=True)
class Case:
    """The student's function, and a kind of gradients or of groups."""

    function: str
    kind: str
    world_size = WORLD_SIZE

    def __str__(self) -> str:
        return KINDS[self.kind]

    def observe(self) -> Any:
        import torch.distributed as dist

        from labkit import dp

        rank = dist.get_rank()
        model, options = self.model(rank), {}
        for layer in (model["first"], model["last"]):
            if self.kind == "transposed" or (self.kind == "unlike" and rank == 0):
                layer.weight.grad = layer.weight.grad.t().contiguous().t()
            elif self.kind == "sliced":
                layer.weight.grad = layer.weight.grad.repeat_interleave(2, dim=1)[:, ::2]
        if self.kind == "groups":
            options = {"process_group": [dist.new_group(ranks) for ranks in ([0, 1], [2])][rank // 2]}
        before = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        with recorded() as calls:
            getattr(dp, self.function)(model, **options)
        after = {name: p.grad for name, p in model.named_parameters()}
        moved = [name for name in before if after[name] is None or after[name].data_ptr() != before[name].data_ptr()]
        return {"gradients": after, "weights": model.state_dict(), "moved": moved, "calls": calls}

    def model(self, *shards: int) -> Any:
        """Return the same small model each time, with the gradients of some ranks' shards of the
        one batch."""
        import torch

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(7)
            layers = {name: torch.nn.Linear(4, 4) for name in ("first", "frozen", "unused", "last")}
            inputs, targets = torch.randn(2, WORLD_SIZE, BATCH // WORLD_SIZE, 4).double()
        model = torch.nn.ModuleDict(layers).double()
        model["frozen"].requires_grad_(False)
        hidden = torch.tanh(model["first"](inputs[list(shards)]))
        if self.kind == "none":
            hidden = model["frozen"](hidden)
        else:
            del model["frozen"], model["unused"]
        torch.nn.functional.mse_loss(model["last"](hidden), targets[list(shards)]).backward()
        return model

    def gradients(self, *shards: int) -> dict[str, Any]:
        """Return the gradients of some ranks' shards, or None, by the parameter's name."""
        return {name: p.grad for name, p in self.model(*shards).named_parameters()}

    def wrong(self, seen: Any) -> list[tuple[int, str]]:
        """Return each rank and gradient that is not the mean over the ranks that average
        together."""
        groups = [(0, 1), (0, 1), (2,)] if self.kind == "groups" else [(0, 1, 2)] * WORLD_SIZE
        expected = [self.gradients(*group) for group in groups]
        pairs = [(rank, name) for rank in range(WORLD_SIZE) for name in expected[rank]]
        return [(rank, name) for rank, name in pairs if not close(seen[rank]["gradients"][name], expected[rank][name])]


def close(found: Any, expected: Any) -> bool:
    """Return whether a gradient is equal up to rounding, or there is none where none is
    expected."""
    if found is None or expected is None:
        return found is expected
    return found.shape == expected.shape and bool(found.allclose(expected, rtol=1e-9, atol=1e-12))


def averaging(function: str) -> Task:
    """Return a task of what must hold in whatever way ``function`` averages."""
    task, plain, none = Task(), Case(function, "plain"), Case(function, "none")
    task.claim([plain])(calls_have_ended)
    task.claim([plain, none], after=[calls_have_ended])(mean_is_the_gradient_of_the_batch)
    task.claim([plain], after=[mean_is_the_gradient_of_the_batch])(gradients_change_in_place)
    task.claim([plain])(weights_stay)
    task.claim([plain], after=[mean_is_the_gradient_of_the_batch])(each_gradient_travels_by_itself)
    return task


def mean_is_the_gradient_of_the_batch(case: Case, seen: Any) -> Any:
    """After it, every rank has the gradient of the whole batch, as a single process computes it."""
    wrong = case.wrong(seen)
    some = ""
    if case.kind == "plain" and len(wrong) < len(seen) * len(seen[0]["gradients"]):
        some = ". Others are right: go through every parameter and rank"
    for rank, name in wrong:
        return f"on rank {rank}, the gradient of {name} {_compare(case, seen, rank, name)}{some}"
    for name, gradient in seen[0]["gradients"].items():
        if gradient is not None and not all(found["gradients"][name].equal(gradient) for found in seen):
            return f"ranks differ in the last bits of {name}'s gradient: their models would drift apart"


def _compare(case: Case, seen: Any, rank: int, name: str) -> str:
    """Return in what way a gradient is wrong."""
    way, found, n = WAYS[case.function], seen[rank]["gradients"][name], WORLD_SIZE
    expected, *shards = [case.gradients(*shards)[name] for shards in ((0, 1, 2), (0,), (1,), (2,))]
    if expected is None:
        return "was None, and it was given one, so an optimizer would change it: leave out grad None"
    if found is None:
        return "is gone (None): change it in place, or put the mean there"
    for other, shard in enumerate(shards):
        if all(close(each["gradients"][name], shard) for each in seen):
            return f"is that of rank {other}'s shard, on every rank: {way.one_rank}"
    for numbers, how in (
        (shards[rank], f"is still that of the rank's own shard: {way.how}"),
        (expected * n, f"is {n} times too large: it is the sum over {n} ranks, divide it by the world size"),
        (expected / n, f"is {n} times too small: it is the mean divided by the world size once more"),
        (shards[rank] / n, f"is that of its own shard divided by {n}: sum over the ranks as well"),
    ):
        if close(found, numbers):
            return how
    return f"is neither the mean over the ranks, nor their sum, nor its own: {way.how}"


def gradients_change_in_place(case: Case, seen: Any) -> Any:
    """Each gradient is changed in place: it stays the tensor that it was."""
    for rank, found in enumerate(seen):
        if found["moved"]:
            moved = f"on rank {rank}, the grad of {found['moved'][0]} is another tensor than before"
            return f"{moved}; who holds that, such as a bucket, sees nothing of the mean. Put the mean into it: copy_, or /="


def weights_stay(case: Case, seen: Any) -> Any:
    """The parameters themselves stay as they are."""
    for name, weight in case.model(0).state_dict().items():
        if not all(found["weights"][name].equal(weight) for found in seen):
            return f"{name} has changed: average parameter.grad, not the parameter"


def each_gradient_travels_by_itself(case: Case, seen: Any) -> Any:
    """Each gradient travels once, by itself, and by the operations of this task alone."""
    way, expected = WAYS[case.function], sorted(gradient.nbytes for gradient in case.gradients(0).values())
    for rank, found in enumerate(seen):
        if others := {name for name, *_ in found["calls"]} - set(way.calls):
            return f"rank {rank} called {' and '.join(sorted(others))}: {way.how}. The other ways are other tasks"
        if roots := {root for _, _, root, _ in found["calls"]} - {0, None}:
            return f"rank {rank} gathered on or scattered from rank {min(roots)}: let rank 0 do both"
        for name in way.calls:
            sizes = sorted(size for called, size, *_ in found["calls"] if called == name)
            if sizes != expected:
                called = f"rank {rank} called {name} {len(sizes)} times, with {sizes} bytes"
                return f"{called}, and its gradients have {expected}: call it once a parameter, with its gradient alone"
