"""What notebooks 00 and 01 read off their runs is what the numbers say."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from labkit.cost import memory
from labkit.lab import batch_sizes, shards
from labkit.stats.repeated_times import RepeatedTimes


def test_a_batch_costs_a_fixed_time_and_one_for_each_row():
    batch_s = RepeatedTimes({n: [2.0 + 0.5 * (n - 1)] * 3 for n in (9, 5, 2, 1)})
    fit = batch_sizes.fit(batch_s)
    assert fit == pytest.approx((2.0, 0.5)) and fit.seconds(5) == pytest.approx(4.0)
    assert batch_sizes.rows_for_twice(batch_s) == pytest.approx(5.0)


def test_the_mean_of_two_gradients_is_off_by_its_relative_distance():
    right = torch.tensor([3.0, 4.0])
    assert shards.Gradients(right, mean=right + torch.tensor([0.0, 0.5]), whole=right).error == pytest.approx(0.1)
    model = nn.Linear(2, 1)
    model(torch.ones(1, 2)).sum().backward()
    assert shards.gradient(model).tolist() == [1.0, 1.0, 1.0]
    assert shards.as_fractions({"a": {"x": 1 / 12}}).loc["a", "x"] == "1/12"


def test_the_words_about_gpt_3_have_the_numbers_of_the_table():
    from labkit.base.words import words

    total = memory.memory_table().set_index("model").total
    said = {name: text.rstrip(" GiB.").split()[-1] for name, text in words("questions", "largest")["choices"].items()}
    near = {name: float(number) for name, number in said.items() if name != "175B"}
    assert near == pytest.approx({name: total[name] for name in near}, rel=0.03)
