"""Three ways to agree differ in messages, bytes and what hides, and each row adds up."""

from __future__ import annotations

import pytest

from labkit.cost import Link, ddp_step, way_terms

SIZES, BUCKETS = [400, 200, 600, 800], [[3, 2], [1, 0]]
HOST = {"gather_scatter": 0.03, "all_reduce": 0.02, "ddp": 0.01}
COMPUTE = (1.0, 2.0, 0.5)
LINK = Link(latency_s=0.01, bytes_per_s=2000.0)


def terms(world_size=2, compute=COMPUTE, link=LINK, host=HOST):
    return way_terms(compute, SIZES, BUCKETS, world_size, link, host)


def test_messages_are_two_a_parameter_or_a_bucket_for_each_other_rank():
    assert terms(2).latency.tolist() == pytest.approx([0.08, 0.08, 0.04])
    assert terms(5).latency.tolist() == pytest.approx([0.32, 0.32, 0.16])


def test_through_rank_0_go_as_many_times_the_bytes_of_a_ring_as_there_are_ranks():
    for n in (2, 4, 16):
        found = terms(n).bytes
        assert found.gather_scatter == pytest.approx(n * found.all_reduce)
        assert found.all_reduce == found.ddp == pytest.approx(2 * (n - 1) / n * 2000 / 2000)


def test_only_ddp_hides_and_its_row_is_the_predicted_step():
    found = terms()
    assert found.hidden[:2].tolist() == [0, 0] and found.hidden.ddp < -0.1
    ready = [2.0, 1.6, 1.4, 0.8]  # evenly: after 800, 1400, 1600 and 2000 of 2000 bytes
    step = ddp_step(1.0, ready, 0.5, SIZES, BUCKETS, 2, LINK.latency_s, LINK.bytes_per_s, 0.005)
    assert found.iteration.ddp == pytest.approx(step.end_s.max())
    assert found.iteration.all_reduce == pytest.approx(3.5 + 0.08 + 1.0 + 0.02)


def test_without_a_backward_pass_and_calls_nothing_hides():
    free = dict.fromkeys(HOST, 0.0)
    assert terms(compute=(1.0, 0.0, 0.5), host=free).hidden.ddp == pytest.approx(0, abs=1e-12)


def test_a_way_without_its_cost_or_with_a_negative_one_is_refused():
    with pytest.raises(KeyError, match="ddp"):
        terms(host={"gather_scatter": 0.0, "all_reduce": 0.0})
    with pytest.raises(ValueError, match="all_reduce"):
        terms(host=HOST | {"all_reduce": -1.0})
