"""labkit.draw.schedule_figures: several schedules compare at a glance, in time and in memory."""

from itertools import combinations, pairwise

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from drawn_artists import drawn_bars, idle_boxes, on_screen, overlapping
from drawn_tables import event, two_ranks
from matplotlib.collections import PolyCollection

from labkit.draw import schedules
from labkit.draw.picture import drawn_data
from labkit.schedule import forward_only, gpipe, interleaved, one_f_one_b, zero_bubble_h1, zero_bubble_v
from labkit.simulate import simulate
from labkit.trace import event_table


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


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


def words(ax):
    """What stands around the panel: everything but the numbers in bars."""
    return [text.get_text() for text in ax.texts if text.get_path_effects() == []]


def strips(ax):
    """Every memory strip as (times, heights), from the top rank down; heights in rows."""
    found = []
    for each in ax.collections:
        if isinstance(each, PolyCollection) and each.get_zorder() == 1.5:
            corners = each.get_paths()[0].vertices
            found.append((corners[:, 0], corners[:, 1].max() - corners[:, 1], corners[:, 1].max()))
    return [(times, heights) for times, heights, _ in sorted(found, key=lambda strip: strip[2])]


def area(times, heights):
    """Under an outline, by the shoelace formula."""
    return abs(np.dot(times, np.roll(heights, 1)) - np.dot(heights, np.roll(times, 1))) / 2


def peaks(ax):
    return words(ax)[:-4]  # before title, makespan, bubble and the heading


# --- time -----------------------------------------------------------------------------------------


def test_every_op_is_a_bar_at_its_time_in_the_panel_of_its_table(five_tables):
    figure = schedules(five_tables)
    for ax, events in zip(figure.axes, five_tables.values(), strict=True):
        drawn = sorted((round(left, 6), round(right, 6)) for left, right, *_ in drawn_bars(ax))
        assert drawn == sorted(zip(events["start_s"], events["end_s"], strict=True))


def test_a_second_is_as_wide_and_a_bar_as_high_in_every_panel_whatever_its_ranks():
    figure = schedules(
        {"two": simulate(gpipe(2, 2)), "six": simulate(one_f_one_b(6, 7)), "short": two_ranks(0.1)}, False
    )
    figure.draw_without_rendering()
    sizes = set()
    for ax in figure.axes:
        (x0, y0), (x1, y1) = ax.transData.transform([(0, 0), (1, 1)])
        sizes.add((round(x0, 3), round(x1 - x0, 3), round(y0 - y1, 3)))
    assert len(sizes) == 1
    assert len({ax.get_xlim() for ax in figure.axes}) == 1


def test_higher_rows_have_larger_numbers_up_to_what_fits_on_the_page():
    def row_and_number(row_in, n_ranks):
        figure = schedules({"GPipe": simulate(gpipe(n_ranks, 2))}, row_in=row_in)
        figure.draw_without_rendering()
        ax = figure.axes[0]
        (_, top), (_, bottom) = ax.transData.transform([(0, 0), (0, 1)])
        number = max(text.get_fontsize() for text in ax.texts if text.get_path_effects())
        return (top - bottom) / figure.dpi, number

    small, large, crowded = row_and_number(0.21, 4), row_and_number(0.42, 4), row_and_number(0.42, 40)
    assert large == pytest.approx((0.42, 2 * small[1])) and small[0] == pytest.approx(0.21)
    assert crowded[0] < 0.21  # forty ranks have to fit


def test_panels_stand_below_each_other_in_the_order_given_and_only_the_last_names_the_time(five_tables):
    figure = schedules(five_tables, time_label="time (forward passes)")
    assert [words(ax)[-4] for ax in figure.axes] == list(five_tables)
    assert all(above.get_position().y0 > below.get_position().y1 for above, below in pairwise(figure.axes))
    assert [ax.get_xlabel().split("\n")[0] for ax in figure.axes] == [""] * 4 + ["time (forward passes)"]


def test_each_panel_says_its_makespan_and_bubble(five_tables):
    figure = schedules(five_tables, time_label="time (forward passes)")
    # closed forms of ANCHORS.md, n = 4 and m = 8: (m + n - 1)(F + B) = 33 and 3/11; 24 + 3·3/2 for
    # two chunks; 27 for ZB-H1
    said = {words(ax)[-4]: words(ax)[-3:-1] for ax in figure.axes}
    assert said["GPipe"] == said["1F1B"] == ["makespan 33", "bubble 27.3 %"]
    assert said["Interleaved 1F1B"] == ["makespan 28.5", "bubble 15.8 %"]
    assert said["ZB-H1"] == ["makespan 27", "bubble 11.1 %"]


def test_without_another_name_times_have_a_unit():
    (ax,) = schedules({"GPipe": simulate(gpipe(2, 2), 1e-3, 2e-3)}).axes
    assert "makespan 9 ms" in words(ax) and ax.get_xlabel() == "time (ms)"


def test_what_was_measured_late_starts_at_0_and_ranks_idle_from_the_first_op_of_all_to_the_last():
    rows = [event(0, "forward", 100, 101, micro_batch=0), event(1, "forward", 101.5, 103, micro_batch=0)]
    rows += [event(0, "send", 101, 101.5, "comm"), event(1, "send", 103, 104, "comm")]
    (ax,) = schedules({"measured": event_table(rows)}, memory=False).axes
    assert {(box[0], box[1]) for box in drawn_bars(ax)} == {(0, 1), (1.5, 3), (1, 1.5), (3, 4)}
    idle = idle_boxes(ax)
    assert [(left, right) for left, right, *_ in idle] == [(0, 3), (0, 3)]
    assert {round(bottom - top, 6) for *_, top, bottom in idle} == {0.86}  # behind the lane compute, not behind comm
    assert ax.get_xlim()[1] >= 4


def test_a_rank_that_waits_is_grey_behind_its_bars(five_tables):
    ax = schedules(five_tables, memory=False).axes[0]
    tops = sorted({round(box[2], 6) for box in drawn_bars(ax)})
    assert sorted(round(top, 6) for *_, top, _ in idle_boxes(ax)) == tops
    assert {(left, right) for left, right, *_ in idle_boxes(ax)} == {(0, 33)}


# --- memory ---------------------------------------------------------------------------------------


def test_the_peak_of_every_rank_stands_beside_it(five_tables):
    shown = {words(ax)[-4]: peaks(ax) for ax in schedules(five_tables).axes}
    assert shown["GPipe"] == ["8"] * 4
    assert shown["1F1B"] == ["4", "3", "2", "1"]  # min(n - r, m)
    assert shown["Interleaved 1F1B"] == [f"{4 + 2 * (3 - r) + 1} × ½" for r in range(4)]  # (v - 1)n + 2(n - 1 - r) + 1
    assert max(shown["ZB-H1"]) == "4"
    assert set(shown["ZB-V"]) == {"8 × ½"}  # 2n halves are the n of 1F1B's first rank


def test_strips_have_one_scale_so_that_half_the_memory_is_half_as_high(five_tables):
    figure = schedules(five_tables)
    highest = {words(ax)[-4]: [heights.max() for _, heights in strips(ax)] for ax in figure.axes}
    full = highest["GPipe"][0]
    assert highest["GPipe"] == pytest.approx([full] * 4)
    assert highest["1F1B"] == pytest.approx([full * kept / 8 for kept in (4, 3, 2, 1)])
    assert highest["Interleaved 1F1B"] == pytest.approx([full * halves / 16 for halves in (11, 9, 7, 5)])
    assert highest["ZB-V"] == pytest.approx([full * 4 / 8] * 4)


def test_the_area_of_a_strip_is_the_time_that_its_micro_batches_are_kept(five_tables):
    figure = schedules(five_tables)
    row = strips(figure.axes[0])[0][1].max() / 8  # so high is one micro-batch
    for ax, (title, events) in zip(figure.axes, five_tables.items(), strict=True):
        share = 0.5 if events["stage"].nunique() > 4 else 1.0
        frees = "backward" if (events["name"] == "backward").any() else "weight_grad"
        for rank, (times, heights) in enumerate(strips(ax)):
            ops = events[events["rank"] == rank]
            kept_s = ops[ops["name"] == frees]["end_s"].sum() - ops[ops["name"] == "forward"]["start_s"].sum()
            assert area(times, heights) == pytest.approx(kept_s * share * row), (title, rank)


def test_what_no_backward_pass_frees_is_kept_until_all_ranks_are_done():
    (ax,) = schedules({"forward only": simulate(forward_only(2, 3))}).axes
    row = strips(ax)[0][1].max() / 3
    # rank 0 starts forwards at 0, 1, 2 and rank 1 at 1, 2, 3; rank 1 is done at 4
    assert [area(*strip) / row for strip in strips(ax)] == pytest.approx([4 + 3 + 2, 3 + 2 + 1])


def test_a_note_says_what_half_an_activation_is_only_where_there_is_one(five_tables):
    label = schedules(five_tables, note="Equal stages.").axes[-1].get_xlabel()
    assert label.split("\n")[1] == "Equal stages. Activations count in micro-batches, one of a rank's 2 stages as ½."
    plain = {title: five_tables[title] for title in ("GPipe", "1F1B")}
    assert schedules(plain).axes[-1].get_xlabel() == "time (s)"
    assert "½" not in schedules(five_tables, memory=False).axes[-1].get_xlabel()


def test_without_memory_there_is_no_strip_no_peak_and_less_height(five_tables):
    figure, with_memory = schedules(five_tables, memory=False), schedules(five_tables)
    assert not any(strips(ax) for ax in figure.axes)
    assert [len(words(ax)) for ax in figure.axes] == [3] * 5
    assert figure.get_figheight() < 0.75 * with_memory.get_figheight()
    assert "activations kept" not in [text.get_text() for text in figure.legends[0].get_texts()]


def test_strips_of_many_ranks_are_shades_from_light_to_dark():
    figure = schedules({"GPipe": simulate(gpipe(64, 6))})
    (ax,) = figure.axes
    shades = [each for each in ax.collections if each.get_zorder() == 1.5]
    assert len(shades) == 64
    brightness = shades[0].get_facecolor()[:, :3].sum(axis=1)
    kept = [1, 2, 3, 4, 5, 6, 5, 4, 3, 2, 1, 0]
    assert list(np.argsort(brightness, kind="stable")) == list(np.argsort([-count for count in kept], kind="stable"))
    assert "activations kept (darker: more)" in [text.get_text() for text in figure.legends[0].get_texts()]


# --- the figure as a whole ------------------------------------------------------------------------

SIZES = {
    "one small": {"1F1B": (2, 2)},
    "two wide": {"GPipe": (8, 32), "1F1B": (8, 32)},
    "different": {"a": (2, 8), "b": (8, 16)},
    "huge": {"1F1B": (64, 64)},
}


def assert_nothing_overlaps(figure):
    figure.draw_without_rendering()
    texts = [text for ax in figure.axes for text in [*ax.texts, *ax.get_yticklabels(), ax.xaxis.label]]
    left, right = figure.axes[-1].get_xlim()
    texts += [label for label in figure.axes[-1].get_xticklabels() if left <= label.get_position()[0] <= right]
    texts += figure.legends[0].get_texts()
    texts = [text for text in texts if text.get_text()]
    boxes = np.array([on_screen(text) for text in texts])
    for i, (left, right, bottom, top) in enumerate(boxes):
        others = boxes[i + 1 :]
        hit = (others[:, 0] < right) & (left < others[:, 1]) & (others[:, 2] < top) & (bottom < others[:, 3])
        assert not hit.any(), (texts[i].get_text(), texts[i + 1 + int(hit.argmax())].get_text())
    assert min(text.get_fontsize() for text in texts) >= 7
    assert boxes[:, 0].min() >= 0 and boxes[:, 1].max() <= figure.bbox.x1 and boxes[:, 3].max() <= figure.bbox.y1


@pytest.mark.parametrize(
    "sizes",
    [pytest.param(SIZES[name], id=name, marks=[pytest.mark.slow] * (name == "huge")) for name in SIZES],
)
def test_no_text_overlaps_another_or_leaves_the_page_or_is_smaller_than_7_points(sizes):
    figure = schedules({title: simulate(one_f_one_b(*size)) for title, size in sizes.items()})
    assert_nothing_overlaps(figure)
    assert figure.get_figwidth() == 9 and figure.get_figheight() < 15


def test_five_schedules_with_their_numbers_overlap_nowhere_either(five_tables):
    figure = schedules(five_tables, note="Equal stages.", time_label="time (forward passes)")
    assert_nothing_overlaps(figure)
    numbers = [[text for text in ax.texts if text.get_path_effects()] for ax in figure.axes]
    assert [len(each) for each in numbers] == [
        len(events) for events in five_tables.values()
    ]  # every op has its number
    for ax in figure.axes:
        assert not [pair for pair in combinations(drawn_bars(ax), 2) if overlapping(*pair)]


def test_the_legend_names_what_any_panel_has_once_and_takes_a_second_line_where_it_is_long(five_tables):
    figure = schedules(five_tables)
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == [
        "forward",
        "backward",
        "input_grad",
        "weight_grad",
        "1st, 2nd stage of a rank",
        "idle",
        "activations kept",
    ]
    many = [event(0, f"a span with a long name, {i}", i, i + 1) for i in range(9)]
    long = schedules({"many": event_table(many)}, memory=False)
    assert_nothing_overlaps(long)


def test_what_was_emulated_stands_under_the_figure(five_tables):
    slow = five_tables["1F1B"].copy()
    slow.attrs["emulated"] = "emulated link: SLOW"
    label = schedules({"plain": five_tables["GPipe"], "slow": slow}, note="Two ways.").axes[-1].get_xlabel()
    assert label.count("emulated link: SLOW") == 1 and "Two ways" in label


def test_its_data_tell_the_tables_apart(five_tables):
    table = drawn_data(schedules(five_tables, memory=False))
    assert "kept" not in table
    assert table.groupby("schedule", sort=False).size().to_dict() == {
        title: len(events) for title, events in five_tables.items()
    }


# --- what cannot be drawn -------------------------------------------------------------------------

GOOD = simulate(gpipe(2, 2))
BAD = {
    "no dict": ([GOOD], TypeError, "got list, expected titles and event tables"),
    "one table": (GOOD, TypeError, "got .*DataFrame, expected titles and event tables"),
    "nothing": ({}, ValueError, "there is no table, expected at least one title"),
    "no table": ({"good": GOOD, "a run": 3}, TypeError, "'a run' is of type int, expected an event table"),
    "other table": (
        {"good": GOOD, "timings": pd.DataFrame({"x": [1]})},
        ValueError,
        "'timings' lacks the columns rank, lane",
    ),
    "empty": ({"good": GOOD, "rest": GOOD[:0]}, ValueError, "'rest' is empty"),
    "backwards": ({"odd": GOOD.assign(end_s=-1.0)}, ValueError, "'odd': row 0 is from 0 to -1 s"),
    "no pipeline": ({"good": GOOD, "ddp": two_ranks()}, ValueError, "'ddp': .*no op of a pipeline.*memory=False"),
    "no compute": ({"idle": GOOD.assign(lane="comm")}, ValueError, "'idle': .*no spans in the lane compute"),
    "no time": ({"still": GOOD.assign(start_s=1.0, end_s=1.0)}, ValueError, "'still': .*take 0 s"),
}


@pytest.mark.parametrize(("tables", "error", "message"), BAD.values(), ids=BAD.keys())
def test_what_cannot_be_drawn_is_refused_by_its_title_before_anything_is_drawn(tables, error, message):
    with pytest.raises(error, match=message):
        schedules(tables)
    assert not plt.get_fignums()


def test_a_table_of_no_pipeline_is_drawn_without_memory():
    (ax,) = schedules({"ddp": two_ranks()}, memory=False).axes
    assert len(drawn_bars(ax)) == len(two_ranks())
