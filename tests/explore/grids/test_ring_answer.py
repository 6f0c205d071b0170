"""labkit.explore.grids.ring_answer: a ring filled in by hand, judged cell by cell."""

import re
from random import Random

import numpy as np
import pytest
from page_in_node import NODE, in_node

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


@pytest.mark.parametrize("text", [RIGHT, RIGHT.replace("02", "20").replace("012", "Σ")])
def test_the_ring_as_it_is_has_nothing_wrong_in_whatever_order_its_digits_stand(text):
    filled = fill_ring(text)
    assert not filled.wrong and str(filled) == (
        "Of 36 cells 36 are right, 0 wrong, 0 open.\nAfter step 2 each rank has one whole sum, after step 4 all of them."
    )


@pytest.mark.parametrize(
    ("place", "right", "wrong", "reason"),
    [
        ((0, 1, 0), "|   1   1", "|   0   1", "At the start each rank has its own part of"),
        ((1, 0, 1), "0   0   02", "0   01  02", "rank 1 is not in it. In this step rank 0 gets chunk 2"),
        ((1, 0, 2), "0   0   02", "0   0   2", "rank 0 is missing. In this step rank 2 sends the part"),
        ((2, 0, 1), "0   012", "0   0  ", "The parts of ranks 1 and 2 are missing."),
        ((2, 1, 2), "1   012", "1   0112", "1 is added twice. In this step rank 0 sends the parts"),
        ((3, 0, 0), "3      012", "3  0012", "rank 2 sends the whole sum, which takes the place"),
        ((4, 0, 0), "4      012", "4      0+1", "Write the numbers of the ranks side by side"),
    ],
)
def test_of_a_wrong_cell_it_says_whose_part_is_missing_or_there_twice_and_what_happened(place, right, wrong, reason):
    step, rank, chunk = place
    filled = fill_ring(RIGHT.replace(right, wrong, 1))
    assert set(filled.wrong) == {place}
    assert reason in filled.wrong[place] and filled.wrong[place] in str(filled)
    assert f"rank {rank}, chunk {chunk}: " in str(filled)
    assert str(filled).startswith("Of 36 cells 35 are right, 1 wrong, 0 open." if step else "Your first line, before,")
    assert step or "0 wrong" not in str(filled)


def test_only_the_first_step_with_a_wrong_cell_is_explained_and_the_picture_marks_all():
    text = (
        RIGHT.replace("0   0   02", "0   0   2 ").replace("0   012 02", "0   012 2 ").replace("4      012", "4      ?")
    )
    filled = fill_ring(text)
    assert set(filled.wrong) == {(1, 0, 2), (2, 0, 2)} and "After step 2" not in str(filled)
    assert str(filled).startswith("Of 36 cells 33 are right, 2 wrong, 1 open.")
    assert str(filled).endswith("Fix that first. Wrong in later steps: 1.")
    (panel,) = filled.timeline.scene["panels"]
    names = [style["name"] for style in filled.timeline.scene["styles"]]
    numbers = np.frombuffer(panel["bars"]["style"]["data"], dtype="u1")
    sentences = [panel["sentences"][bar] for bar, number in enumerate(numbers) if names[number] == "wrong"]
    assert sentences == list(filled.wrong.values())
    table = filled.timeline.static_form().table
    assert (
        table.loc["step 1"].tolist() == ["0 0 2✗", "01 1 1", "2 12 2"] and table.loc["step 4", "rank 0"] == "? 012 012"
    )


def test_open_cells_are_not_wrong_and_it_says_where_to_go_on():
    filled = fill_ring(re.sub(r"(step [34])(.*)", lambda line: line[1] + re.sub(r"\d+", "?", line[2]), RIGHT))
    assert not filled.wrong
    assert str(filled) == "Of 36 cells 18 are right, 0 wrong, 18 open.\nGo on with step 3."


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("before 0", "expected the cells of 2 to 4 ranks"),
        ("before 0 0 | 1 1", "1 lines for 2 ranks, expected 3: before, step 1, step 2"),
        ("before 0 0 | 1 1\nstep 1 0 ? | 1\nstep 2 ? ? | ? ?", "the line is 'step 1 0 ? | 1', expected 'step 1'"),
        ("before 0 0 | 1 1\nstep 2 0 ? | 1 1\nstep 1 ? ? | ? ?", "the line is 'step 2 0 ? | 1 1', expected 'step 1'"),
    ],
)
def test_a_text_of_another_shape_is_refused_by_its_line(text, reason):
    with pytest.raises(ValueError, match="fill_ring: ") as refused:
        fill_ring(text)
    assert reason in str(refused.value)


FILL = """
import { RingFill } from "BROWSER/ring_fill.js";
return given.turns.map((turns) => {
  const ring = new RingFill(given.sent, given.fill);
  for (const [bar, rank] of turns) {
    ring.chosen = bar;
    ring.turn(rank);
  }
  const { scene, answers, narration } = ring;
  const [panel] = scene.panels;
  const styles = Array.from(panel.bars.style, (number) => scene.styles[number].name);
  return { answers, narration, styles, labels: panel.bars.labels, sentences: panel.sentences };
});
"""
OPEN = re.sub(r"(step .)( .*)", lambda line: line[1] + re.sub(r"[0-9]+", "?", line[2]), RIGHT)


@pytest.mark.skipif(NODE is None, reason="no node on this machine")
def test_of_a_ring_that_is_filled_in_on_the_page_it_says_what_is_said_of_the_same_text():
    started, chance = fill_ring(OPEN), Random(3)
    turns = [[(chance.randrange(45), chance.choice("012")) for _ in range(k)] for k in (0, 1, 5, 20, 60, 90)]
    true = [fill_ring(RIGHT).cells[place] for place, _ in started._true_cells()]
    turns.append([(bar, rank) for bar, answer in enumerate(true) if bar not in _before(started) for rank in answer])
    fill = started.timeline.library()["fill"]
    for page in in_node(FILL, {"sent": started.timeline.scene, "fill": fill, "turns": turns}):
        cells = {
            place: answer or "?" for (place, _), answer in zip(started._true_cells(), page["answers"], strict=True)
        }
        told = type(started)(dict(sorted(cells.items())))
        assert page["narration"] == str(told).replace("\n", " ")
        shown = told.timeline.scene
        names = [shown["styles"][number]["name"] for number in shown["panels"][0]["bars"]["style"]["data"]]
        assert page["styles"] == names and page["sentences"] == shown["panels"][0]["sentences"]
        assert [label.replace("Σ", "012") for label in page["labels"]] == [
            label.replace("Σ", "012") for label in shown["panels"][0]["labels"]
        ]
    assert page["narration"].startswith("Of 36 cells 36 are right, 0 wrong, 0 open. After step 2 each")


def _before(filled) -> set[int]:
    return {bar for bar, ((step, _, _), _) in enumerate(filled._true_cells()) if step == 0}
