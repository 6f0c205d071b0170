"""labkit.draw.cells: grids of cells that change from step to step."""

import numpy as np
import pandas as pd
from matplotlib.patches import FancyArrowPatch

from labkit.draw.cells import Cell, GridStep, cell_panel, cells_of, in_lines
from labkit.draw.painter import panel_figure
from labkit.draw.panel import LINK_COLUMNS
from labkit.draw.picture import drawn_data


def test_cells_say_from_when_to_when_there_is_what():
    states = np.array([[[1, 2]], [[1, 3]], [[0, 3]], [[4, 3]]])
    cells = cells_of(states, lambda rank, column, step, state: ("own part", 0, str(state), "") if state else None)
    found = [(*cell[:4], cell.label) for cell in cells]
    assert found == [(0, 0, 0, 2, "1"), (0, 0, 3, 4, "4"), (0, 1, 0, 1, "2"), (0, 1, 1, 4, "3")]


def test_a_panel_explains_its_bars_and_tells_its_steps():
    cells = [Cell(0, 0, 0, 1, "own part", 0, "a", "First."), Cell(1, 1, 1, 2, "whole sum", 0, "b", "Second.")]
    panel = cell_panel(cells, ["rank 0", "rank 1"], {0: "x", 1: "y"}, ["before", "after"], lambda step: f"line {step}")
    assert [panel.explain(bar) for bar in range(2)] == ["First.", "Second."]
    assert [panel.narrate(x) for x in (-1, 0.9, 1, 5)] == ["before: line 0"] * 2 + ["after: line 1"] * 2
    assert [label.text for label in [*panel.rows, *panel.columns]] == ["rank 0", "rank 1", "x", "y"]
    assert panel.bars[["left", "top"]].astype(int).to_numpy().tolist() == [[0, 0], [1, 1]]
    before, after = panel.bars["vanish"]
    assert before == 1 and after > 1000, "what is there in the end stays beside a grid with more steps"


def grid(n=3, links=(), left_out=(), n_steps=1):
    cells = [
        Cell(r, c, 0, n_steps, "own part" if r == c else "partial sum", r, f"{r} {c}", f"Rank {r}, chunk {c}.")
        for r, c in np.ndindex(n, n)
        if (r, c) not in left_out
    ]
    arrows = pd.DataFrame([(*ends, 0, 1, label) for *ends, label in links], columns=LINK_COLUMNS)
    columns = {c: f"chunk {c}" for c in range(n)}
    return cell_panel(
        cells, [f"rank {r}" for r in range(n)], columns, [str(step) for step in range(n_steps)], links=arrows
    )


def test_every_cell_stands_in_its_grid_row_and_column_and_an_empty_place_is_told():
    (line,) = in_lines([GridStep(grid(left_out=[(1, 1)]), 0, "before"), GridStep(grid(), 0, "after")], "a title")
    table = drawn_data(panel_figure([line]))
    places = {(int(top), int(left)): label for top, left, label in table[["top", "left", "label"]].to_numpy()[:9]}
    assert places == {(r, c): "" if r == c == 1 else f"{r} {c}" for r, c in np.ndindex(3, 3)}
    assert table.groupby("step")["name"].agg(lambda names: (names == "nothing").sum()).to_dict() == {
        "before": 1,
        "after": 0,
    }
    assert [column.text for column in line.columns if not column.small] == ["before", "after"]
    assert line.title == "a title"


def test_an_arrow_leads_from_the_cell_that_is_sent_and_a_thick_one_stands_for_all():
    (line,) = in_lines([GridStep(grid(), 0), GridStep(grid(links=[(2, 5, ""), (8, 2, "all")]), 0)])
    (ax,) = panel_figure([line]).axes
    thin, thick = [patch for patch in ax.patches if isinstance(patch, FancyArrowPatch)]
    assert thin.get_linewidth() < thick.get_linewidth()
    for arrow, source, target in ((thin, 0, 1), (thick, 2, 0)):
        start, *_, end = arrow._path_original.vertices  # no other way to see where it goes
        assert (int(start[1]), int(end[1])) == (source, target)
        assert int(start[0] - 3 - 0.7) == 2  # the third column of the second grid
