"""A board refuses what cannot be, says why, and gives what is placed to others."""

from __future__ import annotations

import pytest
from small_puzzles import ONE_EACH, SPLIT, TWO_BY_TWO, built, refused

from labkit.explore.puzzle.board import Board
from labkit.explore.puzzle.rules import Rules
from labkit.schedule import Op, gpipe, one_f_one_b
from labkit.simulate import activations, bubble_fraction, makespan, peak_activations, simulate

# --- what is refused, and why ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ops", "move", "code", "blocker", "sentence"),
    [
        ("", "1F0", "dependency", "0F0", "1F0 needs the activation of 0F0, which is not placed yet"),
        ("0F0 1F0", "0B0", "dependency", "1B0", "0B0 needs the gradient of 1B0, which is not placed yet"),
        ("0F0", "1B0", "dependency", "1F0", "1B0 needs 1F0, the forward of its own stage, which is not placed yet"),
        ("0F0", "0F0", "placed", "0F0", "0F0 is there already, from 0 to 1"),
        ("", "2F0", "unknown", None, "there is no 2F0 in this level"),
        ("", "0F2", "unknown", None, "there is no 0F2 in this level"),
        ("", "0W0", "unknown", None, "there is no 0W0 in this level"),
    ],
)
def test_an_op_that_cannot_be_placed_is_refused_by_name(ops, move, code, blocker, sentence):
    refusal = refused(built(TWO_BY_TWO, ops).place(Op.parse(move)))
    assert (refusal.code, str(refusal)) == (code, sentence)
    assert refusal.op == Op.parse(move) and refusal.blocker == (blocker and Op.parse(blocker))


def test_an_input_from_another_rank_arrives_a_hop_later():
    far = Rules([0, 1], 1, {"F": [1.0, 1.0], "B": [2.0, 2.0]}, hop=0.5)
    assert built(far, "0F0 1F0").bars[Op("F", 1, 0)].start_s == 1.5


def test_a_forward_without_room_for_its_activation_is_refused_and_told_what_makes_room():
    refusal = refused(built(ONE_EACH, "0F0").place(Op("F", 0, 1)))
    assert (refusal.code, refusal.blocker) == ("memory", Op("B", 0, 0))
    assert str(refusal) == (
        "rank 0 has room for 1 activation: it keeps that of 0F0 until 0B0 has ended, and 0B0 is not placed yet. "
        "0F1 has to wait"
    )


def test_a_forward_after_what_made_room_is_not_refused():
    assert built(ONE_EACH, "0F0 1F0 1B0 0B0 0F1").bars[Op("F", 0, 1)].start_s == 6.0


def test_with_a_split_backward_only_w_makes_room():
    rules = Rules([0], 2, {"F": [1.0], "I": [1.0], "W": [1.0]}, caps=[1])
    assert refused(built(rules, "0F0 0I0").place(Op("F", 0, 1))).blocker == Op("W", 0, 0)
    assert built(rules, "0F0 0I0 0W0 0F1").bars[Op("F", 0, 1)].start_s == 3.0


def test_an_op_that_another_one_needs_is_not_removed():
    refusal = refused(built(TWO_BY_TWO, "0F0 1F0").remove(Op("F", 0, 0)))
    assert (refusal.code, refusal.blocker) == ("needed", Op("F", 1, 0))


def test_a_backward_that_made_room_is_not_removed():
    refusal = refused(built(ONE_EACH, "0F0 1F0 1B0 0B0 0F1").remove(Op("B", 0, 0)))
    assert (refusal.code, refusal.blocker) == ("memory", Op("F", 0, 1))


def test_an_op_that_is_not_there_is_not_removed():
    assert refused(Board(TWO_BY_TWO).remove(Op("F", 0, 0))).code == "absent"


# --- what may be placed ---------------------------------------------------------------------------


def test_the_times_of_an_op_that_is_not_placed_are_those_it_would_have():
    board = built(ONE_EACH, "0F0 1F0 1B0")
    for op in set(board.rules.ops) - board.placed:
        if isinstance(after := board.place(op), Board):
            assert after.bars[op] == board.bars[op]


# --- a whole micro-batch --------------------------------------------------------------------------


def test_a_whole_micro_batch_is_placed_only_where_one_is_there_already_and_one_is_not():
    assert refused(built(TWO_BY_TWO, "0F0 1F0 1B0").place_micro_batch()).code == "whole"
    assert refused(built(TWO_BY_TWO, "0F0 1F0 1B0 0B0 0F1").place_micro_batch()).code == "whole"


def test_a_whole_micro_batch_without_room_is_refused_by_name_of_what_would_make_room():
    three = Rules([0, 1], 3, {"F": [1.0, 1.0], "B": [2.0, 2.0]}, caps=[1, 1])
    refusal = refused(built(three, "0F0 1F0 1B0 0B0 0F1").place_micro_batch())
    assert (refusal.code, refusal.blocker) == ("memory", Op("B", 0, 1))


@pytest.mark.parametrize(("rules", "makespan_s"), [(TWO_BY_TWO, 9.0), (ONE_EACH, 12.0)])
def test_a_whole_micro_batch_delays_nothing_that_is_there(rules, makespan_s):
    board = built(rules, "0F0 1F0 1B0 0B0")
    after = board.place_micro_batch()
    assert after.finished and after.makespan_s == makespan_s
    assert all(after.bars[op] == board.bars[op] for op in board.placed)


def test_micro_batches_placed_whole_on_four_ranks_are_1f1b():
    rules = Rules([0, 1, 2, 3], 8, {"F": [1.0] * 4, "B": [2.0] * 4})
    board = built(rules, "0F0 1F0 2F0 3F0 3B0 2B0 1B0 0B0")
    while not board.finished:
        board = board.place_micro_batch()
    assert board.to_schedule() == one_f_one_b(4, 8)


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
            "1B0 cannot go before 1F0: 1B0 cannot run then (it needs 1F0, which does not come before it)",
        ),
        ("0B0", -1, "0B0 cannot go before 0F0: 0B0 cannot run then (it needs 0F0, which does not come before it)"),
    ],
)
def test_an_order_that_cannot_be_is_refused_and_says_why(op, direction, sentence):
    assert str(refused(built(TWO_BY_TWO, "0F0 1F0 1B0 0B0").swap(Op.parse(op), direction))) == sentence


def test_a_forward_that_would_have_no_room_does_not_go_before_what_makes_room():
    refusal = refused(built(ONE_EACH, "0F0 1F0 1B0 0B0 0F1").swap(Op("F", 0, 1), -1))
    assert refusal.code == "order" and "rank 0 has room for 1 activation" in str(refusal)


def test_ops_that_change_places_are_timed_anew_with_all_that_follows():
    board = built(TWO_BY_TWO, "0F0 1F0 1B0 0B0 0F1 1F1 1B1 0B1").swap(Op("F", 0, 1), -1)
    assert board.makespan_s == 9.0 and board.bars[Op("F", 0, 1)].start_s == 1.0
    assert board.swap(Op("F", 0, 1), 1).makespan_s == 12.0


def test_an_order_in_which_ranks_would_wait_for_each_other_is_refused_as_a_deadlock():
    board = built(TWO_BY_TWO, "0F0 0F1 1F0 1F1 1B0 0B0")
    refusal = refused(board.swap(Op("B", 0, 0), -1))
    assert (refusal.code, refusal.blocker) == ("order", Op("F", 0, 1))
    assert "0B0 on rank 0 waits for 1B0, which rank 1 runs later; 1F1 on rank 1 waits for 0F1" in str(refusal)


# --- what a board gives others --------------------------------------------------------------------


@pytest.mark.parametrize("schedule", [gpipe(3, 4), one_f_one_b(3, 4), one_f_one_b(2, 3)])
def test_a_board_of_a_schedule_has_its_times_and_measures_and_gives_it_back(schedule):
    stages = range(schedule.n_stages)
    rules = Rules(stages, schedule.n_micro, {"F": [1.0 + s for s in stages], "B": [2.0] * len(stages)}, hop=0.5)
    events = simulate(schedule, forward=[1.0 + s for s in stages], hop=0.5)
    ops = [op for ops in schedule.ops for op in ops]
    started = dict(zip(ops, events["start_s"].tolist(), strict=True))
    board = built(rules, " ".join(map(str, sorted(ops, key=lambda op: started[op]))))
    assert board.to_schedule() == schedule
    assert {op: bar.start_s for op, bar in board.bars.items()} == started
    assert (board.makespan_s, board.bubble) == (makespan(events), bubble_fraction(events))
    assert {rank: board.peak(rank) for rank in stages} == peak_activations(events)


def test_a_rank_keeps_as_many_activations_as_the_simulator_counts():
    board = built(SPLIT, "0F0 0F1 1F0 1I0 0I0 0W0 1F1 1W0 1I1 1W1 0I1 0W1")
    counts = activations(simulate(board.to_schedule()))
    for rank in range(2):
        assert [len(kept) for _, kept in board.kept(rank)] == counts.loc[counts["rank"] == rank, "count"].tolist()
