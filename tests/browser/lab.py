"""Start a JupyterLab, open notebooks in a browser beside it, and hold each to a quiet console.

    with jupyter_lab(folder) as lab, lab.notebook(["1 + 1"], theme="dark") as page:
        page.get_by_text("2").wait_for()

All of a notebook has run when its page is given. Leaving it fails if the browser's console has
an error in it, and ends its kernel; leaving the lab ends the server and the browser.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import nbformat
import psutil
from nbformat.v4 import new_code_cell, new_notebook
from playwright.sync_api import BrowserContext, Page, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")  # conftest skips where there is none
QUIET = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync"]
SEEN = {"width": 1280, "height": 1600}

RUN_ALL = """async () => {
    const { shell, commands } = window.jupyterapp;
    const { sessionContext } = shell.currentWidget;
    shell.collapseLeft();
    await sessionContext.ready;
    await sessionContext.session.kernel.info;  // asked to run before its kernel answers, JupyterLab forgets it
    await commands.execute("notebook:run-all-cells");
}"""
CHANGE_THEME = 'theme => window.jupyterapp.commands.execute("apputils:change-theme", { theme })'
SAVE = "() => window.jupyterapp.commands.execute('docmanager:save')"
RUN = "code => void window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.requestExecute({ code })"
RESTART = "() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()"


@contextlib.contextmanager
def chromium(**options: object) -> Iterator[BrowserContext]:
    """Run a headless browser, whose pages share one cache. In them nothing moves."""
    options = {"viewport": SEEN, "reduced_motion": "reduce"} | options
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        try:
            yield browser.new_context(**options)
        finally:
            browser.close()


def run_all(page: Page) -> None:
    """Run all cells of the notebook that is open, in the kernel that it has."""
    page.evaluate(RUN_ALL)


def run_in_kernel(page: Page, code: str) -> None:
    """Have the kernel of the notebook run ``code``, and do not wait for its end."""
    page.evaluate(RUN, code)


def save(page: Page) -> None:
    page.evaluate(SAVE)


def restart_kernel(page: Page) -> None:
    page.evaluate(RESTART)


def change_theme(page: Page, theme: str) -> None:
    """Change JupyterLab's theme, and wait for the picture that it shows meanwhile to be gone: at
    the next change it would be taken away twice, which is an error in the console."""
    page.evaluate(CHANGE_THEME, f"JupyterLab {theme.title()}")
    page.wait_for_function("dark => document.body.dataset.jpThemeLight === String(!dark)", arg=theme == "dark")
    page.wait_for_selector("#jupyterlab-splash", state="detached")


@contextlib.contextmanager
def quiet_console(page: Page) -> Iterator[None]:
    """Fail at the end of the block if the page has written an error meanwhile, or not caught one.

    None is let through: JupyterLab 4.6 by itself writes none.
    """
    errors: list[str] = []
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(f"uncaught: {error.stack}"))
    yield
    assert not errors, "\n".join(["errors in the browser's console:", *errors])


@dataclass
class Lab:
    """A running JupyterLab: its address, its token, the folder it serves, and a browser."""

    url: str
    token: str
    folder: Path
    browser: BrowserContext

    @contextlib.contextmanager
    def notebook(
        self, cells: Sequence[str], theme: str = "light", name: str = "lab", script: Path | None = None
    ) -> Iterator[Page]:
        """Open a notebook of these ``cells``, run them all, and give its page. ``script`` is run in
        the page before anything else. Several may be open, under a ``name`` each."""
        cells = [new_code_cell(source.strip()) for source in cells]
        kernel = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
        nbformat.write(new_notebook(cells=cells, metadata={"kernelspec": kernel}), self.folder / f"{name}.ipynb")
        write_settings(self.folder, theme)
        with self.opened(name, script) as page:
            run_all(page)
            yield page

    @contextlib.contextmanager
    def opened(self, name: str, script: Path | None = None, quiet: bool = True) -> Iterator[Page]:
        """Open a notebook that is there, and give its page. End its kernel at last."""
        page = self.browser.new_page()
        if script:
            page.add_init_script(path=script)
        try:
            with quiet_console(page) if quiet else contextlib.nullcontext():
                page.goto(f"{self.url}/lab/tree/{name}.ipynb?token={self.token}&reset", wait_until="domcontentloaded")
                page.wait_for_selector(".jp-NotebookPanel .jp-CodeCell", timeout=60_000)
                yield page
        finally:
            page.close()
            self.end_kernel(name)

    def end_kernel(self, name: str) -> None:
        for session in json.load(self._ask("GET", "/api/sessions")):
            if session["path"] == f"{name}.ipynb":
                self._ask("DELETE", f"/api/sessions/{session['id']}").close()

    def _ask(self, method: str, path: str):
        headers = {"Authorization": f"token {self.token}"}
        request = urllib.request.Request(self.url + path, method=method, headers=headers)
        return urllib.request.urlopen(request, timeout=30)


@contextlib.contextmanager
def jupyter_lab(folder: Path) -> Iterator[Lab]:
    """Serve ``folder``, and open a browser, until the end of the block."""
    with jupyter_server(folder) as (url, token), chromium() as browser:
        yield Lab(url, token, folder, browser)


@contextlib.contextmanager
def jupyter_server(folder: Path) -> Iterator[tuple[str, str]]:
    """Serve ``folder`` on a free loopback port, with settings of its own, until the end of the
    block. Gives its address and its token."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    token = os.urandom(16).hex()
    options = ["--no-browser", "--allow-root", f"--port={port}", "--ServerApp.port_retries=0"]
    options += [f"--ServerApp.root_dir={folder}", f"--IdentityProvider.token={token}", "--KernelManager.transport=ipc"]
    options += ["--LabApp.expose_app_in_browser=True"]  # to run all cells when the kernel is ready, and not before
    command = [sys.executable, "-m", "jupyterlab", *options]
    log = folder / "log"
    with open(log, "w") as file:
        server = subprocess.Popen(command, env=environment(folder), stdout=file, stderr=file, start_new_session=True)
    try:
        url = f"http://127.0.0.1:{port}"
        wait_until_it_answers(f"{url}/api/status?token={token}", log)
        yield url, token
    finally:
        end(server)


def environment(folder: Path) -> dict[str, str]:
    """Return this process's environment with a home for Jupyter in ``folder``, and widgets on."""
    homes = {"JUPYTER_CONFIG_DIR": "config", "JUPYTERLAB_SETTINGS_DIR": "settings"}
    homes |= {"JUPYTERLAB_WORKSPACES_DIR": "workspaces", "IPYTHONDIR": "ipython"}
    others = {name: value for name, value in os.environ.items() if name != "LABKIT_STATIC"}
    return others | {name: str(folder / home) for name, home in homes.items()}


def write_settings(folder: Path, theme: str) -> None:
    """Choose JupyterLab's theme, and have it fetch nothing from elsewhere."""
    settings = folder / "settings" / "@jupyterlab" / "apputils-extension"
    settings.mkdir(parents=True, exist_ok=True)
    (settings / "themes.jupyterlab-settings").write_text(json.dumps({"theme": f"JupyterLab {theme.title()}"}))
    (settings / "notification.jupyterlab-settings").write_text('{"fetchNews": "false", "checkForUpdates": false}')


def wait_until_it_answers(url: str, log: Path) -> None:
    for _ in range(240):
        with contextlib.suppress(OSError):
            urllib.request.urlopen(url, timeout=2).close()
            return
        time.sleep(0.25)
    raise AssertionError(log.read_text()[-2000:])


def end(server: subprocess.Popen) -> None:
    """End a server with its kernels, and whatever those have started."""
    family = [psutil.Process(server.pid)]
    family += family[0].children(recursive=True)
    os.killpg(server.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        server.wait(10)
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
