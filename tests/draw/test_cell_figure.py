"""labkit.draw.cell_figure: grids of cells, beside each other."""

from itertools import combinations

import numpy as np
import pandas as pd
import pytest
from drawn_artists import on_screen, overlapping
from matplotlib.colors import to_hex
from matplotlib.patches import FancyArrowPatch, Patch

from labkit.draw import STYLES
from labkit.draw.cell_figure import GridStep, cell_figure
from labkit.draw.cells import Cell, cell_panel
from labkit.draw.palette import shade
from labkit.draw.picture import drawn_data

slow = pytest.mark.slow
LINKS = ["source", "target", "appear", "vanish", "label"]


def grid(n=3, title="before", links=(), left_out=()):
    cells = [
        Cell(r, c, 0, 1, "own part" if r == c else "partial sum", r, f"{r} {c}", f"Rank {r}, chunk {c}.")
        for r, c in np.ndindex(n, n)
        if (r, c) not in left_out
    ]
    arrows = pd.DataFrame([(*ends, 0, 1, label) for *ends, label in links], columns=LINKS)
    return GridStep(cell_panel(cells, [f"rank {r}" for r in range(n)], {}, links=arrows), 0, title)


def drawn(*grids, n=3, **options):
    return cell_figure(grids, [str(c) for c in range(n)], corner="chunk", **options)


def drawn_cells(ax, zorder=2):
    """Return of each cell, by rank and column, the collection that it is drawn in."""
    collections = [each for each in ax.collections if each.get_zorder() == zorder]
    corners = [(path.vertices.min(axis=0), each) for each in collections for path in each.get_paths()]
    return {(int(top), int(left)): each for (left, top), each in corners}


def test_every_cell_stands_in_its_row_and_column_with_colour_hatching_and_label():
    (ax,) = drawn(grid()).axes
    found = drawn_cells(ax)
    assert set(found) == set(np.ndindex(3, 3))
    for (rank, column), cell in found.items():
        style = STYLES["own part" if rank == column else "partial sum"]
        assert to_hex(cell.get_facecolor()[0]) == shade(style.colour, rank, 3).lower()
        assert (cell.get_hatch() or "") == style.hatch
    written = {text.get_text(): text.get_position() for text in ax.texts}
    assert all((int(y), int(x)) == (r, c) for r, c in found for x, y in [written[f"{r} {c}"]])


def test_the_legend_has_the_lightest_and_the_darkest_of_a_name_and_the_grey_of_empty_cells():
    figure = drawn(grid(left_out=[(0, 1), (2, 2)]))
    assert set(drawn_cells(figure.axes[0], zorder=1)) == {(0, 1), (2, 2)}
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["own part", "partial sum", "nothing"]
    colours = [to_hex(patch.get_facecolor()) for patch in figure.legends[0].findobj(Patch)]
    light, dark = (shade(STYLES["partial sum"].colour, chunk, 3).lower() for chunk in (2, 0))
    assert light in colours and dark in colours
    assert "nothing" not in [text.get_text() for text in drawn(grid()).legends[0].get_texts()]


def test_an_arrow_a_cell_that_moves_and_one_thick_one_where_all_do():
    (ax,) = drawn(grid(links=[(2, 5, ""), (8, 2, "all")])).axes  # bars are numbered rank by rank
    thin, thick = [patch for patch in ax.patches if isinstance(patch, FancyArrowPatch)]
    assert thin.get_linewidth() < thick.get_linewidth()
    for arrow, column, source, target in ((thin, 2, 0, 1), (thick, 2, 2, 0)):
        start, *_, end = arrow._path_original.vertices  # no other way to see where it goes
        assert (int(start[0]), int(start[1]), int(end[1])) == (column, source, target)


@pytest.mark.parametrize(("n", "count"), [(4, 7), *(pytest.param(*each, marks=slow) for each in [(8, 14), (16, 4)])])
def test_nothing_overlaps_and_all_is_within_the_page(n, count):
    grids = [grid(n, f"after step {number}", [(0, n, "")]) for number in range(count)]
    figure = drawn(*grids, n=n, note="Two lines under the picture, " * 8)
    figure.draw_without_rendering()
    texts = [*figure.legends[0].get_texts(), *figure.texts]
    for ax in figure.axes:
        texts += [*ax.texts, *ax.get_xticklabels(), *ax.get_yticklabels()]
    boxes = [on_screen(text) for text in texts if text.get_text()]
    assert not [pair for pair in combinations(boxes, 2) if overlapping(*pair)]
    left, right, bottom, top = zip(*boxes, strict=True)
    assert min(left) >= -0.5 and max(right) <= figure.bbox.x1 and min(bottom) >= -0.5 and max(top) <= figure.bbox.y1


def test_its_data_are_the_cells_of_its_columns_with_their_sentences():
    figure = cell_figure([grid(title="before"), grid(title="after")._replace(first=1)], ["0", "1"])
    table = drawn_data(figure)
    assert list(table.columns) == ["rank", "column", "name", "label", "sentence", "grid", "panel"]
    seen = table.groupby("grid")["sentence"].agg(" ".join)
    assert seen["before"].startswith("Rank 0, chunk 0. Rank 0, chunk 1. Rank 1")
    assert seen["after"].startswith("Rank 0, chunk 1. Rank 0, chunk 2. Rank 1")
