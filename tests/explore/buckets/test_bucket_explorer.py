"""The bucket explorer from Python: a control moves, picture and numbers follow, faults are said."""

from __future__ import annotations

from unittest import mock

import pytest
from html_files import script_of
from to_do import task

from labkit.cost import ETHERNET_1G, ring_all_reduce_s
from labkit.explore import bucket_explorer
from labkit.explore.buckets.bucket_plan import ONE_BUCKET, ONE_EACH, make_buckets
from labkit.explore.buckets.gradients import Gradients, predicted_gradients

# --- controls -------------------------------------------------------------------------------------


@task("dp.6")
def test_it_opens_with_torchs_capacities_and_the_readers_buckets():
    explorer = bucket_explorer()
    sizes = explorer.gradients.sizes_bytes
    assert explorer.reduction.buckets == make_buckets(sizes, cap_mb=25, first_cap_mb=1).buckets
    assert explorer.reduction.gradients.model == "GPT-2 small"
    assert "best bucket size on the slider" in explorer.numbers.value
    assert explorer.timeline.said.startswith("Gradients and all_reduces, predicted: backward ")


CONTROLS = {"rule": ONE_EACH, "cap_mb": 100, "first_cap_mb": 0, "latency_us": 300.0, "bandwidth_gb_s": 1.0}
CONTROLS |= {"world_size": 3, "backward_ms": 400.0, "model": "bert"}


@pytest.mark.parametrize("control", CONTROLS)
@task("dp.6")
def test_every_control_redraws_once_and_changes_the_numbers(control):
    explorer = bucket_explorer()
    version, numbers = explorer.timeline.scene["version"], explorer.numbers.value
    getattr(explorer, control).value = CONTROLS[control]
    assert explorer.timeline.scene["version"] == version + 1
    assert explorer.numbers.value != numbers


def test_link_world_size_and_backward_are_those_of_the_sliders():
    explorer = bucket_explorer("mlp", world_size=4, link=ETHERNET_1G, backward_s=0.25)
    explorer.rule.value = ONE_BUCKET
    one = explorer.reduction
    expected = ring_all_reduce_s(one.gradients.n_bytes, 4, ETHERNET_1G.latency_s, ETHERNET_1G.bytes_per_s)
    assert one.backward_s == pytest.approx(0.25)
    assert one.exposed_s == pytest.approx(expected)


@task("dp.6")
def test_a_capacity_beside_the_grid_gets_a_place_on_the_slider():
    explorer = bucket_explorer(cap_mb=7, first_cap_mb=0.3)
    assert (explorer.cap_mb.value, explorer.first_cap_mb.value) == (7, 0.3)
    expected = make_buckets(explorer.gradients.sizes_bytes, cap_mb=7, first_cap_mb=0.3)
    assert explorer.reduction.buckets == expected.buckets


@pytest.mark.parametrize("rule", [ONE_BUCKET, ONE_EACH])
def test_sizes_mean_nothing_to_the_other_rules_so_their_sliders_are_off(rule):
    explorer = bucket_explorer()
    explorer.rule.value = rule
    assert explorer.cap_mb.disabled and explorer.first_cap_mb.disabled
    assert "best bucket size" not in explorer.numbers.value


def test_gradients_of_ones_own_can_be_shown():
    longest = predicted_gradients("mlp").backward_s  # so that another model does not move the slider
    own = Gradients(
        "my model", ["a", "b", "c"], [4 * 2**20, 2**20, 8], [longest, longest / 2, longest / 4], "measured by hooks"
    )
    explorer = bucket_explorer(own, world_size=2, link=ETHERNET_1G)
    explorer.rule.value = ONE_EACH
    assert explorer.reduction.gradients.ready_s == pytest.approx(own.ready_s)
    assert "measured by hooks" in explorer.timeline.scene["note"]
    explorer.model.value = "mlp"
    assert explorer.reduction.gradients.model == "MLP"


@pytest.mark.parametrize("name", ["cap_mb", "first_cap_mb", "backward_s", "world_size", "link"])
def test_what_is_not_more_than_0_or_no_link_is_refused_by_name(name):
    with pytest.raises((ValueError, TypeError), match=f"^{name} is -1, expected"):
        bucket_explorer(**{name: -1})


# --- the reader's own answers ---------------------------------------------------------------------


def test_a_wrong_dp_6_is_said_and_the_explorer_lives_on():
    with mock.patch("labkit.dp.assign_buckets", return_value=None):
        explorer = bucket_explorer()
        assert explorer.timeline.said.startswith("assign_buckets (dp.6) is not right yet: ")
        explorer.world_size.value = 2
        assert len(explorer.reduction.buckets) == 1
    explorer.rule.value = ONE_EACH
    assert len(explorer.reduction.buckets) == 148


# --- the file -------------------------------------------------------------------------------------


@task("dp.6")
def test_its_file_has_the_picture_of_each_bucket_size_and_is_small():
    explorer = bucket_explorer()
    page = explorer.timeline.to_html()
    assert len(page) < 400_000
    _, content = script_of(page)
    name, sizes, at = content["slider"]
    assert (name, sizes[at]) == ("bucket size", "25 MiB")
    assert content["scenes"][at]["alt"] == explorer.timeline.scene["alt"]
    explorer.cap_mb.value = 100
    other = sizes.index("100 MiB")
    assert content["scenes"][other]["alt"] == explorer.timeline.scene["alt"]
    texts = [
        [panel["sentences"] for panel in scene["panels"]]
        for scene in (content["scenes"][other], explorer.timeline.scene)
    ]
    assert texts[0] == texts[1]


def test_where_no_size_is_chosen_its_file_has_no_slider():
    explorer = bucket_explorer("mlp")
    explorer.rule.value = ONE_BUCKET
    assert script_of(explorer.timeline.to_html())[1]["slider"] is None
