"""What notebook 05 says of its predictions is read from the terms."""

from __future__ import annotations

import pandas as pd
import pytest

from labkit.lab import gradient_sync

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
