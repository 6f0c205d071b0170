### INSTRUCTORS ONLY: this file reads solutions, so it is not in the student edition
"""The site plays and asks for nothing outside; the student edition's gives nothing away."""

import re

import axe
import nbformat
import pytest
from lab import chromium, quiet_console
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from playwright.sync_api import expect
from solution_lines import ROOT, leaks

from labkit import cli
from labkit.base.course import whole_lab
from labkit.base.lab import Lab
from labkit.course.site import STILL, write_site
from labkit.course.site_explorers import explorer_in, of_content
from labkit.course.student import write_student_edition
from labkit.explore import Timeline
from labkit.schedule import one_f_one_b
from labkit.simulate import simulate

DOT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNkYAAAAAYAAjCB0C8AAAAASUVORK5CYII="
PAGES = ("index", "play", "glossary", "02_collectives", "09_pipe", "99_mine")


def picture(**kept):
    about = {"image/png": {"alt": "Timeline of 2 ranks with 8 bars.", "width": 9, "height": 9}}
    return new_output("display_data", data={"image/png": DOT}, metadata=about | kept)


def mine():
    """A notebook as readers may have one."""
    kept = Timeline(simulate(one_f_one_b(2, 4))).kept_content()
    far = '<p onclick="alert(1)">far</p><img src="https://example.org/a.png"><script>fetch("//example.org")</script>'
    cells = [
        new_markdown_cell(
            '# 99 · Mine\n\n**Does it play?**\n\n## Is "it" <i>one</i>?\n\n### A "quoted" one\n\nHalf: $\\frac12 x$, not `$HOME`. ![far](https://example.org/b.png)'
        ),
        new_code_cell("Timeline(run.events)", outputs=[picture(**kept)]),
        new_code_cell("Timeline(run.events)", outputs=[picture()]),
        new_code_cell("Timeline(run.events)", outputs=[picture(labkit='");alert(1);("')]),
        new_code_cell('schedule_explorer("2f2b")', outputs=[]),
        new_code_cell("%%needs guess.server_ratio\nring_explorer()", outputs=[]),
        new_code_cell("far", outputs=[new_output("display_data", data={"text/html": far})]),
    ]
    return new_notebook(cells=cells)


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The site of a lab with two of the notebooks, and one of a reader's own."""
    folder = tmp_path_factory.mktemp("site")
    lab = Lab(folder / "lab", ROOT / "labkit")
    lab.notebooks.mkdir(parents=True)
    (lab.folder / "docs").symlink_to(ROOT / "docs")
    for name in PAGES[3:5]:
        (lab.notebooks / f"{name}.ipynb").symlink_to(ROOT / "notebooks" / f"{name}.ipynb")
    nbformat.write(mine(), lab.notebooks / "99_mine.ipynb")
    write_site(folder / "site", whole_lab(), lambda _: None, lab)
    return folder / "site"


@pytest.fixture(scope="module", params=[(1400, "light"), (420, "dark")], ids=["wide, light", "narrow, dark"])
def browser(browser_there, request):
    width, scheme = request.param
    with chromium(viewport={"width": width, "height": 900}, color_scheme=scheme) as context:
        yield context


@pytest.fixture
def opened(browser, site):
    """opened(name, fragment): a page of the site, whose console stays quiet."""
    page = browser.new_page()

    def open_page(name, fragment=""):
        page.goto((site / f"{name}.html").as_uri() + fragment)
        return page

    with quiet_console(page):
        yield open_page
    page.close()


def play_all(page):
    """Scroll to every picture that plays, also where it is folded away, until it is drawn."""
    page.evaluate("for (const each of document.querySelectorAll('details:has(.playing)')) each.open = true")
    for each in page.locator(".playing").all():
        each.scroll_into_view_if_needed()
        expect(each).to_have_attribute("data-drawn", re.compile(r"\d"))


COLOURS = {"runOnly": ["color-contrast"]}  # only these depend on the theme
GROUNDS = {"light": "rgb(255, 255, 255)", "dark": "rgb(17, 17, 17)"}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_plays_asks_for_nothing_outside_and_shuts_nobody_out_light_or_dark(name, opened):
    page = opened("index")
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    opened(name)
    play_all(page)
    assert asked and not [url for url in asked if not url.startswith(("file:", "data:", "blob:"))]
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    for (theme, ground), rules in zip(GROUNDS.items(), ({}, COLOURS), strict=True):
        page.emulate_media(color_scheme=theme)
        expect(page.locator("body")).to_have_css("background-color", ground)
        for each in page.locator(".playing").all():
            expect(each).to_have_attribute("data-theme", theme)
        if name not in PAGES[3:5]:  # of their code alone axe would take ten seconds
            axe.check(page, "body", **rules)


def test_on_the_page_play_is_every_explorer_and_its_controls_work(opened):
    page = opened("play", "#rings")  # a place in the page, not a state
    play_all(page)
    assert page.locator(".playing").count() == page.locator("section").count() == 8
    rings = page.locator("section", has=page.get_by_role("heading", name="Rings"))
    rings.get_by_role("combobox", name="algorithm").select_option("naive ring")
    expect(rings.locator(".lk-narration")).to_contain_text("naive ring")
    ring = page.locator("section", has=page.get_by_role("heading", name="A ring to fill in"))
    ring.locator(".lk-stage").press("Home")
    for key in ("ArrowDown", "0"):  # in step 1 rank 0 still has its own part of chunk 0 alone
        page.keyboard.press(key)
    expect(ring.locator(".lk-narration")).to_have_text("Of 36 cells 1 are right, 0 wrong, 35 open. Go on with step 1.")
    ring.get_by_role("checkbox", name="rank 2").check()
    expect(ring.locator(".lk-narration")).to_contain_text("rank 0, chunk 0: 02? The part of rank 2 is not in it.")
    expect(ring.locator(".lk-card")).to_contain_text("The part of rank 2 is not in it.")
    by_hand = page.locator("section", has=page.get_by_role("heading", name="A schedule by hand"))
    by_hand.get_by_role("button", name="Hint").click(click_count=2)
    expect(by_hand.locator(".lk-narration")).to_have_text("1F1 on rank 1 from 2 to 3.")
    schedules = page.locator("section", has=page.get_by_role("heading", name="Schedules"))
    expect(schedules.locator(".lk-narration")).to_contain_text("1F1B: makespan 33")
    assert not schedules.get_by_role("button", name="Copy link").count()
    schedules.get_by_role("combobox", name="schedule", exact=True).select_option("gpipe")
    expect(schedules.locator(".lk-narration")).to_contain_text("GPipe: makespan 33")
    assert page.title() == page.locator("h1").text_content() == "Play"


def test_a_stored_timeline_plays_and_what_cannot_is_said(opened):
    page = opened("99_mine")
    cell = page.locator(".code_cell")
    play_all(page)
    stage = cell.nth(0).locator(".lk-stage")
    stage.press("Home")
    expect(cell.nth(0).locator(".lk-card")).to_contain_text("Rank 0")
    assert cell.nth(0).locator("img").count() == 0
    for k in (1, 2):  # what is kept is not there, or not what a page unpacks
        expect(cell.nth(k)).to_contain_text(STILL)
        assert cell.nth(k).locator("img").evaluate("img => img.naturalWidth") == 1
    expect(cell.nth(3)).to_contain_text("schedule_explorer('2f2b') does not play here: StateError")
    expect(cell.nth(4).locator("summary").first).to_have_text("Guess first, then open this.")
    expect(page.get_by_role("img", name="\\frac12 x")).to_be_visible()
    expect(page.locator("main")).to_contain_text("$HOME")
    assert page.locator("h3").get_attribute("id") == 'A-"quoted"-one'


def test_a_term_says_what_it_means_and_leads_to_the_glossary(opened):
    page = opened("09_pipe")
    term = page.locator('a[href="glossary.html#stage"]')
    term.focus()
    expect(page.get_by_role("tooltip")).to_contain_text("One of the n consecutive parts")
    page.keyboard.press("Escape")
    expect(page.get_by_role("tooltip")).to_be_hidden()
    term.click()
    expect(page.locator("h3#stage")).to_be_in_viewport()


# --- the student edition's ------------------------------------------------------------------------


def test_the_student_editions_site_has_no_outputs_and_no_answers(site, tmp_path, monkeypatch):
    monkeypatch.setattr("labkit.course.site.playing", lambda call: of_content("eJw=", call))  # which takes seconds
    edition = tmp_path / "edition"
    write_student_edition(edition)
    write_site(tmp_path / "site", whole_lab(), lambda _: None, Lab(edition, edition / "labkit"))
    assert leaks(tmp_path / "site") == set() and ("09_pipe.html", "pipe.3") in leaks(site)
    pages = {name: (tmp_path / "site" / f"{name}.html").read_text() for name in PAGES[:5]}
    assert not any(re.search(r"The guess on this page|With solutions", page) for page in pages.values())
    assert not list((tmp_path / "site" / "pictures").glob("*.png"))
    notebooks = pages["02_collectives"] + pages["09_pipe"]
    assert notebooks.count('class="output_area"') == notebooks.count('class="playing ') == 3
    assert "The guess on this page" in (site / "02_collectives.html").read_text()


# --- before anything starts -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("directory", "sentence"),
    [
        ("full", "full is not empty: give a new directory"),
        ("full/file", "file is a file: give a new directory"),
        ("full/file/site", r"nothing can be written in \S+full/file \("),
        ("notebooks/site", "site is in the folder of notebooks: give a directory outside of it"),
    ],
)
def test_a_folder_that_cannot_be_the_site_is_refused(directory, sentence, tmp_path, monkeypatch, capsys):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    (tmp_path / "notebooks").mkdir()
    nbformat.write(new_notebook(), tmp_path / "notebooks" / "01_a.ipynb")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["site", str(tmp_path / directory)]) == 2
    printed = capsys.readouterr()
    assert re.search(f"^labkit site: .*{sentence}", printed.err, re.MULTILINE) and not printed.out


def test_a_lab_without_notebooks_or_with_a_broken_one_leaves_nothing_behind(tmp_path, monkeypatch, capsys):
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path)
    assert cli.main(["site", "there"]) == 2
    assert "there are no notebooks in" in capsys.readouterr().err
    (tmp_path / "notebooks" / "01_a.ipynb").write_text("{}")
    assert cli.main(["site", "there"]) == 2
    assert "01_a.ipynb cannot be read as a notebook" in capsys.readouterr().err
    (tmp_path / "notebooks" / "01_a.ipynb").rename(tmp_path / "notebooks" / "play.ipynb")
    assert cli.main(["site", "there"]) == 2
    assert "rename the notebook play.ipynb" in capsys.readouterr().err
    assert [each.name for each in tmp_path.iterdir()] == ["notebooks"]


@pytest.mark.parametrize(
    ("source", "call"),
    [
        ("%%needs dp.6\nexplore.bucket_explorer('gpt2', cap_mb=25)", "bucket_explorer('gpt2', cap_mb=25)"),
        ("puzzle = schedule_puzzle(level=3)\npuzzle", "schedule_puzzle(level=3)"),
        ("puzzle = schedule_puzzle(3)\npuzzle.place('0F0')\npuzzle", None),
        ("ring_explorer(n)", None),
        ("ring_explorer(4).record()", None),
        ("Timeline(run.events)", None),
        ("!ls", None),
        ("", None),
    ],
)
def test_a_cells_explorer_is_known_where_its_call_says_all(source, call):
    assert explorer_in(source) == call
