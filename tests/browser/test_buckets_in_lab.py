"""The bucket explorer in a browser: a slider by key changes the picture; a run lies under it."""

from __future__ import annotations

import axe
from to_do import task

CELLS = ["from labkit.explore import bucket_explorer\nbucket_explorer('mlp', world_size=2)"]


@task("dp.6", "dp.7")
def test_a_slider_moved_by_key_changes_picture_and_numbers_and_a_run_is_laid_under_it(lab):
    with lab.notebook(CELLS) as page:
        numbers = page.locator(".jp-OutputArea table").filter(has_text="exposed communication")
        numbers.wait_for(timeout=60_000)
        before = numbers.inner_text()
        page.get_by_role("slider").first.press("ArrowRight")
        page.wait_for_function("text => !document.body.innerText.includes(text)", arg=before.splitlines()[-1])
        page.get_by_role("button", name="Run it").click()
        page.get_by_text("Measured on 2 ranks").wait_for(timeout=60_000)
        assert "measured" in numbers.inner_text()
        axe.check(page, ".jp-OutputArea-output")
