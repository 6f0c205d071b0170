"""What notebooks 03 and 05 say of their predictions is read from the terms."""

from __future__ import annotations

import pandas as pd
import pytest

from labkit.lab import data_parallel, gradient_sync
from labkit.simulate import makespan

TERMS = pd.DataFrame(
    {"latency": [40.0, 60.0, 5.0], "bytes": [20.0, 10.0, 10.0], "iteration": [90.0, 100.0, 45.0]},
    index=["gather_scatter", "all_reduce", "ddp"],
)


def test_a_wrong_model_of_an_iteration_leaves_out_its_latency_or_all_else():
    wrong = gradient_sync.wrong_ratios(TERMS)
    assert wrong["gather_scatter"].to_dict() == pytest.approx(
        {"no_latency": 50 / 40, "messages_alone": 8, "bytes_alone": 2}
    )
    assert wrong["ddp"].tolist() == [1, 1, 1]


def test_two_devices_take_what_one_takes_alone_and_an_averaging_after_backward():
    step = data_parallel.predicted_step({"forward": 1.0, "backward": 2.0, "optimizer": 0.5}, average_s=0.25)
    assert makespan(step) == pytest.approx(3.75)
    (reduce,) = step[step["name"] == "all_reduce"].itertuples()
    assert (reduce.start_s, reduce.end_s) == pytest.approx((3.0, 3.25))
