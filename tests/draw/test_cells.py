"""labkit.draw.cells: grids of cells that change from step to step."""

import numpy as np

from labkit.draw.cells import Cell, cell_panel, cells_of


def as_it_is(rank, column, step, state):
    return ("own part", 0, str(state), "") if state else None


def test_cells_say_from_when_to_when_there_is_what():
    states = np.array([[[1, 2]], [[1, 3]], [[0, 3]], [[4, 3]]])
    found = [(*cell[:4], cell.label) for cell in cells_of(states, as_it_is)]
    assert found == [(0, 0, 0, 2, "1"), (0, 0, 3, 4, "4"), (0, 1, 0, 1, "2"), (0, 1, 1, 4, "3")]


def test_cells_put_together_give_the_states_back():
    states = np.random.default_rng(0).integers(0, 3, size=(9, 4, 5))
    again = np.zeros_like(states)
    for cell in cells_of(states, as_it_is):
        again[cell.appear : cell.vanish, cell.rank, cell.column] = int(cell.label)
    assert (again == states).all()


def two_by_two():
    cells = [
        Cell(0, 0, 0, 2, "own part", 0, "a", "First."),
        Cell(1, 1, 1, 2, "whole sum", 0, "b", "Second."),
    ]
    rows, columns = ["rank 0", "rank 1"], {0: "x", 1: "y"}
    return cell_panel(cells, rows, columns, ["before", "after"], lambda step: f"line {step}")


def test_a_panel_explains_its_bars_and_tells_its_steps():
    shown = two_by_two()
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
