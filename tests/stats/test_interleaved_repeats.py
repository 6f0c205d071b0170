"""labkit.stats.turns: of ways that take turns, each step counts for its own way."""

import pytest

from labkit.stats import one_step, turns
from labkit.trace import event_table


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
    table = turns(events_of([9, 9, 1.0, 2.0, 1.5, 2.5], pause_s=0.5), ["flat", "buckets"])
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


def test_one_step_is_a_rank_s_own_and_a_bucket_waits_for_the_link():
    spans = [
        ("compute", "backward", 3, 1.0, 5.0),
        ("comm", "all_reduce", None, 2.0, 4.0),
        ("comm", "all_reduce", None, 3.0, 6.0),
    ]
    others = [
        ("comm", "all_reduce", None, 0.0, 0.5),
        ("compute", "wait", 3, 5.0, 7.0),
        ("host", "collect", None, 2.0, 3.0),
    ]
    rows = [
        (rank, lane, name, step, None, None, None, None, a, b)
        for rank in (0, 1)
        for lane, name, step, a, b in spans + others
    ]
    found = one_step(event_table(rows), 3, names=["backward", "wait", "all_reduce"])
    assert found[["rank", "name", "start_s", "end_s"]].values.tolist() == [
        [0, "backward", 1.0, 5.0],
        [0, "all_reduce", 2.0, 4.0],
        [0, "all_reduce", 4.0, 6.0],
        [0, "wait", 5.0, 7.0],
    ]
    with pytest.raises(ValueError, match="rank 0 has no such spans in step 4"):
        one_step(event_table(rows), 4)
