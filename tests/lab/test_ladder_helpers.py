"""What notebook 06 says of the ladder's losses comes from what the files printed."""

from __future__ import annotations

import pytest
from torch.nn.parallel import DistributedDataParallel

from labkit.lab import ladder
from labkit.launch import launch
from labkit.trace import traffic

PRINTED = "epoch 1, step 7, loss 2.1800\nnoise\nepoch 1, step 14, loss 1.8040\nepoch 2, step 7, loss 0.3879\n"


def test_the_first_epoch_that_differs_is_named_and_rounding_is_no_difference():
    rounded, broken = PRINTED.replace("0.3879", "0.3880"), PRINTED.replace("0.3879", "0.3979")
    assert ladder.first_difference(PRINTED, rounded) is None
    assert ladder.first_difference(PRINTED, broken) == 2
    assert ladder.first_difference(PRINTED, broken.replace("2.1800", "2.1900")) == 1


def test_fsdp2_holds_half_of_what_ddp_holds_and_sends_more_than_it():
    held, sent = (
        [launch(count, wrap, backend="gloo", threads=1).values[0] for wrap in (DistributedDataParallel, ladder.shard)]
        for count in (ladder.held_mib, ladder.sent_mib)
    )
    n_bytes = sum(parameter.nbytes for parameter in ladder.network().parameters())
    assert held[0].round(3).tolist() == [round(n * n_bytes / 2**20, 3) for n in (1, 1, 2)]
    assert (held[0] / held[1]).tolist() == pytest.approx([2, 2, 2], rel=1e-3)
    if traffic.available():
        assert 1.4 < sent[1] / sent[0] < 2.1  # of rings 1.5; of gloo's reduce_scatter, an all_reduce, 2
