"""labkit.stats: of ways that take turns, each repeat and each step counts for its own way."""

import pytest

from labkit.stats import numbered, repeats, turns
from labkit.stats.repeated_times import RepeatedTimes
from labkit.trace import event_table

pytestmark = pytest.mark.usefixtures("static")


def table_of(*spans):
    """Return events of (rank, lane, name, step, start, end), measured on an emulated link."""
    rows = [(rank, lane, name, step, None, None, None, None, a, b) for rank, lane, name, step, a, b in spans]
    return event_table(rows, measured=True, emulated="emulated link")


def in_a_row(*spans):
    """Return the events of (rank, name, step, seconds), one after the other on each rank."""
    clock, events = {}, []
    for rank, name, step, seconds in spans:
        start = clock.get(rank, 0.0)
        clock[rank] = start + seconds
        events.append((rank, "comm", name, step, start, start + seconds))
    return table_of(*events)


def test_repeats_are_numbered_in_turn_and_the_slowest_rank_counts():
    ring, server = [(2.0, 1.0), (1.0, 5.0)], [(3.0, 4.0), (7.0, 6.0)]
    rounds = [(("ring", 1), ring[0]), (("server", 2), server[0]), (("ring", 1), ring[1]), (("server", 2), server[1])]
    spans = [(rank, *way, each[rank]) for way, each in rounds for rank in (0, 1)]
    events = in_a_row(*spans, (0, "other", None, 9.0))
    table = repeats(events[events.name != "other"])
    assert table.to_dict("list") == {"ring": [2.0, 5.0], "server": [4.0, 7.0]}
    assert repeats(events, by="step").to_dict("list") == {1: [2.0, 5.0], 2: [4.0, 7.0]}
    assert repeats(events, by="step", name="ring").to_dict("list") == {1: [2.0, 5.0]}
    assert "[~" in repr(table) and repr(table).endswith("emulated link")


def steps_of(*seconds, n_ranks=2, pause_s=0.0):
    """Return steps of ``seconds`` each, with a pause in the middle; rank 1 takes twice as long."""
    spans = []
    for step, length in enumerate(seconds):
        for rank in range(n_ranks):
            start, half = 10.0 * step, length * (1 + rank) / 2
            begin = start + half + pause_s
            spans.append((rank, "compute", "forward", step, start, start + half))
            spans.append((rank, "comm", "all_reduce", None, start, start + 99))
            spans.append((rank, "compute", "backward", step, begin, begin + half))
    return table_of(*spans)


def test_each_round_has_a_step_of_every_way_and_a_name_counts_its_own_spans_only():
    table = turns(steps_of(9, 9, 1.0, 2.0, 1.5, 2.5, pause_s=0.5), ["flat", "buckets"])
    assert table.to_dict("list") == {"flat": [2.5, 3.5], "buckets": [4.5, 5.5]}
    assert table.attrs["emulated"] == "emulated link" and "[~" in repr(table)
    named = turns(steps_of(1.0, 2.0, n_ranks=1, pause_s=3.0), ["flat", "buckets"], "backward", warm_up=0)
    assert named.to_dict("list") == {"flat": [0.5], "buckets": [1.0]}


def test_ways_that_this_run_cannot_tell_from_the_fastest_are_named_with_it():
    noise = [0.99, 1.01, 1.0, 0.98, 1.02, 1.0, 1.01, 0.99]
    times = RepeatedTimes({4: noise, 1: [1.001 * each for each in noise[::-1]], 2: [2.0] * 8})
    assert times.as_fast() == [4, 1]
    assert times.fastest() == (4, 1, 4)
    assert times.ratio(2, 4).median == pytest.approx(2, rel=0.02)
    assert times.saved(4, 2).median == pytest.approx(0.5, rel=0.02)
    assert times.verdict(4, 1).is_noise and not times.verdict(4, 2).is_noise


def test_the_spans_of_a_step_that_does_not_know_its_number_get_that_of_the_span_around_them():
    spans = [(0, "step", 0, 2.0), (0, "step", 1, 3.0), (1, "step", 0, 4.0), (1, "step", 1, 1.0)]
    inside = [(0, "compute", "forward", None, start, start + 0.5) for start in (0.0, 2.1, 4.9)]
    inside += [(1, "compute", "forward", None, start, start + 0.5) for start in (3.9, 4.0)]
    around = [tuple(row) for row in in_a_row(*spans)[["rank", "lane", "name", "step", "start_s", "end_s"]].to_numpy()]
    found = numbered(table_of(*around, *inside, (0, "comm", "other", None, 1.0, 1.1)), ["forward"])
    assert found[found.name == "forward"].step.tolist() == [0, 1, 1, 0, 1]
    assert found[found.name == "other"].step.isna().all() and "step" not in set(found.name)
    assert found.attrs["emulated"] == "emulated link"
