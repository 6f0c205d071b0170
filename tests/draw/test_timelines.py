"""labkit.draw: timelines show every event, none covers another, and a name always looks the
same."""

import random
import re
from itertools import combinations, pairwise

import matplotlib.pyplot as plt
import numpy as np
import pytest
from drawn_artists import drawn_bars, overlapping
from drawn_tables import event, two_ranks
from eyes import COLOUR_VISION, lab

from labkit.draw import STYLES, overlay, timeline
from labkit.schedule import gpipe
from labkit.simulate import simulate
from labkit.trace import event_table


def test_every_event_is_a_bar_at_its_time_on_given_axes_with_rank_0_on_top():
    figure, (first, second) = plt.subplots(2)
    ax, events = timeline(two_ranks(), ax=second), two_ranks()
    assert ax is second and not drawn_bars(first) and plt.get_fignums() == [figure.number]
    found = sorted((round(left, 6), round(right, 6)) for left, right, *_ in drawn_bars(ax))
    assert found == sorted(zip(events["start_s"], events["end_s"], strict=True))
    labels = {label.get_text(): y for label, y in zip(ax.get_yticklabels(), ax.get_yticks(), strict=True)}
    assert list(labels) == ["rank 0", "rank 1"] and labels["rank 0"] < labels["rank 1"] and ax.yaxis_inverted()


@pytest.mark.parametrize(
    ("scale", "origin", "label"),
    [(1.0, 0, "time (s)"), (1e-2, 0, "time (ms)"), (1e-5, 0, "time (µs)"), (1e-3, 100, "time after 100 s (ms)")],
)
def test_the_time_axis_has_a_unit_that_fits_and_begins_where_spans_far_from_the_start_do(scale, origin, label):
    ax = timeline(two_ranks(scale).assign(start_s=lambda t: t["start_s"] + origin, end_s=lambda t: t["end_s"] + origin))
    assert ax.get_xlabel() == label
    per_second = {"s": 1, "ms": 1e3, "µs": 1e6}[label[label.index("(") + 1 : -1]]
    assert max(box[1] for box in drawn_bars(ax)) == pytest.approx(10 * scale * per_second)


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


@pytest.mark.parametrize("note", ["", "Two ranks."])
def test_notes_and_what_was_emulated_stand_once_under_a_timeline_and_under_an_overlay(note):
    plain, slow = two_ranks(), two_ranks()
    slow.attrs["emulated"] = "emulated link: SLOW"
    for tables in [(slow,), (slow, plain), (plain, slow), (slow, slow), (plain,)]:
        label = (timeline if len(tables) == 1 else overlay)(*tables, note=note).figure.get_supxlabel()
        assert label.count("emulated link: SLOW") == any(table is slow for table in tables)
        assert note.removesuffix(".") in label


def test_overlay_starts_both_tables_at_0_and_marks_where_each_ends():
    measured = two_ranks().assign(start_s=lambda t: t["start_s"] * 1.5 + 3, end_s=lambda t: t["end_s"] * 1.5 + 3)
    ax = overlay(two_ranks(), measured)
    boxes = drawn_bars(ax)
    assert len(boxes) == 28 and len(drawn_bars(overlay(two_ranks()[lambda t: t["rank"] == 0], measured))) == 21
    assert min(box[0] for box in boxes) == 0
    ends = [(line.get_xdata()[0], line.get_linestyle()) for line in ax.lines]
    assert ends == [(10, "--"), (pytest.approx(15), "-")]
    entries = [text.get_text() for text in ax.figure.legends[0].get_texts()]
    assert entries[-2:] == ["predicted end", "measured end"]
    assert ax.get_title("right") == "predicted end 10 s   measured end 15 s"
    assert not [pair for pair in combinations(boxes, 2) if overlapping(*pair)]


@pytest.mark.parametrize("fault", [None, two_ranks()[:0], two_ranks().assign(end_s=np.inf)])
def test_a_table_that_cannot_be_drawn_is_refused_by_name_before_anything_is_drawn(fault):
    draws = {
        "timeline(events)": lambda: timeline(fault),
        "overlay(ideal)": lambda: overlay(fault, two_ranks()),
        "overlay(measured)": lambda: overlay(two_ranks(), fault),
    }
    for name, draw in draws.items():
        with pytest.raises((TypeError, ValueError), match=re.escape(name)):
            draw()
    assert not plt.get_fignums()


@pytest.mark.parametrize("vision", COLOUR_VISION)
def test_names_of_the_lab_differ_in_colour_or_hatching_for_every_eye(vision):
    styles = {name: style for name, style in STYLES.items() if name != "undefined or unchanged"}  # "nothing", elsewhere
    for (one, a), (other, b) in combinations(styles.items(), 2):
        assert np.linalg.norm(lab(a.colour, vision) - lab(b.colour, vision)) > 10 or a.hatch != b.hatch, (one, other)
    forward, backward = STYLES["forward"].colour, STYLES["backward"].colour
    assert np.linalg.norm(lab(forward, vision) - lab(backward, vision)) > 30


@pytest.mark.parametrize(("n_ranks", "n_words"), [(4, 8), (32, 64), (64, 0)])
def test_words_beside_rows_never_touch_also_of_many_ranks(n_ranks, n_words):
    events = simulate(gpipe(n_ranks, 1))
    ax = overlay(events, events)
    renderer = ax.figure.canvas.get_renderer()
    words = [label for label in ax.get_yticklabels(minor=True) if label.get_text()]
    boxes = sorted((label.get_window_extent(renderer).y0, label.get_window_extent(renderer).y1) for label in words)
    assert len(boxes) == n_words and all(upper <= low + 1 for (_, upper), (low, _) in pairwise(boxes))
