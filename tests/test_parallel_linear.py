"""ColumnParallelLinear and RowParallelLinear in a group of some ranks, and what they refuse. What
check claims of shard.3 is not claimed again here."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from to_do import task
from torch import nn
from torch.nn.utils import parametrizations

from labkit.launch import launch
from labkit.shard import ColumnParallelLinear, RowParallelLinear

pytestmark = task("shard.3")


def plain():
    torch.manual_seed(5)
    return nn.Linear(3, 2).double(), nn.Linear(2, 4).double()


def output_and_gradient(first, second):
    x = torch.linspace(-1, 1, 6, dtype=torch.float64).view(2, 3).requires_grad_()
    y = second(first(x).relu())
    y.square().sum().backward()
    return y.detach(), x.grad


def in_pairs():
    """Ranks 0 and 1 share out the layers, and so do ranks 2 to 4, one with an empty part."""
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3, 4])]
    group = groups[dist.get_rank() > 1]
    first, second = plain()
    return output_and_gradient(ColumnParallelLinear(first, group), RowParallelLinear(second, group))


def test_each_group_has_the_plain_layers_with_an_empty_part_too():
    right = output_and_gradient(*plain())
    for found in launch(in_pairs, world_size=5, backend="gloo", threads=1).values:
        for each, expected in zip(found, right, strict=True):
            torch.testing.assert_close(each, expected)


# --- as a plain layer -----------------------------------------------------------------------------


def frozen_and_cast() -> tuple[list[list[str]], list[torch.dtype]]:
    """Which parameters train where the bias, or all, is frozen; and the dtypes under autocast."""
    trained = []
    for names in (["bias"], ["weight", "bias"]):
        linear = nn.Linear(4, 4)
        for name in names:
            getattr(linear, name).requires_grad_(False)
        for kind in (ColumnParallelLinear, RowParallelLinear):
            trained.append([name for name, each in kind(linear).named_parameters() if each.requires_grad])
    first, second = ColumnParallelLinear(nn.Linear(4, 4)), RowParallelLinear(nn.Linear(4, 4))
    with torch.autocast("cpu", torch.bfloat16):
        hidden = first(torch.ones(2, 4))
        return trained, [hidden.dtype, second(hidden).dtype, nn.Linear(4, 4)(torch.ones(2, 4)).dtype]


def test_frozen_parameters_stay_frozen_and_autocast_casts_as_in_a_plain_layer():
    for trained, (column, row, plain) in launch(frozen_and_cast, world_size=2, backend="gloo", threads=1).values:
        assert trained == [["weight"], ["weight"], [], []]
        assert column == row == plain


def scaled_between(parallel: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradient of a parameter between the layers, as it is and added up over ranks."""
    first, second = plain()
    scale = nn.Parameter(torch.tensor(1.5, dtype=torch.float64))
    x = torch.linspace(-1, 1, 6, dtype=torch.float64).view(2, 3)
    if parallel:
        first, second = ColumnParallelLinear(first), RowParallelLinear(second)
    second((first(x) * scale).tanh()).square().sum().backward()
    own = scale.grad.clone()
    if parallel:
        dist.all_reduce(scale.grad)
    return own, scale.grad


def test_the_gradient_of_a_parameter_between_the_layers_is_right_once_it_is_added_up_over_ranks():
    right, _ = scaled_between(False)
    for own, summed in launch(scaled_between, True, world_size=2, backend="gloo", threads=1).values:
        assert not torch.isclose(own, right)
        torch.testing.assert_close(summed, right)


# --- what is refused ------------------------------------------------------------------------------


class LoRA(nn.Linear):
    """With a low-rank term that is not in its weight."""

    def __init__(self, *sizes: int):
        super().__init__(*sizes)
        self.low, self.rank = nn.Parameter(torch.ones(1, sizes[0])), nn.Parameter(torch.ones(sizes[1], 1))

    def forward(self, x):
        return super().forward(x) + x @ self.low.T @ self.rank.T


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def with_hook(_):
    linear = nn.Linear(4, 2)
    linear.register_forward_hook(lambda layer, inputs, y: 2 * y)
    return linear


MORE = "which computes more than a Linear does: cut its plain layer, and add the rest to that"
REFUSED = {
    "TypeError: expected an nn.Linear, whose matrix is to be shared out, and got Embedding": lambda _: nn.Embedding(
        4, 2
    ),
    "and got Embedding(4, 2) (rank 1)": lambda rank: (nn.Embedding if rank else nn.Linear)(4, 2),
    f"a LoRA with low and rank, {MORE}": lambda _: LoRA(4, 2),
    f"a Doubled, {MORE}": lambda _: Doubled(4, 2),
    f"parametrizations.weight.original1, {MORE}": lambda _: parametrizations.weight_norm(nn.Linear(4, 2)),
    "a Linear with hooks, which would be lost: register them on the parallel layer": with_hook,
    "ValueError: rank 1 has Linear(in_features=3": lambda rank: nn.Linear(2 + rank, 2),
    "bias=False) of torch.float32 and rank 0 Linear(in_features=2": lambda rank: nn.Linear(2, 2, bias=rank == 0),
}


def refusals():
    errors = []
    for kind in (ColumnParallelLinear, RowParallelLinear):
        for layer_of_rank in REFUSED.values():
            try:
                kind(layer_of_rank(dist.get_rank()))
            except (TypeError, ValueError) as error:
                errors.append(f"{type(error).__name__}: {error}")
    return errors


def test_anything_else_is_refused_on_every_rank():
    for errors in launch(refusals, world_size=2, backend="gloo", threads=1).values:
        assert len(errors) == 2 * len(REFUSED)
        assert all(words in each for words, each in zip([*REFUSED] * 2, errors, strict=True))


def of_another_width() -> list[str]:
    first, second = plain()
    found = []
    for layer, width in ((ColumnParallelLinear(first), 2), (RowParallelLinear(second), 2)):
        with pytest.raises(ValueError) as error:
            layer(torch.ones(2, width, dtype=torch.float64))
        found.append(str(error.value))
    return found


def test_an_input_of_another_width_is_refused_with_both_widths():
    for column, row in launch(of_another_width, world_size=2, backend="gloo", threads=1).values:
        assert (
            "x is (2, 2), and this rank's part of the weight takes 3 inputs: give a ColumnParallelLinear all" in column
        )
        assert "x is (2, 2), and this rank's part of the weight takes 1 inputs" in row


def compiled() -> tuple[torch.Tensor, torch.Tensor]:
    layers = [kind(each) for kind, each in zip((ColumnParallelLinear, RowParallelLinear), plain(), strict=True)]
    return output_and_gradient(*(torch.compile(layer, backend="aot_eager") for layer in layers))


def test_compiled_layers_compute_as_plain_ones():
    right = output_and_gradient(*plain())
    for found in launch(compiled, world_size=2, backend="gloo", threads=1).values:
        torch.testing.assert_close(found, right)


PLAIN = "cannot differentiate through column- and row-parallel layers: call backward(), or take the plain layers"
DERIVATIVES = {
    "a penalty on the gradient": lambda f, x: torch.autograd.grad(f(x).sum(), x, create_graph=True),
    "grad": lambda f, x: torch.func.grad(lambda x: f(x).sum())(x),
    "jacrev": lambda f, x: torch.func.jacrev(f)(x),
    "jvp": lambda f, x: torch.func.jvp(f, (x,), (x,)),
}


def derivatives():
    first, second = plain()
    layers = nn.Sequential(ColumnParallelLinear(first), nn.Tanh(), RowParallelLinear(second))
    found = []
    for derivative in DERIVATIVES.values():
        try:
            derivative(layers, torch.ones(2, 3, dtype=torch.float64).requires_grad_())
            found.append("no error")
        except RuntimeError as error:
            found.append(str(error))
    return found


def test_second_derivatives_and_those_of_torch_func_are_refused():
    for found in launch(derivatives, world_size=2, backend="gloo", threads=1).values:
        assert [PLAIN in error for error in found] == [True] * len(DERIVATIVES), found
