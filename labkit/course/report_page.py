"""Make one page of a report: HTML that needs no other file and no network, and prints on A4.

``[~ 0.034 s]``, a measurement in a notebook, becomes a number in a style of its own. Nothing runs
and nothing is fetched that the reader or an output has written.
"""

from __future__ import annotations

import base64
import datetime
import importlib.metadata
import mimetypes
import os
import re
from collections.abc import Sequence
from pathlib import Path

import bleach
from nbconvert import HTMLExporter
from nbformat import NotebookNode

from labkit.base.measurement_html import style_measurements
from labkit.course.doctor import machine_facts

PACKAGES = ("labkit", "torch", "transformers", "accelerate", "numpy")
_PICTURE = re.compile(r"!\[([^\]]*)\]\(([^)\s]+)[^)]*\)")  # in Markdown
_TAGS_OF_MARKDOWN = "a blockquote br code dd del div dl dt em h1 h2 h3 h4 h5 h6 hr img li ol p pre span strong"
_TAGS_OF_MARKDOWN += " table tbody td th thead tr ul"
_TAGS_OF_OUTPUTS = _TAGS_OF_MARKDOWN + " b caption i ins tfoot"
_ATTRIBUTES = {"alt", "class", "colspan", "href", "rowspan"}
_NEVER_SHOWN = re.compile(r"<(style|script|template)\b.*?</\1\s*>", re.DOTALL | re.IGNORECASE)


def page(report: NotebookNode, folder: Path, runs: Sequence[tuple[str, str]]) -> str:
    """Return the report as an HTML page.

    ``folder`` is where the notebook lies, for the pictures that its texts name; ``runs`` are
    folders and commands of training runs.
    """
    for cell in report.cells:
        if cell.cell_type == "markdown":
            cell.source = _with_pictures(cell, folder)
    today = datetime.date.today()
    template = {"template_paths": [str(Path(__file__).parent)], "template_file": "report.html.jinja"}
    exporter = HTMLExporter(**template, filters={"clean": clean}, exclude_anchor_links=True)
    found = {distribution.name: distribution.version for distribution in importlib.metadata.distributions()}
    resources = {
        "date": f"{today.day} {today:%B %Y}",
        "machine": machine_facts(),
        "versions": ", ".join(f"{name} {found[name]}" for name in PACKAGES if name in found),
        "runs": runs,
    }
    html, _ = exporter.from_notebook_node(report, resources)
    return html


def clean(html: str, written: bool = False) -> str:
    """Return HTML with its measurements in a style, and nothing in it that runs or is fetched.

    Other tags are left out. In a text that somebody has ``written`` they are shown as they were
    written: ``a<b and c>d`` holds no tag.
    """
    html = style_measurements(html if written else _NEVER_SHOWN.sub("", html))
    tags = (_TAGS_OF_MARKDOWN if written else _TAGS_OF_OUTPUTS).split()
    protocols = {*bleach.ALLOWED_PROTOCOLS, "data"}
    return bleach.clean(html, tags=tags, attributes=_allowed, protocols=protocols, strip=not written)


def _allowed(tag: str, name: str, value: str) -> bool:
    return name in _ATTRIBUTES or (name == "src" and value.startswith("data:"))


def _with_pictures(cell: NotebookNode, folder: Path) -> str:
    """Return a text with the pictures of its cell, or of a file that it names, in it."""

    def embed(found: re.Match[str]) -> str:
        text, url = found.groups()
        kind, attached = mimetypes.guess_type(url)[0] or "", cell.get("attachments", {})
        if url.removeprefix("attachment:") in attached:
            kind, content = next(iter(attached[url.removeprefix("attachment:")].items()))
        elif kind.startswith("image/") and os.path.isfile(folder / url):
            content = base64.b64encode((folder / url).read_bytes()).decode()
        else:
            return f"*picture {text}: {url}*"
        return f"![{text}](data:{kind};base64,{content})"

    return _PICTURE.sub(embed, cell.source)
