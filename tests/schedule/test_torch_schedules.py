"""labkit.schedule and torch.distributed.pipelining: the same orders, the same CSV both ways."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from labkit.schedule import Schedule, gpipe, interleaved, one_f_one_b, zero_bubble_h1, zero_bubble_h2, zero_bubble_v


def of_torch(name: str) -> Any:
    """Return a schedule class of torch's, imported here: it takes a second."""
    return getattr(pytest.importorskip("torch.distributed.pipelining.schedules"), name)


small = st.integers(1, 5)
micro = st.integers(1, 14)


def texts(schedule: Schedule) -> list[list[str]]:
    return [list(map(str, ops)) for ops in schedule.ops]


def stages_of_torch(n_ranks: int, n_stages: int, rank: int = 0) -> list:
    """Stands in for torch's stages, whose order does not depend on what they compute."""
    place = {"group_size": n_ranks, "group_rank": rank, "num_stages": n_stages, "submod": None}
    return [SimpleNamespace(stage_index=stage, **place) for stage in range(rank, n_stages, n_ranks)]


def order_of_torch(name: str, n_ranks: int, n_micro: int, n_chunks: int = 1):
    return of_torch(name)(stages_of_torch(n_ranks, n_ranks * n_chunks), n_micro, loss_fn=print)


def compute_only(order: dict) -> list[list[str]]:
    """What torch's order computes; an overlapped pair is what is in it."""
    cells = [[part for a in order[rank] if a is not None for part in (a.sub_actions or [a])] for rank in sorted(order)]
    return [[str(action) for action in rank if action.is_compute_op] for rank in cells]


def run_by_torch(name: str, n_stages: int, n_micro: int) -> list[list[str]]:
    """Return what torch's single-stage runtime does on every rank.

    A stage that neither computes nor sends records it.
    """
    ranks = []
    for rank in range(n_stages):
        done: list[str] = []
        messages = [f"get_{pass_}_{way}_ops" for pass_ in ("fwd", "bwd") for way in ("recv", "send")]
        stage = SimpleNamespace(
            **dict.fromkeys(messages, lambda i: []),
            **{"stage_index": rank, "num_stages": n_stages, "is_last": False},
            forward_one_chunk=lambda i, *args, done=done, rank=rank, **kwargs: done.append(f"{rank}F{i}"),
            backward_one_chunk=lambda i, *args, done=done, rank=rank, **kwargs: done.append(f"{rank}B{i}"),
            perform_reduce_grad=lambda *args: None,
        )
        # 1F1B refuses to be made for fewer micro-batches than stages, yet knows how to run them
        schedule = of_torch(name)(stage, max(n_micro, n_stages), loss_fn=print)
        schedule._n_microbatches = n_micro
        schedule._initialize_stage = lambda *args: None
        schedule._step_microbatches()
        ranks.append(done)
    return ranks


@settings(max_examples=25, deadline=None)
@given(n=small, m=micro)
def test_gpipe_and_1f1b_run_in_the_order_of_torchs_runtime(n, m):
    assert texts(gpipe(n, m)) == run_by_torch("ScheduleGPipe", n, m)
    assert texts(one_f_one_b(n, m)) == run_by_torch("Schedule1F1B", n, m)


@settings(max_examples=25, deadline=None)
@given(n=small, m=micro, v=st.integers(1, 4))
def test_interleaved_has_torchs_order_and_refuses_what_torch_refuses(n, m, v):
    try:
        theirs = compute_only(order_of_torch("ScheduleInterleaved1F1B", n, m, v).pipeline_order)
    except ValueError:
        with pytest.raises(ValueError, match="divides into rounds"):
            interleaved(n, m, v)
    else:
        assert texts(interleaved(n, m, v)) == theirs


@settings(max_examples=25, deadline=None)
@given(n=small, m=micro)
def test_h1_has_the_order_of_torchs_interleaved_zero_bubble_of_one_chunk(n, m):
    assume(m % max(1, m // n) == 0)
    theirs = order_of_torch("ScheduleInterleavedZeroBubble", n, m).pipeline_order
    assert texts(zero_bubble_h1(n, m)) == compute_only(theirs)


@settings(max_examples=25, deadline=None)
@given(n=small, m=micro)
def test_zero_bubble_v_has_torchs_order_also_with_few_micro_batches(n, m):
    assert texts(zero_bubble_v(n, m)) == compute_only(order_of_torch("ScheduleZBVZeroBubble", n, m, 2).pipeline_order)


@pytest.mark.parametrize(
    "make", [gpipe, one_f_one_b, zero_bubble_h1, zero_bubble_h2, zero_bubble_v, lambda n, m: interleaved(n, m, 3)]
)
@pytest.mark.parametrize("name", ["PipelineScheduleMulti", "_PipelineScheduleRuntime"])
def test_torch_reads_our_csv_and_its_runtime_finds_a_way_to_send_and_receive(make, name, tmp_path):
    schedule = make(4, 8)
    schedule.to_csv(tmp_path / "ours.csv")
    runtime = of_torch(name)
    if name == "PipelineScheduleMulti":  # an abstract class; what reads the file is all its own
        runtime = type("Multi", (runtime,), {"_step_microbatches": None})
    theirs = runtime(stages_of_torch(4, schedule.n_stages), 8, loss_fn=print)
    theirs._load_csv(str(tmp_path / "ours.csv"))
    assert compute_only(theirs.pipeline_order) == texts(schedule)
    if name == "_PipelineScheduleRuntime":
        assert compute_only(theirs.pipeline_order_with_comms) == texts(schedule)


@pytest.mark.parametrize(
    ("name", "chunks"),
    [
        ("ScheduleInterleaved1F1B", 2),
        ("ScheduleInterleavedZeroBubble", 2),
        ("ScheduleLoopedBFS", 3),
        ("ScheduleZBVZeroBubble", 2),
        ("ScheduleDualPipeV", 2),
    ],
)
@pytest.mark.parametrize("form", ["compute_only", "compute_comms"])
def test_we_read_what_torch_dumps(name, chunks, form, tmp_path):
    theirs = order_of_torch(name, 4, 8, chunks)
    theirs._dump_csv(str(tmp_path / "theirs.csv"), format=form)
    ours = Schedule.from_csv(tmp_path / "theirs.csv")
    assert texts(ours) == compute_only(theirs.pipeline_order)
    assert ours == Schedule.from_csv((tmp_path / "theirs.csv").read_text())
