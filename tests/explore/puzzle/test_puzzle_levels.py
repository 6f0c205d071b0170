"""Every level has a par that is attained within its rules and that nothing beats."""

from __future__ import annotations

import re

import pytest
from small_puzzles import every_schedule, least_makespan

from labkit.explore.puzzle.board import Board
from labkit.explore.puzzle.completion import lower_bound
from labkit.explore.puzzle.levels import LEVELS, level
from labkit.explore.puzzle.recognise import recognise
from labkit.schedule import Schedule, gpipe, one_f_one_b
from labkit.simulate import makespan, simulate

NUMBERS = range(1, len(LEVELS) + 1)


@pytest.mark.parametrize(("number", "error"), [(0, ValueError), (99, ValueError), ("1", TypeError), (True, TypeError)])
def test_a_level_that_does_not_exist_is_an_error_that_says_which_do(number, error):
    with pytest.raises(error, match=f"expected a whole number from 1 to {len(LEVELS)}"):
        level(number)


@pytest.mark.parametrize("number", NUMBERS)
def test_par_is_attained_within_the_memory_of_the_level(number):
    this = level(number)
    board = this.reference_board
    assert board.finished and this.result_s(board) == this.par_s
    assert all(board.peak(rank) <= this.rules.cap(rank) for rank in range(this.rules.n_ranks))


@pytest.mark.parametrize("number", NUMBERS)
def test_no_board_beats_par_as_a_bound_says(number):
    this = level(number)
    assert lower_bound(Board(this.rules), this) == this.par_s


@pytest.mark.parametrize("number", [1, 2])
def test_no_board_beats_par_when_all_are_tried(number):
    assert least_makespan(level(number).rules) == level(number).par_s


@pytest.mark.parametrize("number", [3, 7, 8])
def test_no_board_beats_par_when_all_in_which_no_micro_batch_overtakes_another_are_tried(number):
    assert least_makespan(level(number).rules, in_order=True) == level(number).par_s


@pytest.mark.parametrize("number", NUMBERS)
def test_no_cap_is_higher_than_the_reference_needs(number):
    rules, board = level(number).rules, level(number).reference_board
    if rules.caps and number != 6:  # which offers one more than 1F1B where the reader is to find that it helps
        assert list(rules.caps) == [board.peak(rank) for rank in range(rules.n_ranks)]


def test_the_levels_go_from_two_ranks_and_one_micro_batch_to_zero_bubble():
    first, names = level(1).rules, [recognise(this.reference) for this in LEVELS]
    assert (first.n_ranks, first.n_micro) == (2, 1)
    assert {"GPipe", "1F1B", "ZB-H1", "ZB-H2", "ZB-V", "interleaved 1F1B"} <= set(names)
    for number in (10, 12):  # zero bubble: no rank idles between its first op and its last
        board = level(number).reference_board
        assert all(board.idle_s(rank, board.span_s(rank)) == 0 for rank in range(board.rules.n_ranks))


@pytest.mark.parametrize("number", [1, 2, 3])
def test_the_first_levels_name_no_schedule(number):
    words = f"{level(number).title} {level(number).teaches} {level(number).asks}"
    assert not re.search("1F1B|GPipe|zero.bubble|one forward, one backward", words, re.IGNORECASE)


def test_of_all_59_ways_to_fill_level_3_only_1f1b_attains_par():
    """The reader is led to invent it."""
    results = [(makespan(events), recognise(schedule)) for schedule, events in every_schedule(level(3).rules, True)]
    assert len(results) == 59
    assert [name for seconds, name in results if seconds <= level(3).par_s] == ["1F1B"]


@pytest.mark.parametrize("number", NUMBERS)
def test_texts_are_one_sentence_and_three_at_most(number):
    this = level(number)
    assert this.teaches.endswith(".") and this.teaches.count(". ") == 0
    assert this.asks.endswith((".", "?")) and len(re.findall(r"[.?](?: |$)", this.asks)) <= 3


# --- what the levels say is so --------------------------------------------------------------------


def test_level_4_no_order_ends_earlier_than_gpipe_and_its_bubble_is_the_formula():
    assert level(4).reference_board.bubble == pytest.approx((4 - 1) / (4 + 4 - 1))


def test_level_6_1f1b_is_slower_for_lack_of_one_activation_on_the_slow_rank():
    this = level(6)
    of_1f1b = makespan(simulate(one_f_one_b(3, 4), forward=[1, 2, 1], backward=[2, 4, 2]))
    assert of_1f1b > this.par_s
    assert this.reference_board.idle_s(1, this.reference_board.span_s(1)) == 0


def test_level_7_1f1b_is_slower_where_sending_takes_time():
    assert makespan(simulate(one_f_one_b(2, 4), hop=1.0)) > level(7).par_s


def test_level_9_has_a_third_of_the_bubble_of_1f1b():
    idle = [level(9).par_s - 15, makespan(simulate(one_f_one_b(3, 5), backward=2.0)) - 15]
    assert idle[0] * 3 == idle[1]


# --- recognising ----------------------------------------------------------------------------------


def test_a_schedule_with_two_ops_changed_is_yours():
    ops = [list(of_rank) for of_rank in one_f_one_b(3, 4).ops]
    ops[0][2:4] = ops[0][3:1:-1]
    assert recognise(Schedule(ops)) == "yours"


def test_an_unfinished_schedule_is_yours():
    assert recognise(Schedule([of_rank[:3] for of_rank in gpipe(3, 4).ops])) == "yours"
    assert recognise(Schedule([[], []])) == "yours"


def test_micro_batches_may_be_taken_in_any_order():
    swapped = Schedule(
        [[type(op)(op.kind, op.stage, 3 - op.micro_batch) for op in ops] for ops in one_f_one_b(3, 4).ops]
    )
    assert recognise(swapped) == "1F1B"


def test_gpipe_may_go_back_from_the_last_micro_batch_to_the_first():
    assert recognise(Schedule([ops[:4] + ops[:3:-1] for ops in gpipe(3, 4).ops])) == "GPipe"
