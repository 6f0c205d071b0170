"""Problem 2.1, from labkit/pipe.py: where a model is cut."""

from labkit.pipe import WithDevice
from labkit.pipe import split_module as _split_module

__all__ = ["WithDevice", "_split_module"]
