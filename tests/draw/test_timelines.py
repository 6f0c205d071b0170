"""labkit.draw: timelines show every event, none covers another, and a name always looks the
same."""

import random
import time
from itertools import combinations

import matplotlib.pyplot as plt
import numpy as np
import pytest
from drawn_artists import coloured_bars, drawn_bars, faces, on_screen, overlapping
from drawn_tables import ALT, event, two_ranks
from eyes import COLOUR_VISION, lab
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex

from labkit.draw import PALETTE, STYLES, overlay, show, style_of, timeline
from labkit.draw.palette import shade
from labkit.schedule import gpipe, interleaved, one_f_one_b, zero_bubble_v
from labkit.simulate import simulate
from labkit.trace import event_table


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


# --- timelines ------------------------------------------------------------------------------------


def test_every_event_is_a_bar_at_its_time():
    events = two_ranks()
    boxes = drawn_bars(timeline(events))
    assert sorted((round(left, 6), round(right, 6)) for left, right, *_ in boxes) == sorted(
        zip(events["start_s"], events["end_s"], strict=True)
    )


def test_ranks_stand_below_each_other_with_rank_0_on_top():
    ax = timeline(two_ranks())
    labels = {label.get_text(): y for label, y in zip(ax.get_yticklabels(), ax.get_yticks(), strict=True)}
    assert list(labels) == ["rank 0", "rank 1"]
    to_screen = ax.transData.transform
    assert to_screen((0, labels["rank 0"]))[1] > to_screen((0, labels["rank 1"]))[1]


def test_no_bar_ever_covers_another_however_spans_nest_and_overlap():
    dice = random.Random(3)
    rows = []
    for _ in range(150):
        start = dice.uniform(0, 20)
        lane, name = dice.choice(["compute", "comm", "host"]), dice.choice(["forward", "step", "send"])
        rows.append(event(dice.randrange(3), name, start, start + dice.expovariate(0.5), lane))
    boxes = drawn_bars(timeline(event_table(rows)))
    assert len(boxes) == 150
    assert not [pair for pair in combinations(boxes, 2) if overlapping(*pair)]


def test_spans_that_touch_share_a_row():
    boxes = drawn_bars(timeline(event_table([event(0, "forward", 0.1 * i, 0.1 * (i + 1)) for i in range(50)])))
    assert len({top for _, _, top, _ in boxes}) == 1


def test_an_outer_span_lies_above_the_ones_nested_in_it():
    rows = [event(0, "inner", 0, 2), event(0, "outer", 0, 5), event(0, "inner", 3, 4)]
    by_width = sorted(drawn_bars(timeline(event_table(rows))), key=lambda box: box[1] - box[0])
    assert by_width[-1][2] < by_width[0][2] == by_width[1][2]  # the axis points downwards


@pytest.mark.parametrize(("scale", "unit"), [(1.0, "s"), (1e-2, "ms"), (1e-3, "ms"), (1e-5, "µs")])
def test_the_time_axis_has_a_unit_that_fits(scale, unit):
    ax = timeline(two_ranks(scale))
    assert ax.get_xlabel() == f"time ({unit})"
    right = max(box[1] for box in drawn_bars(ax))
    assert right == pytest.approx(10 * scale * {"s": 1, "ms": 1e3, "µs": 1e6}[unit])
    assert 1 <= right < 1000


def test_spans_far_from_the_start_of_the_run_are_counted_from_the_first_one():
    ax = timeline(two_ranks(1e-3).assign(start_s=lambda t: t["start_s"] + 100, end_s=lambda t: t["end_s"] + 100))
    assert ax.get_xlabel() == "time after 100 s (ms)"
    assert max(box[1] for box in drawn_bars(ax)) == pytest.approx(10)


def test_a_bar_shows_its_micro_batch_or_else_its_bucket():
    rows = [event(0, "forward", 0, 5, micro_batch=7, bucket=1), event(0, "all_reduce", 5, 9, "comm", bucket=3)]
    rows += [event(0, "optimizer", 9, 12)]
    assert sorted(text.get_text() for text in timeline(event_table(rows)).texts) == ["3", "7"]


def test_a_number_stays_inside_its_bar():
    widths = np.linspace(0.4, 1.0, 30)
    ends = widths.cumsum()
    rows = [
        event(0, "forward", end - width, end, micro_batch=100 + i)
        for i, (width, end) in enumerate(zip(widths, ends, strict=True))
    ]
    ax = timeline(event_table(rows))
    ax.figure.draw_without_rendering()
    boxes = {round((left + right) / 2, 6): (left, right) for left, right, *_ in drawn_bars(ax)}
    assert len(ax.texts) > 20
    for text in ax.texts:
        left, right = boxes[round(text.get_position()[0], 6)]
        extent = text.get_window_extent().transformed(ax.transData.inverted())
        assert left <= extent.x0 and extent.x1 <= right, text.get_text()
        assert text.get_fontsize() >= 5


def test_the_legend_names_each_event_once_and_lies_outside_the_data():
    ax = timeline(two_ranks())
    ax.figure.draw_without_rendering()
    legend = ax.get_legend()
    assert [text.get_text() for text in legend.get_texts()] == ["forward", "backward", "all_reduce"]
    assert legend.get_window_extent().x0 >= ax.get_window_extent().x1
    assert legend.get_window_extent().x1 <= ax.figure.bbox.x1


def test_it_draws_into_given_axes_and_adds_no_figure():
    figure, (first, second) = plt.subplots(2)
    assert timeline(two_ranks(), ax=second) is second
    assert drawn_bars(second) and not drawn_bars(first)
    assert plt.get_fignums() == [figure.number]


def test_a_note_stands_in_the_picture():
    assert "emulated link" in timeline(two_ranks(), note="emulated link").get_xlabel()
    assert "emulated link" in overlay(two_ranks(), two_ranks(), note="emulated link").get_xlabel()


def on_a_link(link):
    events = two_ranks()
    events.attrs["emulated"] = f"emulated link: {link}"
    return events


@pytest.mark.parametrize("note", ["", "Two ranks."])
def test_what_was_emulated_stands_under_a_timeline_and_under_an_overlay_once_whichever_table_has_it(note):
    slow, plain = on_a_link("SLOW"), two_ranks()
    for tables in [(slow,), (slow, plain), (plain, slow), (slow, slow)]:
        label = (timeline if len(tables) == 1 else overlay)(*tables, note=note).get_xlabel()
        assert label.count("emulated link: SLOW") == 1
        assert note.removesuffix(".") in label
    both = overlay(slow, on_a_link("OTHER")).get_xlabel()
    assert "emulated link: SLOW" in both and "emulated link: OTHER" in both


def test_a_picture_of_what_was_not_emulated_says_nothing_of_it():
    assert "emulated" not in timeline(two_ranks()).get_xlabel() + overlay(two_ranks(), two_ranks()).get_xlabel()


def test_ten_thousand_events_are_drawn_within_seconds():
    rows = [
        event(i % 8, "forward" if i % 3 else "send", i // 8 * 1e-3, (i // 8 + 0.9) * 1e-3, micro_batch=i)
        for i in range(10_000)
    ]
    events = event_table(rows)
    began = time.process_time()
    picture = show(timeline(events), alt=ALT)
    assert time.process_time() - began < 4  # about 0.4 s on a free core
    assert picture.png.startswith(b"\x89PNG")


@pytest.mark.slow
def test_sixty_five_thousand_ops_are_drawn_within_seconds():
    events = simulate(one_f_one_b(64, 512))
    began = time.process_time()
    show(timeline(events), alt=ALT)
    assert time.process_time() - began < 15  # about 1 s on a free core


def test_overlay_starts_both_tables_at_0_and_marks_where_each_ends():
    measured = two_ranks().assign(start_s=lambda t: t["start_s"] * 1.5 + 3, end_s=lambda t: t["end_s"] * 1.5 + 3)
    ax = overlay(two_ranks(), measured)
    boxes = drawn_bars(ax)
    assert len(boxes) == 28
    assert min(box[0] for box in boxes) == 0
    assert sorted(line.get_xdata()[0] for line in ax.lines) == [10, pytest.approx(15)]
    entries = [text.get_text() for text in ax.get_legend().get_texts()]
    assert entries[-2:] == ["predicted ends at\n10 s", "measured ends at\n15 s"]
    assert not [pair for pair in combinations(boxes, 2) if overlapping(*pair)]


def test_overlay_draws_ranks_that_only_one_table_has():
    ax = overlay(two_ranks()[lambda t: t["rank"] == 0], two_ranks())
    assert [label.get_text() for label in ax.get_yticklabels()] == ["rank 0", "rank 1"]
    assert len(drawn_bars(ax)) == 21


# --- timelines of pipelines -----------------------------------------------------------------------


def labels_of_ranks(ax):
    return [label for label in ax.get_yticklabels() if label.get_text()]


@pytest.mark.parametrize(("n_ranks", "most"), [(2, 2), (8, 8), (64, 32)])
def test_rank_labels_never_overlap_and_of_many_ranks_every_second_or_fourth_is_named(n_ranks, most):
    ax = timeline(simulate(one_f_one_b(n_ranks, 64)))
    ax.figure.draw_without_rendering()
    labels = labels_of_ranks(ax)
    every = n_ranks // len(labels)
    assert [label.get_text() for label in labels] == [f"rank {rank}" for rank in range(0, n_ranks, every)]
    assert n_ranks // 8 <= len(labels) <= most
    assert not [pair for pair in combinations(map(on_screen, labels), 2) if overlapping(*pair)]
    assert ax.figure.get_figheight() <= 10.5
    (_, zero), (_, one) = ax.transData.transform([(0, 0), (0, 1)])
    assert min(bottom - top for _, _, top, bottom in drawn_bars(ax)) * (zero - one) * 72 / ax.figure.dpi >= 5


@pytest.mark.parametrize(("n_ranks", "n_micro"), [(2, 2), (4, 8), (8, 32), (8, 64), (64, 64)])
def test_numbers_of_a_kind_of_op_stand_in_nearly_all_its_bars_or_in_none(n_ranks, n_micro):
    ax = timeline(simulate(gpipe(n_ranks, n_micro)))
    assert len(drawn_bars(ax)) == 2 * n_ranks * n_micro
    written = len(ax.texts)
    assert written == 2 * n_ranks * n_micro if n_micro < 32 else written == 0


def test_the_second_stage_of_a_rank_is_lighter_than_the_first_and_the_legend_says_so():
    events = simulate(zero_bubble_v(2, 3))
    ax = timeline(events)
    colours = {(round(left, 6), top): colour for (left, _, top, _), colour in coloured_bars(ax)}
    tops = sorted({top for _, top in colours})
    for row in events.itertuples():
        light = shade(STYLES[row.name].colour, 1, 2)
        expected = (
            STYLES[row.name].colour if row.stage < 2 else light
        )  # stages 0 and 1 go down the ranks, 2 and 3 up again
        assert colours[round(row.start_s, 6), tops[row.rank]] == to_hex(expected)
    assert [text.get_text() for text in ax.get_legend().get_texts()][-1] == "1st, 2nd stage of a rank"


def test_around_a_number_is_a_halo_of_its_bars_colour():
    ax = timeline(simulate(zero_bubble_v(2, 3)))
    bars = {
        (round((left + right) / 2, 6), round((top + bottom) / 2, 6)): c
        for (left, right, top, bottom), c in coloured_bars(ax)
    }
    halos = {
        tuple(round(at, 6) for at in text.get_position()): to_hex(text.get_path_effects()[0]._gc["foreground"])
        for text in ax.texts
    }
    assert halos == bars


def test_of_four_stages_each_is_lighter_than_the_one_before():
    ax = timeline(simulate(interleaved(2, 2, 4)))
    assert [text.get_text() for text in ax.get_legend().get_texts()][-1] == "1st to last of a rank's 4 stages"
    by_stage = [lab(shade(STYLES["forward"].colour, chunk, 4), "normal")[0] for chunk in range(4)]
    assert by_stage == sorted(set(by_stage))
    assert len({colour for _, colour in coloured_bars(ax)}) == 2 * 4


def test_ranks_with_one_stage_each_have_one_colour_a_kind_and_no_such_entry():
    ax = timeline(simulate(gpipe(3, 2)))
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["forward", "backward"]
    assert {colour for _, colour in coloured_bars(ax)} == {
        to_hex(STYLES[name].colour) for name in ("forward", "backward")
    }


@pytest.mark.parametrize("n_micro", [64, 512])
def test_narrow_ops_cover_no_neighbour_and_backwards_are_darker_where_no_hatching_has_room(n_micro):
    ax = timeline(simulate(one_f_one_b(8 if n_micro == 512 else 48, n_micro)))
    collections = [each for each in ax.collections if isinstance(each, PolyCollection)]
    assert max(width for each in collections for width in each.get_linewidth()) < 0.5
    lightness = sorted(lab(colour, "normal")[0] for colour in {colour for _, colour in coloured_bars(ax)})
    assert lightness[1] - lightness[0] > 8


def test_the_time_axis_can_be_called_something_else_than_seconds():
    events = simulate(one_f_one_b(2, 2), 1e-3, 2e-3)
    label = "time (forward passes)"
    assert timeline(events, time_label=label).get_xlabel() == label
    both = overlay(events, events, time_label=label)
    assert both.get_xlabel() == label
    assert [text.get_text() for text in both.get_legend().get_texts()][-1] == "measured ends at\n0.009"
    assert max(box[1] for box in drawn_bars(both)) == pytest.approx(9e-3)


BAD_TABLES = {
    "no table": (None, TypeError, "is of type NoneType, expected an event table"),
    "missing columns": (two_ranks().drop(columns=["lane", "end_s"]), ValueError, "lacks the columns lane, end_s"),
    "empty": (two_ranks()[:0], ValueError, "is empty, expected spans in it"),
    "backwards": (
        two_ranks().assign(end_s=[0.5] * 14),
        ValueError,
        "row 1 is from 1 to 0.5 s, expected a start, then an end",
    ),
    "missing time": (two_ranks().assign(start_s=[0.0, np.nan] + [1.0] * 12), ValueError, "row 1 is from nan to"),
    "endless": (two_ranks().assign(end_s=np.inf), ValueError, "to inf s, expected a start, then an end"),
}


@pytest.mark.parametrize(("table", "error", "message"), BAD_TABLES.values(), ids=BAD_TABLES.keys())
def test_a_wrong_table_is_refused_with_its_fault(table, error, message):
    for draw in (timeline, lambda table: overlay(table, two_ranks()), lambda table: overlay(two_ranks(), table)):
        with pytest.raises(error, match=message):
            draw(table)
    assert not plt.get_fignums()


# --- colours --------------------------------------------------------------------------------------


@pytest.mark.parametrize("vision", COLOUR_VISION)
def test_the_stages_of_a_rank_differ_for_every_eye_and_in_black_and_white(vision):
    for name in ("forward", "backward", "input_grad", "weight_grad"):
        first, second = (lab(shade(STYLES[name].colour, chunk, 2), vision) for chunk in (0, 1))
        assert np.linalg.norm(second - first) > 10
        assert second[0] - first[0] > (5 if name == "input_grad" else 12)  # L*: yellow is light to begin with


@pytest.mark.parametrize("vision", COLOUR_VISION)
def test_names_of_the_lab_differ_in_colour_or_hatching_for_every_eye(vision):
    for (one, (colour, hatch)), (other, (other_colour, other_hatch)) in combinations(STYLES.items(), 2):
        difference = np.linalg.norm(lab(colour, vision) - lab(other_colour, vision))
        assert difference > 10 or hatch != other_hatch, (one, other)
    forward, backward = STYLES["forward"].colour, STYLES["backward"].colour
    assert np.linalg.norm(lab(forward, vision) - lab(backward, vision)) > 30


def test_a_name_has_the_same_colour_in_every_picture():
    names = ["forward", "tokenize", "embedding", "attention", "my own span"]
    alone = {name: faces(timeline(event_table([event(0, name, 0, 1)])))[name] for name in names}
    together = faces(timeline(event_table([event(0, name, i, i + 1) for i, name in enumerate(reversed(names))])))
    assert {name: face[0] for name, face in alone.items()} == {name: face[0] for name, face in together.items()}


def test_forty_names_of_one_picture_all_look_different():
    names = [f"span {i}" for i in range(40)]
    assert all(style_of(name).colour in PALETTE for name in names)
    looks = faces(timeline(event_table([event(0, name, i, i + 1) for i, name in enumerate(names)])))
    assert len(set(looks.values())) >= 38
