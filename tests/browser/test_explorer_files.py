"""Explorers as files, without kernel and network: under a hand, and true to what a file can do."""

import re

import pytest
from lab import chromium, quiet_console
from playwright.sync_api import Page, expect

from labkit.explore import Timeline, ring_explorer, schedule_explorer, schedule_puzzle
from labkit.schedule import gpipe, one_f_one_b
from labkit.simulate import makespan, simulate


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


VIEW = "document.querySelector('.labkit-timeline').timeline"
BARS = f"{VIEW}.scene.panels[0].bars"


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
    ring = ring_explorer(3)
    ring.compare_with = "yours"
    expect(opened(ring.timeline).locator("main")).not_to_contain_text("Run mine")


def test_the_file_of_a_puzzle_is_played_by_keyboard_and_answers_every_move(opened):
    puzzle = schedule_puzzle(1)
    puzzle.place("0F0")
    page = opened(puzzle.timeline)
    stage, said = page.locator(".lk-stage"), page.locator(".lk-narration")
    expect(said).to_have_text("0F0 on rank 0 from 0 to 1.")
    stage.press("End")
    expect(card(page)).to_contain_text(
        "It may be placed on rank 1, from 1 to 2. Click it, or press Enter, to place it."
    )
    for op in ("1F0", "1B0"):
        stage.press("End")
        stage.press("Enter")
        expect(said).to_contain_text(f"{op} on rank 1 from")
    expect(page.get_by_text("What this level teaches")).to_be_hidden()
    page.get_by_role("button", name="Hint").click(click_count=2)
    expect(said).to_contain_text("✓ Finished in 6: that is par.")
    expect(page.get_by_text("What this level teaches")).to_be_visible()
    page.get_by_role("button", name="Undo").click()
    expect(said).to_have_text("Undone: 3 of 4 ops are placed.")
    page.get_by_role("button", name="Next level").click()
    expect(page).to_have_title("Level 2: Two at once")
    page.get_by_role("combobox", name="level").select_option("1 of 12: There and back")
    expect(page.locator(".lk-numbers")).to_contain_text("0F0")


def test_a_switch_takes_a_loss_away_the_bars_slide_and_it_says_what_is_saved(opened):
    import axe

    ideal, measured = simulate(gpipe(2, 2)), simulate(gpipe(2, 2), hop=0.5)
    page = opened(Timeline(measured, ideal=ideal))
    before = page.evaluate(f"Array.from({BARS}.right)")
    switch = page.get_by_role("button", name="communication")
    switch.press("Enter")
    saved = makespan(measured) - makespan(ideal)
    words = f"Without communication: makespan {makespan(ideal):g}, {saved:g} less than measured, as predicted."
    expect(page.locator(".lk-narration")).to_have_text(words)
    expect(page.locator(".lk-legend")).to_contain_text("what if ends")
    axe.check(page, "main")
    right = page.evaluate(f"Array.from({BARS}.right)")
    assert max(right) == makespan(ideal) and len(right) == len(before) == 16
    switch.press("Enter")
    expect(page.locator(".lk-legend")).to_contain_text("measured ends")
    assert page.evaluate(f"Array.from({BARS}.right)") == before


def test_full_screen_shows_the_picture_alone_in_larger_letters_and_what_is_pointed_at_is_still_it(opened):
    page = opened(schedule_explorer("1f1b n=4 m=8").timeline)
    size = "parseFloat(getComputedStyle(document.querySelector('.lk-narration')).fontSize)"
    usual = page.evaluate(size)
    page.set_viewport_size({"width": 1920, "height": 1080})
    page.get_by_role("button", name="alone, full screen").click()
    page.wait_for_selector(".lk-projected")
    expect(page.locator(".lk-form")).to_be_hidden()
    page.wait_for_function(f"{VIEW}.frame.enlargement === 2")
    assert page.evaluate(size) == 2 * usual
    x, y = page.evaluate(f"""() => {{
        const {{ layout, viewport, canvas, scene: {{ panels: [{{ rows }}] }} }} = {VIEW}, box = canvas.getBoundingClientRect();
        const at = layout.panels[0].rowsTop + rows[1][0] * layout.row;
        return [box.x + 2 * (layout.gutter + viewport.toPixel(1.5, layout.plot)), box.y + 2 * at];
    }}""")
    page.mouse.move(x, y)
    expect(card(page)).to_contain_text("1F0: forward pass")
    page.get_by_role("button", name="Zoom in").press("f")
    expect(page.locator(".lk-form")).to_be_visible()
    page.set_viewport_size({"width": 900, "height": 900})


def test_an_address_opens_its_state_its_link_is_copied_and_one_that_does_not_parse_marks_the_field(opened):
    page = opened(schedule_explorer("gpipe n=2 m=3").timeline)
    state, fault = page.get_by_role("textbox", name="state"), page.get_by_role("alert")
    for address, word in (
        ("1f1b k=8", "'k=8': expected one of n="),
        ("1f1b n=9", "up to 8 ranks"),
        ("50%", "'50%': expected"),
    ):
        page.evaluate("address => { location.hash = address; }", address)
        expect(fault).to_contain_text(word)
        expect(page.locator(".lk-narration")).to_contain_text(word)
        expect(state).to_have_attribute("aria-invalid", "true")
        expect(state).to_have_value("gpipe n=2 m=3 F=1 B=2")
    page.goto(page.url.split("#")[0] + "#zb-h1 n=8 cap=4")
    page.reload()
    expect(page).to_have_title(re.compile("^8 ranks and 8 micro-batches: ZB-H1"))
    expect(state).to_have_value("zb-h1 n=8 m=8 F=1 B=2 cap=4")
    expect(fault).to_be_hidden()
    page.get_by_role("slider", name="ranks").fill("4")
    page.get_by_role("button", name="Copy link").click()
    expect(page.locator(".lk-narration")).to_contain_text("explorer.html#zb-h1%20n=4%20m=8%20F=1%20B=2%20cap=4")


def test_each_slider_is_seen_together_with_the_picture(opened):
    page = opened(schedule_explorer("1f1b n=4 m=8 vs zb-h1").timeline)
    top = page.locator(".lk-stage").bounding_box()["y"]
    sliders = page.get_by_role("slider").locator("visible=true").all()
    ends = [each.bounding_box()["y"] + each.bounding_box()["height"] for each in sliders]
    assert len(ends) >= 5 and max(ends) - min(top, *ends) < 900
    assert top < 200  # what a reader sees first
