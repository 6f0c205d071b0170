"""Show lines with measurements in them: as text with their brackets, in HTML as numbers in a style.

The text form is what the notebook test compares, so it keeps ``[~ 0.034 s]``. Readers of
the notebook see the HTML: there the number stands alone, and a tooltip says where it comes from.
Where styles are stripped, as on GitHub, it is simply the number.
"""

from __future__ import annotations

import html
import os
import re
from pathlib import Path

from labkit.base.lab import lab
from labkit.base.notebook import display

# The notebook test (tests/nbval_sanitize.cfg) hides the element with its tag, so no digit may
# stand in the tag.
_TAGS = {
    "~": '<span class="labkit-measured" title="measured on this machine" '
    'style="border-bottom: thin dotted; cursor: help">',
    "≈": '<span class="labkit-device" title="depends a little on the kind of device" '
    'style="border-bottom: thin dashed; cursor: help">',
}
_BRACKETS = re.compile(r"\[([~≈])(?:[ \u00a0]|&nbsp;)+([^\[\]\n]*?)(?:[ \u00a0]|&nbsp;)*\]")
_PLACES = re.compile(r"\blabkit/((?:dp|shard|pipe)\.py), line (\d+)")
_WORDS = "white-space: pre-wrap; word-break: normal; overflow-wrap: break-word"  # JupyterLab cuts words in two
_SENTENCES = f'<div style="{_WORDS}; line-height: 1.5; margin: 0">{{}}</div>'
_COLUMNS = f'<pre style="{_WORDS}; line-height: 1.4; margin: 0">{{}}</pre>'  # GitHub keeps that it is a pre


def as_html(text: str) -> str:
    """Return text as HTML, in which ``[~ 0.034 s]`` and ``[≈ 0.7627]`` are numbers in a style.

    A place in a student file, ``labkit/dp.py, line 42``, is a link that opens it. Everything else
    is shown as it is: HTML in it is escaped, and line ends stay line ends.
    """
    return link_places(style_measurements(html.escape(text)))


def link_places(page: str) -> str:
    """Return HTML or Markdown in which each place in a student file is a link to that file."""
    return _PLACES.sub(_link, page)


def _link(place: re.Match[str]) -> str:
    file = os.path.relpath(lab().package / place[1])  # JupyterLab opens a link from the notebook's folder
    line = int(place[2]) - 1  # JupyterLab counts them from 0
    return f'<a href="{Path(file).as_posix()}#line={line}">{place[0]}</a>'


def style_measurements(page: str) -> str:
    """Return HTML with the brackets of its measurements turned into a style.

    For HTML that is otherwise finished, such as a table that pandas made.
    """
    return _BRACKETS.sub(lambda found: f"{_TAGS[found[1]]}{found[2]}</span>", page)


def without_marks(text: str) -> str:
    """Return text without the brackets of its measurements, for where it is read aloud."""
    return _BRACKETS.sub(r"\2", text)


class Lines:
    """Lines that a cell shows: as text what ``str`` gives, in HTML with measurements in a style.

    ``aligned`` is for lines whose columns line up: HTML sets them in a monospaced font. Sentences
    are set as text.

        Lines("two ranks took [~ 0.034 s]")   # shows: two ranks took 0.034 s
    """

    def __init__(self, text: str, aligned: bool = False):
        self.text, self.aligned = str(text), aligned

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__

    def _repr_html_(self) -> str:
        if self.aligned:
            return _COLUMNS.format(as_html(self.text))
        return _SENTENCES.format(as_html(self.text).replace("\n", "<br>"))


def say(*parts: object, sep: str = " ") -> None:
    """Show a line as ``print`` does; in a notebook its measurements are numbers in a style.

    Each call makes an output of its own, so lines that belong together go into one call:
    ``say("first line", "second line", sep="\\n")``. Outside IPython it prints.
    """
    display(Lines(sep.join(map(str, parts)), aligned=True))
