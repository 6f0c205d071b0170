"""What notebook 06 says of the ladder's losses comes from what the files printed."""

from __future__ import annotations

import pandas as pd
import pytest
import torch

from labkit.lab import ladder
from labkit.lab.diffs import diff
from labkit.launch import launch

PRINTED = "epoch 1, step 7, loss 2.1800\nnoise\nepoch 1, step 14, loss 1.8040\nepoch 2, step 7, loss 0.3879\n"


def test_the_first_epoch_that_differs_is_named_and_rounding_is_no_difference():
    rounded, broken = PRINTED.replace("0.3879", "0.3880"), PRINTED.replace("0.3879", "0.3979")
    assert ladder.first_difference(PRINTED, rounded) is None
    assert ladder.first_difference(PRINTED, broken) == 2
    assert ladder.first_difference(PRINTED, broken.replace("2.1800", "2.1900")) == 1


def test_communication_is_exposed_only_while_no_other_op_of_the_rank_runs():
    """Two overlapping all_reduces from 2 to 8 of 10 ms, and other ops until 4 and from 7 on."""
    ops = [
        ("ProfilerStep*", "CPU", 0.0, 10.0),
        ("aten::mm", "CPU", 0.0, 4.0),
        ("aten::add", "CPU", 1.0, 2.0),
        ("gloo:all_reduce", "CPU", 2.0, 6.0),
        ("gloo:all_reduce", "CPU", 3.0, 8.0),
        ("c10d::allreduce_", "CPU", 7.0, 9.0),
        ("ProfilerStep*", "CPU", 10.0, 30.0),
    ]
    found = ladder.communication(pd.DataFrame(ops, columns=["op", "device", "start_ms", "end_ms"]))
    assert found.to_numpy().ravel() == pytest.approx([10.0, 60.0, 30.0, 20.0, 0.0, 0.0])


def test_with_a_gpu_communication_is_exposed_while_no_other_kernel_runs():
    ops = [
        ("ProfilerStep*", "CPU", 0.0, 10.0),
        ("aten::mm", "CPU", 0.0, 10.0),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "CUDA", 4.0, 8.0),
        ("sgemm", "CUDA", 2.0, 5.0),
    ]
    found = ladder.communication(pd.DataFrame(ops, columns=["op", "device", "start_ms", "end_ms"]))
    assert found.to_numpy().ravel() == pytest.approx([10.0, 40.0, 30.0])


def test_torchs_profiler_sees_each_bucket_of_ddp_on_its_way():
    found = launch(three_profiled_steps, threads=1).values
    assert [(ops["op"] == "gloo:all_reduce").sum() for ops in found] == [6, 6]
    for shares in map(ladder.communication, found):
        step_ms, share, exposed = shares.to_numpy().T
        assert (
            len(shares) == 3
            and (step_ms > 0).all()
            and (exposed > 0).all()
            and (exposed <= share + 1e-6).all()
            and (share < 100).all()
        )


def three_profiled_steps():
    model, optimizer, rows = ladder.training(torch.nn.parallel.DistributedDataParallel)
    when = torch.profiler.schedule(wait=1, warmup=1, active=3, repeat=1)
    with torch.profiler.profile(schedule=when) as profiler:
        for _ in range(5):
            model(rows).sum().backward()
            optimizer.step()
            profiler.step()
    return ladder.ops_of(profiler)


def test_a_diff_counts_statements_and_neither_words_nor_blank_lines_nor_comments(tmp_path):
    before, after = tmp_path / "a.py", tmp_path / "b.py"
    before.write_text('"""Old."""\n\ndef f(x):\n    return x\n')
    after.write_text(
        '"""New."""\nimport os\n\n\ndef f(x):\n    """Say."""\n    return x  # as it was\n\nf(\n    1,\n)\n'
    )
    found = diff(before, after)
    assert (found.added, found.removed) == (("import os", "f(1)"), ())
    assert found.title == "a.py → b.py: +2 −0 lines of code"
    assert found.count("os", "1", "Say") == 2


def test_a_copy_without_a_statement_runs_and_one_that_never_had_it_is_refused(tmp_path):
    file = tmp_path / "a.py"
    file.write_text("print('kept')\nprint('gone')\n")
    assert ladder.on_ranks_without("print('gone')", file) == "kept\n"
    with pytest.raises(ValueError, match="0 times, expected once"):
        ladder.on_ranks_without("print('other')", file)
