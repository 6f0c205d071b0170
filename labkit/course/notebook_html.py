"""Make one HTML page of a notebook: nothing in it runs, nothing is fetched, and it prints on A4."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from html import escape
from pathlib import Path
from string import Template
from typing import Any

import bleach
from nbconvert import HTMLExporter
from nbconvert.filters import ansi2html
from nbformat import NotebookNode
from traitlets.config import Config

from labkit.base.measurement_html import style_measurements

TAGS = "a b blockquote br caption code dd del div dl dt em h1 h2 h3 h4 h5 h6 hr i img ins li ol p pre span strong"
TAGS += " table tbody td tfoot th thead tr ul"
ATTRIBUTES = {"alt", "class", "colspan", "href", "rowspan"}
# The forms of an output, the best first. JavaScript and widgets are not among them.
FORMS = ["image/png", "image/jpeg", "image/svg+xml", "text/html", "text/markdown", "text/latex", "text/plain"]
PAGE = Path(__file__).with_name("notebook_page.html")

_WITHOUT_TEXT = re.compile(r"<(style|script|template)\b.*?</\1\s*>", re.DOTALL | re.IGNORECASE)
_FAR_PICTURE = re.compile(r"!\[([^\]]*)\]\((?=https?:)")  # in Markdown; no page fetches it
_ATTACHED = re.compile(r"attachment:([^)\s]+)")
_LINK = re.compile(r"https?:|mailto:|#")


def notebook_html(notebook: NotebookNode, path: Path) -> str:
    """Return a notebook as an HTML page, in which measurements are numbers in a style.

    ``path`` is where it lies: its texts name pictures from there, which come along.
    """
    body = clean(notebook_body(notebook, path))
    return Template(PAGE.read_text(encoding="utf-8")).substitute(title=escape(path.stem), body=body)


def notebook_body(notebook: NotebookNode, path: Path) -> str:
    """Return the cells of a notebook as HTML, which is to be cleaned."""
    body: str = _exporter().from_notebook_node(notebook, resources={"metadata": {"path": str(path.parent)}})[0]
    return body


@functools.cache
def _exporter() -> HTMLExporter:
    filters = {
        "ansi2html": lambda text: style_measurements(ansi2html(text)),
        "clean_html": lambda html: html,  # which nbconvert would do cell by cell; the page is cleaned as a whole
    }
    return HTMLExporter(
        template_name="basic",
        exclude_anchor_links=True,
        embed_images=True,
        preprocessors=[_prepare],
        filters=filters,
        config=Config({"NbConvertBase": {"display_data_priority": FORMS}}),
    )


def _prepare(notebook: NotebookNode, resources: dict[str, Any]) -> tuple[NotebookNode, dict[str, Any]]:
    """Leave out of a notebook what a page cannot show, or would fetch."""
    for cell in notebook.cells:
        for name in _ATTACHED.findall(cell.source):  # nbconvert raises for one that is missing
            cell.setdefault("attachments", {}).setdefault(name, {"text/plain": ""})
        if cell.cell_type == "markdown":
            cell.source = _FAR_PICTURE.sub(r"[picture \1](", cell.source)
        cell.outputs = [output for output in cell.get("outputs", []) if _can_be_shown(output)]
        for output in cell.outputs:
            if html := output.get("data", {}).get("text/html"):
                output.data["text/html"] = style_measurements(html)
    return notebook, resources


def is_allowed(tag: str, name: str, value: str) -> bool:
    """Return whether a tag may have an attribute: nothing that is fetched from elsewhere."""
    if name == "src":
        return tag == "img" and value.startswith("data:image/")
    return name in ATTRIBUTES and (name != "href" or bool(_LINK.match(value)))


def clean(html: str, allowed: Callable[[str, str, str], bool] = is_allowed, tags: str = TAGS) -> str:
    """Return HTML without whatever runs or is fetched: what is not in ``tags`` is left out.

    ``allowed`` says whether a tag may have an attribute with this value. nbconvert's own
    ``sanitize_html`` knows neither headings, paragraphs, nor pictures.
    """
    protocols = {*bleach.ALLOWED_PROTOCOLS, "data"}
    cleaner = bleach.Cleaner(tags=tags.split(), attributes=allowed, protocols=protocols, strip=True)
    cleaner.serializer.use_best_quote_char = False  # between ' and ' bleach 6 escapes what is escaped already
    return cleaner.clean(_WITHOUT_TEXT.sub("", html))


def _can_be_shown(output: NotebookNode) -> bool:
    """Return whether an output has a form for a page. Of a widget, what follows it has one."""
    return "data" not in output or not output.data.keys().isdisjoint(FORMS)
