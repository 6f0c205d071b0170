"""Model a link: how long a message takes, and the links that one meets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from labkit.base.checks import check_bytes, check_number, check_seconds

_BANDWIDTH = "bytes per second, more than 0, or math.inf for no limit: write 1 Gb/s as 1e9 / 8"


@dataclass(frozen=True)
class Link:
    """A link of the α–β model: ``latency_s`` a message, then ``bytes_per_s``, both ways at once.

    ``bytes_per_s`` may be math.inf: no limit. ``name`` is what it is called where it is shown.

    Raises TypeError for what is no number, ValueError for a negative or infinite latency, a
    bandwidth that is not positive, and NaN. Hockney 1994, "The communication challenge for MPP",
    Parallel Computing 20 (3).
    """

    latency_s: float
    bytes_per_s: float
    name: str = ""

    def __post_init__(self) -> None:
        check_seconds("latency_s", self.latency_s)
        check_number("bytes_per_s", self.bytes_per_s, lambda value: value > 0, _BANDWIDTH)
        if not isinstance(self.name, str):
            raise TypeError(f'name is {self.name!r}, expected text, such as "ETHERNET_1G", or nothing')

    def message_s(self, n_bytes: float) -> float:
        """Return the seconds that a message of ``n_bytes`` takes: latency + bytes / bandwidth."""
        check_bytes("n_bytes", n_bytes)
        return self.latency_s + n_bytes / self.bytes_per_s

    @property
    def is_free(self) -> bool:
        """Tell whether every message takes no time at all, so nothing is left to emulate."""
        return self.latency_s == 0 and self.bytes_per_s == math.inf

    def __str__(self) -> str:
        bandwidth = "no limit" if self.bytes_per_s == math.inf else _scaled(self.bytes_per_s, _BYTE_RATES)
        facts = f"{bandwidth}, {_scaled(self.latency_s, _DURATIONS)}"
        return f"{self.name} ({facts})" if self.name else facts


_BYTE_RATES = (("GB/s", 1e9), ("MB/s", 1e6), ("kB/s", 1e3), ("B/s", 1.0))

_DURATIONS = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6))


def _scaled(value: float, units: Sequence[tuple[str, float]]) -> str:
    """Write ``value`` in the largest unit that it reaches, or in the smallest: 5e-5 s is 50 µs."""
    unit, size = next(((unit, size) for unit, size in units if value >= size), units[-1])
    return f"{value / size:.4g} {unit}"


# Bandwidths are line rates, one direction. TCP in frames of 1500 bytes leaves 1460 of 1538, 95 %,
# to the data. Latencies are one way and typical; machines differ more in them than in bandwidths.

# Aspen Systems' glossary ("low latency") reports 40 to 300 µs for Gigabit Ethernet.
ETHERNET_1G = Link(latency_s=50e-6, bytes_per_s=1e9 / 8, name="ETHERNET_1G")
# Application to application over TCP: 20 µs in Hurwitz & Feng 2003, Hot Interconnects 11; 10 µs at
# best in Larsen et al. 2009, "Architectural breakdown of end-to-end latency in a TCP/IP network".
ETHERNET_10G = Link(latency_s=20e-6, bytes_per_s=10e9 / 8, name="ETHERNET_10G")
# One step of a ring, as NCCL's cost model has it (src/graph/tuning.cc, hwLat, its low-latency
# protocol): 2.7 µs over a network, 0.6 µs over NVLink. Its protocols for large messages take up to
# 14 and 3.4 µs a step.
INFINIBAND_HDR = Link(latency_s=2.7e-6, bytes_per_s=200e9 / 8, name="INFINIBAND_HDR")
# 18 links of 25 GB/s a direction: the 900 GB/s that Nvidia states for an H100 or H200 count both
# directions.
NVLINK4 = Link(latency_s=0.6e-6, bytes_per_s=450e9, name="NVLINK4")
