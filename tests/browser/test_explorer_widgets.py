"""The explorers in JupyterLab, as a reader uses them: a slider moved, a puzzle built by keyboard, a
schedule run on real ranks, a ring stepped through, and none of it closed to anyone."""

from __future__ import annotations

import re

import nbformat
import pytest
from lab import change_theme, quiet_console, restart_kernel, run_all, run_in_kernel, save
from playwright.sync_api import Page, expect

RUN_S = 120  # real ranks may have to import torch first
EXPLORERS = {
    "schedule": "schedule_explorer('1f1b n=2 m=2 vs gpipe')",
    "puzzle": "schedule_puzzle(2)",
    "bucket": "bucket_explorer('mlp')",
    "ring": "ring_explorer(3)",
    "collectives": "collectives_explorer(2)",
    "placement": "placement_explorer()",
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


def opened(page: Page, source: str) -> Page:
    page.evaluate(
        """source => {
            const [cell] = window.jupyterapp.shell.currentWidget.content.model.cells;
            cell.sharedModel.setSource(`from labkit.explore import *\\nshown = ${source}`);
        }""",
        source,
    )
    run_all(page)
    page.wait_for_selector(".labkit-timeline[data-drawn]")
    return page


def picture(page: Page) -> str:
    """Return the picture that is there now, as text."""
    return page.evaluate("document.querySelector('.labkit-timeline canvas').toDataURL()")


def narration(page: Page):
    return page.locator(".lk-narration").first


@pytest.mark.smoke
def test_moving_a_slider_changes_the_picture(explore):
    page = explore("schedule")
    before, version = picture(page), page.locator(".labkit-timeline").get_attribute("data-version")
    expect(narration(page)).to_contain_text("makespan 9")  # (m + n − 1)(F + B)
    page.get_by_role("slider", name="micro-batches").press("ArrowRight")
    expect(narration(page)).to_contain_text("makespan 12")
    expect(page.locator(".labkit-timeline")).not_to_have_attribute("data-version", version)
    assert picture(page) != before
    expect(page.get_by_role("textbox", name="state")).to_have_value(re.compile(r"\bm=3\b"))


def test_dragging_a_slider_leaves_the_picture_of_its_last_value_and_no_queue_of_others(explore):
    page = explore("schedule")
    handle = page.get_by_role("slider", name="micro-batches")
    first = int(page.locator(".labkit-timeline").get_attribute("data-version"))
    x, y = middle_of(handle)
    page.mouse.move(x, y)
    page.mouse.down()
    for step in range(60):
        page.mouse.move(x + step, y)
    page.mouse.up()
    value = int(handle.get_attribute("aria-valuenow").removesuffix(".0"))
    assert value > 20
    expect(narration(page)).to_contain_text(f"makespan {3 * (value + 1)}")
    last = int(page.locator(".labkit-timeline").get_attribute("data-version"))
    assert 1 <= last - first <= value
    page.evaluate("new Promise((resolve) => requestIdleCallback(resolve))")
    assert page.locator(".labkit-timeline").get_attribute("data-version") == str(last)


def middle_of(element) -> tuple[float, float]:
    box = element.bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def test_sixteen_ranks_and_sixty_four_micro_batches_can_be_moved_as_well(explore):
    page = explore("schedule")
    for name, end in (("ranks", "End"), ("micro-batches", "End"), ("micro-batches", "ArrowLeft")):
        page.get_by_role("slider", name=name, exact=True).press(end)
    expect(narration(page)).to_contain_text(f"makespan {3 * (63 + 16 - 1)}", timeout=30_000)
    rows = page.evaluate("document.querySelector('.labkit-timeline').timeline.scene.panels[0].rows.length")
    assert rows == 16


def test_a_state_that_does_not_parse_is_said_and_the_explorer_lives_on(explore):
    page = explore("schedule")
    state = page.get_by_role("textbox", name="state")
    state.fill("1f1b n=2 m=two")
    state.press("Enter")
    expect(narration(page)).to_contain_text("two")
    state.fill("1f1b n=2 m=4")
    state.press("Enter")
    expect(narration(page)).to_contain_text("makespan 15")


def test_a_schedule_is_run_on_two_real_ranks_and_laid_over_what_it_should_have_been(explore):
    page = explore("schedule")
    page.get_by_role("button", name="Run it").click()
    expect(narration(page)).to_contain_text("Running on real ranks")
    expect(page.get_by_role("button", name="Stop")).to_be_enabled()
    expect(narration(page)).not_to_contain_text("Running", timeout=1000 * RUN_S)
    expect(page.get_by_role("button", name="Run it")).to_be_enabled()
    rows = page.evaluate("document.querySelector('.labkit-timeline').timeline.scene.panels[0].rows.map(row => row[1])")
    assert {"rank 0", "rank 1"} <= set(rows) and len(rows) > 2, rows  # what was predicted, and what was measured


def test_a_two_by_two_puzzle_is_built_by_keyboard_to_par(explore):
    page = explore("puzzle")
    page.locator(".lk-stage").focus()
    page.keyboard.press("b")
    expect(narration(page)).to_contain_text("0B0 needs the gradient of 1B0")  # refused
    for key in "ff1fbfb0bb":
        page.keyboard.press(key)  # as a hand does: in no time at all they may arrive in another order
    expect(narration(page)).to_contain_text("Finished in 9: that is par")
    expect(page.get_by_role("button", name="Run it")).to_be_enabled()
    page.keyboard.press("u")
    expect(page.get_by_role("button", name="Run it")).to_be_disabled()


def test_a_click_on_a_button_places_an_op_and_undo_takes_it_back(explore):
    page = explore("puzzle")
    page.get_by_role("button", name="forward", exact=True).click()
    expect(narration(page)).to_contain_text("0F0 on rank 0 from 0 to 1")
    page.get_by_role("button", name="Undo").click()
    expect(narration(page)).to_contain_text("Undone: 0F0 is off the board")


def test_an_op_that_was_clicked_in_the_picture_is_told_although_the_picture_is_new(explore):
    page = explore("puzzle")
    page.locator(".lk-stage").focus()
    page.keyboard.press("Home")  # the op that is offered
    page.keyboard.press("Enter")
    expect(narration(page)).to_contain_text("0F0 on rank 0 from 0 to 1")
    expect(page.locator(".lk-card").first).to_contain_text("0F0")


def test_after_a_button_the_puzzle_s_keys_still_work_and_are_not_jupyterlab_s(explore):
    page = explore("puzzle")
    page.get_by_role("button", name="Hint").click()
    page.keyboard.press("f")
    expect(narration(page)).to_contain_text("0F0 on rank 0 from 0 to 1")
    page.get_by_role("button", name="Hint").click()
    cells = page.locator(".jp-CodeCell").count()
    for key in ("x", "b", "a", "d", "d", "m"):  # to JupyterLab: cut the cell, a cell below, above; delete; Markdown
        page.keyboard.press(key)
    assert page.locator(".jp-CodeCell").count() == cells and page.locator(".jp-MarkdownCell").count() == 0


def test_the_puzzle_s_keys_are_those_of_its_level(explore):
    page = explore("puzzle")
    page.get_by_role("button", name="Show the keys").click()
    keys = page.locator(".lk-keys dt")
    expect(keys.filter(has_text=re.compile("^f b$"))).to_have_count(1)
    expect(keys.filter(has_text=re.compile("^0"))).to_have_count(1)  # rank 0, which is not also to see all
    for _ in range(6):
        page.keyboard.press("n")  # while the button "keys" has the focus
    expect(keys.filter(has_text=re.compile("^f i w$"))).to_have_count(1)
    page.keyboard.press("i")
    expect(narration(page)).to_contain_text("No: 0I0 needs the gradient of 1I0")


def test_a_ring_is_stepped_through_and_says_who_sends_what(explore):
    page = explore("ring")
    first = picture(page)
    page.get_by_role("button", name="A step on").first.click()
    expect(page.locator(".labkit-timeline").first).to_have_attribute("data-step", "1")
    expect(narration(page)).to_contain_text("rank")
    assert picture(page) != first
    page.get_by_role("button", name="A step back").first.click()
    expect(page.locator(".labkit-timeline").first).to_have_attribute("data-step", "0")


def test_dragging_the_bucket_size_changes_the_buckets(explore):
    page = explore("bucket")
    before = picture(page)
    slider = page.get_by_role("slider", name="bucket size")
    for _ in range(4):
        slider.press("ArrowLeft")
    page.wait_for_function(
        "before => document.querySelector('.labkit-timeline canvas').toDataURL() !== before", arg=before
    )


@pytest.mark.parametrize("name", EXPLORERS)
def test_axe_finds_no_grave_fault_in_it_light_or_dark(explore, name):
    import axe

    page = explore(name)
    for theme in ("light", "dark"):
        change_theme(page, theme)
        expect(page.locator(".labkit-timeline").first).to_have_attribute("data-theme", theme)
        axe.check(page, ".jp-OutputArea-output")


def test_a_kernel_that_restarts_is_said_and_a_slider_moved_then_is_no_error(explore):
    page = explore("schedule")
    restart_kernel(page)
    expect(narration(page)).to_contain_text("The kernel does not answer")
    page.get_by_role("slider", name="micro-batches").press("ArrowRight")
    opened(page, EXPLORERS["schedule"])
    expect(narration(page)).to_contain_text("makespan 9")


def test_while_the_kernel_is_busy_the_picture_says_so_and_dims_and_follows_when_it_is_free(explore, tmp_path):
    page, go = explore("schedule"), tmp_path / "go"
    run_in_kernel(page, f"import pathlib, time\nwhile not pathlib.Path({str(go)!r}).exists(): time.sleep(0.01)")
    stage = page.locator(".lk-stage")
    page.get_by_role("button", name="A step on").click()
    expect(narration(page)).to_have_text("The kernel is busy; this follows when it is free.")
    expect(stage).not_to_have_attribute("aria-busy", "true")  # the picture is the right one
    page.get_by_role("slider", name="micro-batches").press("ArrowRight")
    expect(stage).to_have_attribute("aria-busy", "true")
    expect(page.locator(".lk-stage canvas")).to_have_css("opacity", "0.4")
    go.touch()
    expect(narration(page)).to_contain_text("makespan 12")
    expect(stage).to_have_attribute("aria-busy", "false")


# --- a notebook that was saved --------------------------------------------------------------------


def seen(page: Page, what: str):
    return page.locator(f".jp-OutputArea {what}").locator("visible=true")


@pytest.mark.parametrize("trusted", [True, False])
def test_reopened_without_its_kernel_a_notebook_shows_pictures_and_tables_and_no_error(lab, trusted):
    cells = [f"from labkit.explore import *\n{EXPLORERS[name]}" for name in ("schedule", "ring")]
    with lab.notebook(cells, name="kept") as page:
        expect(page.locator(".labkit-timeline[data-drawn]")).to_have_count(2)
        expect(page.locator(".labkit-static")).to_have_count(2)
        assert not seen(page, ".labkit-static").count()
        save(page)
    if not trusted:
        change_by_hand(lab.folder / "kept.ipynb")
    with lab.opened("kept", quiet=False) as page:  # ipywidgets tells the console that its models are gone
        expect(seen(page, "img[alt]")).to_have_count(2)
        expect(seen(page, "table")).to_have_count(2)
        expect(seen(page, ":text('Error displaying widget')")).to_have_count(0)


def change_by_hand(path) -> None:
    """Change a notebook outside of JupyterLab, which then no longer trusts its HTML."""
    notebook = nbformat.read(path, as_version=4)
    notebook.cells[0].source += "  # changed"
    nbformat.write(notebook, path)
