"""Link a notebook's terms to the glossary: each term where the notebook first uses it.

    the [bubble](../docs/glossary.md#bubble "The fraction of all ranks' time in which …") shrinks

The link's title, which hovering over it shows, is the first sentence of the term's entry in
``docs/glossary.md``. So authors write plain text, and :func:`link_terms` adds the links whenever a
notebook is stored (see :mod:`labkit.course.normal_form`), each time again: they cannot drift.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from nbformat import NotebookNode

GLOSSARY = Path(__file__).resolve().parents[2] / "docs" / "glossary.md"
FROM_A_NOTEBOOK = "../docs/glossary.md"

_ENTRY = re.compile(r"^### (?P<name>.+)\n\n(?P<text>.+)$", re.MULTILINE)
_IN_ITALICS = re.compile(r"\*([^*]+)\*")
_FIRST_SENTENCE = re.compile(r".+?\.(?= [A-Z]|$)")
_LINK = re.compile(rf"\[([^\]]*)\]\({re.escape(FROM_A_NOTEBOOK)}#[^)\s]*(?: \"[^\"]*\")?\)")
# Where no term is linked: code, headings, the question that the whole notebook asks, tables, other
# links, formulas and HTML.
_LEFT_ALONE = (
    r"```.*?```|`[^`\n]*`|^(?: {4}|#|\||\*\*[^*\n]*\*\*$)[^\n]*|\[[^\]]*\]\([^)]*\)|https?://\S+|\$[^$\n]+\$|<[^>\n]*>"
)


class Term(NamedTuple):
    """A term of the glossary: what else stands for it, such as a symbol, and what it means."""

    name: str
    others: tuple[str, ...]
    meaning: str

    @property
    def link(self) -> str:
        return f'{FROM_A_NOTEBOOK}#{self.name.replace(" ", "-")} "{self.meaning}"'


@functools.cache
def glossary(page: Path = GLOSSARY) -> tuple[Term, ...]:
    """Return the terms of the glossary.

    An entry's heading is its name; words in italics in its text stand for the same.
    """
    found = []
    for entry in _ENTRY.finditer(page.read_text(encoding="utf-8")):
        sentence = _FIRST_SENTENCE.match(entry["text"])
        meaning = re.sub(r"[*`]", "", sentence[0] if sentence else entry["text"])
        found.append(Term(entry["name"], tuple(_IN_ITALICS.findall(entry["text"])), meaning))
    return tuple(found)


def unlinked(text: str) -> str:
    """Return a text without its links to the glossary."""
    return _LINK.sub(r"\1", text)


def link_terms(cells: Sequence[NotebookNode], terms: Sequence[Term] | None = None) -> None:
    """Link each term to the glossary where the texts first use it, and nowhere else.

    A symbol is left alone in a text that links its name. So are cells with a tag, which reports
    take elsewhere.
    """
    term_of = {form: term for term in terms or glossary() for form in (term.name, *term.others)}
    longest_first = sorted(term_of, key=len, reverse=True)
    anywhere = re.compile(
        f"(?P<left_alone>{_LEFT_ALONE})|"
        + "|".join(f"(?P<t{i}>{_written(form)})" for i, form in enumerate(longest_first)),
        re.MULTILINE | re.DOTALL,
    )
    seen: set[str] = set()

    def link(found: re.Match[str], here: set[Term]) -> str:
        if found.lastgroup == "left_alone" or (form := longest_first[int(str(found.lastgroup)[1:])]) in seen:
            return found[0]
        term = term_of[form]
        seen.add(form)
        if term in here:
            return found[0]
        here.add(term)
        return f"[{found[0]}]({term.link})"

    for cell in cells:
        if cell.cell_type == "markdown" and not cell.metadata.get("tags"):
            cell.source = anywhere.sub(functools.partial(link, here=set()), unlinked(cell.source))


def _written(form: str) -> str:
    """Return a pattern of a term in a text: in capitals too, in the plural, across a line's end.

    A symbol, a letter alone, is written in one way.
    """
    if len(form) == 1:
        return rf"(?<![\w'’.]){re.escape(form)}(?![\w'’])"
    words = r"[\s-]+".join(map(re.escape, re.split(r"[\s-]+", form)))
    return rf"(?i:\b{words}(?:e?s)?\b)"
