"""labkit.draw.schedule_tables: a schedule as the table that papers print."""

from itertools import pairwise

import matplotlib.pyplot as plt
import pandas as pd
import pytest
from drawn_artists import coloured_bars, drawn_bars, on_screen
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex

from labkit.draw import STYLES, schedule_table
from labkit.draw.picture import drawn_data
from labkit.schedule import Op, Schedule, ScheduleError, gpipe, interleaved, one_f_one_b, zero_bubble_h1


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


LETTERS = {to_hex(STYLES[name].colour): letter for name, letter in zip(STYLES, "FBIW", strict=False)}

# Written by hand: with unit times rank 1 waits a slot for its first input, rank 0 a hop and back
# for its first gradient.
PAPER = {
    "GPipe": """
        F0 F1 .. .. B0 B1
        .. F0 F1 B0 B1 ..
    """,
    "1F1B": """
        F0 F1 .. B0 F2 B1 .. B2
        .. F0 B0 F1 B1 F2 B2 ..
    """,
    "ZB-H1": """
        F0 F1 .. I0 W0 F2 I1 W1 I2 W2
        .. F0 I0 F1 I1 W0 F2 I2 W1 W2
    """,
}


def read_back(ax):
    """The table as text, from the colours and numbers that are drawn."""
    numbers = {(int(x), round(y, 2)): text.get_text() for text in ax.texts for x, y in [text.get_position()]}
    cells = {
        (round(top, 2), int(left)): LETTERS[colour] + numbers[int(left), round((top + bottom) / 2, 2)]
        for (left, _, top, bottom), colour in coloured_bars(ax)
    }
    tops, n_slots = sorted({top for top, _ in cells}), round(ax.get_xlim()[1])
    return [[cells.get((top, slot), "..") for slot in range(n_slots)] for top in tops]


@pytest.mark.parametrize("schedule", [gpipe(2, 2), one_f_one_b(2, 3), zero_bubble_h1(2, 3)], ids=lambda it: it.name)
def test_every_op_stands_in_its_slot_with_its_number_and_colour(schedule):
    ax = schedule_table(schedule)
    assert read_back(ax) == [line.split() for line in PAPER[schedule.name].strip().splitlines()]
    assert ax.get_title(loc="left") == schedule.name
    assert [label.get_text() for label in ax.get_yticklabels()] == ["rank 0", "rank 1"]
    assert ax.get_xlabel() == "time slot"


def test_every_slot_without_an_op_is_grey():
    ax = schedule_table(one_f_one_b(4, 8))
    (idle,) = [each for each in ax.collections if isinstance(each, PolyCollection) and each.get_zorder() == 1]
    cells = {(round(path.vertices[:, 1].min(), 2), int(path.vertices[:, 0].min())) for path in idle.get_paths()}
    busy = {(round(top, 2), int(left)) for left, _, top, _ in drawn_bars(ax)}
    assert len(busy) == 4 * 16 and len(cells) == 4 * 22 - 4 * 16  # makespan 22: see ANCHORS.md
    assert not cells & busy


def test_cells_leave_a_white_gap_to_each_other():
    boxes = sorted(drawn_bars(schedule_table(gpipe(2, 3))), key=lambda box: (box[2], box[0]))
    assert all(right - left == pytest.approx(0.9) for left, right, *_ in boxes)
    assert {round(bottom - top, 3) for *_, top, bottom in boxes} == {0.86}


def test_the_second_stage_of_a_rank_is_lighter():
    ax = schedule_table(interleaved(2, 2, 2))
    assert len({colour for _, colour in coloured_bars(ax)}) == 4
    assert ax.get_legend().get_texts()[-1].get_text() == "1st, 2nd stage of a rank"


@pytest.mark.parametrize(("n_ranks", "n_micro"), [(1, 1), (2, 2), (8, 32), (64, 64)])
def test_it_is_readable_at_every_size(n_ranks, n_micro):
    ax = schedule_table(one_f_one_b(n_ranks, n_micro))
    ax.figure.draw_without_rendering()
    slots = [on_screen(label) for label in ax.get_xticklabels()]
    assert all(left[1] < right[0] for left, right in pairwise(slots))
    assert len(drawn_bars(ax)) == 2 * n_ranks * n_micro
    assert len(ax.texts) in (0, 2 * n_ranks * n_micro)
    assert ax.figure.get_figwidth() <= 9 and ax.figure.get_figheight() <= 11
    assert ax.get_legend().get_window_extent().x1 <= ax.figure.bbox.x1


def test_its_data_are_the_ops_with_their_slots():
    table = drawn_data(schedule_table(one_f_one_b(2, 3)).figure)
    assert list(table.columns) == ["rank", "slot", "name", "stage", "micro_batch"]
    names = {"forward": "F", "backward": "B"}
    found = {(row.rank, row.slot): f"{names[row.name]}{row.micro_batch}" for row in table.itertuples()}
    lines = [line.split() for line in PAPER["1F1B"].strip().splitlines()]
    assert found == {
        (rank, slot): cell for rank, line in enumerate(lines) for slot, cell in enumerate(line) if cell != ".."
    }


def test_it_draws_into_given_axes_and_adds_no_figure():
    figure, (above, below) = plt.subplots(2)
    assert schedule_table(gpipe(2, 2), ax=below) is below
    assert drawn_bars(below) and not drawn_bars(above)
    assert plt.get_fignums() == [figure.number]


def test_what_is_no_schedule_or_cannot_run_is_refused_before_anything_is_drawn():
    with pytest.raises(TypeError, match="expected a Schedule"):
        schedule_table(pd.DataFrame())
    with pytest.raises(ScheduleError):
        schedule_table(Schedule([[Op("B", 0, 0), Op("F", 0, 0)]]))
    assert not plt.get_fignums()
