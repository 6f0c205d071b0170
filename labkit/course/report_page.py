"""Make one page of a report: HTML that needs no other file and no network, and prints on A4.

What the reader wrote is text: HTML in it is shown, not obeyed, and of a table's HTML only the table
is taken. ``[~ 0.034 s]``, a measurement in a notebook, becomes a number in a style of its own.
"""

from __future__ import annotations

import base64
import datetime
import importlib.metadata
import mimetypes
import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import jinja2
import mistune
from bs4 import BeautifulSoup
from markupsafe import Markup, escape
from nbformat import NotebookNode

from labkit.course.doctor import machine_facts
from labkit.course.report_source import Report

PACKAGES = ("labkit", "torch", "transformers", "accelerate", "numpy")
PICTURES = ("image/png", "image/jpeg", "image/svg+xml")
_OF_A_TABLE = {
    "table",
    "caption",
    "thead",
    "tbody",
    "tfoot",
    "tr",
    "th",
    "td",
    "p",
    "b",
    "i",
    "em",
    "strong",
    "code",
    "br",
}
_NEVER_SHOWN = {"style", "script", "template", "iframe"}
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_BRACKETS = re.compile(r"\[([~≈])(?:[ \u00a0]|&nbsp;)((?:[ \u00a0]|&nbsp;)*)([^\[\]\n]*?)([ \u00a0]*)\]")
_STYLES = {"~": "measured", "≈": "device"}
_STYLES_OF_CELLS = {"labkit-measured": "measured", "labkit-device": "device"}  # as labkit.base.said writes them


def page(report: Report) -> str:
    """Return the report as an HTML page."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    today = datetime.date.today()
    sections = [
        (inline(heading), [(cell, list(_shown(cell.number, cell.cell, report.folder))) for cell in cells])
        for heading, cells in groupby(report.cells, key=lambda cell: cell.heading)
    ]
    questions = [
        (text_of(question, report.folder), [text_of(part, report.folder) for part in answer])
        for question, answer in report.questions
    ]
    body: dict[str, Any] = {
        "title": inline(report.title),
        "question": inline(report.question),
        "date": f"{today.day} {today:%B %Y}",
        "machine": machine_facts(),
        "versions": ", ".join(_versions()),
        "sections": sections,
        "questions": questions,
        "commands": [cell for cell in report.cells if cell.number is not None],
        "runs": report.runs,
    }
    return environment.get_template("report.html.jinja").render(body)


def _versions() -> Iterator[str]:
    for name in PACKAGES:
        try:
            yield f"{name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            continue


# --- a cell ---------------------------------------------------------------------------------------


def _shown(number: int | None, cell: NotebookNode, folder: Path) -> Iterator[Markup]:
    """Yield what a cell shows, each in the best form that it has: picture, table or text."""
    if number is None:
        yield text_of(cell, folder)
        return
    for output in cell.outputs:
        if output.output_type == "stream":
            if output.name == "stdout":
                yield _plain(output.text)
        elif output.output_type == "error":
            yield _plain(f"{output.ename}: {output.evalue}")
        else:
            yield _best_form(output)


def _best_form(output: NotebookNode) -> Markup:
    data = output.data
    for kind in PICTURES:
        if kind in data:
            alt = output.metadata.get(kind, {}).get("alt") or f"{data.get('text/plain', 'Picture')}, not described"
            content = data[kind].encode() if kind.endswith("xml") else base64.b64decode(data[kind])
            picture = _picture(kind, content, alt)
            return Markup("<figure>{}<figcaption>{}</figcaption></figure>").format(picture, alt)
    if "text/html" in data and "<table" in data["text/html"]:
        return _table(data["text/html"])
    if any("widget" in kind for kind in data):
        question, form, _ = data.get("text/plain", "").partition("\nYour guess: ")
        if form:  # the guess stands in its feedback; the form had been shown before it was given
            return _plain(question)
        return Markup('<p class="absent">What moves cannot be printed: it is in the notebook.</p>')
    return _plain(data.get("text/plain", ""))


def _picture(kind: str, content: bytes, alt: str) -> Markup:
    return Markup('<img src="data:{};base64,{}" alt="{}">').format(kind, base64.b64encode(content).decode(), alt)


def _plain(text: str) -> Markup:
    return Markup("<pre>{}</pre>").format(with_measurements(escape(_COLOURS.sub("", text.rstrip())), aligned=True))


def _table(html: str) -> Markup:
    """Return the tables of an output's HTML, and the lines under them; nothing else of it."""
    soup = BeautifulSoup(html, "html.parser")
    for tag in soup.find_all(_NEVER_SHOWN):
        tag.decompose()
    for tag in soup.find_all(True):
        style = next((_STYLES_OF_CELLS[name] for name in tag.get("class") or () if name in _STYLES_OF_CELLS), None)
        tag.attrs = {name: value for name, value in tag.attrs.items() if name in ("colspan", "rowspan")}
        if tag.name == "span" and style:
            tag["class"] = style
        elif tag.name not in _OF_A_TABLE:
            tag.unwrap()
    return with_measurements(Markup(str(soup)))


def with_measurements(html: Markup, aligned: bool = False) -> Markup:
    """Return the HTML with a measurement's brackets turned into a style.

    ``aligned`` keeps the width of what is printed in columns.
    """

    def styled(found: re.Match[str]) -> str:
        kind, before, inside, after = found.groups()
        number = f'<span class="{_STYLES[kind]}">{inside}</span>'
        return f"   {before}{number}{after} " if aligned else number

    return Markup(_BRACKETS.sub(styled, html))


# --- text that somebody wrote ---------------------------------------------------------------------


class _Renderer(mistune.HTMLRenderer):
    """Markdown to HTML, with the pictures of a cell or of the notebook's folder in the page."""

    def __init__(self, attachments: dict[str, Any], folder: Path):
        super().__init__(escape=True)
        self.attachments, self.folder = attachments, folder

    def image(self, text: str, url: str, title: str | None = None) -> str:
        kind = mimetypes.guess_type(url)[0] or ""
        try:
            if url.startswith("attachment:"):
                kind, content = next(iter(self.attachments[url.removeprefix("attachment:")].items()))
                return str(_picture(kind, base64.b64decode(content), text))
            if kind in PICTURES and "://" not in url:
                return str(_picture(kind, (self.folder / url).read_bytes(), text))
        except (OSError, KeyError):
            pass
        return str(Markup("<em>picture {}: {}</em>").format(text, url))


def text_of(cell: NotebookNode, folder: Path) -> Markup:
    """Return a text cell as HTML. HTML that stands in it is shown as it was written."""
    render = mistune.create_markdown(
        renderer=_Renderer(cell.get("attachments", {}), folder), plugins=["table", "strikethrough"]
    )
    return with_measurements(Markup(render(cell.source)))


def inline(text: str) -> Markup:
    """Return one line of Markdown, such as a heading, without a paragraph around it."""
    html = str(mistune.create_markdown(escape=True)(text)).strip()
    return Markup(html.removeprefix("<p>").removesuffix("</p>"))
