"""Show a file as its diff to another one: a sign and a colour for lines that come and that go."""

from __future__ import annotations

import ast
import difflib
import html
import os
from dataclasses import dataclass
from pathlib import Path

# Blue and orange are told apart in every common form of colour blindness. They let the page shine
# through, so that its own ink reads on them, on a light theme and on a dark one.
_COLOURS = {"+": "rgba(0, 114, 178, 0.25)", "-": "rgba(230, 159, 0, 0.30)"}
_TAGS = {"+": "ins", "-": "del"}


@dataclass(frozen=True)
class Diff:
    """What changes from one text to another; as the last line of a cell it is shown there.

    ``hunks``: runs of lines, each line after its sign: ``+`` comes, ``-`` goes, and a space stays.
    ``added`` and ``removed`` are the lines of code that come and go, a statement each: no
    docstrings, comments or blank lines.
    """

    before: str
    after: str
    hunks: tuple[tuple[str, ...], ...]
    added: tuple[str, ...]
    removed: tuple[str, ...]

    def count(self, *texts: str) -> int:
        """Return how many of the statements that come contain one of ``texts``."""
        return sum(any(text in line for text in texts) for line in self.added)

    @property
    def title(self) -> str:
        """Return the names, and how many lines of code come and go."""
        return f"{self.before} → {self.after}: +{len(self.added)} −{len(self.removed)} lines of code"

    def __repr__(self) -> str:
        return "\n\n".join([self.title, *("\n".join(hunk) for hunk in self.hunks)])

    def _repr_html_(self) -> str:
        style = "white-space: pre; word-break: normal; overflow-x: auto; line-height: 1.35; margin: 0 0 0.8em 0"
        hunks = (f'<pre style="{style}">{"".join(map(_marked, hunk))}</pre>' for hunk in self.hunks)
        return "".join([f"<p><b>{html.escape(self.title)}</b></p>", *hunks])


def _marked(line: str) -> str:
    """Return a line of a diff as HTML, with a colour if it comes or goes."""
    text, sign = html.escape(line), line[0]
    if sign not in _TAGS:
        return text + "\n"
    style = f"display: block; text-decoration: none; background: {_COLOURS[sign]}"
    return f'<{_TAGS[sign]} style="{style}">{text}</{_TAGS[sign]}>'


def diff(before: str | os.PathLike[str], after: str | os.PathLike[str]) -> Diff:
    """Return what changes from one file to another, with a line before and after each change.

    Raises FileNotFoundError for a file that is not there.
    """
    old, new = Path(before), Path(after)
    lines = difflib.unified_diff(_lines(old), _lines(new), n=1, lineterm="")
    hunks: list[list[str]] = []
    for line in list(lines)[2:]:  # after the names of both files
        if line.startswith("@@"):
            hunks.append([])
        else:
            hunks[-1].append(line)
    statements = [*difflib.ndiff(_statements(old), _statements(new))]
    added, removed = (tuple(line[2:] for line in statements if line[0] == sign) for sign in "+-")
    return Diff(old.name, new.name, tuple(map(tuple, hunks)), added, removed)


def _statements(path: Path) -> list[str]:
    """Return a file's code, a statement a line, without docstrings and comments."""
    tree = ast.parse("\n".join(_lines(path)))
    for node in ast.walk(tree):
        match node:
            case ast.Module(body=body) | ast.FunctionDef(body=body) | ast.ClassDef(body=body):
                if ast.get_docstring(node) is not None:
                    node.body = body[1:] or [ast.Pass()]
    return list(filter(None, ast.unparse(tree).splitlines()))


def _lines(path: Path) -> list[str]:
    if not path.is_file():
        raise FileNotFoundError(f"diff: there is no file {path} (looked from {Path.cwd()})")
    return path.read_text(encoding="utf-8").splitlines()
