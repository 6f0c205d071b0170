"""Tests on a GPU share a rig."""

from gpu_rig import measured, noted, pytest_collection_modifyitems, rig

__all__ = ["measured", "noted", "pytest_collection_modifyitems", "rig"]
