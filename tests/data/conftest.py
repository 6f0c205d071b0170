"""Tests of data sets reach for nothing beyond this machine, unless they say otherwise."""

import pytest


@pytest.fixture(autouse=True)
def no_source_from_outside(monkeypatch, tmp_path):
    """As on a machine without a network and without LABKIT_DATA."""
    monkeypatch.delenv("LABKIT_DATA", raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets-cache")
