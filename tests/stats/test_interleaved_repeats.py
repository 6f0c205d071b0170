"""labkit.stats: of ways that take turns, each repeat and each step counts for its own way."""

import pytest

from labkit.stats import repeats
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


def test_ways_that_this_run_cannot_tell_from_the_fastest_are_named_with_it():
    noise = [0.99, 1.01, 1.0, 0.98, 1.02, 1.0, 1.01, 0.99]
    times = RepeatedTimes({4: noise, 1: [1.001 * each for each in noise[::-1]], 2: [2.0] * 8})
    assert times.as_fast() == [4, 1]
    assert times.fastest() == (4, 1, 4)
    assert times.ratio(2, 4).median == pytest.approx(2, rel=0.02)
    assert times.verdict(4, 1).is_noise and not times.verdict(4, 2).is_noise
