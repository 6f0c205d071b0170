"""labkit.explore.grids.collectives_seen: what seven collectives do, seen in real ranks."""

import pytest

from labkit.draw.cell_figure import GridStep
from labkit.explore.grids.collectives_seen import SEVEN, seen_collectives

# By hand, as MPI's standard draws them: a letter for each rank's tensor; . is nothing, S the sum.
DRAWN = {
    "broadcast": ("aaa ... ...", "aaa aaa aaa"),
    "scatter": ("aaa ... ...", "a.. .a. ..a"),
    "gather": ("a.. .b. ..c", "abc ... ..."),
    "all_gather": ("a.. .b. ..c", "abc abc abc"),
    "reduce": ("aaa bbb ccc", "SSS ... ..."),
    "reduce_scatter": ("aaa bbb ccc", "S.. .S. ..S"),
    "all_reduce": ("aaa bbb ccc", "SSS SSS SSS"),
}
LETTERS = {"0": "a", "1": "b", "2": "c", "Σ": "S"}


@pytest.fixture(scope="module")
def seen():
    return seen_collectives(3)


def as_drawn(panel, step):
    cells = GridStep(panel, step, "", first=4 * step).cells(3)
    has = {(cell.rank, cell.column): LETTERS[cell.label] for cell in cells.itertuples()}
    return " ".join("".join(has.get((rank, chunk), ".") for chunk in range(3)) for rank in range(3))


@pytest.mark.parametrize("name", SEVEN)
def test_real_ranks_have_before_and_after_what_the_standard_draws(seen, name):
    assert (as_drawn(seen[name], 0), as_drawn(seen[name], 1)) == DRAWN[name]


@pytest.mark.parametrize("name", SEVEN)
def test_cells_are_told_apart_by_name_and_said_in_words(seen, name):
    panel = seen[name]
    for bar, (look, label) in enumerate(zip(panel.bars["name"], panel.bars["label"], strict=True)):
        if label == "Σ":
            assert look == "whole sum" and "the sum of all 3 ranks' chunks" in panel.explain(bar)
        else:
            assert look == f"from rank {label}" and f"what rank {label} had there" in panel.explain(bar)


@pytest.mark.parametrize("n", [1, 9, 2.0])
def test_too_few_or_too_many_ranks_are_refused(n):
    with pytest.raises((TypeError, ValueError), match="expected a whole number of ranks, 2 to 8"):
        seen_collectives(n)
