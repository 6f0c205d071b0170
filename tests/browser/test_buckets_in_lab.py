"""The bucket explorer in a browser: a slider by key changes the numbers."""

from __future__ import annotations

import axe
import pytest
from playwright.sync_api import expect
from to_do import task

CELLS = ["from labkit.explore import bucket_explorer\nbucket_explorer('mlp', world_size=2)"]
PATIENCE_MS = 60_000  # more than anything here takes


@task("dp.6")
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_slider_moved_by_key_changes_the_numbers(lab, theme):
    with lab.notebook(CELLS, theme=theme) as page:
        numbers = page.locator("table.labkit-metrics").filter(has_text="exposed communication")
        expect(numbers).to_contain_text("hidden", timeout=PATIENCE_MS)
        before = numbers.inner_text()
        page.get_by_role("slider", name="bucket size").press("ArrowRight")
        expect(numbers).not_to_have_text(before, timeout=PATIENCE_MS, use_inner_text=True)
        axe.check(page, ".jp-OutputArea-output")
