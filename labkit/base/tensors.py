"""See a tensor as its bytes: laid out one number after the other, and without a copy."""

from __future__ import annotations

from typing import Any


def laid_out(tensor: Any) -> Any:
    """Return ``tensor`` with its numbers one after the other in memory.

    None of them is only marked as conjugate or negative.
    """
    return tensor.resolve_conj().resolve_neg().contiguous()


def as_bytes(tensor: Any) -> Any:
    """Return a contiguous tensor's memory, of whatever dtype, as a 1-D tensor of bytes.

    Raises ValueError for one that is not contiguous.
    """
    import torch

    if not tensor.is_contiguous():
        raise ValueError(f"a tensor of shape {tuple(tensor.shape)} and strides {tensor.stride()} is not contiguous")
    # Not view(-1), which keeps the stride that a single number may have.
    return tensor.detach().as_strided((tensor.numel(),), (1,)).view(torch.uint8)
