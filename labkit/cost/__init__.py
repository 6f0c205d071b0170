"""Predict what communication costs: messages, collectives, DDP's buckets; and fit a link to times.

links    a link, common links, and what a collective costs on them
ddp      a data-parallel step: its buckets on one channel, and its terms under three sync methods
fsdp     a step with a sharded model, and a data-parallel one; a layer, sharded or over ranks
fit      the link, and the cost of a call, that fit measured times
memory   what training a model takes of a device, shared out in many ways

Everything stands on one model of a link, the α–β model: a message takes a fixed time α, its
latency, and then its bytes at the bandwidth β. N is the world size and B the bytes of the whole
tensor:

    message      α + B / β
    all_reduce   2 (N − 1) α + 2 (N − 1) / N · B / β          around a ring

A call costs its rank as well: ``host_s``, the seconds beyond α and β in which the rank computes
nothing. It is 0 unless it is given. Measured on an emulated link it is the emulator's.

Papers often write β for the inverse, the seconds per byte; here it is bytes per second, as on a
data sheet. Nothing is measured or sent here, and importing this loads neither torch nor numpy,
since every rank imports it.
"""

from labkit.cost.ddp import ddp_step, ddp_timeline, way_terms
from labkit.cost.fit import LinkFit, fit_host_s, fit_link, measure_rising
from labkit.cost.fsdp import (
    LayerCost,
    UnitCost,
    ddp_step_of_units,
    fsdp_layer,
    fsdp_step,
    hiding_tokens,
    tensor_parallel_layer,
)
from labkit.cost.links import (
    ETHERNET_1G,
    ETHERNET_10G,
    INFINIBAND_HDR,
    NVLINK4,
    Link,
    collective_s,
    parameter_server_s,
    ring_all_reduce_s,
    ring_broadcast_s,
)

__all__ = [
    "ETHERNET_1G",
    "ETHERNET_10G",
    "INFINIBAND_HDR",
    "NVLINK4",
    "LayerCost",
    "Link",
    "LinkFit",
    "UnitCost",
    "collective_s",
    "ddp_step",
    "ddp_step_of_units",
    "ddp_timeline",
    "fit_host_s",
    "fit_link",
    "fsdp_layer",
    "fsdp_step",
    "hiding_tokens",
    "measure_rising",
    "parameter_server_s",
    "ring_all_reduce_s",
    "ring_broadcast_s",
    "tensor_parallel_layer",
    "way_terms",
]
