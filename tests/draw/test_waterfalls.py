"""labkit.draw.waterfalls: bars float from predicted to measured, and stacks add up."""

import math

import pandas as pd
import pytest
from matplotlib.colors import to_hex

from labkit.draw import stacks, style_of, waterfall
from labkit.draw.picture import drawn_data

PARTS = pd.DataFrame(
    {"part": ["compute", "waiting", "communication", "host"], "difference_s": [0.03, 0.05, -0.02, 0.0]}
)
SMALL = PARTS.assign(difference_s=[0.003, 0.005, -0.002, 0.0])
STACKED = pd.DataFrame(
    [("buckets", "backward", 80.0), ("buckets", "exposed communication", 60.0), ("overlap", "backward", 85.0)],
    columns=["run", "part", "ms"],
)


def fall(table, total=0.1, **options):
    return waterfall(table, label="part", total=total, value="difference_s", unit="ms", scale=1000, **options)


def spans_of(ax):
    """The ends of each bar, from left to right."""
    bars = sorted(ax.patches, key=lambda bar: bar.get_x())
    return [tuple(round(end, 9) for end in sorted((bar.get_y(), bar.get_y() + bar.get_height()))) for bar in bars]


# --- bad input ------------------------------------------------------------------------------------


def stacked(table, **names):
    return stacks(table, **{"group": "run", "part": "part", "value": "ms", "label": "ms a step"} | names)


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: fall(PARTS[:0]), "waterfall.*the table is empty"),
        (lambda: fall(PARTS.assign(difference_s=math.nan)), "waterfall.*column difference_s has entries"),
        (lambda: fall(PARTS, total=math.inf), "waterfall.*total is inf, expected a finite number"),
        (lambda: stacked(STACKED, part="name"), "stacks.*no column name"),
        (lambda: stacked(STACKED.assign(ms=-1.0)), "stacks.*negative"),
        (lambda: stacked(STACKED.assign(run="one")), "stacks.*two rows for one part"),
    ],
)
def test_a_table_that_cannot_be_drawn_is_refused_by_name(draw, message):
    with pytest.raises(ValueError, match=message):
        draw()


# --- a waterfall ----------------------------------------------------------------------------------


def test_each_bar_begins_where_the_one_before_ended_and_the_last_is_the_sum():
    ax = fall(PARTS)
    assert spans_of(ax) == [(0, 100), (100, 130), (130, 180), (160, 180), (160, 160), (0, 160)]
    names = [label.get_text() for label in ax.get_xticklabels()]
    assert names == ["predicted", "compute", "waiting", "communication", "host", "measured"]
    assert [text.get_text() for text in ax.texts] == ["100", "+30", "+50", "−20", "+0", "160"]
    data = drawn_data(ax.get_figure())
    assert data["part"].tolist() == names and data["to"].tolist() == pytest.approx([100, 130, 180, 160, 160, 160])
    assert ax.get_ylabel() == "ms" and ax.get_ylim()[0] == 0 and "not at 0" not in ax.get_xlabel()


def test_small_parts_are_drawn_large_and_the_picture_says_that_its_axis_does_not_begin_at_0():
    ax = fall(SMALL, note="two ranks")
    floor, top = ax.get_ylim()
    assert 0 < floor < 100 and top > 108
    assert spans_of(ax) == [(floor, 100), (100, 103), (103, 108), (106, 108), (106, 106), (floor, 106)]
    assert f"The axis begins at {floor:g}, not at 0" in ax.get_xlabel() and "two ranks" in ax.get_xlabel()


def test_a_part_has_the_colour_of_its_name_and_what_was_emulated_stands_below():
    table = PARTS.copy()
    table.attrs["emulated"] = "emulated link: slow"
    ax = fall(table)
    bars = sorted(ax.patches, key=lambda bar: bar.get_x())
    for bar, name in zip(bars[1:-1], PARTS["part"], strict=True):
        assert (to_hex(bar.get_facecolor()).upper(), bar.get_hatch() or "") == style_of(name)[:2]
    assert "emulated link: slow" in ax.get_xlabel()
    looks = {(bar.get_facecolor(), bar.get_hatch()) for bar in bars}
    assert len(looks) == len(bars)


# --- stacked bars ---------------------------------------------------------------------------------


def test_parts_stand_on_each_other_in_the_order_of_the_table_and_the_sum_over_them():
    ax = stacked(STACKED)
    backward, exposed = ax.containers
    assert [(bar.get_y(), bar.get_height()) for bar in backward] == [(0, 80), (0, 85)]
    assert [(bar.get_y(), bar.get_height()) for bar in exposed] == [(80, 60), (85, 0)]
    assert {"140", "85", "80", "60"} <= {text.get_text() for text in ax.texts}
    legend = [text.get_text() for text in ax.get_legend().get_texts()]
    assert legend == ["exposed communication", "backward"]  # as they stand, from the top down
    assert ax.get_ylabel() == "ms a step"
    assert drawn_data(ax.get_figure()).equals(STACKED)
