"""What notebook 06 says of the ladder's losses comes from what the files printed."""

from __future__ import annotations

import pytest

from labkit.lab import ladder

PRINTED = "epoch 1, step 7, loss 2.1800\nnoise\nepoch 1, step 14, loss 1.8040\nepoch 2, step 7, loss 0.3879\n"


def test_the_first_epoch_that_differs_is_named_and_rounding_is_no_difference():
    rounded, broken = PRINTED.replace("0.3879", "0.3880"), PRINTED.replace("0.3879", "0.3979")
    assert ladder.first_difference(PRINTED, rounded) is None
    assert ladder.first_difference(PRINTED, broken) == 2
    assert ladder.first_difference(PRINTED, broken.replace("2.1800", "2.1900")) == 1


def test_the_ops_that_hand_over_a_collective_are_in_the_table_however_quick_they_are():
    ops = [ladder.OpTime("c10d::allreduce_", 1, 0.1, 0.1), *(ladder.OpTime(f"op {i}", 1, i, i) for i in range(1, 20))]
    names = ladder.top_ops(ops, n=2).index.tolist()
    assert [name for name in ("op 19", "op 18", "c10d") if not any(name in each for each in names)] == []
    assert len(names) == 3


def test_a_copy_without_a_statement_runs_and_one_that_never_had_it_is_refused(tmp_path):
    file = tmp_path / "a.py"
    file.write_text("print('kept')\nprint('gone')\n")
    assert ladder.on_ranks_without("print('gone')", file) == "kept\n"
    with pytest.raises(ValueError, match="0 times, expected once"):
        ladder.on_ranks_without("print('other')", file)
