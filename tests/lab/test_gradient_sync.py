"""What notebook 05 says of its iterations is read from the runs."""

from __future__ import annotations

import pytest

from labkit.lab import gradient_sync
from labkit.stats import verdict


@pytest.mark.parametrize(
    ("ratio", "a_s", "says"),
    [
        (2.0, 3.0, "as predicted"),
        (2.0, 0.5, "the opposite"),
        (0.5, 0.5, "as predicted"),
        (1.0, 1.0, "hidden by the noise"),
        (2.0, 1.0, "outside the measured interval"),
    ],
)
def test_a_prediction_that_the_measurement_contradicts_is_said_to_be_contradicted(ratio, a_s, says):
    assert gradient_sync.against_prediction(ratio, verdict("a", [a_s] * 6, "b", [1.0] * 6)) == says
