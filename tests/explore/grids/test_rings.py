"""labkit.explore.grids.rings: what moves where while N ranks add up a tensor, and how many
bytes."""

import subprocess
import sys

import numpy as np
import pytest

from labkit import cost
from labkit.explore.grids.ring_panel import ring_cells, ring_panel
from labkit.explore.grids.rings import ALGORITHMS, in_units, least_tensors, simulate_ring

WORLD_SIZES = (2, 3, 4, 7, 16)
every_way = pytest.mark.parametrize("way", ALGORITHMS)
every_size = pytest.mark.parametrize("n", WORLD_SIZES)


@every_way
@every_size
def test_in_the_end_every_rank_has_the_whole_sum_of_every_chunk(way, n):
    trace = simulate_ring(way, n)
    assert (trace.states[0] == [[1 << rank] * n for rank in range(n)]).all()
    assert (trace.states[-1] == 2**n - 1).all()


@pytest.mark.parametrize("way", ["ring", "parameter server"])
@every_size
def test_a_rank_sends_only_what_it_holds(way, n):
    trace = simulate_ring(way, n)
    for step, source, _, chunk, parts in ALGORITHMS[way].sends(n):
        assert trace.states[step, source, chunk] == parts


@every_way
@every_size
def test_no_part_is_added_to_a_sum_that_has_it_already(way, n):
    """Only whole sums may replace what a rank holds."""
    trace = simulate_ring(way, n)
    for step, _, target, chunk, parts in ALGORITHMS[way].sends(n):
        assert parts == 2**n - 1 or not trace.states[step, target, chunk] & parts


@every_size
def test_in_each_step_of_the_ring_every_rank_sends_one_chunk_and_gets_one_from_its_neighbour(n):
    messages = simulate_ring("ring", n).messages
    assert set(messages) == {(step, rank, (rank + 1) % n) for step in range(2 * n - 2) for rank in range(n)}
    for step in range(2 * n - 2):
        assert sorted(messages[step, rank, (rank + 1) % n] for rank in range(n)) == [[chunk] for chunk in range(n)]


@every_size
def test_half_way_round_the_ring_each_rank_has_the_sum_of_one_chunk_of_its_own(n):
    half = simulate_ring("ring", n).states[n - 1] == 2**n - 1
    assert (half.sum(axis=0) == 1).all() and (half.sum(axis=1) == 1).all()


@every_size
def test_steps_and_bytes_one_after_the_other_are_those_of_the_cost_model(n):
    """The busiest port of each step, added up: latencies and bytes as labkit.cost has them."""
    for way, costs in {"ring": cost.ring_all_reduce_s, "parameter server": cost.parameter_server_s}.items():
        trace = simulate_ring(way, n)
        ports = np.maximum(np.diff(trace.bytes_sent, axis=0), np.diff(trace.bytes_received, axis=0))
        assert trace.n_steps == pytest.approx(costs(0, n, 1.0, 1.0))
        assert ports.max(axis=1).sum() == pytest.approx(costs(1, n, 0.0, 1.0))


@every_size
def test_the_busiest_rank_of_the_ring_sends_the_least_of_the_server_n_halves_of_it(n):
    ring, server, naive = (simulate_ring(way, n) for way in ALGORITHMS)
    assert ring.busiest == pytest.approx(least_tensors(n)) == pytest.approx(2 * (n - 1) / n)
    assert server.bytes_received[-1].max() == pytest.approx(n - 1)
    assert [server.busiest, naive.busiest] == pytest.approx([n / 2 * ring.busiest] * 2)
    assert [trace.bytes_sent[-1].sum() for trace in (ring, server)] == pytest.approx([n * ring.busiest] * 2)


@every_way
def test_bytes_so_far_grow_from_nothing_to_the_total(way):
    trace = simulate_ring(way, 4)
    for moved in (trace.bytes_sent, trace.bytes_received):
        assert not moved[0].any() and (np.diff(moved, axis=0) >= 0).all()
    assert trace.bytes_sent[-1].sum() == pytest.approx(trace.bytes_received[-1].sum())


@pytest.mark.parametrize("n", [1, 17, 2.5, True, "4"])
def test_a_world_that_cannot_be_shown_is_refused(n):
    with pytest.raises((TypeError, ValueError), match="expected a whole number of ranks, 2 to 16"):
        simulate_ring("ring", n)


def test_an_unknown_way_is_refused_with_those_there_are():
    with pytest.raises(ValueError, match="expected one of ring, parameter server, naive ring"):
        simulate_ring("tree", 4)


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [(0, "0 B"), (1, "1 B"), (1023, "1023 B"), (1024, "1 KiB"), (1.5 * 2**20, "1.5 MiB"), (2000 * 2**40, "2000 TiB")],
)
def test_bytes_are_written_in_the_unit_that_fits(n_bytes, text):
    assert in_units(n_bytes) == text


# --- the panel ------------------------------------------------------------------------------------


def test_labels_name_the_ranks_of_few_and_count_those_of_many():
    labels = {n: {cell.label for cell in ring_cells(simulate_ring("ring", n))} for n in (3, 8)}
    assert labels[3] == {"0", "1", "2", "0 1", "1 2", "0 2", "Σ"}
    assert labels[8] == {"1", "2", "3", "4", "5", "6", "7", "Σ"}


@every_way
def test_every_cell_says_in_words_what_its_label_says(way):
    words = {"own part": "the part of rank", "partial sum": "the sum of ranks", "whole sum": "the whole sum"}
    for cell in ring_cells(simulate_ring(way, 4)):
        assert words[cell.name] in cell.sentence and cell.sentence.startswith(f"Rank {cell.rank}, chunk")


def test_more_contributions_are_darker():
    cells = [cell for cell in ring_cells(simulate_ring("ring", 8)) if cell.name == "partial sum"]
    shades = {int(cell.label): cell.chunk for cell in cells}
    assert all(cell.chunk == shades[int(cell.label)] for cell in cells)
    assert sorted(shades.values(), reverse=True) == [shades[count] for count in sorted(shades)]


@every_way
def test_the_narration_says_who_sends_what_to_whom(way):
    panel = ring_panel(simulate_ring(way, 4), 1)
    said = [panel.narrate(step) for step in panel.clocks]
    expected = {
        "ring": "every rank sends a chunk to its right neighbour",
        "parameter server": "rank 1 sends its whole tensor to rank 0",
        "naive ring": "every rank sends its whole tensor to its right neighbour",
    }
    assert expected[way] in said[0]
    assert said[-1].startswith("at the end: every rank has the whole sum")


@every_way
@pytest.mark.parametrize("n", [2, 4, 16])
def test_at_each_step_a_panel_shows_one_bar_a_cell_and_links_lead_between_bars_that_are_seen(way, n):
    trace = simulate_ring(way, n)
    shown = ring_panel(trace, 1)
    for step in range(trace.n_steps + 1):
        seen = (shown.bars["appear"] <= step) & (step < shown.bars["vanish"])
        places = shown.bars[seen][["left", "top"]].round(3).drop_duplicates()
        assert seen.sum() == len(places) == n * (n + 1)
        links = shown.links[(shown.links["appear"] <= step) & (step < shown.links["vanish"])]
        assert seen[links["source"]].all() and seen[links["target"]].all()
        sent = [len(chunks) for (at, *_), chunks in trace.messages.items() if at == step]
        assert len(links) == sum(1 if count == n else count for count in sent)
        assert (links["label"] == "all").sum() == sent.count(n)
    assert shown.clocks.tolist() == list(range(trace.n_steps + 1))


def test_what_ranks_import_loads_no_torch_no_matplotlib_and_no_widgets():
    engines = ("rings", "recorded_ring", "collectives_seen", "placement_map")
    code = f"import sys; from labkit.explore.grids import {', '.join(engines)}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "matplotlib", "ipywidgets"} & set(loaded)
