"""What notebook 05 says of its iterations is read from the runs."""

from __future__ import annotations

from types import SimpleNamespace

import pandas as pd
import pytest

from labkit.cost import Link
from labkit.cost.ddp import way_terms
from labkit.lab import gradient_sync
from labkit.stats import verdict

ROUNDS = [
    {
        way: SimpleNamespace(values=[SimpleNamespace(steps=pd.DataFrame({"seconds": [9.0, *seconds]}))])
        for way, seconds in turn.items()
    }
    for turn in ({"all_reduce": [1.0, 2.0], "ddp": [0.5, 0.5]}, {"all_reduce": [4.0, 2.1], "ddp": [0.4, 0.6]})
]


def test_the_first_iteration_of_a_turn_is_left_out_and_the_middle_one_is_found_in_its_run():
    assert gradient_sync.iterations_s(ROUNDS).to_dict("list") == {
        "all_reduce": [1.0, 2.0, 4.0, 2.1],
        "ddp": [0.5, 0.5, 0.4, 0.6],
    }
    run, step = gradient_sync.middle_iteration(ROUNDS, "all_reduce")
    assert run.values[0].steps.seconds[step] in (2.0, 2.1)  # the median is 2.05


def test_terms_that_follow_from_a_given_link_stand_exactly_and_measured_ones_are_marked():
    calls = {"gather_scatter": 0.0, "all_reduce": 0.0, "ddp": 0.0}
    found = way_terms([1.0, 2.0, 3.0], [100, 300], [[1, 0]], 2, Link(0.5, 100.0), calls)
    shown = str(gradient_sync.terms_to_read({"given": found, "fitted": found}, ["given"])).splitlines()[1:]
    assert [row.count("[~ ") for row in shown] == [3, 3, 4, 5, 5, 6]  # of six numbers


@pytest.mark.parametrize(
    ("ratio", "a_s", "says"),
    [
        (2.0, 3.0, "as measured"),
        (2.0, 0.5, "the measurement says the opposite"),
        (0.5, 0.5, "as measured"),
        (1.0, 1.0, "hidden by the noise"),
        (2.0, 1.0, "outside the measured interval"),
    ],
)
def test_a_prediction_that_the_measurement_contradicts_is_said_to_be_contradicted(ratio, a_s, says):
    assert gradient_sync.against_prediction(ratio, verdict("a", [a_s] * 6, "b", [1.0] * 6)) == says
