"""Every level has a par that is attained within its rules and that nothing beats."""

from __future__ import annotations

import re

import pytest
from small_puzzles import every_schedule, least_makespan

from labkit.explore.puzzle.board import Board
from labkit.explore.puzzle.levels import LEVELS, level
from labkit.explore.puzzle.rules import Rules
from labkit.schedule import Op, one_f_one_b
from labkit.simulate import bubble_fraction, makespan, simulate

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
def test_no_board_beats_par_as_a_rank_is_busy_between_the_first_op_that_reaches_it_and_the_last_that_leaves_it(number):
    this, rules = level(number), level(number).rules
    busy_s = [sum(rules.duration_s[op] for op in ops) for ops in rules.ops_of_rank]
    if this.goal == "span":
        assert max(busy_s) == this.par_s
    else:
        around_s = [min(map(head, ops)) + min(map(tail, ops)) for head, tail, ops in _around(rules)]
        assert max(map(sum, zip(busy_s, around_s, strict=True))) == this.par_s


def _around(rules: Rules):
    """Return for each rank the least time before an op, that after it, and its ops."""

    def head(op: Op) -> float:
        needed = rules.inputs[op]
        return rules.delay_s[op] + head(needed) + rules.duration_s[needed] if needed else 0.0

    def tail(op: Op) -> float:
        return max(
            (
                rules.delay_s[then] + rules.duration_s[then] + tail(then)
                for then, needed in rules.inputs.items()
                if needed == op
            ),
            default=0.0,
        )

    return [(head, tail, ops) for ops in rules.ops_of_rank]


@pytest.mark.parametrize("number", [1, 2, 3, 7, 8])
def test_no_board_beats_par_when_all_are_tried(number):
    """From level 3 on without those in which a micro-batch overtakes another one."""
    assert least_makespan(level(number).rules, in_order=number > 2) == level(number).par_s


# --- what the levels say is so --------------------------------------------------------------------


def test_the_levels_go_from_two_ranks_and_one_micro_batch_to_zero_bubble():
    names = {this.rules.timed.schedule.name for this in LEVELS}
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
    at_par = [schedule for schedule, events in ways if makespan(events) <= level(3).par_s]
    assert (len(ways), at_par) == (59, [one_f_one_b(3, 4)])


def test_level_4_no_order_ends_earlier_than_gpipe_and_its_bubble_is_the_formula():
    assert level(4).reference_board.bubble == pytest.approx((4 - 1) / (4 + 4 - 1))


@pytest.mark.parametrize("number", [6, 7])
def test_1f1b_is_slower_where_a_stage_is_slow_or_sending_takes_time(number):
    rules, best = level(number).rules, level(number).reference_board
    assert makespan(rules.timed._replace(schedule=one_f_one_b(rules.n_ranks, 4)).simulate()) > best.makespan_s
    assert best.idle_s(1, best.span_s(1)) == 0  # as the level asks


def test_level_9_leaves_a_rank_idle_for_a_third_of_the_time_that_1f1b_does_with_the_bubbles_that_it_names():
    events = simulate(one_f_one_b(3, 5), backward=2.0)
    assert 3 * (level(9).par_s - 15) == makespan(events) - 15
    bubbles = [f"{100 * bubble:.0f} %" for bubble in (level(9).reference_board.bubble, bubble_fraction(events))]
    assert f"a bubble of {' instead of '.join(bubbles)}" in level(9).teaches


# --- hints: the schedule that sets par ------------------------------------------------------------


@pytest.mark.parametrize("number", NUMBERS)
def test_placing_the_next_op_of_the_schedule_that_sets_par_from_the_start_ends_at_par(number):
    this, board = level(number), Board(level(number).rules)
    while op := this.next_op(board):
        assert this.departure(board) is None
        board = board.place(op)
    assert board.finished and this.result_s(board) == this.par_s


def test_a_board_that_departs_from_that_schedule_is_told_where():
    board = Board(level(2).rules)
    for op in map(Op.parse, ("0F0", "1F0", "1B0", "0B0")):
        board = board.place(op)
    assert level(2).departure(board) == (Op("B", 0, 0), Op("F", 0, 1))
