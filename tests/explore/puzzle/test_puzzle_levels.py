"""Every level has a par that is attained within its rules and that nothing beats."""

from __future__ import annotations

import re

import pytest
from small_puzzles import every_schedule, least_makespan

from labkit.explore.puzzle.board import Board
from labkit.explore.puzzle.completion import lower_bound
from labkit.explore.puzzle.levels import LEVELS, level, recognise
from labkit.schedule import Op, Schedule, gpipe, one_f_one_b
from labkit.simulate import makespan, simulate

NUMBERS = range(1, len(LEVELS) + 1)


@pytest.mark.parametrize("number", [0, 13, "1", True])
def test_a_level_that_does_not_exist_is_an_error_that_says_which_do(number):
    with pytest.raises((TypeError, ValueError), match="expected a whole number from 1 to 12"):
        level(number)


# --- par ------------------------------------------------------------------------------------------


def test_par_of_every_level():
    assert [this.par_s for this in LEVELS] == [6, 9, 18, 21, 27, 27, 17, 10, 17, 15, 27, 18]


@pytest.mark.parametrize("number", NUMBERS)
def test_par_is_attained_with_all_the_memory_of_the_level_and_no_more(number):
    rules, board = level(number).rules, level(number).reference_board
    peaks = [board.peak(rank) for rank in range(rules.n_ranks)]
    assert board.finished and rules.caps in (None, peaks)


@pytest.mark.parametrize("number", NUMBERS)
def test_no_board_beats_par_as_a_bound_says(number):
    this = level(number)
    assert lower_bound(Board(this.rules), this) == this.par_s


@pytest.mark.parametrize("number", [1, 2, 3, 7, 8])
def test_no_board_beats_par_when_all_are_tried(number):
    """From level 3 on without those in which a micro-batch overtakes another one."""
    assert least_makespan(level(number).rules, in_order=number > 2) == level(number).par_s


# --- what the levels say is so --------------------------------------------------------------------


def test_the_levels_go_from_two_ranks_and_one_micro_batch_to_zero_bubble():
    names = {recognise(this.rules.timed.schedule) for this in LEVELS}
    assert (level(1).rules.n_ranks, level(1).rules.n_micro) == (2, 1)
    assert {"GPipe", "1F1B", "ZB-H1", "ZB-H2", "ZB-V", "interleaved 1F1B"} <= names
    for number in (10, 12):  # zero bubble: no rank idles between its first op and its last
        board = level(number).reference_board
        assert all(board.idle_s(rank, board.span_s(rank)) == 0 for rank in range(board.rules.n_ranks))


@pytest.mark.parametrize("number", NUMBERS)
def test_texts_are_one_sentence_and_three_at_most_and_the_first_levels_name_no_schedule(number):
    this = level(number)
    assert this.teaches.endswith(".") and this.teaches.count(". ") == 0
    assert this.asks.endswith((".", "?")) and len(re.findall(r"[.?](?: |$)", this.asks)) <= 3
    words = f"{this.title} {this.teaches} {this.asks}"
    assert number > 3 or not re.search("1F1B|GPipe|zero.bubble|one forward, one backward", words, re.IGNORECASE)


def test_of_all_59_ways_to_fill_level_3_only_1f1b_attains_par():
    """The reader is led to invent it."""
    ways = list(every_schedule(level(3).rules, in_order=True))
    at_par = [recognise(way) for way, events in ways if makespan(events) <= level(3).par_s]
    assert (len(ways), at_par) == (59, ["1F1B"])


def test_level_4_no_order_ends_earlier_than_gpipe_and_its_bubble_is_the_formula():
    assert level(4).reference_board.bubble == pytest.approx((4 - 1) / (4 + 4 - 1))


@pytest.mark.parametrize("number", [6, 7])
def test_1f1b_is_slower_where_a_stage_is_slow_or_sending_takes_time(number):
    rules, best = level(number).rules, level(number).reference_board
    assert makespan(rules.timed._replace(schedule=one_f_one_b(rules.n_ranks, 4)).simulate()) > best.makespan_s
    assert best.idle_s(1, best.span_s(1)) == 0  # as the level asks


def test_level_9_has_a_third_of_the_bubble_of_1f1b():
    idle = [level(9).par_s - 15, makespan(simulate(one_f_one_b(3, 5), backward=2.0)) - 15]
    assert idle[0] * 3 == idle[1]


# --- recognising ----------------------------------------------------------------------------------


def test_a_schedule_with_two_ops_changed_or_some_missing_is_yours():
    ops = [list(of_rank) for of_rank in one_f_one_b(3, 4).ops]
    ops[0][2:4] = ops[0][3:1:-1]
    for schedule in (Schedule(ops), Schedule([of_rank[:3] for of_rank in ops]), Schedule([[], []])):
        assert recognise(schedule) == "yours"


def test_micro_batches_may_be_taken_in_any_order_and_by_gpipe_back_from_the_last():
    other = [[Op(op.kind, op.stage, 3 - op.micro_batch) for op in ops] for ops in one_f_one_b(3, 4).ops]
    assert recognise(Schedule(other)) == "1F1B"
    assert recognise(Schedule([ops[:4] + ops[:3:-1] for ops in gpipe(3, 4).ops])) == "GPipe"
