"""The explorers in JupyterLab, as a reader uses them: a slider moved, a puzzle built by keyboard, a
schedule run on real ranks, a ring stepped through, and none of it closed to anyone."""

import pytest
from lab import change_theme, quiet_console, run_all, run_in_kernel
from playwright.sync_api import Page, expect

RUN_S = 120  # real ranks may have to import torch first
EXPLORERS = {
    "schedule": "schedule_explorer('1f1b n=2 m=2 vs gpipe')",
    "puzzle": "schedule_puzzle(2)",
    "bucket": "bucket_explorer('mlp')",
    "ring": "ring_explorer(3)",
    "collectives": "collectives_explorer(2)",
}


@pytest.fixture(scope="module")
def notebook(lab):
    with lab.notebook(["from labkit.explore import *\nshown = None", "shown"]) as page:
        page.set_default_timeout(30_000)
        yield page


@pytest.fixture
def explore(notebook):
    """explore(name): the page, with an explorer in it that nobody has touched yet."""
    with quiet_console(notebook):
        yield lambda name: opened(notebook, EXPLORERS[name])
    change_theme(notebook, "light")


@pytest.fixture
def go(tmp_path):
    """The file that ``keep_busy`` waits for; however a test ends, the kernel is free afterwards."""
    yield tmp_path / "go"
    (tmp_path / "go").touch()


def opened(page: Page, source: str) -> Page:
    page.evaluate(
        """source => {
            const [cell] = window.jupyterapp.shell.currentWidget.content.model.cells;
            cell.sharedModel.setSource(`from labkit.explore import *\\nshown = ${source}`);
        }""",
        source,
    )
    page.mouse.move(0, 0)
    run_all(page)
    page.wait_for_selector(".labkit-timeline[data-drawn]")
    return page


def picture(page: Page) -> str:
    return page.evaluate("document.querySelector('.labkit-timeline canvas').toDataURL()")


def narration(page: Page):
    return page.locator(".lk-narration").first


def middle_of(element) -> tuple[float, float]:
    box = element.bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def test_a_schedule_is_run_on_two_real_ranks_and_laid_over_what_it_should_have_been(explore):
    page = explore("schedule")
    page.get_by_role("button", name="Run it").click()
    expect(narration(page)).to_contain_text("Running on real ranks")
    expect(seen(page, ".widget-hprogress")).to_contain_text("Starting ranks")
    page.get_by_role("button", name="Stop").click()
    expect(narration(page)).to_have_text("Stopped: its ranks have ended.", timeout=1000 * RUN_S)
    expect(seen(page, ".widget-hprogress")).to_have_count(0)
    page.get_by_role("button", name="Run it").click()
    expect(narration(page)).to_contain_text("1F1B, compared with GPipe: ", timeout=1000 * RUN_S)
    expect(page.get_by_role("button", name="Run it")).to_be_enabled()
    rows = page.evaluate("document.querySelector('.labkit-timeline').timeline.scene.panels[0].rows.map(row => row[1])")
    assert {"rank 0", "rank 1"} <= set(rows) and len(rows) > 2, rows  # what was predicted, and what was measured
    expect(page.locator(".labkit-static:has(img)")).to_contain_text("imbalance_ms")  # the run is what is kept


def test_a_puzzle_is_built_by_keyboard_and_by_mouse_and_no_key_reaches_jupyterlab(explore):
    page = explore("puzzle")
    stage, card = page.locator(".lk-stage"), page.locator(".lk-card")
    expect(card).to_contain_text("Click an outlined op to place it")
    for op in ("0F0", "0F1", "1F0"):
        go_to(page, op)
        page.keyboard.press("Enter")
        expect(narration(page)).to_contain_text(f"{op} on rank")
    x, y = middle_of_bar(page, "1B0")
    page.mouse.click(x, y, button="right")  # which places nothing
    page.keyboard.press("Escape")
    page.mouse.click(x, y)
    expect(narration(page)).to_contain_text("1B0 on rank 1 from 2 to 4.")
    cells = page.locator(".jp-CodeCell").count()
    stage.focus()
    for key in ("x", "b", "a", "d", "d", "m"):  # to JupyterLab: cut the cell, a cell below, above; delete; Markdown
        page.keyboard.press(key)
    assert page.locator(".jp-CodeCell").count() == cells and page.locator(".jp-MarkdownCell").count() == 0
    for name, said in {"Undo": "3 of 8", "Clear": "The board is empty", "Hint": "Place 0F0 next"}.items():
        page.get_by_role("button", name=name, exact=True).click()
        expect(narration(page)).to_contain_text(said)
    page.get_by_role("button", name="Hint", exact=True).click()
    for source, said in {  # what the page does a cell knows, and the other way round
        "shown.say(shown.csv.replace('\\n', ';'))": "0F0;;",
        "shown.place('1F1')": "No: 1F1 needs the activation of 0F1, which is not placed yet.",
        "shown.place('0F1')": "0F1 on rank 0 from 1 to 2.",
    }.items():
        run_in_kernel(page, source)
        expect(narration(page)).to_have_text(said)


def go_to(page: Page, label: str) -> None:
    """Go to a bar of the picture with the arrow keys."""
    page.locator(".lk-stage").press("Home")
    for _ in range(12):
        if page.locator(".lk-card strong").inner_text().startswith(label):
            return
        page.keyboard.press("ArrowRight" if label[0] == "0" else "ArrowDown")
    raise AssertionError(label)


def middle_of_bar(page: Page, label: str) -> tuple[float, float]:
    x, y = page.evaluate(
        """label => {
            const { scene, layout, viewport, stage } = document.querySelector('.labkit-timeline').timeline;
            const { bars } = scene.panels[0], bar = bars.labels.indexOf(label);
            const { left, top } = stage.getBoundingClientRect();
            const middle = viewport.toPixel((bars.left[bar] + bars.right[bar]) / 2, layout.plot);
            const row = bars.top[bar] + bars.height[bar] / 2;
            return [left + layout.gutter + middle, top + layout.panels[0].rowsTop + row * layout.row];
        }""",
        label,
    )
    return x, y


def test_a_ring_steps_says_who_sends_what_and_moves_its_chunks_while_the_kernel_is_busy(explore, go):
    page = explore("ring")
    keep_busy(page, until=go)
    stage, root, first = page.locator(".lk-stage"), page.locator(".labkit-timeline"), picture(page)
    expect(narration(page)).to_contain_text("ring: before step 1 of 4")
    top = stage.bounding_box()["y"]
    page.get_by_role("button", name="A step on").click()
    expect(root).to_have_attribute("data-step", "1")
    expect(narration(page)).to_contain_text("ring: after step 1 of 4: reduce-scatter")
    assert picture(page) != first and stage.bounding_box()["y"] == top
    page.get_by_role("button", name="A step back").click()
    expect(root).to_have_attribute("data-step", "0")  # it is drawn
    expect(narration(page)).to_contain_text("ring: before step 1 of 4")
    assert picture(page) == first
    stage.press("Home")
    for keys, said in (
        (["ArrowRight"], "at the start: the part of rank 0 alone."),
        ("...", "from step 2 on: the whole sum"),
    ):
        for key in keys:
            page.keyboard.press(key)
        expect(page.locator(".lk-card")).to_contain_text(f"Rank 0, chunk 1, {said}")  # the cell in its place


def test_of_a_collective_is_shown_what_each_rank_has_after_it_and_its_sentence(explore):
    page = explore("collectives")
    for name in ("broadcast", "all_reduce"):
        page.get_by_role("radio", name=name, exact=True).check()
        expect(narration(page)).to_contain_text(f"After {name}: ")
    page.get_by_role("button", name="A step back").click()
    expect(narration(page)).to_contain_text("Before all_reduce: ")
    page.get_by_role("button", name="Show the keys").click()
    expect(page.locator(".lk-keys")).to_contain_text("a step on, a step back")
    expect(page.locator(".lk-keys")).not_to_contain_text("zoom")  # a grid has no axis


def test_a_block_that_is_gone_to_lights_its_bucket_and_down_leads_to_its_all_reduce(explore):
    page = explore("bucket")
    page.locator(".lk-stage").press("Home")
    page.wait_for_function("document.querySelector('.labkit-timeline').timeline.painter.painted.lit === 0")
    for said in ("parameter 17 of 18", "Bucket 0: ", "is ready at", "Its all_reduce starts"):
        expect(page.locator(".lk-card")).to_contain_text(said)
        page.keyboard.press("ArrowDown")


def test_a_lecturer_drives_an_explorer_from_another_cell_and_its_form_follows(explore):
    page = explore("schedule")
    run_in_kernel(page, "shown.state = 'zb-h1 n=4 m=8'")
    expect(narration(page)).to_have_text("ZB-H1: makespan 27.")
    expect(page.get_by_role("combobox", name="schedule")).to_have_value("zb-h1")
    expect(page.get_by_role("slider", name="ranks")).to_have_value("4")


def test_a_form_is_gone_through_by_keyboard_and_its_controls_are_as_high_as_a_finger(explore):
    page = explore("schedule")
    page.get_by_role("combobox", name="schedule").focus()
    names = [page.evaluate("document.activeElement.name || document.activeElement.dataset.part")]
    for _ in range(12):
        page.keyboard.press("Tab")
        names.append(page.evaluate("document.activeElement.name || document.activeElement.textContent"))
    assert names[:11] == ["schedule", "other", "n", "m", "F", "I", "W", "hop", "capped", "state", "Copy state"]
    heights = page.eval_on_selector_all(".lk-field:not([hidden])", "all => all.map((each) => each.offsetHeight)")
    assert min(heights) >= 44
    page.get_by_role("checkbox", name="memory cap").press("Space")
    expect(page.get_by_role("slider", name="cap", exact=True)).to_have_value("4")
    expect(page.get_by_role("checkbox", name="memory cap")).to_be_focused()
    page.get_by_role("slider", name="cap", exact=True).press("Home")
    expect(page.locator(".lk-numbers")).to_contain_text("over the cap of 0.5")


WIDGETS = ":is(.jupyter-widgets, .lk-field, .lk-form :is(input, select, button))"
STICKS_OUT = f"""() => [...document.querySelectorAll(".labkit-explorer {WIDGETS}")]
    .filter((each) => each.getBoundingClientRect().right > each.closest(".labkit-explorer").getBoundingClientRect().right)
    .map((each) => each.textContent)"""


@pytest.mark.parametrize("name", EXPLORERS)
def test_axe_finds_no_grave_fault_in_it_light_or_dark_and_on_a_narrow_page_no_control_is_cut(explore, name):
    import axe

    page = explore(name)
    wide = page.viewport_size
    for theme in ("light", "dark"):
        change_theme(page, theme)
        expect(page.locator(".labkit-timeline").first).to_have_attribute("data-theme", theme)
        axe.check(page, ".jp-OutputArea-output")
    page.set_viewport_size({"width": 420, "height": 900})
    page.wait_for_function("document.querySelector('.labkit-timeline').timeline.layout.width < 420")
    assert page.evaluate(STICKS_OUT) == []
    axe.check(page, ".jp-OutputArea-output")  # what scrolls does so by keyboard too
    page.set_viewport_size(wide)


def test_while_the_kernel_is_busy_the_picture_explains_itself_and_what_asks_python_follows_when_it_is_free(explore, go):
    page = explore("schedule")
    keep_busy(page, until=go)
    stage = page.locator(".lk-stage")
    stage.press("End")
    expect(page.locator(".lk-card").first).to_contain_text("1B1: backward pass of micro-batch 1, stage 1")
    page.get_by_role("button", name="A step on").click()
    expect(narration(page)).to_contain_text("0F0 on rank 0 begins")
    expect(stage).not_to_have_attribute("aria-busy", "true")
    page.get_by_role("slider", name="micro-batches").press("ArrowRight")
    expect(narration(page)).to_contain_text("makespan 12")  # the page has these orders itself
    page.get_by_role("slider", name="micro-batches").fill("17")
    expect(narration(page)).to_have_text("The kernel is busy; this follows when it is free.")
    expect(stage).to_have_attribute("aria-busy", "true")
    expect(page.locator(".lk-stage canvas")).to_have_css("opacity", "0.7")
    go.touch()
    expect(narration(page)).to_contain_text("makespan 54")
    expect(stage).to_have_attribute("aria-busy", "false")


def keep_busy(page: Page, until) -> None:
    """Have the kernel do nothing else until there is such a file."""
    run_in_kernel(page, f"import pathlib, time\nwhile not pathlib.Path({str(until)!r}).exists(): time.sleep(0.01)")


def seen(page: Page, what: str):
    return page.locator(f".jp-OutputArea {what}").locator("visible=true")
