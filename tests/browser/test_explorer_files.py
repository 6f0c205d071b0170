"""Explorers as files, without kernel and network: under a hand, and true to what a file can do."""

import re

import pytest
from lab import chromium, quiet_console
from playwright.sync_api import Page, expect

from labkit.explore import Timeline, ring_explorer, schedule_explorer, schedule_puzzle
from labkit.schedule import one_f_one_b
from labkit.simulate import simulate


@pytest.fixture(scope="module")
def browser(browser_there):
    with chromium(viewport={"width": 900, "height": 900}) as context:
        yield context


@pytest.fixture
def opened(browser, tmp_path):
    """opened(timeline): its file in a browser."""
    page = browser.new_page()

    def open_file(timeline: Timeline) -> Page:
        file = tmp_path / "explorer.html"
        file.write_text(timeline.to_html(), encoding="utf-8")
        page.goto(file.as_uri())
        page.wait_for_selector(".labkit-timeline[data-drawn]")
        return page

    with quiet_console(page):
        yield open_file
    page.close()


def card(page: Page):
    return page.locator(".lk-card")


def viewport_of(page: Page) -> list[float]:
    return page.evaluate("document.querySelector('.labkit-timeline').timeline.viewport.range")


def test_a_press_that_is_released_outside_of_the_picture_is_over(opened):
    page = opened(Timeline(simulate(one_f_one_b(2, 4))))
    page.get_by_role("button", name="Zoom in").click()
    box = page.locator(".lk-stage").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + 20
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(5, 890)  # in one go
    page.mouse.up()
    before = viewport_of(page)
    page.mouse.move(x, y)
    page.mouse.move(x + 100, y)
    assert viewport_of(page) == before
    expect(card(page)).to_contain_text("Rank 0")


def test_the_right_button_pins_nothing(opened):
    page = opened(Timeline(simulate(one_f_one_b(2, 4))))
    box = page.locator(".lk-stage").bounding_box()
    x, y = box["x"] + 80, box["y"] + 20
    page.mouse.click(x, y, button="right")
    expect(card(page)).not_to_have_class(re.compile("lk-pinned"))
    page.mouse.click(x, y)
    expect(card(page)).to_have_class(re.compile("lk-pinned"))


def test_esc_in_a_grid_leaves_the_reader_in_the_same_cell_as_it_was_at_the_start(opened):
    page = opened(ring_explorer(3).timeline)
    stage = page.locator(".lk-stage")
    stage.press("Home")
    for key in ("ArrowRight", ".", ".", "."):
        stage.press(key)
    expect(card(page)).to_contain_text("Rank 0, chunk 1, from step 2 on")
    stage.press("Escape")
    stage.press("ArrowRight")
    expect(card(page)).to_contain_text("Rank 0, chunk 2, at the start")
    stage.press("ArrowLeft")
    expect(card(page)).to_contain_text("Rank 0, chunk 1, at the start")


def test_a_file_asks_for_nothing_that_it_cannot_do(opened):
    page = opened(schedule_puzzle(3).timeline)
    page.locator(".lk-stage").press("Home")
    expect(card(page)).to_contain_text("0F0: forward pass")
    expect(page.locator("main")).not_to_contain_text(re.compile("click|press Enter", re.IGNORECASE))
    ring = ring_explorer(3)
    ring.compare_with = "yours"
    expect(opened(ring.timeline).locator("main")).not_to_contain_text("Run mine")


def test_each_slider_is_seen_together_with_the_picture(opened):
    page = opened(schedule_explorer("1f1b n=4 m=8 vs zb-h1").timeline)
    top = page.locator(".lk-stage").bounding_box()["y"]
    sliders = page.get_by_role("slider").locator("visible=true").all()
    ends = [each.bounding_box()["y"] + each.bounding_box()["height"] for each in sliders]
    assert len(ends) >= 5 and max(ends) - min(top, *ends) < 900
    assert top < 200  # what a reader sees first
