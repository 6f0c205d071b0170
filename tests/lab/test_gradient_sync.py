"""What notebook 05 says of its losses and bytes is what the numbers say."""

from __future__ import annotations

from labkit.lab import gradient_sync
from labkit.lab.published_results import RTE_ACCURACY


def test_the_loss_of_a_batch_is_the_mean_of_its_ranks_and_one_process_stands_above_the_published_ones():
    def on_rank(*losses):
        return {"alone": losses, "ddp": [2 * each for each in losses]}, {"alone": 0.25, "ddp": 0.5}

    four = [on_rank(1.0, 3.0, 0.0, 0.0, 0.0, 9.0), on_rank(2.0, 5.0, 0.0, 0.0, 0.0, 9.0)]
    table = gradient_sync.losses_and_accuracy([on_rank(7.0, 1.0, 0.0, 0.0, 0.0, 9.0)], four)
    assert table.columns.tolist() == [*(f"loss {i}" for i in range(1, 6)), "accuracy"]
    assert [float(each) for each in table["loss 2"][:3]] == [1.0, 4.0, 8.0]
    assert [float(each) for each in table["accuracy"][:3]] == [0.25, 0.25, 0.5]
    assert [*table.index[:3]] == ["one process", "alone", "ddp"] and len(table) == 3 + len(RTE_ACCURACY)


def test_how_far_apart_ranks_are_is_told_from_before_the_first_step_on():
    one = [([0.7] * 5, [0.0] * 6), ([0.6] * 5, [0.0] * 6)]
    table = gradient_sync.five_steps_to_read(one, [([], [0.5, 0.4, 0.3, 0.2, 0.1, 0.05])] * 2)
    assert table.loc["at the start", "one seed: loss of rank 1"] == ""
    assert float(table.loc["at the start", "four seeds: apart"]) == 0.5
    assert float(table.loc["after step 5", "four seeds: apart"]) == 0.05


def test_the_bytes_of_two_ranks_stand_in_columns_by_batch_size():
    rank_0 = {("ddp", 64): 5, ("all_reduce", 64): 7, ("ddp", 16): 6, ("all_reduce", 16): 8}
    table = gradient_sync.bytes_to_read([rank_0, {key: 10 * n for key, n in rank_0.items()}, {}])
    assert table.columns.tolist() == ["rank 0, 64", "rank 0, 16", "rank 1, 64", "rank 1, 16"]
    assert table.loc["ddp"].tolist() == [5, 6, 50, 60] and [*table.index] == ["ddp", "all_reduce"]
