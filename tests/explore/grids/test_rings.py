"""labkit.explore.grids.rings: what moves where while N ranks add up a tensor, and how many
bytes."""

import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest

from labkit import cost
from labkit.explore.grids import rings
from labkit.explore.grids.cells import panel

WORLD_SIZES = (2, 3, 4, 7, 16)
every_way = pytest.mark.parametrize("way", rings.WAYS)
every_size = pytest.mark.parametrize("n", WORLD_SIZES)


@every_way
@every_size
def test_in_the_end_every_rank_has_the_whole_sum_of_every_chunk(way, n):
    story = rings.follow(way, n)
    assert (story.states[0] == [[1 << rank] * n for rank in range(n)]).all()
    assert (story.states[-1] == 2**n - 1).all()


@pytest.mark.parametrize("way", ["ring", "parameter server"])
@every_size
def test_a_rank_sends_only_what_it_holds(way, n):
    story = rings.follow(way, n)
    for step, source, _, column, carries in story.sent.to_numpy():
        assert story.states[step, source, column] == carries


@every_way
@every_size
def test_no_part_is_added_to_a_sum_that_has_it_already(way, n):
    """Only whole sums may replace what a rank holds."""
    story = rings.follow(way, n)
    for step, _, target, column, carries in story.sent.to_numpy():
        assert carries == 2**n - 1 or not story.states[step, target, column] & carries


@every_size
def test_in_each_step_of_the_ring_every_rank_sends_one_chunk_and_gets_one_from_its_neighbour(n):
    sent = rings.follow("ring", n).sent
    assert ((sent["source"] + 1) % n == sent["target"]).all()
    for end in ("source", "target", "column"):
        assert (sent.groupby("step")[end].agg(sorted).map(list(range(n)).__eq__)).all()


@every_size
def test_half_way_round_the_ring_each_rank_has_the_sum_of_one_chunk_of_its_own(n):
    half = rings.follow("ring", n).states[n - 1] == 2**n - 1
    assert (half.sum(axis=0) == 1).all() and (half.sum(axis=1) == 1).all()


@every_size
def test_steps_and_bytes_one_after_the_other_are_those_of_the_cost_model(n):
    """The busiest port of each step, added up: latencies and bytes as labkit.cost has them."""
    for way, costs in {"ring": cost.ring_all_reduce_s, "parameter server": cost.parameter_server_s}.items():
        story = rings.follow(way, n)
        ports = np.maximum(np.diff(story.bytes_sent, axis=0), np.diff(story.bytes_received, axis=0))
        assert story.n_steps == pytest.approx(costs(0, n, 1.0, 1.0))
        assert ports.max(axis=1).sum() == pytest.approx(costs(1, n, 0.0, 1.0))


@every_size
def test_the_busiest_rank_of_the_ring_sends_the_least_of_the_server_n_halves_of_it(n):
    table = rings.bytes_table([rings.follow(way, n) for way in rings.WAYS], 1200.0).set_index("way")
    least = 2 * (n - 1) / n * 1200
    assert table.loc["ring", "busiest sends"] == pytest.approx(least)
    assert table.loc["parameter server", "busiest receives"] == pytest.approx((n - 1) * 1200)
    assert table["of the least"].tolist() == pytest.approx([1.0, n / 2, n / 2])
    assert table["all send"].tolist() == pytest.approx([n * least, n * least, n * (n - 1) * 1200])


@every_way
def test_bytes_so_far_grow_from_nothing_to_the_total(way):
    story = rings.follow(way, 4)
    tables = [rings.bytes_so_far(story, step, 100.0) for step in range(story.n_steps + 1)]
    assert tables[0][["sent", "received"]].to_numpy().sum() == 0
    for before, after in pairwise(tables):
        assert (after["sent"] >= before["sent"]).all() and (after["received"] >= before["received"]).all()
    total = tables[-1][["sent", "received"]].sum()
    assert total["sent"] == pytest.approx(total["received"])
    assert tables[-1]["sent"].max() == pytest.approx(rings.bytes_table([story], 100.0)["busiest sends"][0])


@pytest.mark.parametrize("n", [1, 17, 2.5, True, "4"])
def test_a_world_that_cannot_be_shown_is_refused(n):
    with pytest.raises((TypeError, ValueError), match="expected a whole number of ranks, 2 to 16"):
        rings.follow("ring", n)


def test_an_unknown_way_is_refused_with_those_there_are():
    with pytest.raises(ValueError, match="expected one of ring, parameter server, naive ring"):
        rings.follow("tree", 4)


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [(0, "0 B"), (1, "1 B"), (1023, "1023 B"), (1024, "1 KiB"), (1.5 * 2**20, "1.5 MiB"), (2000 * 2**40, "2000 TiB")],
)
def test_bytes_are_written_in_the_unit_that_fits(n_bytes, text):
    assert rings.in_units(n_bytes) == text


# --- the grid -------------------------------------------------------------------------------------


def test_labels_name_the_ranks_of_few_and_count_those_of_many():
    labels = {n: set(rings.grid(rings.follow("ring", n)).cells["label"]) for n in (3, 8)}
    assert labels[3] == {"0", "1", "2", "0 1", "1 2", "0 2", "Σ"}
    assert labels[8] == {"1", "2", "3", "4", "5", "6", "7", "Σ"}


@every_way
def test_every_cell_says_in_words_what_its_label_says(way):
    cells = rings.grid(rings.follow(way, 4)).cells
    words = {"own part": "the part of rank", "partial sum": "the sum of ranks", "whole sum": "the whole sum"}
    for name, sentence, rank in zip(cells["name"], cells["sentence"], cells["rank"], strict=True):
        assert words[name] in sentence and sentence.startswith(f"Rank {rank}, chunk")


def test_more_contributions_are_darker():
    cells = rings.grid(rings.follow("ring", 8)).cells
    partial = cells[cells["name"] == "partial sum"]
    by_label = partial.groupby(partial["label"].astype(int))["shade"].agg(["min", "max"])
    assert (by_label["min"] == by_label["max"]).all() and by_label["min"].is_monotonic_decreasing


@every_way
def test_the_narration_says_who_sends_what_to_whom(way):
    grid = rings.grid(rings.follow(way, 4))
    said = [grid.narrate(step) for step in range(len(grid.steps))]
    expected = {
        "ring": "every rank sends a chunk to its right neighbour",
        "parameter server": "rank 1 sends its whole tensor to rank 0",
        "naive ring": "every rank sends its whole tensor to its right neighbour",
    }
    assert expected[way] in said[0]
    assert said[-1].startswith("every rank has the whole sum")


@every_way
@pytest.mark.parametrize("n", [2, 4, 16])
def test_at_each_step_a_panel_shows_one_bar_a_cell_and_links_lead_between_bars_that_are_seen(way, n):
    story = rings.follow(way, n)
    shown = panel(rings.grid(story))
    for step in range(story.n_steps + 1):
        seen = (shown.bars["appear"] <= step) & (step < shown.bars["vanish"])
        places = shown.bars[seen][["left", "top"]].round(3).drop_duplicates()
        assert seen.sum() == len(places) == n * n
        links = shown.links[(shown.links["appear"] <= step) & (step < shown.links["vanish"])]
        assert seen[links["source"]].all() and seen[links["target"]].all()
        sent = story.sent[story.sent["step"] == step].groupby(["source", "target"])["column"].nunique()
        assert len(links) == np.where(sent == n, 1, sent).sum()
        assert (links["label"] == "all").sum() == (sent == n).sum()
    assert shown.clocks.tolist() == list(range(story.n_steps + 1))


def test_what_ranks_import_loads_no_torch_no_matplotlib_and_no_widgets():
    engines = ("rings", "recorded_ring", "collectives_seen", "placement_map")
    code = f"import sys; from labkit.explore.grids import {', '.join(engines)}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "matplotlib", "ipywidgets"} & set(loaded)
