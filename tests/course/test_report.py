"""A report has what the reader ran and wrote, or says what is wrong and is not written."""

import base64
import json
import re
import shutil
import subprocess
from pathlib import Path

import nbformat
import pytest
from bs4 import BeautifulSoup
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from labkit import cli
from labkit.base import chromium
from labkit.base.formats import as_html
from labkit.base.widget_output import instead_of_widget
from labkit.course import normal_form
from labkit.course.notebook_html import notebook_html
from labkit.course.report import UNANSWERED, read_notebook

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNoAAAAggCBd81ytgAAAABJRU5ErkJggg=="
)  # one grey pixel
PICTURE = new_output(
    "execute_result",
    data={"image/png": base64.b64encode(PNG).decode(), "text/plain": "Picture"},
    metadata={"image/png": {"alt": 'Bars: "a" < "b".'}},
)
TABLE = (
    "<div><style scoped>.x {color: red}</style><table border='0' onclick='steal()'><tr><td>[~&nbsp;&nbsp;&nbsp; 0.034]"
    f"</td><td>[≈ 0.7627]</td><td>{as_html('[~ 0.5] [≈ 6]')}</td><td><span class='x'>7</span></td></tr></table>"
    "<script>steal()</script></div>"
)


def code(source, *outputs, tags=("report",), count=1):
    return new_code_cell(source, outputs=list(outputs), execution_count=count, metadata={"tags": list(tags)})


def text(source, *tags, **more):
    return new_markdown_cell(source, metadata={"tags": list(tags)} if tags else {}, **more)


def wrote(source):
    """A text that the reader has put into the notebook; all others are the lab's own."""
    return new_markdown_cell(source, id=f"mine-{hash(source) % 10**9}")


def printed(words):
    return new_output("stream", name="stdout", text=words)


def good_cells():
    return [
        text("# 03 · Sync\n\n**What does it cost?**\n\nMuch."),
        code("import secret", tags=()),
        text("## Measure *it*"),
        code("draw()", PICTURE),
        code("%%needs dp.3\ntable", new_output("execute_result", data={"text/html": TABLE, "text/plain": "no"})),
        code("print(1 < 2)  # not [~ 1]", printed("took [~    0.034 s] & \x1b[31mmore\x1b[0m\n")),
        text("## Questions"),
        text("**Why?** See `a < b`.", "question"),
        text(f"{UNANSWERED}\n\nBecause <b onclick=steal()>of</b> *bytes*.", "answer"),
        wrote("And of latency."),
        text("**And then?**", "question"),
        text(UNANSWERED, "answer"),
        text("## The end\n\nNot for the report."),
    ]


@pytest.fixture
def lab(tmp_path, monkeypatch):
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path)

    def write(cells, name="03_sync"):
        taken = set()
        for cell in cells:
            cell.id = cell.id if cell.id.startswith("mine") else normal_form._id_of(cell.source, taken)
        nbformat.write(new_notebook(cells=cells), tmp_path / "notebooks" / f"{name}.ipynb")
        return tmp_path

    return write


def parsed(file: Path) -> BeautifulSoup:
    return BeautifulSoup(file.read_text(encoding="utf-8"), "html.parser")


def words_of(page: BeautifulSoup) -> str:
    return " ".join(page.get_text(" ").split())


def report_of(lab, cells) -> BeautifulSoup:
    folder = lab(cells)
    assert cli.main(["report", "03", "--no-pdf"]) == 0
    return parsed(folder / "runs" / "report-03.html")


def test_training_runs_are_listed_with_the_ranks_and_threads_that_made_them(lab):
    folder = lab([*good_cells(), text("python -m labkit.train glue")])
    run = {"world_size": 2, "backend": "gloo", "devices": ["cpu", "cpu"], "threads_per_rank": 3}
    for name, task in (("one", "glue"), ("other", "translate")):
        (folder / "runs" / name).mkdir(parents=True)
        merged = json.dumps(run | {"command": f"python -m labkit.train {task} --epochs 1"})
        (folder / "runs" / name / "merged.json").write_text(merged)
    assert cli.main(["report", "03", "--no-pdf"]) == 0
    words = words_of(parsed(folder / "runs" / "report-03.html"))
    assert "runs/one , 2 on gloo: cpu, cpu, CPU threads each: 3" in words.replace("runs/one,", "runs/one ,")
    assert "labkit.train glue --epochs 1" in words and "runs/other" not in words


# --- what is wrong is said before anything is written ---------------------------------------------


def raising():
    error = new_output("error", ename="ZeroDivisionError", evalue="division by zero", traceback=["…"])
    return [*good_cells(), code("1 / 0", error, count=8)]


def unrun():
    return [*good_cells(), code("%%needs dp.3\nx = 1", count=None), code("untagged", tags=(), count=None)]


def never_run():
    return [code(f"%%needs dp.3 guess.a\nx = {i}", count=None) for i in range(9)]


WRONG = {
    "never run": ("03", never_run, ["you have not run 03; it needs dp.3 and your guesses. Choose Run"]),
    "not there": ("04", good_cells, ["there is no notebook '04'; those of", "03_sync"]),
    "no tags": ("03", lambda: [code("1", tags=())], ["03_sync.ipynb has nothing for a report", "tag ce"]),
    "not run": ("03", unrun, ["run 1 code cell of 03; the first, after [1], is 'x = 1'. Choose", "Run All Cells"]),
    "raised": ("03", raising, ["03_sync.ipynb: [8] '1 / 0' ended with ZeroDivisionError: division by zero", "Fix it"]),
}


@pytest.mark.parametrize(("name", "cells", "messages"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_notebook_is_refused_with_its_fault_and_nothing_is_written(lab, capsys, name, cells, messages):
    folder = lab(cells())
    assert cli.main(["report", name]) == 2
    error = capsys.readouterr().err
    assert error.startswith("labkit report: ") and all(words in error for words in messages)
    assert [path.name for path in folder.iterdir()] == ["notebooks"]


# --- what is in it --------------------------------------------------------------------------------


def test_the_report_has_title_question_tables_pictures_sources_and_answers_in_order(lab, capsys):
    page = report_of(lab, good_cells())
    head, body = words_of(page).split("Measure it", 1)
    assert head.index("03 · Sync") < head.index("What does it cost?") < head.index("Name:")
    parts = ["In [1]:", "draw ()", "0.034", "print ( 1 < 2 )", "took", "Questions", "Why?", "of latency.", "And then?"]
    places = [body.index(part) for part in [*parts, "The machine", "Python", "torch"]]
    assert places == sorted(places)
    assert not any(words in head + body for words in ("import secret", "Not for the report", UNANSWERED.strip("*")))
    (picture,) = page.find_all("img")
    assert picture["alt"] == 'Bars: "a" < "b".'
    assert base64.b64decode(picture["src"].removeprefix("data:image/png;base64,")) == PNG
    tags = [re.findall(r"celltag_(\w+)", " ".join(each.get("class", []))) for each in page.find_all("div")]
    texts = [each for each in tags if each and each != ["report"]]
    assert texts == [["question"], ["answer"], ["answer"], ["question"], ["answer", "room"]]
    assert "Not answered yet: 1 of 2 questions." in capsys.readouterr().out


FENCED = "Second paragraph:\n\n```python\n# a comment\nx = 1\n```\n\nThird."
LONG_ANSWER = [
    text(f"{UNANSWERED}\n\n# What I *found*\n\nFirst paragraph.", "answer"),
    wrote(FENCED),
    wrote("## My derivation\n\nFourth."),
    new_code_cell("6 * 7", outputs=[printed("42")], execution_count=1, id="mine-6"),
    wrote("Fifth."),
]


def test_whatever_a_reader_wrote_is_in_the_report_once_and_in_order(lab):
    question, *after = [
        text("**Why?**", "question"),
        text("## The end\n\n```sh\n# none of theirs\n```"),
        code("last()"),
    ]
    page = report_of(lab, [text("# 03"), wrote("By Ada."), question, *LONG_ANSWER, *after])
    words = words_of(page)
    parts = ["By Ada.", "Why?", "What I found", "First", "Second", "# a comment", "x = 1", "Third.", "My derivation"]
    places = [words.index(part) for part in [*parts, "Fourth.", "6 * 7", "42", "Fifth.", "The end", "last ()"]]
    assert places == sorted(places)
    assert [each.get_text() for each in page.find_all(["h1", "h2"])].count("My derivation") == 1
    assert "none of theirs" not in words and len(page.select(".celltag_answer h2")) == 1


STEAL = "document.title='stolen'"
SCRIPT, HANDLER = f"<script>{STEAL}</script>", f'<img src="data:," onerror="{STEAL}">'
SVG = f'<svg xmlns="http://www.w3.org/2000/svg" onload="{STEAL}">{SCRIPT}</svg>'


def shows(**data):
    return new_output("display_data", data={name.replace("_", "/", 1): each for name, each in data.items()})


def hostile_cells():
    """What runs, or is fetched, in a page that shows it as it is."""
    isolated = shows(text_html=SCRIPT + HANDLER)
    isolated.metadata = {"text/html": {"isolated": True}}
    sized = shows(image_png=base64.b64encode(PNG).decode())
    sized.metadata = {"image/png": {"width": f"1 onload={STEAL}", "alt": f'"><b onclick="{STEAL}">'}}
    error = new_output("error", ename=SCRIPT, evalue=HANDLER, traceback=[SCRIPT, HANDLER])
    far = '<img src="https://example.org/x.png"><link rel="stylesheet" href="https://example.org/x.css">'
    far += '<iframe src="https://example.org"></iframe><style>@import "https://example.org/x.css"</style>'
    far += '<p style="background: url(https://example.org/x.png)">far</p><object data="https://example.org/x"></object>'
    links = [f"[bad](javascript:{STEAL})", "[data](data:text/html;base64,PHNjcmlwdD4=)"]
    links += [f'<a href=" javascript:{STEAL}">x</a>', '<a href=" data:text/html,x">x</a>']
    links += ['<a href="da&#9;ta:text/html,x">y</a>']
    outputs = [shows(text_html=SCRIPT + HANDLER + SVG + far), isolated, sized, error, printed(SCRIPT + HANDLER)]
    outputs += [shows(application_javascript=STEAL), shows(**{"image_svg+xml": SVG}), shows(text_latex=SCRIPT)]
    outputs += [shows(text_markdown=SCRIPT + HANDLER + "\n\n" + "\n\n".join(links)), shows(text_plain=HANDLER)]
    outputs += [shows(text_html=f"<scr<script>ipt>{STEAL}</scr</script>ipt><SCRIPT/x>{STEAL}</SCRIPT >")]
    quit_tag = f'x"><img src=x onerror="{STEAL}'
    raw = nbformat.v4.new_raw_cell(SCRIPT + HANDLER, metadata={"raw_mimetype": "text/html", "tags": ["report"]})
    texts = [text(f"# {SCRIPT} Title\n\nWhy {HANDLER}?"), text(SCRIPT + HANDLER + far, "report", quit_tag)]
    texts += [text("\n\n".join([*links, "![far](https://example.org/x.png)"]), "report"), raw]
    return [*texts, *(code(f"# {SCRIPT}", output, tags=("report", "raises-exception")) for output in outputs)]


def test_a_picture_of_a_text_comes_along_and_one_that_is_missing_ends_nothing(lab):
    attached = {"mine.png": {"image/png": base64.b64encode(PNG).decode()}}
    pictures = "![one](one.png) ![two](attachment:mine.png) ![three](attachment:gone.png) ![four](gone.png)"
    folder = lab([])
    (folder / "notebooks" / "one.png").write_bytes(PNG)
    page = report_of(lab, [text("# 03"), text(pictures, "report", attachments=attached)])
    found = {each["alt"]: each.get("src", "").partition(",")[2] for each in page.find_all("img")}
    content = base64.b64encode(PNG).decode()
    assert found == {"one": content, "two": content, "three": "", "four": ""}


def pages_of(lab, cells) -> list[Path]:
    folder = lab(cells)
    assert cli.main(["report", "03", "--no-pdf"]) == 0
    path, page = folder / "notebooks" / "03_sync.ipynb", folder / "notebook.html"
    page.write_text(notebook_html(read_notebook(path), path), encoding="utf-8")
    return [folder / "runs" / "report-03.html", page]


def test_nothing_runs_and_nothing_is_fetched_that_a_student_or_an_output_has_written(lab):
    for file in pages_of(lab, hostile_cells()):
        page = parsed(file)
        assert not page.find_all(["script", "link", "iframe", "object", "svg", "base", "form"])
        assert not [name for tag in page.find_all() for name in tag.attrs if name.startswith("on") or name == "style"]
        assert {tag["src"][:11] for tag in page.find_all(src=True)} == {"data:image/"}
        assert {tag["href"][:8] for tag in page.find_all("a", href=True)} == {"https://"}
        assert "default-src 'none'" in page.find_all("meta")[2]["content"]
        assert len(page.find_all("style")) == 1 and "<script>" in words_of(page)  # in the sources of cells, to read


WAITS = 'GUESS sync_term: give your guess first ("I don\'t know" is one)'


def test_cells_that_wait_for_tasks_and_guesses_are_told_once_each(lab, capsys):
    todo = "TODO dp.3: labkit/dp.py, line 42"
    waiting = [
        code("run()", new_output("display_data", data={"text/plain": words}))
        for words in (f"{todo}; TODO dp.4: x", f"{todo}; {WAITS}", WAITS)
    ]
    report_of(lab, waiting)
    assert f"wait for you: {WAITS}; {todo}; TODO dp.4: x." in capsys.readouterr().out


def test_a_guess_is_shown_and_another_widget_by_its_text(lab):
    widget = {"application/vnd.jupyter.widget-view+json": {}}
    card = {"text/plain": "How many?\nYour guess: 6", "text/html": instead_of_widget("How many?<br>Your guess: 6")}
    form = [new_output("display_data", data=data) for data in (widget, card)]
    other = new_output("display_data", data={"text/plain": "Explorer()", **widget})
    page = report_of(lab, [code("guess()", *form), code("explore()", other, count=2)])
    assert "In [1]: guess () How many? Your guess: 6 In [2]: explore () Explorer() The machine" in words_of(page)


# --- the PDF --------------------------------------------------------------------------------------


def test_where_chromium_is_there_a_pdf_on_a4_stands_beside_the_page(lab, capsys, with_chromium):
    folder = lab(good_cells())
    assert cli.main(["report", "3"]) == 0
    assert "The report is in runs/report-03.html and runs/report-03.pdf\n" in capsys.readouterr().out
    assert sorted(path.name for path in (folder / "runs").iterdir()) == ["report-03.html", "report-03.pdf"]
    pdf = folder / "runs" / "report-03.pdf"
    assert pdf.read_bytes().startswith(b"%PDF-")
    if not shutil.which("pdftotext"):
        pytest.skip("a PDF was made, but there is no pdftotext here to read it")
    commands = ["pdftotext", "-layout", pdf, "-"], ["pdfinfo", pdf]
    printed, info = (subprocess.run(each, capture_output=True, text=True, check=True).stdout for each in commands)
    assert all(words in printed for words in ("03 · Sync", "0.034 s", "Because", "draw()")) and "A4" in info


NO_PDF = {
    None: "there is no Chromium here; python -m playwright install chromium",
    "false": "false could not print it",
    "./sleeper": "./sleeper did not end within 0.2 s",
}


@pytest.mark.parametrize("browser", NO_PDF)
def test_no_browser_or_one_that_fails_or_hangs_costs_the_pdf_and_not_the_page(lab, monkeypatch, capsys, browser):
    folder = lab(good_cells())
    (folder / "sleeper").write_text("#!/bin/sh\nexec sleep 100\n")
    (folder / "sleeper").chmod(0o755)
    monkeypatch.setattr(chromium, "find_chromium", lambda: browser)
    monkeypatch.setattr(chromium, "TIMEOUT_S", 0.2)
    assert cli.main(["report", "03"]) == 0
    assert [path.name for path in (folder / "runs").iterdir()] == ["report-03.html"]
    assert f"No PDF: {NO_PDF[browser]}" in capsys.readouterr().out
