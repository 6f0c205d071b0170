"""labkit.simulate.step: every instant of a step is in one part, and what was lost is found where it
was put."""

import functools

import pandas as pd
import pytest

from labkit.cost import ddp_step
from labkit.simulate import explain_step, largest_difference
from labkit.trace import event_table

pytestmark = pytest.mark.usefixtures("static")


def row(rank, lane, name, start_s, end_s, step=0):
    return (rank, lane, name, step, None, None, None, None, start_s, end_s)


def parts(events, steps=None, column="measured_s"):
    table = explain_step(events, events, steps)
    assert table.columns.tolist() == ["part", "predicted_s", "measured_s", "difference_s"]
    return tuple(table[column])


# Compute, waiting, communication and host, in seconds: means over the ranks.
DRAWN = {
    "who is early waits until the last rank joins, and then both communicate": (
        [
            *(row(0, "compute", "backward", 0, 2), row(0, "comm", "all_reduce", 2, 10)),
            *(row(1, "compute", "backward", 0, 7), row(1, "comm", "all_reduce", 7, 10)),
        ],
        ((2 + 7) / 2, (5 + 0) / 2, 3, 0),
    ),
    "waiting that hides behind compute is compute": (
        [
            *(row(0, "compute", "backward", 0, 8), row(0, "comm", "all_reduce", 0, 8)),
            *(row(1, "compute", "backward", 0, 8), row(1, "comm", "all_reduce", 4, 8)),
        ],
        (8, 0, 0, 0),
    ),
    # Rank 0 hands bucket 1 over at 1, rank 1 at 6; bucket 0 travels until 4.
    "a bucket on its way is communication, even if the next one waits for a rank": (
        [
            *(row(rank, "comm", "all_reduce", 0, 4) for rank in (0, 1)),
            *(row(0, "comm", "all_reduce", 1, 8), row(1, "comm", "all_reduce", 6, 8)),
            *(row(rank, "compute", "backward", 8, 9) for rank in (0, 1)),
        ],
        (1, (2 + 0) / 2, 6, (0 + 2) / 2),
    ),
    "a wait in which nothing travels, and what no span covers, are the host's": (
        [row(0, "compute", "forward", 0, 1), row(0, "compute", "wait", 2, 3), row(0, "compute", "optimizer", 3, 4)],
        (2, 0, 0, 2),
    ),
}


@pytest.mark.parametrize("rows, expected", DRAWN.values(), ids=DRAWN)
def test_the_parts_of_a_step_drawn_by_hand(rows, expected):
    assert parts(event_table(rows)) == expected


def test_the_parts_of_a_predicted_step():
    # forward 1 s, backward 2 s and two calls of 0.25 s, 1 s more on the link, optimizer 0.5 s
    step = ddp_step(1.0, [2.0, 1.0], 0.5, [100, 100], [[1], [0]], 2, 0.0, 100.0, host_s=0.25)
    assert parts(step) == parts(step, column="predicted_s") == (3.5, 0.0, 1.0, 0.5)


def test_what_has_no_number_belongs_to_the_step_in_whose_time_it_begins_and_is_cut_at_its_end():
    steps = event_table(
        [
            *(row(0, "compute", "backward", 0, 2, step=4), row(0, "compute", "optimizer", 5, 6, step=4)),
            *(row(0, "compute", "backward", 20, 22, step=5), row(0, "compute", "optimizer", 22, 24, step=5)),
            *(row(0, "comm", "all_reduce", start, end, step=None) for start, end in ((1, 4), (23.5, 30))),
            row(0, "comm", "barrier", 10, 19, step=None),
        ]
    )
    assert parts(steps, steps=[4]) == (3, 0, 2, 1)
    assert parts(steps, steps=[5]) == (4, 0, 0, 0)


@pytest.mark.parametrize(
    "changed, part, difference_s",
    [
        ({"forward_s": 1.5}, "compute", 0.5),
        ({"host_s": 0.5}, "host", 0.25),
        ({"bytes_per_s": 50.0}, "communication", 2.0),
        ({"optimizer_s": 0.25}, "compute", -0.25),
    ],
)
def test_what_was_lost_is_found_in_its_part_alone(changed, part, difference_s):
    plain = {"forward_s": 1.0, "optimizer_s": 0.5, "bytes_per_s": 100.0, "host_s": 0.25}
    step = functools.partial(
        ddp_step, ready_s=[2, 1], sizes_bytes=[100, 100], buckets=[[1, 0]], world_size=2, latency_s=0
    )
    table = explain_step(step(**plain), step(**plain | changed)).set_index("part")["difference_s"]
    assert table[part] == pytest.approx(difference_s)
    assert table.drop(part).abs().max() < 1e-12


@pytest.mark.parametrize(
    "differences_s, sentence",
    [
        ([0.001, 0.0042, 0.0029, 0.001], "9.1 ms longer than predicted; most by waiting, 4.2 ms longer"),
        ([-0.006, 0.002, 0.0, 0.001], "3.0 ms shorter than predicted; most by compute, 6.0 ms shorter"),
    ],
)
def test_the_largest_difference_is_told_with_its_part_as_a_fact_of_the_run(differences_s, sentence):
    table = pd.DataFrame({"part": ["compute", "waiting", "communication", "host"], "difference_s": differences_s})
    found = largest_difference(table)
    assert sentence in found and found.startswith("[~") and found.endswith("]")
