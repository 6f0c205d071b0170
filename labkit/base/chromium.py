"""Print a page to PDF, or take its picture, with the Chromium that is there."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome")
MAC = "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"
TIMEOUT_S = 120
WIDTH, MAX_HEIGHT = 944, 3000  # of a page whose picture is taken, in its pixels
SCALE = 1.5  # pixels of the picture for one of the page, as in all of the lab's pictures
MARGIN = 8


class ChromiumError(RuntimeError):
    """A page that could not be printed: why, and what to do."""


def find_chromium() -> str | None:
    """Return the path of a Chromium or Chrome; None if there is neither.

    ``LABKIT_CHROMIUM`` is the path of another one; empty, it is as if there were none.
    """
    if (given := os.environ.get("LABKIT_CHROMIUM")) is not None:
        return shutil.which(given)
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

    Raises ChromiumError where there is no browser, and where it fails.
    """
    return _printed(html, folder, "--print-to-pdf={}/page.pdf", "--no-pdf-header-footer")


def take_picture(html: bytes, folder: Path) -> bytes:
    """Return a picture of the page as PNG: of what its CSS shows at ``#picture``, on white.

    Errors are those of print_to_pdf, also for a page on which nothing is seen.
    """
    from PIL import Image, ImageChops, ImageOps  # comes with matplotlib

    look = f"--window-size={WIDTH},{MAX_HEIGHT}", f"--force-device-scale-factor={SCALE}"
    page = "--hide-scrollbars", "--virtual-time-budget=10000"  # until all of its scripts have run
    png = _printed(html, folder, "--screenshot={}/page.png", *look, *page, at="#picture")
    image = Image.open(io.BytesIO(png)).convert("RGB")
    seen = ImageChops.difference(image, Image.new("RGB", image.size, "white")).getbbox()
    if seen is None:
        raise ChromiumError("its page stayed blank in the browser")
    buffer = io.BytesIO()
    ImageOps.expand(image.crop(seen), MARGIN, "white").save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def _printed(html: bytes, folder: Path, what: str, *options: str, at: str = "") -> bytes:
    """Return the file that a browser makes of the page: ``what`` is the option that says which."""
    chromium = find_chromium()
    if chromium is None:
        raise ChromiumError("there is no Chromium here; python -m playwright install chromium installs one")
    command = [chromium, "--headless", "--disable-gpu", "--no-first-run"]
    command += ["--no-sandbox"] if getattr(os, "geteuid", lambda: 1)() == 0 else []  # root has no sandbox
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix="printing-", ignore_cleanup_errors=True) as scratch:
            page, option = Path(scratch).resolve() / "page.html", what.format(scratch)
            page.write_bytes(html)
            command += [f"--user-data-dir={scratch}/profile", option, *options, page.as_uri() + at]
            subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, check=True)
            return Path(option.partition("=")[2]).read_bytes()
    except subprocess.TimeoutExpired:
        raise ChromiumError(f"{chromium} did not end within {TIMEOUT_S} s") from None
    except (subprocess.CalledProcessError, OSError) as error:
        raise ChromiumError(f"{chromium} could not print it ({error})") from None
