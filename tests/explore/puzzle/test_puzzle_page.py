"""The page plays the puzzle, in node: it answers every move and offers what rules allow."""

from random import Random

import pytest
from page_in_node import NODE, in_node

from labkit.explore import schedule_puzzle
from labkit.explore.puzzle.board import Board
from labkit.explore.puzzle.levels import LEVELS, spans_s
from labkit.explore.puzzle.rules import Refusal
from labkit.schedule import Op
from labkit.simulate import bubble_fraction, makespan, peak_activations

pytestmark = pytest.mark.skipif(NODE is None, reason="no node on this machine")

PLAY = """
import { Puzzle } from "BROWSER/puzzle.js";
return given.games.map(({ level, moves }) => {
  const puzzle = new Puzzle(given.puzzle);
  puzzle.follow({ level, placed: {} });
  for (const move of moves) {
    if (["undo", "clear", "hint", "next"].includes(move)) puzzle.take(move);
    else puzzle.place(puzzle.shown.indexOf(move));
  }
  const { game: { board }, controls, scene } = puzzle;
  return {
    said: puzzle.narration, state: puzzle.state, isAtPar: board.isAtPar, makespan: board.makespan, alt: scene.alt,
    offered: scene.panels[0].bars.labels.slice(board.moves.length), facts: scene.panels[0].facts, numbers: scene.numbers,
    words: controls.filter(({ look, hidden }) => look === "words" && !hidden).map(({ value }) => value),
    buttons: controls.filter(({ look }) => look === "action").map(({ name }) => name),
  };
});
"""


def played(*games: tuple[int, str]) -> list[dict]:
    """What the page says of each level after these ops and buttons."""
    given = [{"level": level, "moves": moves.split()} for level, moves in games]
    return in_node(PLAY, {"puzzle": schedule_puzzle().timeline.scene["puzzle"], "games": given})


@pytest.mark.parametrize(
    ("number", "moves", "said"),
    [
        (1, "", "Level 1: There and back."),
        (1, "undo", "No: there is nothing to undo."),
        (1, "hint hint", "0F0 on rank 0 from 0 to 1."),
        (2, "0F0 1F0 0F1 undo", "Undone: 2 of 8 ops are placed."),
        (2, "0F0 1F0 0F1 1B0 clear undo", "Undone: 4 of 8 ops are placed."),
        (2, "0F0 next", "Level 3: Little room."),
    ],
)
def test_a_move_is_answered(number, moves, said):
    assert played((number, moves))[0]["said"] == said


def test_a_hint_says_what_the_schedule_that_sets_par_runs_next_and_asked_again_places_it():
    hinted, again, of_another, departed = played(
        (2, "0F0 1F0 0F1 hint"),
        (2, "0F0 1F0 0F1 hint hint"),
        (2, "0F0 1F0 0F1 hint hint hint"),
        (2, "0F0 1F0 1B0 0B0 hint"),
    )
    assert hinted["said"].startswith("Place 1F1 next, on rank 1 at 2, as the schedule that sets par does.")
    assert hinted["state"] == [2, ["0F0", "1F0", "0F1"]]
    assert again["said"] == "1F1 on rank 1 from 2 to 3."
    assert of_another["said"].startswith("Place ") and len(of_another["state"][1]) == 4
    assert "rank 0 runs 0B0 where the schedule that sets par runs 0F1. Undo to come back" in departed["said"]


def test_a_finished_board_is_told_its_result_and_what_a_level_teaches_at_par_alone():
    late, at_par, span = played(
        (2, "0F0 1F0 1B0 0B0 0F1 1F1 1B1 0B1"), (2, "0F0 0F1 1F0 1F1 1B0 0B0 1B1 0B1"), (10, "hint " * 90)
    )
    assert "0B1 on rank 0 from 10 to 12. Finished in 12: par is 9. Undo, and" in late["said"]
    assert "that is par. Bubble (idle fraction of the ranks' time): 33 %." in at_par["said"]
    assert at_par["said"].endswith("rank by rank: 2, 2.") and at_par["facts"] == "✓ par · bubble 33 %"
    assert LEVELS[1].teaches not in " ".join(late["words"]) and LEVELS[1].teaches in at_par["words"][-1]
    assert "No rank is idle between its first op and its last; with" in span["said"]


def test_an_unfinished_board_is_told_in_words_and_numbers():
    (found,) = played((3, "0F0 0F1 0F2 1F0 2F0 2B0"))
    assert found["alt"] == (
        "Level 3, Little room: 6 of 24 ops are placed, up to 5. Rank 0: 0F0 from 0 to 1, 0F1 from 1 to 2, 0F2 from 2 to 3. "
        "Rank 1: 1F0 from 1 to 2. Rank 2: 2F0 from 2 to 3, 2B0 from 3 to 5. To be placed: 1F1 at 2, 1B0 at 5."
    )
    assert found["facts"] == "6 of 24 ops · par 18" and found["offered"] == ["1F1", "1B0"]
    assert '<td>2</td><td class="lk-text">2F0 2B0</td><td>5</td><td>2</td><td>1</td><td>1</td>' in found["numbers"]
    assert (
        "F (forward) takes 1, B (backward) takes 2. Room for activations: 3 on rank 0, 2 on rank 1" in found["words"][1]
    )


def test_the_last_level_has_no_next_one():
    first, last = played((1, ""), (12, ""))
    assert first["buttons"] == [*last["buttons"], "next"]


def test_the_hints_of_every_level_lead_to_par():
    for this, found in zip(LEVELS, played(*((k, "hint " * 100) for k in range(1, 13))), strict=True):
        assert found["isAtPar"] and found["said"] == "All is placed, and at par."
        assert found["makespan"] == makespan(this.rules.timed.simulate())


RULES = """
import { Puzzle } from "BROWSER/puzzle.js";
import { Board } from "BROWSER/puzzle.js";
const { games } = new Puzzle(given.puzzle);
return given.games.map(({ level: number, moves }) => {
  const { level } = games[number - 1];
  const boards = moves.map((_, k) => new Board(level, moves.slice(0, k)));
  const last = new Board(level, moves);
  return {
    allowed: boards.map((board) => level.solution.filter((op) => board.mayPlace(op)).sort()),
    offered: boards.map(({ offers }) => offers),
    start: Object.fromEntries(moves.map((op) => [op, last.start(op)])), isFinished: last.isFinished, bubble: last.bubble,
    result: last.result, peaks: last.ranks.map((rank) => last.peak(rank)),
  };
});
"""


def allowed(board: Board) -> list[str]:
    def may(op: Op) -> bool:
        try:
            return bool(board.place(op))
        except Refusal:
            return False

    return sorted(str(op) for op in board.rules.inputs if may(op))


def test_of_random_boards_the_page_allows_the_ops_that_python_allows_and_its_times_are_those_of_the_simulator():
    chance, cases = Random(7), []
    for number in [*range(1, 13)] * 2:
        board = Board(LEVELS[number - 1].rules)
        seen = []
        while ops := allowed(board):  # until it is finished, or stuck
            seen.append(ops)
            board = board.place(Op.parse(chance.choice(ops)))
        cases.append((number, board, seen))
    given = [{"level": number, "moves": [*map(str, board.moves)]} for number, board, _ in cases]
    found = in_node(RULES, {"puzzle": schedule_puzzle().timeline.scene["puzzle"], "games": given})
    for (number, board, seen), page in zip(cases, found, strict=True):
        assert page["allowed"] == seen and page["isFinished"] == board.finished
        for ops, offers in zip(seen, page["offered"], strict=True):
            assert {op[:2] for op in ops} == {op[:2] for op in offers} and set(offers) <= set(ops)  # one of each kind
        if board.finished:
            schedule = board.to_schedule()
            events = board.rules.timed._replace(schedule=schedule).simulate()
            ops = [str(op) for order in schedule.ops for op in order]
            assert page["start"] == dict(zip(ops, events["start_s"], strict=True))
            assert page["peaks"] == [*peak_activations(events).values()]
            assert float(page["bubble"].removesuffix(" %")) == pytest.approx(100 * bubble_fraction(events), abs=0.5001)
            goal = LEVELS[number - 1].goal
            assert page["result"] == (max(spans_s(events)) if goal == "span" else makespan(events))
    assert 12 < sum(board.finished for _, board, _ in cases) < len(cases)
