"""JupyterLab in a real browser: a cell that launches ranks shows its table, its bar and its picture
to the reader."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest
from nbformat.v4 import new_code_cell, new_notebook

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
QUIET = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync"]
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")

CELLS = [
    """
import time, torch, torch.distributed as dist
from ipykernel.connect import get_connection_info
from labkit import draw
from labkit.launch import launch, progress
from labkit.trace import span
def fn():
    for _ in progress(range(20), "rounds"):
        time.sleep(0.05)
        with span("all_reduce", lane="comm"):
            dist.all_reduce(torch.ones(10))
print(get_connection_info(unpack=True)["transport"])
run = launch(fn, world_size=2)
run
""",
    'draw.show(draw.timeline(run.events), alt="Twenty rounds of two ranks.")',
    "launch(lambda: 1 / 0, world_size=1)",
]


@pytest.fixture
def lab(tmp_path):
    """(URL, token) of a JupyterLab that has one notebook with the cells above, on loopback, ended
    afterwards."""
    cells = [new_code_cell(source.strip()) for source in CELLS]
    kernel = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
    nbformat.write(new_notebook(cells=cells, metadata={"kernelspec": kernel}), tmp_path / "lab.ipynb")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    token = os.urandom(16).hex()
    home = {
        "JUPYTER_CONFIG_DIR": "config",
        "JUPYTERLAB_SETTINGS_DIR": "settings",
        "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
    }
    environment = os.environ | {name: str(tmp_path / folder) for name, folder in home.items()}
    options = [
        "--no-browser",
        "--allow-root",
        f"--port={port}",
        "--ServerApp.port_retries=0",
        f"--IdentityProvider.token={token}",
        "--KernelManager.transport=ipc",
    ]
    settings = tmp_path / "settings" / "@jupyterlab" / "apputils-extension"
    settings.mkdir(parents=True)
    (settings / "notification.jupyterlab-settings").write_text('{"fetchNews": "false", "checkForUpdates": false}')
    command = [sys.executable, "-m", "jupyterlab", *options, f"--ServerApp.root_dir={tmp_path}"]
    with open(tmp_path / "log", "w") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    family = [psutil.Process(server.pid)]
    try:
        wait_until_it_answers(f"http://127.0.0.1:{port}/api/status?token={token}", tmp_path / "log")
        yield f"http://127.0.0.1:{port}", token
        family += family[0].children(recursive=True)
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(10)
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def wait_until_it_answers(url: str, log: Path) -> None:
    for _ in range(240):
        with contextlib.suppress(OSError):
            urllib.request.urlopen(url, timeout=2).close()
            return
        time.sleep(0.25)
    raise AssertionError(log.read_text()[-2000:])


def run_all_cells(page: Any) -> None:
    """Click Run All Cells until all of them are waiting, or have begun.

    JupyterLab says idle a moment before its kernel is connected: what it is asked to run then, all
    or all but the first cell, is lost, or it asks in a dialog which kernel to take, as it may ask
    other things (news). Every dialog is accepted, and the click repeated.
    """
    from playwright.sync_api import TimeoutError as NotClickable

    for _ in range(20):
        with contextlib.suppress(NotClickable):
            if page.locator("dialog.jp-Dialog").count():
                page.locator("dialog.jp-Dialog .jp-mod-accept").first.click(timeout=2000)
            page.get_by_text("Run", exact=True).first.click(timeout=2000)
            page.get_by_text("Run All Cells", exact=True).click(timeout=2000)
        page.wait_for_timeout(2000)
        if all(prompt.strip("[]: ") for prompt in page.locator(".jp-InputArea-prompt").all_inner_texts()):
            return
    raise AssertionError("not all cells have begun to run")


def test_a_reader_sees_the_table_the_bar_the_picture_and_the_error(lab):
    from playwright.sync_api import sync_playwright

    url, token = lab
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(f"{url}/api/contents", timeout=5)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        try:
            page = browser.new_page(viewport={"width": 1280, "height": 1600})
            page.goto(f"{url}/lab/tree/lab.ipynb?token={token}&reset", wait_until="domcontentloaded")
            page.wait_for_selector(".jp-NotebookPanel .jp-CodeCell", timeout=60_000)
            page.wait_for_selector(".jp-Notebook-ExecutionIndicator[data-status=idle]", timeout=90_000)
            run_all_cells(page)
            page.wait_for_selector(".jp-OutputArea-output >> text=RankError", timeout=120_000)
            outputs = page.locator(".jp-CodeCell .jp-OutputArea")
            first = outputs.nth(0).inner_text()
            picture = page.locator(".jp-OutputArea img").first
            error = outputs.nth(2).inner_text()
            alt = picture.get_attribute("alt")
            width = picture.evaluate("e => e.naturalWidth")
        finally:
            browser.close()
    assert first.startswith("ipc")
    assert "2 ranks [~ gloo" in first or "2 ranks [~ nccl" in first
    assert first.count("all_reduce") == 2 and "rounds" in first and "20/20" in first
    assert width > 500 and alt in (None, "", "Twenty rounds of two ranks.")
    assert "rank 0 raised ZeroDivisionError: division by zero" in error
    assert "launch(lambda: 1 / 0, world_size=1)" in error and "pool.py" not in error
