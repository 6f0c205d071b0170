"""Read the cost of a batch off its times, by size: what notebook 00 says of bigger batches."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from labkit.stats.repeated_times import RepeatedTimes


class BatchCost(NamedTuple):
    """A batch of n rows takes ``one_s`` + (n − 1) ``row_s`` seconds."""

    one_s: float
    row_s: float

    def seconds(self, rows: int) -> float:
        """Return the seconds of a batch of that many rows."""
        return self.one_s + self.row_s * (rows - 1)


def fit(batch_s: RepeatedTimes) -> BatchCost:
    """Return the cost that goes through the smallest batches and the largest one."""
    median_s = batch_s.median().sort_index()
    largest, one_s = int(median_s.index[-1]), float(median_s.iloc[:2].min())
    return BatchCost(one_s, float(median_s.iloc[-1] - one_s) / (largest - 1))


def rows_for_twice(batch_s: RepeatedTimes) -> float:
    """Return how many rows take twice the time of one, between the sizes that were measured."""
    median_s = batch_s.median().sort_index()
    return float(np.interp(2 * median_s.iloc[:2].min(), median_s, median_s.index))
