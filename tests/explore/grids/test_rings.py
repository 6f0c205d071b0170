"""labkit.explore.grids.rings, ring_panel: what moves where while N ranks add up a tensor."""

import numpy as np
import pytest

from labkit import cost
from labkit.explore.grids.ring_panel import ring_cells, ring_panel
from labkit.explore.grids.rings import ALGORITHMS, min_tensors, simulate_ring

every_way = pytest.mark.parametrize("way", ALGORITHMS)
every_size = pytest.mark.parametrize("n", [2, 3, 7])


@every_way
@every_size
def test_every_rank_gets_the_whole_sum_of_every_chunk_and_no_part_is_added_twice(way, n):
    trace, total = simulate_ring(way, n), 2**n - 1
    assert (trace.states[0] == [[1 << rank] * n for rank in range(n)]).all()
    assert (trace.states[-1] == total).all() and trace.n_whole_sums == n * n
    for step, source, target, chunk, parts in ALGORITHMS[way].sends(n):
        assert parts == total or not trace.states[step, target, chunk] & parts, "only whole sums replace what is there"
        if way != "naive ring":  # where tensors pass by
            assert trace.states[step, source, chunk] == parts, "a rank sends what it holds"


@every_size
def test_in_each_step_of_the_ring_every_rank_sends_one_chunk_and_half_way_it_has_one_sum(n):
    trace = simulate_ring("ring", n)
    assert set(trace.messages) == {(step, rank, (rank + 1) % n) for step in range(2 * n - 2) for rank in range(n)}
    for step in range(2 * n - 2):
        assert sorted(trace.messages[step, rank, (rank + 1) % n] for rank in range(n)) == [
            [chunk] for chunk in range(n)
        ]
    half = trace.states[n - 1] == 2**n - 1
    assert (half.sum(axis=0) == 1).all() and (half.sum(axis=1) == 1).all()


@every_size
def test_bytes_one_after_the_other_are_those_of_the_cost_model_and_so_are_the_rings_steps(n):
    """The busiest port of each step, added up: bytes as labkit.cost has them.

    A ring pays a latency for each step. A server's messages wait for a port, not for each other.
    """
    for way, costs in {"ring": cost.ring_all_reduce_s, "parameter server": cost.parameter_server_s}.items():
        trace = simulate_ring(way, n)
        ports = np.maximum(np.diff(trace.bytes_sent, axis=0), np.diff(trace.bytes_received, axis=0))
        assert costs(0, n, 1.0, 1.0) == pytest.approx(trace.n_steps if way == "ring" else 2)
        assert trace.seconds(3.0, cost.Link(5.0, 7.0)) == pytest.approx(costs(3.0, n, 5.0, 7.0))
        assert ports.max(axis=1).sum() == pytest.approx(costs(1, n, 0.0, 1.0))
        assert trace.busiest == pytest.approx(min_tensors(n) * (1 if way == "ring" else n / 2))


@every_way
def test_every_cell_says_in_words_what_it_is_and_the_narration_who_sends_what(way):
    words = {"own part": "the part of rank {0} alone", "partial sum": "the sum of ranks", "whole sum": "the whole sum"}
    trace = simulate_ring(way, 4)
    for cell in ring_cells(trace):
        assert cell.sentence.startswith(f"Rank {cell.rank}, chunk")
        assert words[cell.name].format(cell.rank) in cell.sentence
    panel = ring_panel(trace, 1)
    assert ("rank 1 sends" if way == "parameter server" else "every rank sends") in panel.narrate(0)
    assert panel.narrate(trace.n_steps).startswith(f"after step {trace.n_steps} of {trace.n_steps}: every rank has")


@every_way
@pytest.mark.parametrize("n", [2, 4])
def test_at_each_step_a_panel_shows_one_bar_a_cell_and_links_lead_between_bars_that_are_seen(way, n):
    trace = simulate_ring(way, n)
    panel = ring_panel(trace, 1)
    assert panel.stops.tolist() == list(range(trace.n_steps + 1))
    for step in range(trace.n_steps + 1):
        seen, links = (
            table[(table["appear"] <= step) & (step < table["vanish"])] for table in (panel.bars, panel.links)
        )
        assert len(seen) == len(seen[["left", "top"]].round(3).drop_duplicates()) == n * (n + 1)
        assert {*links["source"], *links["target"]} <= set(seen.index)
        sent = [len(chunks) for (at, *_), chunks in trace.messages.items() if at == step]
        assert len(links) == sum(1 if count == n else count for count in sent)
        assert (links["label"] == "all").sum() == sent.count(n)
        assert (panel.links["vanish"] == step + 1).sum() == sum(sent), "every chunk that is sent moves"
