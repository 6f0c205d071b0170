"""Draw the formulas of a text, which a page without network could not set otherwise."""

from __future__ import annotations

import base64
import functools
import io
import re
from html import escape

import matplotlib
from matplotlib.font_manager import FontProperties
from matplotlib.mathtext import math_to_image

_SIZE_PT = 100  # drawn large, as matplotlib rounds to whole points
# Code, which may have dollars of its own, is left alone.
_FORMULA = re.compile(
    r"(?P<code>```.*?```|`[^`\n]*`)|\$\$(?P<block>.+?)\$\$|\$(?P<inline>[^\s$](?:[^$\n]*[^\s$])?)\$", re.DOTALL
)
_DIALECT = {r"\\frac(\d)(\d)": r"\\frac{\1}{\2}", r"\\Big\(": r"\\left(", r"\\Big\)": r"\\right)", r"\s+": " "}
_TRIMMINGS = re.compile(rb"<\?xml.*?\?>|<!DOCTYPE.*?>|<metadata>.*?</metadata>|<!--.*?-->", re.DOTALL)


def with_marks(text: str, formulas: list[str]) -> str:
    """Return Markdown with a mark for each formula. Its picture, as HTML, is added to ``formulas``.

    One that matplotlib cannot read stays as it is.
    """

    def marked(found: re.Match[str]) -> str:
        tex = found["block"] or found["inline"]
        if not tex or not (picture := _picture(tex.strip(), bool(found["block"]))):
            return found[0]
        formulas.append(picture)
        return f"⟦formula {len(formulas) - 1}⟧"

    return _FORMULA.sub(marked, text)


def with_formulas(html: str, formulas: list[str]) -> str:
    """Return HTML with the pictures in place of their marks."""
    for number, formula in enumerate(formulas):
        html = html.replace(f"⟦formula {number}⟧", formula)
    return html


@functools.cache
def _picture(tex: str, is_block: bool) -> str:
    """Return a formula as an <img> as large as the letters around it, or "" for one unknown."""
    dialect = tex
    for theirs, ours in _DIALECT.items():
        dialect = re.sub(theirs, ours, dialect)
    svg = io.BytesIO()
    with matplotlib.rc_context({"mathtext.fontset": "stix", "svg.hashsalt": "labkit", "svg.fonttype": "path"}):
        try:
            depth = math_to_image(f"${dialect}$", svg, prop=FontProperties(size=_SIZE_PT), dpi=72, format="svg")
        except ValueError:
            return ""
    drawn = _TRIMMINGS.sub(b"", svg.getvalue()).strip()
    width, height = (float(found) / _SIZE_PT for found in re.findall(rb'(?:width|height)="([\d.]+)pt"', drawn)[:2])
    look = f"width:{width:.3g}em;height:{height:.3g}em;vertical-align:{-depth / _SIZE_PT:.3g}em"
    source = f"data:image/svg+xml;base64,{base64.b64encode(drawn).decode()}"
    image = f'<img class="formula" src="{source}" alt="{escape(tex)}" style="{look}">'
    return f'<span class="formula-block">{image}</span>' if is_block else image
