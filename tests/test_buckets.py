"""Which gradients travel together: assign_buckets draws the lines where torch's
DistributedDataParallel does."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
import torch.distributed as dist
from hypothesis import example, given, settings
from hypothesis import strategies as st
from to_do import task

from labkit import dp

MIB = 2**20
NAN = float("nan")


# --- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "cap", "first_cap", "error", "says"),
    [
        ([4, 4], 0, None, ValueError, "^cap_bytes is 0, expected more than 0"),
        ([4, 4], NAN, None, ValueError, "^cap_bytes is nan, expected more than 0"),
        ([4, 4], 8, 0, ValueError, "^first_cap_bytes is 0, expected more than 0"),
        ([4, -3, 4], 8, None, ValueError, r"^sizes_bytes\[1\] is -3, expected a size in bytes, 0 or more"),
        ([4, 4], 5, True, TypeError, "^first_cap_bytes is True, expected more than 0"),
        ([4, None], 5, None, TypeError, r"^sizes_bytes\[1\] is None, expected a size in bytes"),
    ],
)
def test_a_capacity_without_room_and_sizes_that_cannot_be_are_refused_by_name(sizes, cap, first_cap, error, says):
    with pytest.raises(error, match=says):
        dp.assign_buckets(sizes, cap, first_cap)


# --- the rule -------------------------------------------------------------------------------------


def torchs_buckets(sizes: list[int], cap: int, first_cap: int | None) -> list[list[int]]:
    """torch's assignment of gradients that become ready from the last parameter to the first."""
    gradients = [torch.empty(size, dtype=torch.uint8) for size in reversed(sizes)]
    limits = [cap] if first_cap is None else [first_cap, cap]
    order = list(reversed(range(len(sizes))))
    buckets, _ = dist._compute_bucket_assignment_by_size(gradients, limits, [], order)
    return buckets


many_sizes = st.lists(st.integers(0, 300), min_size=1, max_size=40)
caps = st.integers(1, 1000)


@task("dp.6")
@given(sizes=many_sizes, cap=caps, first_cap=st.none() | caps)
@example(sizes=[7, 7, 7], cap=7, first_cap=None)
@example(sizes=[10] * 9, cap=25, first_cap=1)
@settings(max_examples=400, deadline=None)
def test_buckets_are_those_of_torchs_own_assignment(sizes, cap, first_cap):
    assert dp.assign_buckets(sizes, cap, first_cap) == torchs_buckets(sizes, cap, first_cap)


# --- in a running model ---------------------------------------------------------------------------


def buckets_in_a_running_model(widths: list[int], cap_mb: float | None) -> tuple[list[int], list, list]:
    """The sizes of a chain of layers in bytes, and the buckets that torch's DDP and our reducer
    make of them."""
    model = torch.nn.Sequential(*(torch.nn.Linear(a, b, bias=False) for a, b in itertools.pairwise(widths)))
    names = [name for name, _ in model.named_parameters()]
    theirs = torch.nn.parallel.DistributedDataParallel(copy.deepcopy(model), bucket_cap_mb=cap_mb)
    ours = dp.BucketedDataParallel(model) if cap_mb is None else dp.BucketedDataParallel(model, bucket_cap_mb=cap_mb)
    ours_by_index = [[names.index(name) for name in bucket.names] for bucket in ours.buckets]
    for _ in range(3):  # after the first step torch draws the lines, in the third its log has them
        theirs(torch.ones(1, widths[0])).sum().backward()
    log = theirs._get_ddp_logging_data()["rebuilt_per_bucket_param_indices"]
    theirs_by_index = [[int(index) for index in bucket.split()] for bucket in log.split(",")]
    return [parameter.nbytes for parameter in model.parameters()], theirs_by_index, ours_by_index


HOURGLASS = [16, 32, 64, 128, 64, 32, 16]


@task("dp.6")
@pytest.mark.parametrize(
    ("widths", "cap_mb"),
    [
        ([512, 1024, 512, 1024, 512], None),  # 2 MiB a layer: by default the first bucket is closed after one of them
        (HOURGLASS, 0.03),
        (HOURGLASS, 16 * 32 * 4 / MIB),  # exactly the last layer
        ([512, 1024, 512, 1024, 512], 25),  # the default's number, but given: then the first bucket is no smaller
    ],
)
def test_torchs_ddp_draws_the_same_lines_in_a_running_model(widths, cap_mb, ranks):
    sizes, torchs, reducers = ranks(1).run(buckets_in_a_running_model, widths, cap_mb).values[0]
    first_cap = MIB if cap_mb is None else None
    assert dp.assign_buckets(sizes, (cap_mb or 25) * MIB, first_cap) == torchs
    assert reducers == torchs
