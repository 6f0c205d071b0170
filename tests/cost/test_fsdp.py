"""labkit.cost of a step with a sharded model: sums of its parts, by hand and at both ends."""

import math
import re

import pytest

from labkit.cost import (
    ETHERNET_1G,
    Link,
    UnitCost,
    collective_s,
    ddp_step_of_units,
    fsdp_layer,
    fsdp_step,
    hiding_tokens,
    ring_all_reduce_s,
    tensor_parallel_layer,
)

UNIT = UnitCost(forward_s=3.0, backward_s=6.0, weight_bytes=400, gradient_bytes=400)
SLOW = Link(latency_s=0.0, bytes_per_s=100.0)  # on two ranks a unit's weights take 2 s, and its gradients


def seconds(step):
    return step["end_s"].max()


def of(step, name):
    rows = step[step["name"] == name]
    return list(zip(rows["bucket"], rows["start_s"], rows["end_s"], strict=True))


def test_without_prefetch_a_step_waits_for_each_unit():
    step = fsdp_step([UNIT, UNIT], 2, SLOW, optimizer_s=1.0)
    assert of(step, "forward") == [(0, 2, 5), (1, 7, 10)]
    # the second unit again; its gradients and then the first unit's weights; the first's gradients
    assert of(step, "backward") == [(1, 12, 18), (0, 22, 28)]
    assert of(step, "optimizer")[0][1:] == (30, 31)


def test_with_prefetch_all_hides_but_the_first_unit_the_turn_and_the_last_gradients():
    step = fsdp_step([UNIT, UNIT], 2, SLOW, optimizer_s=1.0, prefetch=True)
    assert of(step, "all_gather") == [(0, 0, 2), (1, 2, 4), (1, 8, 10), (0, 10, 12)]
    assert of(step, "forward") == [(0, 2, 5), (1, 5, 8)]
    assert of(step, "backward") == [(1, 10, 16), (0, 16, 22)]
    assert of(step, "reduce_scatter") == [(1, 16, 18), (0, 22, 24)]
    assert seconds(step) == 25


@pytest.mark.parametrize("prefetch", [False, True])
def test_on_a_free_link_a_step_is_its_computing_and_on_a_slow_one_its_traffic(prefetch):
    units = [UNIT] * 4
    free = fsdp_step(units, 8, Link(0.0, math.inf), optimizer_s=1.0, prefetch=prefetch)
    assert seconds(free) == pytest.approx(4 * 9 + 1)
    idle = fsdp_step([unit.times(0) for unit in units], 8, ETHERNET_1G, prefetch=prefetch)
    sent = 2 * collective_s("all_gather", 400, 8, ETHERNET_1G) + collective_s("reduce_scatter", 400, 8, ETHERNET_1G)
    assert seconds(idle) == pytest.approx(4 * sent)
    assert seconds(fsdp_step(units, 1, SLOW, prefetch=prefetch)) == pytest.approx(4 * 9)


def test_without_computing_it_takes_half_as_long_again_as_ddp_and_as_long_with_weights_in_16_bits():
    idle = [UNIT.times(0)] * 3
    ddp = seconds(ddp_step_of_units(idle, 4, SLOW))
    assert ddp == pytest.approx(3 * ring_all_reduce_s(400, 4, SLOW.latency_s, SLOW.bytes_per_s))
    in_16_bits = [unit._replace(weight_bytes=200) for unit in idle]
    for prefetch in (False, True):
        assert seconds(fsdp_step(idle, 4, SLOW, prefetch=prefetch)) == pytest.approx(1.5 * ddp)
        assert seconds(fsdp_step(in_16_bits, 4, SLOW, prefetch=prefetch)) == pytest.approx(ddp)


def test_from_the_tokens_that_hide_traffic_on_only_the_ends_are_exposed():
    per_token = [UNIT.times(1e-3)] * 5
    tokens = hiding_tokens(per_token, 2, SLOW)
    assert tokens == pytest.approx(2 / 3e-3)
    for more, exposed in ((1.0, 4 + 2), (2.0, 4 + 2), (0.5, 4 + 2 + 4 * 1 + 4 * 2)):
        units = [unit.times(more * tokens) for unit in per_token]
        step = fsdp_step(units, 2, SLOW, prefetch=True)
        assert seconds(step) - sum(unit.forward_s + unit.backward_s for unit in units) == pytest.approx(
            exposed, rel=0.2
        )
        assert seconds(step) > seconds(ddp_step_of_units(units, 2, SLOW))


def test_a_layer_over_ranks_sends_as_much_as_its_weights_at_six_times_its_width_in_rows():
    width, n = 64, 4
    weights = 2 * width * 4 * width
    fsdp = fsdp_layer(weights, n, SLOW)
    assert fsdp.sent_bytes == 3 * 4 * weights * (n - 1) / n
    assert fsdp_layer(weights, n, SLOW, weight_bytes=2).sent_bytes == 2 * 4 * weights * (n - 1) / n
    over_ranks = tensor_parallel_layer(6 * width, width, n, SLOW)
    assert over_ranks.sent_bytes == fsdp.sent_bytes and over_ranks.seconds == pytest.approx(fsdp.seconds)
    assert tensor_parallel_layer(width, width, n, SLOW).seconds == pytest.approx(fsdp.seconds / 6)


@pytest.mark.parametrize(
    ("units", "options", "message"),
    [
        ([], {}, "units is empty"),
        ([UNIT, UNIT._replace(backward_s=-1.0)], {}, "backward_s of unit 1 is -1.0"),
        ([UNIT._replace(weight_bytes=0.5)], {}, "weight_bytes of unit 0 is 0.5"),
        ([UNIT], {"optimizer_s": math.nan}, "optimizer_s is nan"),
        ([UNIT], {"world_size": 0}, "world_size is 0"),
    ],
)
def test_units_that_cannot_be_are_refused(units, options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        fsdp_step(units, **{"world_size": 2, "link": SLOW} | options)
