"""Write a site: static pages on which explorers play, without an install, a kernel or a network.

index.html       what there is
play.html        every explorer
01_shards.html   a notebook, and so on
glossary.html    what the terms of notebooks link to
site.js, .css    what all pages share
pictures/        what a page loads when it is scrolled to: what explorers show, and pictures

A notebook's explorers are made again from their calls. A Timeline of a run plays if its output has
kept what it shows (:meth:`labkit.explore.timeline.Timeline.kept_content`). Where something cannot
play, its picture stays, and a sentence says so.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import re
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
from markupsafe import Markup
from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell, new_notebook, new_output

from labkit.base.course import Course
from labkit.base.files import check_new, new_folder
from labkit.base.lab import Lab, lab
from labkit.course import notebook_html
from labkit.course.formulas import with_formulas, with_marks
from labkit.course.glossary import FROM_A_NOTEBOOK
from labkit.course.leave_out import Kept, from_markdown, kept
from labkit.course.plan import question_in
from labkit.course.report import read_notebook
from labkit.course.site_explorers import PLAY, Playing, explorer_in, of_content, playing
from labkit.course.student import is_student_edition
from labkit.draw.palette import css_colours
from labkit.explore.explorer import sentence_of
from labkit.explore.standalone_html import file_module, style
from labkit.explore.static_fallback import KEPT_CONTENT

HERE = Path(__file__).parent
TAGS = f"{notebook_html.TAGS} details summary"
ATTRIBUTES = {"height", "id", "title", "width"}  # beside those of a report
STILL = "This picture does not play: the notebook was stored without what it shows. Run its cell for one that does."
UNDESCRIBED = "A picture, of which the notebook says nothing more."
_OURS = re.compile(r"pictures/[\w.-]+$|glossary\.html#[^\s/:]+$")
_TITLE = re.compile(r"^# +(.+?)\s*$", re.MULTILINE)
_LOST_PICTURE = re.compile(r"<img(?![^>]* src=)[^>]*>")  # its source was elsewhere
_HEADING = re.compile(r"<h(\d)>([^<]+)</h\1>")
_WAITS_FOR_A_GUESS = re.compile(r"%%needs\b.*\bguess\.")


class Page(NamedTuple):
    """A page of the site: its file without an ending, what it is called, and what it asks."""

    name: str
    title: str
    question: str
    body: str


def write_site(
    directory: str | os.PathLike[str], taught: Course, say: Callable[[str], None], of: Lab | None = None
) -> int:
    """Write the site of the lab that one works in, or ``of`` another; return its size in bytes.

    It has the notebooks that the course ``taught`` keeps, with the outputs that they were stored
    with. ``say`` is told what goes on, a line each. The folder appears whole, or not at all.

    Raises FileExistsError if the folder has something in it, PermissionError if it cannot be
    written, ValueError if it is among the notebooks or these cannot be read, FileNotFoundError
    without any.
    """
    target, of = Path(directory).absolute(), of or lab()
    if target.resolve().is_relative_to(of.notebooks.resolve()):
        raise ValueError(f"{target} is in the folder of notebooks: give a directory outside of it")
    check_new(target)
    if not (names := of.notebook_names):
        raise FileNotFoundError(f"there are no notebooks in {of.notebooks}: go to the lab's folder")
    if taken := {"glossary", "index", "play"}.intersection(names):
        raise ValueError(f"the site has a page {min(taken)} of its own: rename the notebook {min(taken)}.ipynb")
    keeps = kept(taught, names)
    with new_folder(target) as folder:
        (folder / "pictures").mkdir()
        _Site(folder, of, keeps, say).write(taught.title or "labkit")
        return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


class _Site:
    """A site under way, in a folder."""

    def __init__(self, folder: Path, of: Lab, keeps: Kept, say: Callable[[str], None]):
        self.folder, self.lab, self.keeps, self.say = folder, of, keeps, say
        self.has_solutions = not is_student_edition(of.package.parent)
        environment = jinja2.Environment(loader=jinja2.FileSystemLoader(HERE), autoescape=True)
        environment.trim_blocks = environment.lstrip_blocks = True
        self.template = environment.get_template("site_page.html.jinja")

    def write(self, title: str) -> None:
        (self.folder / "site.css").write_text(_style(), encoding="utf-8")
        (self.folder / "site.js").write_text(_script(), encoding="utf-8")
        self.say("play")
        play = Page("play", "Play", "", self._play())
        pages = []
        for name in self.keeps.notebooks:
            self.say(name)
            pages.append(self._notebook(name))
        for before, page, after in zip([None, *pages], pages, [*pages[1:], None], strict=False):
            self._write(page, before=before, after=after)
        self._write(play, after=pages[0])
        self._write(Page("index", title, "", ""), pages=pages)
        glossary = self.lab.folder / "docs" / "glossary.md"
        text = glossary.read_text(encoding="utf-8") if glossary.is_file() else "# Glossary\n\nThis lab has none."
        self._write(
            Page("glossary", "Glossary", "", self._body(new_notebook(cells=[new_markdown_cell(text)]), glossary))
        )

    def _write(self, page: Page, **around: Any) -> None:
        html = self.template.render(page=page, body=Markup(page.body), has_solutions=self.has_solutions, **around)
        (self.folder / f"{page.name}.html").write_text(html, encoding="utf-8")

    # --- play -------------------------------------------------------------------------------------

    def _play(self) -> str:
        sections = [
            f"<section><h2>{escape(title)}</h2><p>{escape(words)}</p>{self._explorer(shown)}</section>"
            for title, words, shown in PLAY
        ]
        return "".join(sections)

    def _explorer(self, call: str) -> str:
        """Return the HTML of an explorer; one that cannot be made says why."""
        try:
            shown = playing(call)
        except Exception as error:
            return _note(f"{call} does not play here: {sentence_of(error)}")
        return self._playing(shown)

    def _playing(self, shown: Playing) -> str:
        """Return the HTML of a picture that plays, and write what it loads."""
        for name, content in shown.files.items():
            (self.folder / "pictures" / f"{name}.js").write_text(
                f'labkit.take("{name}", "{content}");\n', encoding="utf-8"
            )
        return f'<div class="playing picture-{shown.name}"><p>{escape(shown.alt)}</p></div>'

    # --- a notebook -------------------------------------------------------------------------------

    def _notebook(self, name: str) -> Page:
        path = self.lab.notebooks / f"{name}.ipynb"
        notebook = read_notebook(path)
        for cell in notebook.cells:
            if cell.cell_type == "code":
                cell.outputs = [self._output(each) for each in self._with_explorer(cell)]
            elif cell.cell_type == "markdown":
                cell.source = from_markdown(cell.source, self.keeps, path.name)
        first = next((cell.source for cell in notebook.cells if cell.cell_type == "markdown"), "")
        title = _TITLE.search(first)
        return Page(name, title[1] if title else name, question_in(first), self._body(notebook, path))

    def _body(self, notebook: NotebookNode, path: Path) -> str:
        formulas: list[str] = []
        for cell in notebook.cells:
            if cell.cell_type == "markdown":
                cell.source = cell.source.replace(f"]({FROM_A_NOTEBOOK}#", "](glossary.html#")
                cell.source = with_marks(cell.source, formulas)
        html = notebook_html.clean(notebook_html.notebook_body(notebook, path), _is_allowed, TAGS)
        html = _HEADING.sub(_with_id, html)
        html = re.sub("<img(?![^>]* alt=)", f'<img alt="{UNDESCRIBED}"', _LOST_PICTURE.sub("[picture]", html))
        html = html.replace("<th></th>", "<td></td>")  # pandas' corner, which heads nothing
        return with_formulas(html.replace('<img src="pictures/', '<img loading="lazy" src="pictures/'), formulas)

    def _with_explorer(self, cell: NotebookNode) -> list[NotebookNode]:
        """Return the outputs of a cell, with the explorer that it shows in place of its picture."""
        call = explorer_in(cell.source)
        if call is None:
            return cell.outputs
        html, own = self._explorer(call), len(cell.outputs)
        if 'class="playing' in html and [each.output_type for each in cell.outputs[-2:]] == ["display_data"] * 2:
            own -= 2  # a widget has two: its picture or itself, and a table
            own = 0 if call.startswith("fill_ring") else own  # what it says the page says itself
        if _WAITS_FOR_A_GUESS.match(cell.source) and not cell.outputs:
            html = f"<details><summary>Guess first, then open this.</summary>{html}</details>"
        return [*cell.outputs[:own], _html_output(html)]

    def _output(self, output: NotebookNode) -> NotebookNode:
        """Return an output with a picture that plays, or with a file for its picture."""
        about, data = output.get("metadata", {}), output.get("data", {})
        look = about.get("image/png", {})
        alt = look.get("alt", UNDESCRIBED)
        if content := _base64_or_nothing(about.get(KEPT_CONTENT)):
            return _html_output(self._playing(of_content(content, alt)))
        if png := _base64_or_nothing("".join(data.get("image/png", "")).replace("\n", "")):
            name = f"{hashlib.sha256(png.encode()).hexdigest()[:12]}.png"
            (self.folder / "pictures" / name).write_bytes(base64.b64decode(png))
            size = "".join(f' {side}="{int(look[side])}"' for side in ("width", "height") if side in look)
            still = _note(STILL) if alt.startswith("Timeline of ") else ""
            picture = f'<img src="pictures/{name}" alt="{escape(alt)}"{size}>'
            return _html_output(f'<a href="pictures/{name}">{picture}</a>{still}')
        return output


def _with_id(heading: re.Match[str]) -> str:
    """Return a heading that can be linked to, as in JupyterLab: by its text, with hyphens."""
    level, text = heading.groups()
    return f'<h{level} id="{text.replace(" ", "-").replace(chr(34), "&quot;")}">{text}</h{level}>'


def _html_output(html: str) -> NotebookNode:
    return new_output("display_data", data={"text/html": html})


def _note(sentence: str) -> str:
    return f'<p class="note">{escape(sentence)}</p>'


def _base64_or_nothing(text: Any) -> str:
    """Return a text that is base64, and nothing for any other: it goes into a script."""
    try:
        return text if isinstance(text, str) and base64.b64decode(text, validate=True) else ""
    except binascii.Error:
        return ""


def _is_allowed(tag: str, name: str, value: str) -> bool:
    """Return whether a tag may have an attribute: as in a report, and what is the site's own."""
    is_ours = (tag, name) in (("a", "href"), ("img", "src")) and _OURS.match(value)
    return name in ATTRIBUTES or bool(is_ours) or notebook_html.is_allowed(tag, name, value)


def _style() -> str:
    colours = {theme: css_colours(theme) for theme in ("light", "dark")}
    root = f":root {{ color-scheme: light dark; {colours['light']} }}\n"
    root += f"@media (prefers-color-scheme: dark) {{ :root {{ {colours['dark']} }} }}\n"
    return root + style() + (HERE / "site.css").read_text(encoding="utf-8")


def _script() -> str:
    """Return what all pages run, as a plain script: a page from a disk may load no module."""
    own = (HERE / "site.js").read_text(encoding="utf-8")
    return f"(() => {{\n{file_module()}\n{own}\n}})();\n"
