"""Buckets on real ranks: a small model that keeps the whole one's proportions, told as it ran."""

from __future__ import annotations

import pytest
from to_do import task

from labkit.cost import Link
from labkit.explore.buckets.bucket_plan import make_buckets
from labkit.explore.buckets.gradients import MIB, Gradients, predicted_gradients
from labkit.explore.buckets.overlap_run import _one_by_one, run_overlap, stand_in
from labkit.explore.buckets.reducer import predict


@pytest.mark.parametrize(("world_size", "n_ranks"), [(8, 2), (2, 2), (3, 2), (16, 4)])
def test_on_the_stand_in_a_small_model_takes_the_whole_ones_time_in_proportion(world_size, n_ranks):
    whole = Gradients("whole", list("abc"), [64 * MIB, 32 * MIB, 16 * MIB], [0.03, 0.02, 0.01], "by hand")
    small = Gradients("small", list("abc"), [4 * MIB, 2 * MIB, MIB], [0.09, 0.06, 0.03], "by hand")
    link, buckets = Link(20e-6, 10e9), [[2, 1], [0]]
    for_it = stand_in(link, world_size, n_ranks, shrink=1 / 16, scale_s=3)
    wanted, found = predict(whole, buckets, world_size, link), predict(small, buckets, n_ranks, for_it)
    assert found.end_s == pytest.approx(3 * wanted.end_s)
    assert found.hidden_share == pytest.approx(wanted.hidden_share)
    assert [3 * end for _, end in wanted.all_reduces] == pytest.approx([end for _, end in found.all_reduces])


@task("dp.6", "dp.7")
@pytest.mark.parametrize(("cap_mb", "first_cap_mb"), [(25, 1), (1e6, None), (1e-6, None)], ids=["dp.6", "one", "each"])
def test_a_run_has_the_readers_buckets_and_each_leaves_once_it_is_full_and_in_order(cap_mb, first_cap_mb):
    run = run_overlap("mlp", cap_mb, first_cap_mb, 2, Link(20e-6, 10e9), backward_s=0.01)
    small = run.measured.gradients
    shrink = small.n_bytes / predicted_gradients("mlp").n_bytes
    expected = make_buckets(
        small.sizes_bytes, cap_mb=shrink * cap_mb, first_cap_mb=first_cap_mb and shrink * first_cap_mb
    )
    assert run.measured.buckets == run.predicted.buckets == expected.buckets
    starts, ends = zip(*run.measured.all_reduces, strict=True)
    assert len(starts) == len(expected.buckets)
    assert all(start >= full for start, full in zip(starts, run.measured.full_s, strict=True))
    assert list(starts) == sorted(starts)
    assert max(ends) <= run.measured.end_s
    assert 0 < min(run.measured.gradients.ready_s) <= run.measured.backward_s < run.measured.end_s
    assert "MLP with all widths ÷ 8" in run.table().attrs["emulated"]


@task("dp.6", "dp.7")
def test_a_link_that_gloo_cannot_stand_in_for_is_left_out_and_the_note_says_so():
    run = run_overlap("mlp", 25, 1, 2, Link(0, 1e15), backward_s=0.01)
    assert run.measured.all_reduces
    assert "faster than gloo is here, so nothing was emulated" in run.note


def test_a_bucket_that_is_handed_over_while_another_travels_is_on_its_way_only_after_it():
    assert _one_by_one([(0, 3), (1, 4), (5, 6)]) == [(0, 3), (3, 4), (5, 6)]


def test_one_rank_is_refused_as_it_sends_nothing():
    with pytest.raises(ValueError, match=r"^one rank sends nothing"):
        run_overlap("mlp", 25, 1, 1, Link(0, 1e9), 0.01)
