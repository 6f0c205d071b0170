"""labkit.draw.waterfalls: bars float from what was predicted, and stacks add up."""

import math

import pandas as pd
import pytest

from labkit.draw import stacks, waterfall
from labkit.draw.picture import drawn_data

PARTS = pd.DataFrame(
    {"part": ["compute", "waiting", "communication", "host"], "difference_s": [0.03, 0.05, -0.02, 0.0]}
)
STACKED = pd.DataFrame(
    [("buckets", "backward", 80.0), ("buckets", "exposed communication", 60.0), ("overlap", "backward", 85.0)],
    columns=["run", "part", "ms"],
)


def fall(table, total=0.1, **options):
    return waterfall(table, label="part", total=total, value="difference_s", unit="ms", scale=1000, **options)


def spans_of(ax):
    bars = sorted(ax.patches, key=lambda bar: bar.get_x())
    return [tuple(round(end, 9) for end in sorted((bar.get_y(), bar.get_y() + bar.get_height()))) for bar in bars]


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


def test_each_bar_begins_where_the_one_before_ended_the_first_at_0_and_the_last_is_the_sum():
    ax = fall(PARTS, note="two ranks")
    assert spans_of(ax) == [(0, 30), (30, 80), (60, 80), (60, 60), (0, 60)]
    names = [label.get_text() for label in ax.get_xticklabels()]
    assert names == ["compute", "waiting", "communication", "host", "together"]
    assert [text.get_text() for text in ax.texts] == ["+30", "+50", "−20", "+0", "+60"]
    data = drawn_data(ax.get_figure())
    assert data["part"].tolist() == names and data["to"].tolist() == pytest.approx([30, 80, 60, 60, 60])
    assert ax.get_ylim()[0] == 0 and "beyond the prediction" in ax.get_ylabel()
    assert ax.get_xlabel() == "predicted 100, measured 160 ms. two ranks"


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
