"""The bucket explorer from Python: a control moves, picture and numbers follow, faults are said."""

from unittest import mock

import pytest
from html_files import script_of
from to_do import task

from labkit.cost import ring_all_reduce_s
from labkit.explore import bucket_explorer
from labkit.explore.buckets.reducer import ASSIGN, ONE_BUCKET, ONE_EACH, RULES, make_buckets


@task("dp.6")
def test_it_opens_with_torchs_capacities_and_the_readers_buckets():
    explorer = bucket_explorer()
    sizes = explorer.gradients.sizes_bytes
    assert explorer.reduction.buckets == make_buckets(sizes, cap_mb=25, first_cap_mb=1)[0]
    assert explorer.reduction.gradients.model == "GPT-2 small"
    assert "best bucket size on the slider" in explorer.timeline.scene["numbers"]
    assert explorer.timeline.narration.startswith("Gradients and all_reduces, predicted: backward ")


def test_link_world_size_and_backward_are_those_of_the_sliders():
    explorer = bucket_explorer("mlp", world_size=4)
    explorer.rule, explorer.latency_us, explorer.bandwidth_gb_s, explorer.backward_ms = ONE_BUCKET, 50, 0.1, 200
    one = explorer.reduction
    expected = ring_all_reduce_s(one.gradients.n_bytes, 4, 50e-6, 0.1e9)
    assert one.backward_s == pytest.approx(0.2)
    assert one.exposed_s == pytest.approx(expected)


def test_a_wrong_dp_6_is_said_and_the_explorer_lives_on():
    with mock.patch("labkit.dp.assign_buckets", return_value=None):
        explorer = bucket_explorer()
        assert explorer.timeline.narration.startswith("assign_buckets (dp.6) is not right yet: ")
        explorer.world_size = 2
        assert len(explorer.reduction.buckets) == 1
    explorer.rule = ONE_EACH
    assert len(explorer.reduction.buckets) == 148


@task("dp.6")
def test_its_file_has_the_picture_of_each_bucket_size_and_is_small():
    explorer = bucket_explorer()
    page = explorer.to_html()
    assert len(page) < 250_000
    _, content = script_of(page)
    rule, cap = content["library"]["controls"]
    assert (rule["name"], rule["options"]) == ("rule", list(RULES))
    assert (cap["name"], cap["value"], len(cap["options"])) == ("cap_mb", "25 MiB", 16)
    explorer.cap_mb = 100
    other = content["scenes"][content["library"]["scenes"][f"{ASSIGN}\n100 MiB"]]
    assert not other["disabled"]
    assert other["alt"] == explorer.timeline.scene["alt"] and other["numbers"] == explorer.timeline.scene["numbers"]
    texts = [[content["texts"][k] for k in content["panels"][number]["sentences"]] for number in other["panels"]]
    assert texts == [panel["sentences"] for panel in explorer.timeline.scene["panels"]]


@task("dp.6")
def test_in_its_file_a_rule_without_a_size_disables_the_slider_and_is_there_once():
    _, content = script_of(bucket_explorer().to_html())
    numbers = {number for choice, number in content["library"]["scenes"].items() if choice.startswith(ONE_EACH)}
    (scene,) = (content["scenes"][number] for number in numbers)
    assert scene["disabled"] == ["cap_mb", "first_cap_mb"]
