"""Panels of a backward pass: blocks as long as their bytes, bars as their times, and words."""

import pytest

from labkit.base.units import MIB
from labkit.cost import Link
from labkit.draw.layout import time_axis
from labkit.explore.buckets.gradients import Gradients
from labkit.explore.buckets.panels import BUCKET_NAMES, blocks_panel, pass_panel
from labkit.explore.buckets.reducer import Reduction, predict

SECONDS = time_axis(10.0)


def three(world_size: int = 2) -> Reduction:
    """Buckets of 3 and 4 MiB, full at 2 s and 3 s; on this link they take 2.5 s and 3 s."""
    gradients = Gradients(
        "three", ["m.a.weight", "m.b.weight", "m.c.bias"], [4 * MIB, 2 * MIB, MIB], [3, 2, 1], "by hand"
    )
    return predict(gradients, [[2, 1], [0]], world_size, Link(0.5, 2 * MIB))


def test_blocks_are_as_long_as_their_bytes_in_the_order_of_sending_and_coloured_by_bucket():
    bars = blocks_panel(three()).bars
    per_mib = three().end_s / 7  # all of them are as long as the pass
    assert bars["left"].tolist() == pytest.approx([each * per_mib for each in (0, 1, 3, 0, 3)])
    assert bars["right"].tolist() == pytest.approx([each * per_mib for each in (1, 3, 7, 3, 7)])
    assert bars["name"].tolist() == [BUCKET_NAMES[k] for k in (0, 0, 1, 0, 1)]
    assert bars["label"].tolist() == ["c.bias", "b.weight", "a.weight", "0", "1"]


def test_bars_of_a_pass_are_gradients_the_wait_buckets_that_wait_and_all_reduces():
    bars = pass_panel(three(), SECONDS).bars
    assert bars["left"].tolist() == [0, 1, 2, 3, 3, 2, 4.5]
    assert bars["right"].tolist() == [1, 2, 3, 7.5, 4.5, 4.5, 7.5]
    assert bars["label"].tolist() == ["0", "", "1", "exposed", "1", "0", "1"]  # once a bucket and row
    assert [int(top) for top in bars["top"]] == [0, 0, 0, 0, 1, 2, 2]
    assert bars["same"].tolist() == [0, 0, 1, -1, 1, 0, 1]


def test_each_bar_needs_what_it_starts_after_and_the_critical_path_ends_with_the_pass():
    panel = pass_panel(three(), SECONDS)
    assert panel.needs.tolist() == [-1, 0, 1, 6, 2, 1, 5]
    assert panel.critical.tolist() == [0, 1, 5, 6]


def test_every_bar_is_explained():
    panel = pass_panel(three(), SECONDS)
    sentences = [panel.explain(bar) for bar in range(len(panel.bars))]
    where, when = sentences[0].splitlines()
    assert where == "m.c.bias: 1 MiB, parameter 2 of 3."
    assert when == "Its gradient is ready at 1 s, 1 s after the one before, as number 1, and goes into bucket 0."
    assert sentences[1].endswith("and fills bucket 0.")
    assert sentences[3].startswith("Exposed communication: 4.5 s, from the end of backward at 3 s")
    assert sentences[4] == "Bucket 1 is full at 3 s and waits 1.5 s for the link, or its turn."
    assert sentences[5] == (
        "Bucket 0: 2 gradients, 3 MiB.\nIts all_reduce starts at 2 s, as soon as it was full, and takes 2.5 s. 1.5 s of it after "
        "backward: exposed."
    )
    blocks = blocks_panel(three())
    assert [blocks.explain(bar) for bar in (2, 3)] == [
        "m.a.weight: 4 MiB, parameter 0 of 3.\nIts gradient is ready as number 3, and fills bucket 1.",
        "Bucket 0: 2 gradients, 3 MiB.",
    ]


def test_steps_go_from_bucket_to_bucket_and_say_which_is_full_which_is_done_and_when_backward_is_over():
    panel = pass_panel(three(), SECONDS)
    assert panel.stops.tolist() == [2, 3, 4.5, 7.5]
    texts = [panel.narrate(x) for x in panel.stops]
    assert texts[0].startswith(
        "2 s: Bucket 0 is full with 3.00 MiB: all_reduce 0 starts. (3 of 7 MiB ready; in flight: "
    )
    assert "Backward is over." in texts[1] and "all_reduce 0 is done" in texts[2] and "2 of 2 buckets done" in texts[3]
