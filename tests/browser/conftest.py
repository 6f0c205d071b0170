"""What the browser tests share: one JupyterLab with its browser for the tests of a file."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from lab import Lab


@pytest.fixture(scope="session")
def browser_there() -> None:
    """Skip what needs a browser where there is none."""
    if not (shutil.which("chromium") or shutil.which("google-chrome")):
        pytest.skip("no chromium on this machine")


@pytest.fixture(scope="module")
def lab(browser_there: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A running JupyterLab: ``with lab.notebook(cells) as page`` runs those cells in a browser."""
    from lab import jupyter_lab  # not for the whole file: where GPU tests run alone there is no Jupyter

    with jupyter_lab(tmp_path_factory.mktemp("lab")) as started:
        yield started
