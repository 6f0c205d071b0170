"""labkit.explore.grids.cells: grids of cells that change from step to step."""

import numpy as np

from labkit.explore.grids.cells import Cell, cell_panel, cells_of


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
