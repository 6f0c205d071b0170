"""labkit.explore.grids.ring_answer: a ring filled in by hand, judged cell by cell."""

import re

import pytest

from labkit.explore import fill_ring

# A reduce-scatter, then an all-gather, drawn by hand: rank r begins by sending its chunk r.
RIGHT = """
# chunk     0   1   2       0   1   2       0   1   2
before      0   0   0   |   1   1   1   |   2   2   2
step 1      0   0   02  |   01  1   1   |   2   12  2
step 2      0   012 02  |   01  1   012 |   012 12  2
step 3      012 012 02  |   01  012 012 |   012 12  012
step 4      012 012 012 |   012 012 012 |   012 012 012
"""


def changed(step, rank, chunk, cell):
    """Return RIGHT with something else in one cell."""
    lines = RIGHT.strip().splitlines()
    line = lines[1 + step]
    places = [found.span() for found in re.finditer(r"(?<=\s)[0-9?]+(?=\s|$)", line[8:])]
    start, end = places[3 * rank + chunk]
    lines[1 + step] = line[: 8 + start] + cell + line[8 + end :]
    return "\n".join(lines)


def test_the_ring_as_it_is_has_nothing_wrong_and_says_when_the_first_sums_are_whole():
    filled = fill_ring(RIGHT)
    assert not filled.wrong
    assert str(filled) == (
        "Of 36 cells 36 are right, 0 wrong, 0 open.\nAfter step 2 each rank has one whole sum, after step 4 all of them."
    )


def test_digits_may_stand_in_any_order_and_sigma_is_the_sum_of_all():
    assert not fill_ring(RIGHT.replace("02", "20").replace("012", "Σ")).wrong


@pytest.mark.parametrize(
    ("place", "cell", "said"),
    [
        ((1, 0, 2), "2", "The part of rank 0 is missing. In this step rank 2 sends the part of rank 2, to be added"),
        ((1, 0, 2), "0", "The part of rank 2 is missing. In this step rank 2 sends"),
        ((2, 1, 2), "0112", "The part of rank 1 is added twice. In this step rank 0 sends the parts of ranks 0 and 2"),
        ((1, 0, 1), "01", "The part of rank 1 is not in it. In this step rank 0 gets chunk 2, so chunk 1 stays"),
        (
            (2, 0, 1),
            "0",
            "The parts of ranks 1 and 2 are missing. In this step rank 2 sends the parts of ranks 1 and 2",
        ),
        ((3, 0, 0), "0012", "The part of rank 0 is added twice. In this step rank 2 sends the whole sum, which takes"),
        ((1, 2, 1), "02", "The part of rank 1 is missing, and the part of rank 0 is not in it. In this step rank 1"),
        ((0, 1, 0), "0", "At the start each rank has its own part of every chunk."),
        ((4, 0, 0), "7", "Write the numbers of the ranks side by side, such as 02, of ranks 0, 1 and 2."),
        ((4, 0, 0), "0+1", "Write the numbers of the ranks"),
    ],
)
def test_of_a_wrong_cell_it_says_whose_part_is_missing_or_there_twice_and_what_happened(place, cell, said):
    filled = fill_ring(changed(*place, cell))
    assert set(filled.wrong) == {place}
    assert said in filled.wrong[place] and filled.wrong[place] in str(filled)
    assert f"rank {place[1]}, chunk {place[2]}: {cell}?" in str(filled)


def test_only_the_first_step_with_a_wrong_cell_is_explained():
    once = changed(1, 0, 2, "2")
    both = once.replace("step 2      0   012 02", "step 2      0   012 2")
    filled = fill_ring(both)
    assert set(filled.wrong) == {(1, 0, 2), (2, 0, 2)}
    assert str(filled).endswith("Mend that first. Wrong in later steps: 1.")
    assert "After step 2" not in str(filled)


def test_open_cells_are_not_wrong_and_it_says_where_to_go_on():
    filled = fill_ring(re.sub(r"(step [34])(.*)", lambda line: line[1] + re.sub(r"\d+", "?", line[2]), RIGHT))
    assert not filled.wrong
    assert str(filled) == "Of 36 cells 18 are right, 0 wrong, 18 open.\nGo on with step 3."


def test_the_picture_marks_the_wrong_cell_with_what_was_written_and_leaves_open_cells_out():
    import matplotlib.pyplot as plt

    from labkit.draw.picture import drawn_data

    figure = fill_ring(changed(1, 0, 2, "2").replace("step 4      012", "step 4      ?")).figure()
    cells = drawn_data(figure)
    plt.close(figure)
    assert cells[cells["name"] == "wrong"][["rank", "column", "label"]].to_numpy().tolist() == [[0, 2, "2"]]
    assert len(cells) == 5 * 9 - 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected the cells of 2 to 4 ranks"),
        ("before 0", "expected the cells of 2 to 4 ranks"),
        ("before 0 0 | 1 1", "1 lines for 2 ranks, expected 3: before, step 1, step 2"),
        ("before 0 0 | 1 1\nstep 1 0 ? | 1\nstep 2 ? ? | ? ?", "the line is 'step 1 0 ? | 1', expected 'step 1'"),
        ("before 0 0 | 1 1\nstep 2 0 ? | 1 1\nstep 1 ? ? | ? ?", "the line is 'step 2 0 ? | 1 1', expected 'step 1'"),
    ],
)
def test_a_text_of_another_shape_is_refused_by_its_line(text, said):
    with pytest.raises(ValueError, match="fill_ring: ") as refused:
        fill_ring(text)
    assert said in str(refused.value)
