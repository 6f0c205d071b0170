"""Every figure is closed after its test, and none is saved beside the lab's own."""

import matplotlib.pyplot as plt
import pytest


@pytest.fixture(autouse=True)
def figures(tmp_path, monkeypatch):
    folder = tmp_path / "figures"
    monkeypatch.setenv("LABKIT_FIGURES", str(folder))
    yield folder
    plt.close("all")
