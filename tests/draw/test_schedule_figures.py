"""labkit.draw.timelines: several schedules compare at a glance in time and memory."""

from itertools import combinations, pairwise

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from drawn_artists import assert_apart, drawn_bars, idle_boxes, on_screen, overlapping
from drawn_tables import event, two_ranks
from matplotlib.text import Annotation

from labkit.draw import timeline
from labkit.schedule import forward_only, gpipe, interleaved, one_f_one_b, zero_bubble_h1, zero_bubble_v
from labkit.simulate import simulate
from labkit.trace import event_table


@pytest.fixture(scope="module")
def five_tables():
    """Return five schedules of one model on four ranks; each of two stages takes half as long."""
    return {
        "GPipe": simulate(gpipe(4, 8)),
        "1F1B": simulate(one_f_one_b(4, 8)),
        "Interleaved 1F1B": simulate(interleaved(4, 8, 2), 0.5, 1.0),
        "ZB-H1": simulate(zero_bubble_h1(4, 8)),
        "ZB-V": simulate(zero_bubble_v(4, 8), 0.5, 1.0, 0.5, 0.5),
    }


@pytest.fixture(scope="module")
def five(five_tables):
    return timeline(five_tables, note="Equal stages.", time_label="time (forward passes)").figure


def peaks(ax):
    """What stands beside the strips of a panel."""
    return [text.get_text() for text in ax.texts if isinstance(text, Annotation)]


def facts(five):
    return {ax.get_title(loc="left"): ax.get_title(loc="right") for ax in five.axes}


def test_every_op_is_a_bar_in_the_panel_of_its_table_which_says_its_makespan_and_bubble(five, five_tables):
    for ax, events in zip(five.axes, five_tables.values(), strict=True):
        drawn = sorted((round(left, 6), round(right, 6)) for left, right, *_ in drawn_bars(ax))
        assert drawn == sorted(zip(events["start_s"], events["end_s"], strict=True))
    assert all(above.get_position().y0 > below.get_position().y1 for above, below in pairwise(five.axes))
    assert [ax.get_xlabel().split("\n")[0] for ax in five.axes] == [""] * 4 + ["time (forward passes)"]
    # closed forms of ANCHORS.md, n = 4 and m = 8: (m + n - 1)(F + B) = 33 and 3/11; 24 + 3·3/2 for
    # two chunks; 27 for ZB-H1
    written = facts(five)
    assert list(written) == list(five_tables)
    assert written["GPipe"] == written["1F1B"] == "makespan 33   bubble 27.3 %"
    assert written["Interleaved 1F1B"] == "makespan 28.5   bubble 15.8 %"
    assert written["ZB-H1"] == "makespan 27   bubble 11.1 %"


def test_what_was_measured_late_starts_at_0_and_ranks_idle_from_the_first_op_of_all_to_the_last():
    times = {"forward": (100, 101), "backward": (103, 104)}
    ops = [(0, "compute", name, None, 0, 0, None, None, *span) for name, span in times.items()]
    rows = [*ops, event(0, "send", 101, 101.5, "comm"), event(0, "send", 104, 105, "comm")]
    (ax,) = timeline({"measured": event_table(rows)}).figure.axes
    assert {(box[0], box[1]) for box in drawn_bars(ax)} == {(0, 1), (3, 4), (1, 1.5), (4, 5)}
    (idle,) = [box for box in idle_boxes(ax)]
    assert idle[:2] == (0, 4) and idle[3] - idle[2] == pytest.approx(0.86)  # behind the lane compute, not behind comm
    assert ax.get_xlim()[1] >= 5


def test_a_single_pipeline_has_a_tick_a_clock_and_grey_where_a_rank_waits_between_first_and_last_op():
    ax = timeline(simulate(forward_only(4, 6)), time_label="clock")
    assert [tick for tick in ax.get_xticks() if 0 <= tick <= 9] == [*range(10)]
    assert [box[:2] for box in idle_boxes(ax)] == [(0, 9)] * 4
    assert not idle_boxes(timeline(two_ranks()))  # it has messages and optimizer steps


def test_ops_of_ranks_with_several_stages_have_their_names_where_all_have_room():
    half = {"forward": 0.5, "backward": 1.0}
    labels = {m: {text.get_text() for text in timeline(simulate(interleaved(2, m, 2), **half)).texts} for m in (2, 16)}
    assert labels[2] == {f"{stage}{kind}{i}" for stage in range(4) for kind in "FB" for i in range(2)}
    assert labels[16] <= {str(i) for i in range(16)}


def test_the_peak_of_every_rank_stands_beside_it(five):
    shown = {ax.get_title(loc="left"): peaks(ax) for ax in five.axes}
    assert shown["GPipe"] == ["8"] * 4
    assert shown["1F1B"] == ["4", "3", "2", "1"]  # min(n - r, m)
    assert shown["Interleaved 1F1B"] == [
        f"{(4 + 2 * (3 - r) + 1) / 2:g}" for r in range(4)
    ]  # half of (v - 1)n + 2(n - 1 - r) + 1
    assert max(shown["ZB-H1"]) == "4"
    assert set(shown["ZB-V"]) == {"4"}  # 2n halves are the n of 1F1B's first rank


def assert_nothing_overlaps(figure):
    figure.draw_without_rendering()
    texts = [text for ax in figure.axes for text in [*ax.texts, *ax.get_yticklabels(), ax.xaxis.label, ax.title]]
    left, right = figure.axes[-1].get_xlim()
    texts += [label for label in figure.axes[-1].get_xticklabels() if left <= label.get_position()[0] <= right]
    texts += figure.legends[0].get_texts()
    assert_apart(texts)
    boxes = np.array([on_screen(text) for text in texts if text.get_text()])
    assert min(text.get_fontsize() for text in texts if text.get_text()) >= 5
    assert boxes[:, 0].min() >= 0 and boxes[:, 1].max() <= figure.bbox.x1 and boxes[:, 3].max() <= figure.bbox.y1


def test_five_schedules_with_all_their_numbers_overlap_nowhere_and_have_one_legend(five, five_tables):
    assert_nothing_overlaps(five)
    numbers = [len([text for text in ax.texts if not isinstance(text, Annotation)]) for ax in five.axes]
    assert numbers == [len(events) for events in five_tables.values()]
    for ax in five.axes:
        assert not [pair for pair in combinations(drawn_bars(ax), 2) if overlapping(*pair)]
    entries = "forward|backward|input gradient|weight gradient|1st, 2nd stage of a rank|idle|activations kept"
    assert "|".join(text.get_text() for text in five.legends[0].get_texts()) == entries


GOOD = simulate(gpipe(2, 2))
BAD = {
    "no table at all": ([GOOD], TypeError, "of type list, expected an event table"),
    "nothing": ({}, ValueError, "expected at least one table by title"),
    "no table": ({"good": GOOD, "a run": 3}, TypeError, "'a run' is of type int, expected an event table"),
    "no pipeline": ({"good": GOOD, "ddp": two_ranks()}, ValueError, "'ddp': .*no op of a pipeline"),
    "no compute": ({"idle": GOOD.assign(lane="comm")}, ValueError, "'idle': .*no spans in the lane compute"),
}


@pytest.mark.parametrize(("tables", "error", "message"), BAD.values(), ids=BAD.keys())
def test_what_cannot_be_drawn_is_refused_by_its_title_before_anything_is_drawn(tables, error, message):
    with pytest.raises(error, match=message):
        timeline(tables)
    assert not plt.get_fignums()


def test_tables_without_micro_batches_stand_above_each_other_with_their_titles_alone():
    plain = two_ranks().assign(micro_batch=pd.NA)
    axes = timeline({"before": plain, "after": plain}).figure.axes
    assert [ax.get_title(loc="left").split("\n")[0] for ax in axes] == ["before", "after"]
