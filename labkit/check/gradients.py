"""What dp.3 and dp.4 have in common: a small model on three ranks whose gradients are averaged, and what must become of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
WAYS = {  # of a function: how it averages; and what to look for where all ranks have the gradient of one
    "gather_scatter_gradients": (
        "gather on rank 0, take the mean there, scatter it, and put what arrives into the gradient",
        "take the mean over a list that has a tensor of its own for each rank; [tensor] * n is n times the same one",
    ),
    "average_gradients": ("sum with all_reduce, divide by get_world_size()", "take the mean over all ranks"),
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

        rank, size = dist.get_rank(), BATCH // WORLD_SIZE
        model = self.model()
        self.put_gradients(model, slice(rank * size, (rank + 1) * size))
        for parameter in model.parameters():
            if parameter.grad is not None and parameter.grad.dim() == 2:
                parameter.grad = self._laid_out(parameter.grad, rank)
        own, tensors = _by_name(model), {name: p.grad for name, p in model.named_parameters()}
        options = {"process_group": _own_group(rank)} if self.kind == "groups" else {}
        with recorded() as calls:
            getattr(dp, self.function)(model, **options)
        moved = [name for name, p in model.named_parameters() if _address(p.grad) != _address(tensors[name])]
        weights = dict(model.state_dict())
        return {"own": own, "averaged": _by_name(model), "weights": weights, "moved": moved, "calls": calls}

    def _laid_out(self, gradient: Any, rank: int) -> Any:
        if self.kind == "transposed" or (self.kind == "unlike" and rank == 0):
            return gradient.t().contiguous().t()
        return gradient.repeat_interleave(2, dim=1)[:, ::2] if self.kind == "sliced" else gradient

    def model(self) -> Any:
        """Return the same small model each time, in float64: two layers that learn, and two that get no gradient."""
        import torch

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(7)
            model = torch.nn.ModuleDict(
                {name: torch.nn.Linear(4, 4) for name in ("first", "frozen", "unused", "last")}
            ).double()
        model["frozen"].requires_grad_(False)
        if self.kind != "none":
            del model["unused"], model["frozen"]
        return model

    def put_gradients(self, model: Any, rows: slice) -> None:
        """Put the gradients of the mean loss over some rows of the one batch into the parameters."""
        import torch

        inputs, targets = torch.randn(2, BATCH, 4, generator=torch.Generator().manual_seed(11), dtype=torch.float64)
        hidden = torch.tanh(model["first"](inputs[rows]))
        if self.kind == "none":
            hidden = model["frozen"](hidden)
        torch.nn.functional.mse_loss(model["last"](hidden), targets[rows]).backward()

    def expected(self, rank: int, seen: Any) -> dict[str, Any]:
        """Return the gradients of the whole batch in one process; of a group, the mean over its ranks."""
        if self.kind == "groups":
            members = [found["own"] for found in (seen[:2] if rank < 2 else seen[2:])]
            return {name: sum(own[name] for own in members) / len(members) for name in members[0]}
        model = self.model()
        self.put_gradients(model, slice(None))
        return {name: gradient for name, gradient in _by_name(model).items() if gradient is not None}


def _by_name(model: Any) -> dict[str, Any]:
    """Return a copy of each parameter's gradient, or None, by the parameter's name."""
    return {name: None if p.grad is None else p.grad.detach().clone() for name, p in model.named_parameters()}


def _address(gradient: Any) -> int | None:
    return None if gradient is None else gradient.data_ptr()


def _own_group(rank: int) -> Any:
    import torch.distributed as dist

    groups = [dist.new_group(ranks) for ranks in ([0, 1], [2])]
    return groups[rank // 2]


def close(found: Any, expected: Any) -> bool:
    """Return whether a gradient is there, and equal up to rounding."""
    return found is not None and found.shape == expected.shape and bool(found.allclose(expected, rtol=1e-9, atol=1e-12))


def sizes(found: Any) -> list[int]:
    """Return the bytes of each gradient that a rank has."""
    return sorted(gradient.nbytes for gradient in found["own"].values() if gradient is not None)


def add_claims(task: Task, function: str) -> None:
    """Add to ``task`` what must hold in whatever way ``function`` averages."""
    plain, none = Case(function, "plain"), Case(function, "none")
    task.claim([plain])(calls_have_ended)
    task.claim([plain, none], after=[calls_have_ended])(mean_is_the_gradient_of_the_batch)
    task.claim([plain], after=[calls_have_ended])(all_ranks_agree)
    task.claim([plain], after=[mean_is_the_gradient_of_the_batch])(gradients_change_in_place)
    task.claim([none])(no_gradient_stays_none)
    task.claim([plain])(weights_stay)


def mean_is_the_gradient_of_the_batch(case: Case, seen: Any) -> str | None:
    """After it, every rank has the gradient of the whole batch, as a single process computes it."""
    expected = case.expected(0, seen)
    pairs = [(rank, name) for rank in range(WORLD_SIZE) for name in expected]
    wrong = [(rank, name) for rank, name in pairs if not close(seen[rank]["averaged"][name], expected[name])]
    if not wrong:
        return None
    rank, name = wrong[0]
    some = "" if wrong == pairs else ". Not all are wrong: go through every parameter and rank"
    how = _compare(seen, rank, name, expected[name], case)
    return f"on rank {rank}, the gradient of {name} {how}{some}"


def all_ranks_agree(case: Case, seen: Any) -> str | None:
    """After it, all ranks have the same gradients, to the last bit."""
    for name, gradient in seen[0]["averaged"].items():
        for rank, found in enumerate(seen):
            other = found["averaged"][name]
            if (other is None) != (gradient is None) or (gradient is not None and not other.equal(gradient)):
                return f"rank 0 and rank {rank} differ in the gradient of {name}: their models would drift apart"
    return None


def gradients_change_in_place(case: Case, seen: Any) -> str | None:
    """Each gradient is changed in place: it stays the tensor that it was."""
    for rank, found in enumerate(seen):
        if found["moved"]:
            return (
                f"on rank {rank}, the grad of {found['moved'][0]} is another tensor than before, and who holds the one "
                "before, such as a bucket, sees nothing of the mean. Put the mean into it: copy_, or an operation in place"
            )
    return None


def no_gradient_stays_none(case: Case, seen: Any) -> str | None:
    """A parameter without a gradient, frozen or not used, stays without one."""
    for found in seen:
        for name, own in found["own"].items():
            if own is None and found["averaged"][name] is not None:
                return f"{name} was given one, so an optimizer would change it: leave out grad None"
    return None


def weights_stay(case: Case, seen: Any) -> str | None:
    """The parameters themselves stay as they are."""
    for name, weight in case.model().state_dict().items():
        if not all(found["weights"][name].equal(weight) for found in seen):
            return f"{name} has changed: average parameter.grad, not the parameter"
    return None


def _compare(seen: Any, rank: int, name: str, expected: Any, case: Case) -> str:
    """Return in what way a gradient is wrong."""
    way, one_rank = WAYS[case.function]
    found, own, n = seen[rank]["averaged"][name], seen[rank]["own"][name], WORLD_SIZE
    if found is None:
        return "is gone (None): change it in place, or put the mean there"
    for other in range(n):
        if all(close(each["averaged"][name], seen[other]["own"][name]) for each in seen):
            return f"is that of rank {other}'s shard, on every rank: {one_rank}"
    for numbers, how in (
        (own, f"is still that of the rank's own shard: {way}"),
        (expected * n, f"is {n} times too large: it is the sum over {n} ranks, divide it by the world size"),
        (expected / n, f"is {n} times too small: it is the mean divided by the world size once more"),
        (own / n, f"is that of its own shard divided by {n}: sum over the ranks as well"),
    ):
        if close(found, numbers):
            return how
    return f"is neither the mean over the ranks, nor their sum, nor its own: {way}"
