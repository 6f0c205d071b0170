"""What notebook 07 says of FSDP beside DDP stands where its interval is."""

from __future__ import annotations

import pytest

from labkit.lab.sharding import BesideDDP
from labkit.stats import Interval


@pytest.mark.parametrize(("predicted", "where"), [(1.2, "below"), (1.5, "inside"), (1.7, "above")])
def test_a_prediction_stands_under_the_measured_interval_and_says_where_it_lies(predicted, where):
    table = BesideDDP({"FSDP": {32: Interval(1.5, 1.4, 1.6)}}, {"FSDP": {32: predicted}}).table("tokens")
    assert [*table.columns] == ["32 tokens"] and [*table.index] == ["FSDP", "FSDP, predicted"]
    assert f"{predicted}, {where}" in table.loc["FSDP, predicted"].item()
