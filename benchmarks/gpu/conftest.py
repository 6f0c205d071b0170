"""Benchmarks on a GPU share the rig of tests/gpu."""

from gpu_rig import measured, noted, pytest_collection_modifyitems, rig

__all__ = ["measured", "noted", "pytest_collection_modifyitems", "rig"]
