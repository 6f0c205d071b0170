"""A Timeline in JupyterLab and in a file: pointed at, gone through by keyboard, played, zoomed,
kept, and left without its kernel."""

import re

import nbformat
import pytest
from lab import change_theme, quiet_console, restart_kernel, run_all, save
from playwright.sync_api import Page, expect

from labkit.explore import Timeline, schedule_explorer
from labkit.schedule import one_f_one_b, zero_bubble_h1
from labkit.simulate import bubble_fraction, makespan, simulate

CELL = """
from labkit.explore import Timeline
from labkit.schedule import one_f_one_b
from labkit.simulate import simulate
schedule = one_f_one_b(2, 2)
Timeline(simulate(schedule, hop=0.5), schedule, title="1F1B, 2 × 2")
"""
# Rank 0: 0F0 0F1 . . 0B0 . 0B1, rank 1: . 1F0 1B0 1F1 1B1, with half a second for each hop.


@pytest.fixture(scope="module")
def notebook(lab):
    with lab.notebook([CELL]) as page:
        page.set_default_timeout(20_000)
        yield page


@pytest.fixture
def page(notebook):
    """The page of a notebook whose cell has just run again: a Timeline as it is at first."""
    with quiet_console(notebook):
        run_all(notebook)
        shown(notebook)
        yield notebook
    change_theme(notebook, "light")


def shown(page: Page) -> None:
    page.wait_for_selector(".labkit-timeline[data-drawn]")


def card(page: Page):
    return page.locator(".lk-card")


def narration(page: Page):
    return page.locator(".lk-narration")


def pixel_of(page: Page, time_s: float, rank: int) -> tuple[float, float]:
    """Return where the page has this time of this rank, once its layout is at rest."""
    x, y = page.evaluate(
        """async ([time, rank]) => {
            const { layout, viewport, canvas, scene } = document.querySelector(".labkit-timeline").timeline;
            let before = null;
            do {
                before = canvas.getBoundingClientRect();
                canvas.scrollIntoView({ block: "center" });
                for (let i = 0; i < 3; i++) await new Promise(requestAnimationFrame);
            } while (["x", "y", "width", "height"].some((side) => before[side] !== canvas.getBoundingClientRect()[side]));
            const { x, y } = canvas.getBoundingClientRect();
            const [at] = scene.panels[0].rows.find(([, text]) => text === `rank ${rank}`);
            const { rowsTop } = layout.panels[0];
            return [x + layout.gutter + viewport.toPixel(time, layout.plot), y + rowsTop + at * layout.row];
        }""",
        [time_s, rank],
    )
    return x, y


def test_by_keyboard_alone_a_reader_goes_from_op_to_op_and_hears_of_each(page):
    page.locator(".lk-stage").focus()
    assert card(page).get_attribute("role") == "status"
    ops = {"End": "1B1: ", "Home": "0F0: ", "ArrowRight": "0F1: ", "ArrowDown": "1F0: ", "ArrowLeft": "Rank 1 is idle"}
    for key, begins in ops.items():
        page.keyboard.press(key)
        expect(card(page)).to_contain_text(begins)
    page.keyboard.press("Enter")
    expect(card(page)).to_have_class(re.compile("lk-pinned"))
    stops = {"the legend": "Show forward alone", "the table": None, "after it": "Save the picture as PNG"}
    for name in stops.values():
        page.keyboard.press("Tab")
        if name:
            expect(page.get_by_role("button", name=name)).to_be_focused()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("button", name="Save the picture as HTML")).to_be_focused()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_no_grave_fault_in_it(page, theme):
    import axe

    change_theme(page, theme)
    page.mouse.click(*pixel_of(page, 2.0, rank=1))
    page.keyboard.press(".")
    page.get_by_role("button", name="Show the keys").click()
    page.get_by_text("The same as a table").click()
    page.locator(".lk-rows td").first.wait_for()
    axe.check(page, ".labkit-timeline")


def test_the_picture_is_saved(page):
    for form, begins in (("HTML", b"<!doctype html>"), ("PNG", b"\x89PNG")):
        with page.expect_download() as download:
            page.get_by_role("button", name=f"Save the picture as {form}").click()
        assert download.value.suggested_filename.endswith(form.lower())
        assert download.value.path().read_bytes().startswith(begins)


def test_without_its_kernel_a_picture_still_explains_itself_and_says_that_the_kernel_has_gone(page):
    restart_kernel(page)
    expect(narration(page)).to_contain_text("The kernel does not answer")
    page.mouse.move(*pixel_of(page, 0.5, rank=0))
    expect(card(page)).to_contain_text("0F0")
    page.get_by_role("button", name="A step on").click()
    expect(narration(page)).to_contain_text("0F0 on rank 0 begins")
    page.get_by_role("button", name="Save the picture as HTML").click()
    expect(narration(page)).to_contain_text("The kernel does not answer")
    run_all(page)
    shown(page)


def test_a_saved_notebook_shows_what_was_seen_last_and_its_widget_is_not_built_again(lab):
    with lab.notebook([CELL], theme="dark", name="kept") as page:
        shown(page)
        page.evaluate("document.querySelector('.labkit-timeline').isFirst = true")
        kept, stage = page.locator(".labkit-static img"), page.locator(".lk-stage")
        kept.wait_for(state="attached")
        before = kept.get_attribute("src")
        stage.focus()
        page.keyboard.press(".")  # of a step another picture is kept
        expect(kept).not_to_have_attribute("src", before)
        expect(stage).to_be_focused()
        assert page.evaluate("document.querySelector('.labkit-timeline').isFirst")
        expect(kept).to_be_hidden()
        save(page)
        last = kept.get_attribute("src")
    ((_, after),) = [cell.outputs for cell in nbformat.read(lab.folder / "kept.ipynb", 4).cells]
    assert last in after["data"]["text/html"]
    with lab.opened("kept", quiet=False) as page:
        picture = page.get_by_role("img", name=re.compile("^Timeline of 2 ranks with 8 bars"))
        expect(picture).to_be_visible()
        pixels, corner = picture.evaluate("""(image) => {
            const pen = new OffscreenCanvas(image.naturalWidth, image.naturalHeight).getContext("2d");
            pen.drawImage(image, 0, 0);
            return [image.naturalWidth, [...pen.getImageData(0, 0, 1, 1).data]];
        }""")
        assert pixels == 2 * int(picture.get_attribute("width")) and corner == [255, 255, 255, 255]


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    schedule = one_f_one_b(2, 2)
    path = tmp_path_factory.mktemp("file") / "timeline.html"
    path.write_text(Timeline(simulate(schedule, hop=0.5), schedule, title="1F1B <2 & 2>").to_html(), encoding="utf-8")
    return path


@pytest.fixture
def opened(lab, file):
    """A file in a browser that has no network."""
    page = lab.browser.new_page()
    page.route(re.compile("^(?!file:)"), lambda route: route.abort())  # whatever it asks for is an error
    with quiet_console(page):
        page.goto(file.as_uri())
        shown(page)
        yield page
    page.close()


def test_the_exported_file_plays_and_says_what_happens(opened):
    opened.locator(".lk-stage").focus()
    opened.keyboard.press(".")
    expect(narration(opened)).to_contain_text("0F0")
    opened.get_by_role("button", name="Play").click()
    expect(opened.locator(".labkit-timeline")).to_have_attribute("data-step", re.compile("[2-9]"))
    opened.get_by_text("The same as a table").click()
    expect(opened.locator(".lk-rows tbody tr")).to_have_count(8)


SET_SOURCE = "text => window.jupyterapp.shell.currentWidget.content.model.cells.get(0).sharedModel.setSource(text)"
GAP = (
    "Rank 2 is idle for 4, from 0 to 4"
    "To begin 2F0 it waits for the activation of 1F0: 0F0 on rank 0 until 2, then 1F0 on rank 1 until 4."
)


def test_an_exported_schedule_explorer_says_of_a_gap_what_it_says_live(notebook, opened, tmp_path):
    """Times, ranks and schedule are changed in the file, which has no network."""
    import axe

    file = tmp_path / "explorer.html"
    file.write_text(schedule_explorer("1f1b n=2 m=4 F=1 B=2").timeline.to_html(), encoding="utf-8")
    opened.goto(file.as_uri())
    expect(opened).to_have_title("2 ranks and 4 micro-batches: 1F1B, makespan 15, bubble 20.0 %")
    opened.get_by_role("combobox", name="schedule").select_option("ZB-H1")
    opened.get_by_role("slider", name="ranks").press("ArrowRight")
    opened.get_by_role("slider", name="F: forward").fill("2")
    events = simulate(zero_bubble_h1(3, 4), forward=2.0)
    facts = f"makespan {makespan(events):g}, bubble {100 * bubble_fraction(events):.1f} %"
    expect(opened).to_have_title(f"3 ranks and 4 micro-batches: ZB-H1, {facts}")
    expect(opened.get_by_role("heading")).to_have_text(f"3 ranks and 4 micro-batches: ZB-H1, {facts}")
    count = opened.evaluate("document.querySelector('.labkit-timeline').timeline.scene.panels[0].bars.count")
    assert count == len(events)
    opened.locator(".lk-stage").focus()
    opened.keyboard.press("End")
    expect(card(opened)).to_contain_text("2W3: weight gradient of micro-batch 3")
    opened.mouse.move(*pixel_of(opened, 0.5, rank=2))
    expect(card(opened)).to_have_text(GAP)
    opened.get_by_role("combobox", name="compare with").select_option("Interleaved 1F1B")
    opened.get_by_role("slider", name="micro-batches").fill("11")  # as in the notebook: the nearest that it takes
    shared = "12 micro-batches: interleaved 1F1B on 3 ranks cannot share out 11 evenly"
    expect(narration(opened)).to_contain_text(shared)
    axe.check(opened, "html")
    notebook.bring_to_front()
    notebook.evaluate(SET_SOURCE, "from labkit.explore import *\nschedule_explorer('1f1b n=2 m=4')")
    run_all(notebook)
    notebook.get_by_role("combobox", name="schedule").select_option("ZB-H1")
    notebook.get_by_role("slider", name="ranks").press("ArrowRight")
    notebook.get_by_role("slider", name="F: forward").fill("2")
    expect(narration(notebook)).to_have_text(f"ZB-H1: makespan {makespan(events):g}.")
    notebook.mouse.move(*pixel_of(notebook, 0.5, rank=2))
    expect(card(notebook)).to_have_text(GAP)
    notebook.evaluate(SET_SOURCE, CELL)
