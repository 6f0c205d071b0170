"""Fit the model to measured times: a link, and what a call costs its rank."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from labkit.base.checks import check_bytes, check_number, check_seconds, is_whole
from labkit.base.measurement_html import Lines
from labkit.cost.links import COLLECTIVES, Cost, Link

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

_TIME = "a finite number of seconds, more than 0: leave out what was not measured"


_MESSAGE = Cost(latencies=1, tensors=1.0)


@dataclass(frozen=True, repr=False)
class LinkFit:
    """The link that fits measured times, with one standard error of each of its two numbers.

    ``cost`` is what was fitted: a single message, or how many latencies and tensors follow each
    other. It prints as measurements do (see :mod:`labkit.base.formats`).
    """

    latency_s: float
    bytes_per_s: float
    latency_error_s: float
    bytes_per_s_error: float
    cost: Cost = _MESSAGE

    @property
    def link(self) -> Link:
        return Link(self.latency_s, self.bytes_per_s, "fitted")

    def predict_s(self, n_bytes: float) -> float:
        """Return the seconds for ``n_bytes`` of what was fitted: a message, or a collective."""
        return self.cost.latencies * self.latency_s + self.cost.tensors * n_bytes / self.bytes_per_s

    def __str__(self) -> str:
        from labkit.base.formats import measured  # here, because it loads pandas

        latency = f"{measured(self.latency_s * 1e6, 'µs')} ± {measured(self.latency_error_s * 1e6, 'µs')}"
        bandwidth = f"{measured(self.bytes_per_s / 1e6, 'MB/s')} ± {measured(self.bytes_per_s_error / 1e6, 'MB/s')}"
        return f"latency {latency}, bandwidth {bandwidth}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return Lines(str(self))._repr_html_()


def fit_link(
    sizes_bytes: Sequence[float],
    times_s: Sequence[float],
    world_size: int | None = None,
    through_rank_0: bool = False,
) -> LinkFit:
    """Fit latency + bytes / bandwidth to measured times by least squares, with standard errors.

    ``times_s[i]`` is how long ``sizes_bytes[i]`` took: as one message, or with a ``world_size`` as
    a ring all_reduce among that many ranks, or ``through_rank_0``, as
    :func:`labkit.cost.parameter_server_s` has it; the latency and bandwidth are those of one link
    either way. Times of small and large messages are decades apart and err by a part of themselves,
    so what is made small is the sum of squared *relative* errors. The standard errors come from the
    scatter of the points about the line. A latency is never below 0: where the best line has a
    negative one, the fit is the best line with latency 0, and keeps the errors of the line without
    that bound.

    Raises ValueError for fewer than three points, points of one size, lists of different lengths,
    sizes that are negative, times that are not positive, a world of one rank, and times that do not
    grow with the size; TypeError for anything but a number.
    """
    _check_points(sizes_bytes, times_s)
    import numpy as np  # here, since every rank imports this package for its Link

    cost = _MESSAGE
    if world_size is not None:
        expected = "a whole number of ranks, 2 or more (one rank sends nothing), or None for single messages"
        check_number("world_size", world_size, lambda n: is_whole(n) and n >= 2, expected)
        cost = Cost(2, 2.0 * (world_size - 1)) if through_rank_0 else COLLECTIVES["all_reduce"](world_size)
    line = _relative_line(cost.tensors * np.asarray(sizes_bytes, dtype=float), np.asarray(times_s, dtype=float))
    return LinkFit(
        latency_s=line.intercept / cost.latencies,
        bytes_per_s=1 / line.slope,
        latency_error_s=line.intercept_error / cost.latencies,
        bytes_per_s_error=line.slope_error / line.slope**2,  # the slope is 1 / bandwidth
        cost=cost,
    )


def fit_host_s(calls: Sequence[float], times_s: Sequence[float], predicted_s: Sequence[float]) -> float:
    """Fit the seconds that one call of a collective costs its rank beyond the link's α and β.

    The rank computes nothing meanwhile. Measured on an emulated link it is the emulator's cost.
    ``times_s[i]`` was measured for ``calls[i]`` calls that should take ``predicted_s[i]`` on the
    link. The fit is the line through the origin with the least squared errors of measured −
    predicted, and never below 0.

    Raises ValueError for lists of different lengths or without a call, and for negative, infinite
    or NaN numbers; TypeError for anything but a number.
    """
    if not len(calls) == len(times_s) == len(predicted_s):
        raise ValueError(
            f"{len(calls)} numbers of calls, {len(times_s)} times and {len(predicted_s)} predictions, expected one of each "
            "for every measurement"
        )
    for i, (n, time, predicted) in enumerate(zip(calls, times_s, predicted_s, strict=True)):
        check_number(f"calls[{i}]", n, lambda n: 0 <= n < math.inf, "a number of calls, 0 or more")
        check_number(f"times_s[{i}]", time, lambda value: 0 < value < math.inf, _TIME)
        check_seconds(f"predicted_s[{i}]", predicted)
    if not any(calls):
        raise ValueError(
            "no measurement makes a call, expected at least one: without it the cost of a call cannot be fitted"
        )
    beyond = sum(n * (time - predicted) for n, time, predicted in zip(calls, times_s, predicted_s, strict=True))
    return max(0.0, float(beyond / sum(n * n for n in calls)))


_MAX_BYTES = 2**30


def measure_rising(measure: Callable[[list[int]], pd.DataFrame], sizes_bytes: Sequence[int]) -> pd.DataFrame:
    """Return ``measure(sizes)``, where the largest takes at least twice as long as the smallest.

        measure_rising(lambda sizes: repeats(launch(fn, sizes).events, by="bytes"), [2**10, 2**20])

    ``measure`` gives a row for each repeat and a column for each size. On a fast link small tensors
    all take as long as the host needs to hand them over, and tell no bandwidth. So a size four
    times as large as the largest is added and all are measured again, as often as it takes, up to 1
    GiB.
    """
    sizes = list(sizes_bytes)
    while True:
        seconds = measure(sizes)
        median_s = seconds.median()
        if median_s[sizes[-1]] >= 2 * median_s[sizes[0]] or 4 * sizes[-1] > _MAX_BYTES:
            return seconds
        sizes.append(4 * sizes[-1])


def _check_points(sizes_bytes: Sequence[float], times_s: Sequence[float]) -> None:
    if len(sizes_bytes) != len(times_s):
        raise ValueError(f"{len(sizes_bytes)} sizes and {len(times_s)} times, expected one time for each size")
    for i, (size, time) in enumerate(zip(sizes_bytes, times_s, strict=True)):
        check_bytes(f"sizes_bytes[{i}]", size)
        check_number(f"times_s[{i}]", time, lambda value: 0 < value < math.inf, _TIME)
    if len(sizes_bytes) < 3:
        raise ValueError(
            f"{len(sizes_bytes)} points, expected at least 3: latency and bandwidth are two unknowns, and it takes a "
            "third point to tell how uncertain they are; measure more sizes"
        )
    if len(set(sizes_bytes)) == 1:
        raise ValueError(
            f"all {len(sizes_bytes)} points are of one size, {min(sizes_bytes)} bytes, expected at least two sizes: latency "
            "and bandwidth are two unknowns, and one size cannot tell them apart; measure smaller and larger messages"
        )


class _Line(NamedTuple):
    intercept: float
    slope: float
    intercept_error: float
    slope_error: float


def _relative_line(x: np.ndarray, t: np.ndarray) -> _Line:
    """Return the line through (x, t) with the least squared relative errors.

    Its intercept is at least 0 and its slope more.
    """
    import numpy as np

    weight = t**-2.0
    x_mean, t_mean = np.average(x, weights=weight), np.average(t, weights=weight)
    spread = np.sum(weight * (x - x_mean) ** 2)
    slope = np.sum(weight * (x - x_mean) * (t - t_mean)) / spread
    intercept = t_mean - slope * x_mean
    if slope * np.ptp(x) <= 1e-9 * t.max():  # what is less is rounding
        raise ValueError(
            "the times do not grow with the size, so they say nothing about the bandwidth: "
            f"{x.min():g} to {x.max():g} bytes over the link make no difference, expected times that rise; measure larger "
            "messages"
        )
    variance = np.sum(weight * (t - intercept - slope * x) ** 2) / (len(x) - 2)
    intercept_error = math.sqrt(variance * (1 / weight.sum() + x_mean**2 / spread))
    slope_error = math.sqrt(variance / spread)
    if intercept < 0:
        intercept, slope = 0.0, np.sum(x / t) / np.sum((x / t) ** 2)
    return _Line(float(intercept), float(slope), intercept_error, slope_error)
