"""A board refuses what cannot be, says why, and gives what is placed to others."""

from __future__ import annotations

import pytest
from small_puzzles import ONE_EACH, SPLIT, TWO_BY_TWO, built, refused

from labkit.explore.puzzle.board import Board
from labkit.explore.puzzle.history import History
from labkit.explore.puzzle.rules import Rules
from labkit.schedule import Op, Schedule, gpipe, one_f_one_b
from labkit.simulate import activations, bubble_fraction, makespan, peak_activations, simulate

# --- what is refused, and why ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ops", "move", "code", "blocker", "sentence"),
    [
        ("", "1F0", "dependency", "0F0", "1F0 needs the activation of 0F0, which is not placed yet"),
        ("0F0 1F0", "0B0", "dependency", "1B0", "0B0 needs the gradient of 1B0, which is not placed yet"),
        ("0F0", "1B0", "dependency", "1F0", "1B0 needs 1F0, the forward of its own stage, which is not placed yet"),
        ("0F0", "0F0", "placed", "0F0", "0F0 is there already, from 0 to 1"),
        ("", "2F0", "unknown", None, "there is no 2F0 in this level: the last stage is 1"),
        ("", "0F2", "unknown", None, "there is no 0F2 in this level: the last micro-batch is 1"),
        ("", "0W0", "unknown", None, "there is no 0W0 in this level: a backward pass is whole here (B)"),
    ],
)
def test_an_op_that_cannot_be_placed_is_refused_by_name(ops, move, code, blocker, sentence):
    refusal = refused(built(TWO_BY_TWO, ops).place(move))
    assert (refusal.code, str(refusal)) == (code, sentence)
    assert refusal.op == Op.parse(move) and refusal.blocker == (blocker and Op.parse(blocker))


def test_a_start_before_the_input_is_there_is_refused():
    refusal = refused(built(TWO_BY_TWO, "0F0").place("1F0", 0.5))
    assert refusal.code == "dependency"
    assert str(refusal) == "1F0 needs the activation of 0F0, which ends at 1: it cannot start at 0.5"


def test_a_start_before_the_hop_is_over_is_refused():
    far = Rules([0, 1], 1, {"F": [1.0, 1.0], "B": [2.0, 2.0]}, hop=0.5)
    refusal = refused(built(far, "0F0").place("1F0", 1.0))
    assert "ends at 1 and takes 0.5 more to arrive" in str(refusal)
    assert built(far, "0F0 1F0").placed[Op("F", 1, 0)].start_s == 1.5


def test_a_start_while_the_rank_is_busy_is_refused():
    refusal = refused(built(TWO_BY_TWO, "0F0").place("0F1", 0.5))
    assert (refusal.code, refusal.blocker) == ("busy", Op("F", 0, 0))
    assert str(refusal) == "rank 0 is busy with 0F0 from 0 to 1: 0F1 does not fit"


@pytest.mark.parametrize("start_s", [-1.0, float("nan"), float("inf")])
def test_a_start_that_is_no_time_is_refused(start_s):
    assert refused(Board(TWO_BY_TWO).place("0F0", start_s)).code == "time"


def test_a_forward_without_room_for_its_activation_is_refused_and_told_what_makes_room():
    refusal = refused(built(ONE_EACH, "0F0").place("0F1"))
    assert (refusal.code, refusal.blocker) == ("memory", Op("B", 0, 0))
    assert str(refusal) == (
        "rank 0 has room for 1 activation: it keeps that of 0F0 until 0B0 has ended, and 0B0 is not placed yet. "
        "0F1 has to wait"
    )


def test_a_forward_in_a_gap_where_a_rank_is_full_is_refused_and_one_after_it_is_not():
    board = built(ONE_EACH, "0F0 1F0 1B0 0B0")
    assert refused(board.place("0F1", 1.0)).code == "memory"
    assert built(ONE_EACH, "0F0 1F0 1B0 0B0 0F1").placed[Op("F", 0, 1)].start_s == 6.0


def test_with_a_split_backward_only_w_makes_room():
    rules = Rules([0], 2, {"F": [1.0], "I": [1.0], "W": [1.0]}, caps=[1])
    assert refused(built(rules, "0F0 0I0").place("0F1")).blocker == Op("W", 0, 0)
    assert built(rules, "0F0 0I0 0W0 0F1").placed[Op("F", 0, 1)].start_s == 3.0


def test_an_op_that_another_one_needs_is_not_removed():
    refusal = refused(built(TWO_BY_TWO, "0F0 1F0").remove("0F0"))
    assert (refusal.code, refusal.blocker) == ("needed", Op("F", 1, 0))


def test_a_backward_that_made_room_is_not_removed():
    refusal = refused(built(ONE_EACH, "0F0 1F0 1B0 0B0 0F1").remove("0B0"))
    assert (refusal.code, refusal.blocker) == ("memory", Op("F", 0, 1))


def test_an_op_that_is_not_there_is_not_removed():
    assert refused(Board(TWO_BY_TWO).remove("0F0")).code == "absent"


@pytest.mark.parametrize(("op", "error"), [("F0", ValueError), (3, TypeError), (None, TypeError)])
def test_what_is_no_op_is_an_error(op, error):
    with pytest.raises(error):
        Board(TWO_BY_TWO).place(op)


# --- what may be placed ---------------------------------------------------------------------------


def test_ready_ops_are_those_that_place_takes_at_the_start_that_place_gives():
    board = built(ONE_EACH, "0F0 1F0 1B0")
    ready = {ready.op: ready.start_s for ready in board.ready()}
    for op in set(board.rules.ops) - set(board.placed):
        after = board.place(op)
        assert (op in ready) == isinstance(after, Board)
        if isinstance(after, Board):
            assert after.placed[op].start_s == ready[op]


def test_an_op_goes_into_a_gap_that_is_long_enough():
    board = built(TWO_BY_TWO, "0F0 1F0 1B0 0B0")
    assert built(TWO_BY_TWO, "0F0 1F0 1B0 0B0 0F1").placed[Op("F", 0, 1)].start_s == 1.0
    assert board.place("0F1", 1.5).placed[Op("F", 0, 1)].start_s == 1.5


def test_an_op_skips_a_gap_that_is_too_short():
    assert built(TWO_BY_TWO, "0F0 0F1@2.5 1F0 1B0 1F1").placed[Op("F", 1, 1)].start_s == 4.0
    assert built(SPLIT, "0F0 0F1@1.5").rows[0].gap(1.0, 1.0) == 2.5


# --- stamping -------------------------------------------------------------------------------------


def test_a_stamp_of_a_micro_batch_that_is_not_whole_is_refused():
    refusal = refused(built(TWO_BY_TWO, "0F0 1F0 1B0").stamp(0))
    assert (refusal.code, refusal.op) == ("pattern", Op("B", 0, 0))
    assert refused(Board(TWO_BY_TWO).stamp()).code == "pattern"
    assert refused(Board(TWO_BY_TWO).stamp(7)).code == "pattern"


def test_a_stamp_with_no_micro_batch_left_is_refused():
    assert refused(built(TWO_BY_TWO, "0F0 1F0 1B0 0B0 0F1").stamp()).code == "pattern"


@pytest.mark.parametrize(("rules", "start_s"), [(TWO_BY_TWO, 3.0), (ONE_EACH, 6.0)])
def test_a_stamp_has_the_same_relative_times_at_the_least_shift_that_is_legal(rules, start_s):
    board = built(rules, "0F0 1F0 1B0 0B0").stamp()
    assert board.finished
    shifts = {board.placed[op].start_s - board.placed[Op(op.kind, op.stage, 0)].start_s for op in rules.ops[4:]}
    assert shifts == {start_s}
    for earlier in (n / 4 for n in range(int(4 * start_s))):
        assert built(rules, "0F0 1F0 1B0 0B0")._shifted(list(board.placed.values())[:4], 1, earlier) is None


def test_stamping_one_micro_batch_of_four_ranks_gives_the_makespan_of_the_papers():
    rules = Rules([0, 1, 2, 3], 8, {"F": [1.0] * 4, "B": [2.0] * 4})
    board = built(rules, "0F0 1F0 2F0 3F0 3B0 2B0 1B0 0B0")
    while not board.finished:
        board = board.stamp()
    assert board.score.makespan_s == (8 + 4 - 1) * 3 and board.score.peaks == [4, 3, 2, 1]


# --- another order --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "direction", "sentence"),
    [
        ("0F1", -1, "0F1 is not placed"),
        ("0F0", -1, "0F0 is the first op of rank 0 already"),
        ("0B0", 1, "0B0 is the last op of rank 0 already"),
        (
            "1B0",
            -1,
            "1B0 cannot go before 1F0: 1B0 needs 1F0, the forward of its own stage, which would come later",
        ),
        ("0B0", -1, "0B0 cannot go before 0F0: 0B0 needs the gradient of 1B0, which would come later"),
    ],
)
def test_an_order_that_cannot_be_is_refused_and_says_why(op, direction, sentence):
    assert str(refused(built(TWO_BY_TWO, "0F0 1F0 1B0 0B0").swap(op, direction))) == sentence


def test_a_forward_that_would_have_no_room_does_not_go_before_what_makes_room():
    refusal = refused(built(ONE_EACH, "0F0 1F0 1B0 0B0 0F1").swap("0F1", -1))
    assert refusal.code == "order" and "rank 0 has room for 1 activation" in str(refusal)


def test_ops_that_change_places_are_timed_anew_with_all_that_follows():
    board = built(TWO_BY_TWO, "0F0 1F0 1B0 0B0 0F1@6 1F1@7 1B1@8 0B1@10").swap("0F1", -1)
    assert board.score.makespan_s == 9.0 and board.placed[Op("F", 0, 1)].start_s == 1.0
    assert board.events().equals(simulate(board.to_schedule()))  # every op as early as its order lets it be
    assert board.swap("0F1", 1).score.makespan_s == 12.0


def test_ops_keep_their_numbers_in_the_picture_when_their_order_changes():
    board = built(TWO_BY_TWO, "0F0 1F0 1B0 0B0 0F1@6")
    assert list(board.swap("0F1", -1).placed) == list(board.placed)


# --- free edit ------------------------------------------------------------------------------------


def test_free_edit_takes_any_op_and_lists_all_that_is_wrong():
    board = built(ONE_EACH, "0F0 1F0@0 0F1@0.5", free=True)
    assert sorted(wrong.code for wrong in board.violations()) == ["busy", "dependency", "memory"]
    board = board.remove("0F0", free=True)
    assert [str(wrong) for wrong in board.violations()] == ["1F0 needs the activation of 0F0, which is not placed yet"]


def test_a_full_board_with_something_wrong_is_not_finished():
    without = built(TWO_BY_TWO, "0F0 1F0 1B0 0B0").stamp().remove("0B1")
    board = without.place("0B1", 5.5, free=True)
    assert len(board.placed) == len(TWO_BY_TWO.ops) and not board.finished
    with pytest.raises(ValueError, match="not finished: 0B1 needs the gradient of 1B1"):
        _ = board.score
    assert without.place("0B1", 7.0, free=True).finished


def test_free_edit_takes_an_order_in_which_ops_wait_for_each_other_and_lists_what_is_wrong():
    board = built(TWO_BY_TWO, "0F0 1F0 1B0 0B0").swap("1B0", -1, free=True)
    assert [bar.op for bar in board.rows[1].bars] == [Op("B", 1, 0), Op("F", 1, 0)]
    assert [wrong.blocker for wrong in board.violations()] == [Op("F", 1, 0)]
    assert board.swap("1B0", 1, free=True).placed == built(TWO_BY_TWO, "0F0 1F0 1B0 0B0").placed


def test_moves_that_are_not_free_leave_nothing_wrong():
    board = built(ONE_EACH, "0F0 1F0 1B0 0B0").stamp()
    assert board.finished and board.violations() == []


# --- what a board gives others --------------------------------------------------------------------


@pytest.mark.parametrize("schedule", [gpipe(3, 4), one_f_one_b(3, 4)])
def test_a_board_of_a_schedule_gives_its_events_its_score_and_the_schedule_back(schedule):
    rules = Rules([0, 1, 2], 4, {"F": [1.0] * 3, "B": [2.0] * 3})
    events = simulate(schedule)
    board = Board(rules)
    for op, start_s in sorted(
        zip([op for ops in schedule.ops for op in ops], events["start_s"], strict=True), key=lambda pair: pair[1]
    ):
        board = board.place(op, start_s)
    assert board.to_schedule() == schedule and Schedule.from_csv(board.to_csv()) == schedule
    assert board.events().equals(events)
    score = board.score
    assert (score.makespan_s, score.bubble) == (makespan(events), bubble_fraction(events))
    assert dict(enumerate(score.peaks)) == peak_activations(events)


def test_a_row_counts_activations_as_the_simulator_does_also_on_an_unfinished_board():
    board = built(SPLIT, "0F0 0F1 1F0 1I0 0I0 0W0 1F1")
    counts = activations(board.events())
    for rank, row in enumerate(board.rows):
        of_rank = counts[counts["rank"] == rank]
        assert row.counts == list(zip(of_rank["time_s"], of_rank["count"], strict=True))


def test_an_unfinished_board_has_events_and_a_schedule_of_what_is_placed():
    board = built(TWO_BY_TWO, "0F0 1F0")
    assert len(board.events()) == 2 and board.to_csv() == "0F0\n1F0\n"
    assert Board(TWO_BY_TWO).events().empty


def test_undo_and_redo_go_back_and_forth_until_another_move_is_made():
    history = History(Board(TWO_BY_TWO))
    assert not history.undo() and not history.redo()
    for op in ("0F0", "1F0"):
        history.do(history.board.place(op))
    assert history.undo() and list(history.board.placed) == [Op("F", 0, 0)]
    assert history.redo() and len(history.board.placed) == 2
    history.undo()
    history.do(history.board.place("0F1"))
    assert not history.can_redo and [len(board.placed) for board in history.before] == [1, 0]
