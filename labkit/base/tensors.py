"""See a tensor as its bytes: laid out one number after the other, and without a copy."""

from __future__ import annotations

from typing import Any


def laid_out(tensor: Any) -> Any:
    """Return ``tensor`` with its numbers one after the other in memory.

    None of them is only marked as conjugate or negative.
    """
    return tensor.resolve_conj().resolve_neg().contiguous()


def as_bytes(tensor: Any) -> Any:
    """Return a contiguous tensor's memory, of whatever dtype, as a 1-D tensor of bytes."""
    import torch

    return tensor.detach().view(-1).view(torch.uint8)
