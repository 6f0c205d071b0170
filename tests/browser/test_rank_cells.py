"""%%ranks in JupyterLab: tabs that keys move, a hang that costs one cell, and the stop button."""

import pytest
from playwright.sync_api import Locator, Page, expect

CELLS = [
    "from labkit.launch import launch\n%ranks 4",
    """%%ranks
import pandas as pd, torch, torch.distributed as dist
x = torch.ones(1) * dist.get_rank()
dist.all_reduce(x)
pd.DataFrame({"square": [dist.get_rank() ** 2]})""",
    "%%ranks\nif dist.get_rank() != 2:\n    dist.all_reduce(x)",
    "%%ranks\nx",
    "%%ranks\nwhile True: pass",
    "%%ranks\nx + 1",
]
RUN_CELL = """index => {
    const { shell, commands } = window.jupyterapp;
    shell.currentWidget.content.activeCellIndex = index;
    void commands.execute("notebook:run-cell");
}"""


def cell(page: Page, index: int) -> Locator:
    return page.locator(".jp-CodeCell").nth(index)


def output(page: Page, index: int) -> Locator:
    page.evaluate(RUN_CELL, index)
    return cell(page, index).locator(".jp-OutputArea")


@pytest.fixture(scope="module")
def ranks(lab):
    """A notebook in which four ranks are there, and have run the second cell."""
    with lab.notebook([*CELLS[:2], "1 / 0", *CELLS[2:]], name="ranks") as page:  # an error ends "run all"
        expect(cell(page, 1).locator(".labkit-ranks")).to_be_visible(timeout=60_000)
        yield page


def test_each_rank_has_a_tab_which_arrow_keys_and_clicks_open(ranks):
    tabs = cell(ranks, 1).locator(".labkit-rank")
    panels = cell(ranks, 1).locator(".labkit-rank + div")
    expect(tabs).to_have_text(["rank 0", "rank 1", "rank 2", "rank 3"])
    tabs.locator("input").first.focus()
    ranks.keyboard.press("ArrowRight")
    ranks.keyboard.press("ArrowDown")
    ranks.keyboard.press("Enter")
    assert [panel.is_visible() for panel in panels.all()] == [False, False, True, False]
    expect(panels.nth(2)).to_contain_text("4")
    tabs.nth(3).click()
    assert [panel.is_visible() for panel in panels.all()] == [False, False, False, True]


def test_a_hang_is_named_and_the_next_cell_has_the_variables_from_before(ranks):
    expect(output(ranks, 3)).to_contain_text("ranks 0, 1 and 3 wait in all_reduce", timeout=60_000)
    expect(output(ranks, 4)).to_contain_text("all 4 ranks: tensor([6.])")


def test_the_stop_button_ends_a_cell_on_all_ranks_and_they_go_on(ranks):
    running = output(ranks, 5)
    expect(cell(ranks, 5).locator(".jp-InputPrompt")).to_have_text("[*]:")
    ranks.wait_for_timeout(1_000)  # until they are in it
    ranks.locator('[data-command="notebook:interrupt-kernel"]').first.click()
    expect(running).to_contain_text("KeyboardInterrupt", timeout=20_000)
    expect(output(ranks, 6)).to_contain_text("all 4 ranks: tensor([7.])")
