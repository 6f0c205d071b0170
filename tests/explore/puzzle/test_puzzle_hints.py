"""A hint is right from any board that moves make."""

from __future__ import annotations

import random
from itertools import product

import pytest
from small_puzzles import built, least_makespan

from labkit.explore.puzzle.board import Board
from labkit.explore.puzzle.completion import candidates, complete, lower_bound
from labkit.explore.puzzle.hints import hint, way
from labkit.explore.puzzle.levels import LEVELS, Level, level
from labkit.explore.puzzle.rules import Rules
from labkit.explore.schedules.measure import TimedSchedule
from labkit.schedule import Op, Schedule

NUMBERS = range(1, len(LEVELS) + 1)


def one_after_the_other() -> Schedule:
    return Schedule([[Op(kind, stage, i) for i, kind in product(range(2), "FB")] for stage in range(2)])


def boards_at_random(this: Level, seed: int) -> list[Board]:
    """Return the boards of a game whose moves are drawn among those that may be next."""
    draw = random.Random(seed)
    boards = [Board(this.rules)]
    while ready := candidates(boards[-1]):
        boards.append(draw.choice(list(ready.values())))
    return boards


def boards_of(rules: Rules, ops: str) -> list[Board]:
    """Return the boards of a game in which these ops are placed."""
    named = ops.split()
    return [built(rules, " ".join(named[:n])) for n in range(len(named) + 1)]


# --- wrong turns ----------------------------------------------------------------------------------


def test_a_finished_board_over_par_is_told_how_many_moves_to_undo():
    *before, board = boards_of(level(2).rules, "0F0 1F0 1B0 0B0 0F1 1F1 1B1 0B1")
    told = hint(board, level(2), before)  # 0B0 was one too early
    assert told.op is None and str(told) == "This board takes 12; par is 9: undo 5 moves for par."


def test_a_dead_end_is_called_one():
    """With two stages on a rank, forwards may fill its memory, so that nothing can come back."""
    this = level(11)
    *before, board = boards_of(this.rules, "0F0 0F1 0F2 0F3 1F0 1F1 1F2")
    told = hint(board, this, before)
    assert told.op is None and str(told) == "There is no way on from here: undo 5 moves for par."
    assert complete(before[-1], this).board is not None  # par is lost since 0F2, but there is a way on


def test_of_micro_batches_the_one_whose_input_arrives_first_may_be_next():
    assert set(candidates(built(level(2).rules, "0F1 0F0"))) == {Op("F", 1, 1)}


# --- right from anywhere --------------------------------------------------------------------------


@pytest.mark.parametrize("number", NUMBERS)
def test_following_every_hint_from_the_start_ends_at_par(number):
    this, board = level(number), Board(level(number).rules)
    while not board.finished:
        told = hint(board, this)
        assert not told.about_par
        board = board.place(told.op)
    assert this.result_s(board) == this.par_s
    assert str(hint(board, this)) == "All is placed, and at par."


@pytest.mark.parametrize("number", NUMBERS)
def test_the_way_from_any_board_ends_where_its_best_one_does(number):
    this, draw = level(number), random.Random(number)
    for seed in range(3):
        board = draw.choice(boards_at_random(this, seed))
        best = complete(board, this)
        for op in way(board, this):
            board = board.place(op)
        assert (board.finished and this.result_s(board) == best.result_s) or number in (11, 12)


@pytest.mark.parametrize("number", [2, 3, 7, 8])
def test_the_number_of_moves_to_undo_is_the_least_from_which_par_is_reached(number):
    this = level(number)
    for seed in range(4):
        boards = boards_at_random(this, seed)
        reached = [complete(board, this).result_s <= this.par_s for board in reversed(boards)]
        moves, told = reached.index(True), hint(boards[-1], this, boards[:-1]).about_par
        assert f": undo {moves} move" in told if moves else told == ""


@pytest.mark.parametrize("seed", range(8))
def test_the_best_way_from_an_empty_board_is_the_best_of_all_schedules(seed):
    """Times at random, with a hop and with little memory: against all schedules, one by one."""
    draw = random.Random(seed)
    times = [[float(draw.randint(1, 4)) for _ in range(2)] for _ in "FB"]
    caps = [draw.randint(1, 2), draw.randint(1, 2)]
    timed = TimedSchedule(one_after_the_other(), *times, hop=float(draw.randint(0, 2)))
    this = Level("", "", "", Rules(timed, caps))
    best, least_s = complete(Board(this.rules), this), least_makespan(this.rules)
    assert lower_bound(Board(this.rules), this) <= least_s
    assert best.result_s == least_s and best.certain


@pytest.mark.parametrize(
    ("number", "ops", "why"),
    [
        (1, "", "rank 1 waits for it, and can run 1F0 as soon as it is there"),
        (1, "0F0 1F0 1B0", "its gradient is there, and its end frees the activation of micro-batch 0"),
        (3, "0F0 0F1 1F0", "rank 0 would be idle otherwise, and it has room for the activation"),
        (8, "0F0 0F1 1F0 1I0", "rank 0 keeps all the activations it may, and only the end of a W"),
        (8, "0F0 0F1 1F0 1I0 0I0 1F1", "nobody waits for a W, and rank 0 has nothing more urgent"),
    ],
)
def test_a_hint_gives_its_reason(number, ops, why):
    assert hint(built(level(number).rules, ops), level(number)).why.startswith(why)
