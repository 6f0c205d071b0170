"""dp.4: average_gradients averages the gradients of a small model on three ranks.

dp.3 asks the same of the gradients, so that file takes its claims from here.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from labkit.base.texts import listed
from labkit.check.calls import calls_have_ended, recorded
from labkit.check.closeness import close, times_off
from labkit.check.harness import Finding, Task

NONE = "parameters without a gradient (grad is None)"
FROZEN = "a layer that has gradients, and is frozen since (requires_grad is False)"
UNLIKE = "gradients that lie transposed in memory, first.weight's on rank 0, last.weight's on the others"


class Case(NamedTuple):
    """A way to average, in calls, and what is special about the gradients."""

    function: str
    calls: tuple[str, ...]
    special: str = ""
    world_size: int = 3
    width: int = 4
    dims: tuple[int, ...] = ()  # of more parameters, each of one number

    def __str__(self) -> str:
        more = f"with {self.world_size} ranks, and parameters of {listed(self.dims)} dimensions, too"
        return self.special or more * bool(self.dims)

    @property
    def ranks(self) -> range:
        return range(self.world_size)

    def observe(self) -> Any:
        import torch.distributed as dist

        from labkit import dp

        model = self.model(dist.get_rank())
        held = {name: p.grad.detach() for name, p in model.named_parameters() if p.grad is not None}
        with recorded() as calls, _none_named():
            getattr(dp, self.function)(model)
        gradients = {name: p.grad for name, p in model.named_parameters()}
        new = {name: grad for name, grad in gradients.items() if grad is not None}
        moved = [name for name, old in held.items() if name not in new or not new[name].is_set_to(old)]
        return {"gradients": gradients, "moved": moved, "weights": model.state_dict(), "calls": calls}

    def model(self, *shards: int) -> Any:
        """Return the same model each time, with the gradients of these ranks' shards of a batch."""
        import torch

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(7)
            model = torch.nn.ModuleDict({name: torch.nn.Linear(self.width, self.width) for name in ("first", "last")})
            model["scales"] = torch.nn.ParameterList(torch.full([1] * n, 1 + n / 4) for n in self.dims)
            model = model.double()
            inputs, targets = torch.randn(2, self.world_size, 4, self.width).double()[:, list(shards)]
        hidden = model["first"](inputs).tanh()
        for scale in model["scales"].parameters():
            hidden = hidden * scale.sum()
        torch.nn.functional.mse_loss(model["last"](hidden), targets).backward()
        if self.special == NONE:
            model["first"].bias.grad = None
        if self.special == FROZEN:
            model["first"].requires_grad_(False)
        if self.special == UNLIKE:
            weight: Any = model["first" if shards == (0,) else "last"].weight
            weight.grad = weight.grad.t().contiguous().t()
        return model

    def gradients(self, *shards: int) -> dict[str, Any]:
        """Return the gradients of some ranks' shards, or None, by the parameter's name."""
        return {name: p.grad for name, p in self.model(*shards).named_parameters()}

    def wrong(self, seen: Any) -> list[tuple[int, str]]:
        """Return each rank and gradient that is not the mean over the ranks."""
        means = self.gradients(*self.ranks).items()
        return [
            (rank, name)
            for rank in self.ranks
            for name, mean in means
            if not close(seen[rank]["gradients"][name], mean)
        ]


@contextmanager
def _none_named() -> Iterator[None]:
    """Say in the reader's terms what torch.distributed says of None."""
    try:
        yield
    except TypeError as error:
        if "<class 'NoneType'>" in str(error):
            raise TypeError("torch.distributed was given a gradient that is None") from error
        raise


def averaging(plain: Case, strict: bool, **record: Any) -> Task:
    """Return a task of what must hold in whatever way the gradients are averaged.

    Unless ``strict``, they need not change in place, nor travel one by one.
    """

    def drawn(draw: random.Random) -> list[Case]:
        return [plain._replace(world_size=2, width=draw.choice((2, 3, 5, 6)), dims=(3, 5))]

    task = Task(**record)
    task.claim([plain])(calls_have_ended)
    special = (plain._replace(special=each) for each in (NONE, FROZEN))
    task.claim([plain, *special, drawn], core=True)(mean_is_the_gradient_of_the_batch)
    for holds in (gradients_change_in_place, each_gradient_travels_by_itself):
        (task.claim if strict else task.remark)([plain])(holds)
    return task


def mean_is_the_gradient_of_the_batch(case: Case, seen: Any) -> Finding:
    """Every rank gets the gradient of the whole batch, as a single process does; weights stay."""
    for name, weight in case.model(0).state_dict().items():
        if not all(found["weights"][name].equal(weight) for found in seen):
            return f"{name} has changed: average parameter.grad, not the parameter"
    wrong = case.wrong(seen)
    for rank, name in wrong:
        instead = _instead(case, seen, rank, name)
        what = f"on rank {rank}, the gradient of {name} {instead}"
        return f"{what}. {len(wrong)} of {len(case.gradients(0)) * case.world_size} gradients are wrong"
    for name, gradient in seen[0]["gradients"].items():
        others = [found["gradients"][name] for found in seen]
        if gradient is not None and not all(other.equal(gradient) for other in others):
            return f"ranks differ in the last bits of {name}'s gradient: models would drift apart"


def _instead(case: Case, seen: Any, rank: int, name: str) -> str:
    """Return what a gradient is instead of the mean."""
    mean, *shards = [case.gradients(*shards)[name] for shards in (case.ranks, *((rank,) for rank in case.ranks))]
    n = case.world_size
    if mean is None:
        return "was None, and it was given one, so an optimizer changes it"
    for other, shard in enumerate(shards):
        if all(close(found["gradients"][name], shard) for found in seen):
            return f"is that of rank {other}'s shard, on every rank"
    found, own = seen[rank]["gradients"][name], shards[rank]
    if found is None:
        return "is gone: it is None, expected the mean"
    if close(found, own):
        return "is still that of the rank's own shard"
    if times := times_off(found, mean, n, close):
        return times
    if close(found, own / n):
        return f"is that of its own shard divided by {n}: nothing of the other ranks is in it"
    return "is neither the mean over the ranks (to 9 digits), nor their sum, nor its own"


def gradients_change_in_place(case: Case, seen: Any) -> Finding:
    """Each gradient is changed in place, so whatever holds it, such as a bucket, has the mean."""
    for rank, found in enumerate(seen):
        for name in found["moved"]:
            other = f"on rank {rank}, the grad of {name} is another tensor than before"
            return f"{other}: whatever holds the old one, such as a bucket, misses the mean"


def each_gradient_travels_by_itself(case: Case, seen: Any) -> Finding:
    """Each gradient travels once, by itself, and by the operations of this task alone."""
    sizes = sorted(gradient.nbytes for gradient in case.gradients(0).values())
    expected = dict.fromkeys(case.calls, sizes)
    for rank, found in enumerate(seen):
        called: dict[str, list[int]] = {}
        for name, size, root, _ in found["calls"]:
            call = name if root is None else f"{name} (rank {root})"
            called[call] = sorted([*called.get(call, []), size])
        if called != expected:
            are = f"rank {rank}'s calls, with the bytes of each, are {called}"
            return f"{are}, expected {expected}: one call for each parameter, with its gradient alone"


PLAIN = Case("average_gradients", ("all_reduce",))
TASK = averaging(
    PLAIN,
    strict=False,
    writes="average_gradients",
    minutes=10,
    points=10,
    notebooks="01, 03 to 05",
    hints=(
        """If every rank's loss is a mean over its shard, then the gradient of the whole batch is the mean of
the ranks' gradients. What does an all_reduce give?""",
        """Go through the parameters. Each that has a gradient takes part in one all_reduce, which changes it
in place to the sum; from there to the mean is one more step, with the world size.""",
        """A parameter without a gradient stays without one: a zero in its place would let an optimizer with
momentum move the parameter. Change the gradient, and not the parameter, and change it in place,
because others hold that very tensor.""",
    ),
)


@TASK.claim([PLAIN])
def all_reduce_adds_up(case: Case, seen: Any) -> Finding:
    """The ranks' gradients are added up by all_reduce."""
    for rank, found in enumerate(seen):
        if "all_reduce" not in (names := sorted({name for name, *_ in found["calls"]})):
            return f"rank {rank} called {listed(names)}, and no all_reduce"
