"""What docs/training.md says of gradients that are averaged by hand: in this order, with this loss,
a step on two ranks is that of one process."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from to_do import task

PAGE = Path(__file__).parents[2] / "docs" / "training.md"
LABELS = torch.tensor([[3, 1, 4, 1, 5], [-100, -100, -100, -100, 2]])  # of two ranks: five valid tokens, and one


def after_a_step(source: str, *swapped: str) -> torch.Tensor:
    """In a rank, or alone with all rows: the parameters after the step of the page."""
    exec(source.replace(*swapped) if swapped else source, (names := {}))  # type: ignore[var-annotated]
    torch.manual_seed(0)
    table = torch.nn.Embedding(5, 6)
    rank = dist.get_rank()
    tokens = torch.arange(5).repeat(2, 1)[rank : rank + 1]
    model = torch.nn.Sequential(table, torch.nn.Flatten(0, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    names["step"](model, tokens, LABELS[rank], optimizer)
    return table.weight.detach()


def alone() -> torch.Tensor:
    """The same in plain torch, with a mean over the valid tokens of the whole batch."""
    torch.manual_seed(0)
    table = torch.nn.Embedding(5, 6)
    logits = table(torch.arange(5).repeat(2, 1)).flatten(0, 1)
    torch.nn.functional.cross_entropy(logits, LABELS.flatten(), ignore_index=-100).backward()
    torch.nn.utils.clip_grad_norm_(table.parameters(), MAX_NORM)
    return (table.weight - table.weight.grad).detach()


MAX_NORM = 0.1


@task("dp.4")
def test_the_step_of_the_page_is_that_of_one_process_and_neither_of_its_two_mistakes_is(ranks: Any) -> None:
    (source,) = [
        b for b in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if "average_gradients(model)" in b
    ]
    source = source.replace("model.parameters(), 1.0", f"model.parameters(), {MAX_NORM}")
    expected = alone()
    for got in ranks(2).run(after_a_step, source).values:
        torch.testing.assert_close(got, expected)
    averaging = "    average_gradients(model)\n"
    clipping = re.search(r"    torch.nn.utils.clip_grad_norm_.*\n", source)
    assert clipping
    clipped_first = (averaging + clipping[0], clipping[0] + averaging)
    mean = ('reduction="sum")', 'reduction="mean") * valid / dist.get_world_size()')
    for wrong in (clipped_first, mean):
        assert wrong[0] in source
        for got in ranks(2).run(after_a_step, source, *wrong).values:
            assert not torch.allclose(got, expected, rtol=1e-2)
