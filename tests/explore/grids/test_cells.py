"""labkit.explore.grids.cells: grids of cells that change from step to step."""

import numpy as np
import pandas as pd

from labkit.explore.grids.cells import CELL_COLUMNS, MOVE_COLUMNS, Grid, intervals, panel


def test_intervals_say_from_when_to_when_a_cell_holds_what():
    states = np.array([[[1, 2]], [[1, 3]], [[0, 3]], [[4, 3]]])
    found = intervals(states)
    assert found.values.tolist() == [[0, 0, 0, 2, 1], [0, 0, 3, 4, 4], [0, 1, 0, 1, 2], [0, 1, 1, 4, 3]]
    assert list(found) == ["rank", "column", "appear", "vanish", "holds"]


def test_intervals_put_together_give_the_states_back():
    states = np.random.default_rng(0).integers(0, 3, size=(9, 4, 5))
    again = np.zeros_like(states)
    for rank, column, appear, vanish, holds in intervals(states).to_numpy():
        again[appear:vanish, rank, column] = holds
    assert (again == states).all()


def two_by_two(moves=()):
    rows = [(0, 0, 0, 2, "own part", 0, "a", "First."), (1, 1, 1, 2, "whole sum", 0, "b", "Second.")]
    cells = pd.DataFrame(rows, columns=list(CELL_COLUMNS))
    table = pd.DataFrame(list(moves), columns=list(MOVE_COLUMNS))
    return Grid(cells, ["x", "y"], ["before", "after"], lambda step: f"line {step}", 2, moves=table)


def test_at_a_step_only_what_is_there_is_seen():
    grid = two_by_two([(0, 0, 1, 0, "a")])
    assert grid.at(0).cells["label"].tolist() == ["a"] and len(grid.at(0).moves) == 1
    assert grid.at(1).cells["label"].tolist() == ["a", "b"] and len(grid.at(1).moves) == 0
    assert grid.at(1).title == "after" and grid.at(1, "later").title == "later"
    assert grid.at(0, moves=False).moves.empty


def test_a_panel_explains_its_bars_and_tells_its_steps():
    shown = panel(two_by_two())
    assert [shown.explain(bar) for bar in range(2)] == ["First.", "Second."]
    assert [shown.narrate(x) for x in (-1, 0, 0.9, 1, 5)] == [
        "before: line 0",
        "before: line 0",
        "before: line 0",
        "after: line 1",
        "after: line 1",
    ]
    assert [label.text for label in shown.rows] == ["rank 0", "rank 1"]
    assert [label.text for label in shown.columns] == ["x", "y"]
    assert (shown.bars["right"] <= shown.bars["left"].round() + 1).all()


def test_a_move_to_an_empty_cell_has_no_link():
    assert panel(two_by_two([(0, 0, 1, 0, "a")])).links.empty
