"""labkit.trace.turns: of ways that take turns, each step counts for its own way."""

import pytest

from labkit.trace import event_table, turns


def events_of(seconds, n_ranks=2, pause_s=0.0):
    """Steps of ``seconds`` each, with a pause in the middle; rank 1 takes twice as long."""
    rows, start = [], 0.0
    for step, length in enumerate(seconds):
        for rank in range(n_ranks):
            half = length * (1 + rank) / 2
            rows.append((rank, "compute", "forward", step, None, None, None, None, start, start + half))
            rows.append((rank, "comm", "all_reduce", None, None, None, 0, 8, start, start + 99))
            begin = start + half + pause_s
            rows.append((rank, "compute", "backward", step, None, None, None, None, begin, begin + half))
        start += 10.0
    return event_table(rows, measured=True, emulated="emulated link")


def test_each_round_has_a_step_of_every_way_and_the_slowest_rank_counts():
    table = turns(events_of([9, 9, 1.0, 2.0, 1.5, 2.5], pause_s=0.5), ["flat", "buckets"], warm_up=1)
    assert table.to_dict("list") == {"flat": [2.5, 3.5], "buckets": [4.5, 5.5]}
    assert table.attrs["emulated"] == "emulated link" and "[~" in repr(table)


def test_a_name_counts_its_own_spans_only():
    table = turns(events_of([1.0, 2.0], n_ranks=1, pause_s=3.0), ["flat", "buckets"], "backward", warm_up=0)
    assert table.to_dict("list") == {"flat": [0.5], "buckets": [1.0]}


@pytest.mark.parametrize(
    ("seconds", "name", "warm_up", "said"),
    [
        ([1.0, 1.0, 1.0], None, 0, "3 steps up to number 2, expected whole rounds of 2"),
        ([1.0, 1.0], None, 1, "1 rounds, of which 1 are to warm up"),
        ([1.0, 1.0], "wait", 0, "no spans named wait with a step"),
    ],
)
def test_what_are_no_whole_rounds_is_refused(seconds, name, warm_up, said):
    with pytest.raises(ValueError, match=said):
        turns(events_of(seconds), ["flat", "buckets"], name, warm_up)
