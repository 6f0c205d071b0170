"""Take the pictures of the explorers in README.md and docs, as a reader sees them.

    make screenshots

Each is opened in JupyterLab, used a little, and photographed in the light and in the dark theme:
figures/explorers/NAME-THEME.png.
"""

import tempfile
from pathlib import Path

from lab import Lab, change_theme, jupyter_lab
from playwright.sync_api import Page

FOLDER = Path(__file__).resolve().parents[2] / "figures" / "explorers"

EXPLORERS = {
    "schedule_explorer": "schedule_explorer('1f1b n=4 m=8 vs zb-h1')",
    "schedule_puzzle": "puzzle = schedule_puzzle(3)\n[puzzle.place(op) for op in '0F0 0F1 0F2 1F0 2F0 2B0'.split()]\npuzzle",
    "bucket_explorer": "bucket_explorer()",
    "ring_explorer": "ring_explorer()",
    "measured_run": "schedule_explorer('1f1b n=4 m=4 vs zb-h1')",
}
USES = {  # keys that are pressed in its last picture
    "schedule_explorer": ["Home", "End", "ArrowLeft"],
    "schedule_puzzle": [],
    "bucket_explorer": ["Home", "ArrowRight"],
    "ring_explorer": [".", "."],
    "measured_run": [],
}


def photograph(lab: Lab, name: str) -> None:
    with lab.notebook([f"from labkit.explore import *\n{EXPLORERS[name]}"]) as page:
        page.set_viewport_size({"width": 1280, "height": 2000})  # room for the tallest, above JupyterLab's status bar
        page.wait_for_selector(".labkit-timeline[data-drawn]", timeout=60_000)
        stage = page.locator(".lk-stage").last
        stage.focus()
        for key in USES[name]:
            before = page.locator(".labkit-timeline").last.get_attribute("data-drawn")
            page.keyboard.press(key)
            page.wait_for_function(
                "before => [...document.querySelectorAll('.labkit-timeline')].at(-1).dataset.drawn !== before",
                arg=before,
            )
        if name == "measured_run":
            page.get_by_role("button", name="Run it").click()
            page.wait_for_function(
                "document.querySelector('.lk-narration').textContent.includes('Ran on')", timeout=60_000
            )
        for theme in ("light", "dark"):
            change_theme(page, theme)
            settle(page)
            output = page.locator(".jp-OutputArea-output:visible").last
            output.screenshot(path=FOLDER / f"{name}-{theme}.png")


def settle(page: Page) -> None:
    """Wait until every picture has been drawn in the theme of now."""
    page.wait_for_function(
        "() => [...document.querySelectorAll('.labkit-timeline')].every(each =>"
        " (each.dataset.theme === 'dark') === (document.body.dataset.jpThemeLight === 'false'))"
    )


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, jupyter_lab(Path(folder)) as lab:
        for name in EXPLORERS:
            photograph(lab, name)
