"""Print a page to PDF with the Chromium that is installed, or with Playwright's own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome")
MAC = "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"
TIMEOUT_S = 120


class NoPdf(RuntimeError):
    """A PDF that could not be made: why, and what to do."""


def find_chromium() -> str | None:
    """Return the path of a Chromium or Chrome; None if there is neither."""
    installed = next((path for name in (*NAMES, MAC) if (path := shutil.which(name))), None)
    return installed or _playwright_chromium()


def _playwright_chromium() -> str | None:
    """Return the path of the browser that ``playwright install chromium`` has brought, if any."""
    default = Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "ms-playwright"
    folder = Path(os.environ.get("PLAYWRIGHT_BROWSERS_PATH") or default)
    programs = "chromium-*/chrome-*/chrome", "chromium-*/chrome-*/*.app/Contents/MacOS/*"
    return next((str(path) for program in programs for path in folder.glob(program)), None)


def print_to_pdf(html: bytes, folder: Path) -> bytes:
    """Return the page as PDF. The browser must be able to read ``folder``: some cannot read /tmp.

    Raises NoPdf where there is no browser, and where it fails.
    """
    chromium = find_chromium()
    if chromium is None:
        raise NoPdf("there is no Chromium here; python -m playwright install chromium installs one")
    with tempfile.TemporaryDirectory(dir=folder, prefix="printing-", ignore_cleanup_errors=True) as scratch:
        page, pdf = Path(scratch) / "page.html", Path(scratch) / "page.pdf"
        page.write_bytes(html)
        command = [chromium, "--headless", "--disable-gpu", "--no-first-run", f"--user-data-dir={scratch}/profile"]
        command += ["--no-sandbox"] if getattr(os, "geteuid", lambda: 1)() == 0 else []  # root has no sandbox
        command += ["--no-pdf-header-footer", f"--print-to-pdf={pdf}", page.as_uri()]
        try:
            subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, check=True)
            return pdf.read_bytes()
        except subprocess.TimeoutExpired:
            raise NoPdf(f"{chromium} did not end within {TIMEOUT_S} s") from None
        except (subprocess.CalledProcessError, OSError) as error:
            raise NoPdf(f"{chromium} could not print it ({error})") from None
