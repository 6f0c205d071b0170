"""What the browser tests share: one JupyterLab, and a browser for the tests of a file. All but the
smoke test are slow."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from lab import Lab


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent and not item.get_closest_marker("smoke"):
            item.add_marker("slow")


@pytest.fixture(scope="session")
def browser_there() -> None:
    if not (shutil.which("chromium") or shutil.which("google-chrome")):
        pytest.skip("no chromium on this machine")
    from playwright.sync_api import expect

    expect.set_options(timeout=60_000)  # its 5 s are too few for a page on a machine with other work


@pytest.fixture(scope="session")
def served(browser_there: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str, Path]]:
    """The address, token and folder of a running JupyterLab."""
    from lab import jupyter_server  # not for the whole file: where GPU tests run alone there is no Jupyter

    folder = tmp_path_factory.mktemp("lab")
    (folder / "notebooks").mkdir()  # so it is a lab, and answers stay in it
    with jupyter_server(folder) as (url, token):
        yield url, token, folder


@pytest.fixture(scope="module")
def lab(served: tuple[str, str, Path]) -> Iterator[Lab]:
    """That JupyterLab and a browser: ``with lab.notebook(cells) as page`` runs those cells there.

    A browser for each file: while one is open, no other event loop can run in this process.
    """
    from lab import Lab, chromium

    with chromium() as browser:
        yield Lab(*served, browser)
