"""labkit.draw.cell_figure: grids of cells, beside each other."""

from itertools import combinations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from drawn_artists import on_screen, overlapping
from matplotlib.colors import to_hex
from matplotlib.patches import FancyArrowPatch, Rectangle

from labkit.draw import STYLES
from labkit.draw.cell_figure import GridStep, cell_figure
from labkit.draw.cells import Cell, cell_panel
from labkit.draw.palette import shade
from labkit.draw.picture import drawn_data

LINKS = ["source", "target", "appear", "vanish", "label"]


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


def grid(n=3, title="before", links=(), left_out=(), label="{r} {c}"):
    cells = [
        Cell(r, c, 0, 1, "own part" if r == c else "partial sum", r, label.format(r=r, c=c), f"Rank {r}, chunk {c}.")
        for r, c in np.ndindex(n, n)
        if (r, c) not in left_out
    ]
    arrows = pd.DataFrame([(*link[:2], 0, 1, *link[2:]) for link in links], columns=LINKS)
    return GridStep(cell_panel(cells, [f"rank {r}" for r in range(n)], {}, links=arrows), 0, title)


def drawn(*grids, n=3, **options):
    return cell_figure(grids, [str(c) for c in range(n)], corner="chunk", **options)


def drawn_cells(ax, zorder=2):
    patches = [patch for patch in ax.patches if isinstance(patch, Rectangle) and patch.get_zorder() == zorder]
    return {(int(patch.get_y()), int(patch.get_x())): patch for patch in patches}


def test_every_cell_stands_in_its_row_and_column_with_colour_hatching_and_label():
    (ax,) = drawn(grid()).axes
    found = drawn_cells(ax)
    assert set(found) == set(np.ndindex(3, 3))
    for (rank, column), patch in found.items():
        style = STYLES["own part" if rank == column else "partial sum"]
        assert to_hex(patch.get_facecolor()) == shade(style.colour, rank, 3).lower()
        assert (patch.get_hatch() or "") == style.hatch
    written = {(int(text.get_position()[1]), int(text.get_position()[0])): text.get_text() for text in ax.texts}
    assert {place: text for place, text in written.items() if " " in text} == {
        (r, c): f"{r} {c}" for r, c in np.ndindex(3, 3)
    }


def test_cells_with_nothing_in_them_are_grey_and_the_legend_says_so():
    figure = drawn(grid(left_out=[(0, 1), (2, 2)]))
    assert set(drawn_cells(figure.axes[0], zorder=1)) == {(0, 1), (2, 2)}
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["own part", "partial sum", "nothing"]
    assert "nothing" not in [text.get_text() for text in drawn(grid()).legends[0].get_texts()]


def test_an_arrow_a_cell_that_moves_and_one_thick_one_where_all_do():
    (ax,) = drawn(grid(links=[(2, 5, ""), (8, 2, "all")])).axes  # bars are numbered rank by rank
    thin, thick = sorted(
        (patch for patch in ax.patches if isinstance(patch, FancyArrowPatch)), key=lambda it: it.get_linewidth()
    )
    assert thin.get_linewidth() < thick.get_linewidth()
    start, *_, end = thin._path_original.vertices  # no other way to see where it goes
    assert (int(start[0]), int(start[1]), int(end[1])) == (2, 0, 1)
    start, *_, end = thick._path_original.vertices
    assert (int(start[1]), int(end[1])) == (2, 0) and start[0] > 2.7


@pytest.mark.parametrize(
    ("n", "count"),
    [(2, 3), (4, 7), pytest.param(8, 14, marks=pytest.mark.slow), pytest.param(16, 4, marks=pytest.mark.slow)],
)
def test_nothing_overlaps_and_all_is_within_the_page(n, count):
    grids = [grid(n, f"after step {number}", [(0, n, "")]) for number in range(count)]
    figure = drawn(*grids, n=n, note="Two lines under the picture, " * 8)
    figure.draw_without_rendering()
    assert len(figure.axes) == count and figure.get_figwidth() <= 9
    boxes = [
        on_screen(text)
        for ax in figure.axes
        for text in [*ax.texts, *ax.get_xticklabels(), *ax.get_yticklabels()]
        if text.get_text()
    ]
    boxes += [on_screen(text) for text in [*figure.legends[0].get_texts(), *figure.texts]]
    assert not [pair for pair in combinations(boxes, 2) if overlapping(*pair)]
    page = figure.bbox
    assert all(
        left >= -0.5 and right <= page.x1 and bottom >= -0.5 and top <= page.y1 for left, right, bottom, top in boxes
    )


def test_letters_are_left_out_where_they_could_not_be_read():
    figure = drawn(grid(16, label="a long label"), n=16)
    assert not [text for text in figure.axes[0].texts if text.get_text() == "a long label"]


def test_its_data_are_the_cells_with_their_sentences():
    table = drawn_data(drawn(grid(title="before"), grid(title="after")))
    assert list(table.columns) == ["rank", "column", "name", "label", "sentence", "grid", "panel"]
    assert len(table) == 18 and table["grid"].unique().tolist() == ["before", "after"]


def test_without_a_grid_it_refuses():
    with pytest.raises(ValueError, match="there is no grid"):
        drawn()
