"""Tensors as bytes: numpy is the oracle."""

import pytest
import torch

from labkit.base.tensors import as_bytes


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6.0).view(2, 3),
        torch.tensor(1.5, dtype=torch.bfloat16).view(torch.int16),
        torch.arange(14.0).view(2, 7)[1:, 3],
        torch.arange(2.0)[::2],
        torch.arange(12.0).view(2, 6)[1:, ::6],
        torch.ones(0, 5)[:, 0],
    ],
)
def test_a_tensor_without_gaps_is_its_bytes_whatever_the_strides_of_one_number(tensor):
    assert as_bytes(tensor).numpy().tobytes() == tensor.numpy().tobytes()
    assert as_bytes(tensor).data_ptr() == tensor.data_ptr()  # no copy


def test_a_tensor_with_gaps_is_not_taken_for_its_memory():
    with pytest.raises(ValueError, match=r"strides \(7,\) is not contiguous"):
        as_bytes(torch.ones(2, 7)[:, 0])
