"""Write a picture as one HTML file that plays and explains without kernel and network."""

from __future__ import annotations

import base64
import html
import json
import re
import zlib
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from labkit.draw.palette import THEMES, css_colours

BROWSER = Path(__file__).parent / "browser"
_IMPORT = re.compile(r'^import .* from "\./(\w+)\.js";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:class|function|const) (\w+))", re.MULTILINE)

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ margin: 16px auto; max-width: 1180px; padding: 0 16px; background: {light[ground]}; }}
@media (prefers-color-scheme: dark) {{ body {{ background: {dark[ground]}; color: {dark[ink]}; }} }}
h1 {{ font: 600 18px system-ui, sans-serif; }}
{css}
</style>
</head>
<body>
<main>
<h1>{title}</h1>
<div id="timeline"><p>{alt}</p></div>
</main>
<script type="module">
const packed = Uint8Array.from(atob("{packed}"), (letter) => letter.charCodeAt(0));
const unpacked = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
const textContent = await new Response(unpacked).text();
document.body.append(Object.assign(document.createElement("script"), {{ type: "module", textContent }}));
</script>
</body>
</html>
"""


class Slider(NamedTuple):
    """A slider of a file: its name, what it says at each place, and where it is at first.

    ``show(timeline, place)`` shows in a Timeline what is to be seen at a place.
    """

    name: str
    values: list[str]
    at: int
    show: Callable[[Any, int], None]


@cache
def module() -> str:
    """Return the files of ``browser`` as one module: a notebook and a file load a single one."""
    *parts, last = _with_imports("widget").values()
    return "\n".join([*map(_in_its_own_scope, parts), _EXPORT.sub(r"\1", _IMPORT.sub("", last))])


def _with_imports(name: str) -> dict[str, str]:
    """Return the texts of a module and of those that it imports, each after those that it uses."""
    text = (BROWSER / f"{name}.js").read_text(encoding="utf-8")
    used: dict[str, str] = {}
    for other in _IMPORT.findall(text):
        used |= _with_imports(other)
    return used | {name: text}


def _in_its_own_scope(text: str) -> str:
    """Return a module as an expression that gives what it exports."""
    exported = ", ".join(name for _, name in _EXPORT.findall(text))
    body = _EXPORT.sub(r"\1", _IMPORT.sub("", text))
    return f"const {{ {exported} }} = (() => {{\n{body}\nreturn {{ {exported} }};\n}})();"


def style() -> str:
    """Return the style sheet, with the colours of both themes."""
    light, dark = map(css_colours, ("light", "dark"))
    themes = f'.labkit-timeline {{ {light} }}\n.labkit-timeline[data-theme="dark"] {{ {dark} }}\n'
    return themes + (BROWSER / "timeline.css").read_text(encoding="utf-8")


def standalone_html(
    scenes: Sequence[dict[str, Any]],
    title: str,
    slider: Slider | None = None,
    library: dict[str, Any] | None = None,
) -> str:
    """Return the file: scenes as :mod:`labkit.explore.scene_message` makes them.

    With a ``slider`` a reader chooses one of the scenes, with a ``library`` what the page draws.
    Bytes become text in base64.
    """
    numbered = [scene | {"version": k} for k, scene in enumerate(scenes)]
    content = {"scenes": numbered, "slider": slider and slider[:3], "library": library}
    shown = json.dumps(content, separators=(",", ":"), default=_base64)
    code = module().replace("export default { render };", "")
    script = f'{code}openFile(document.getElementById("timeline"), {shown});'
    words = {"title": html.escape(title), "alt": html.escape(scenes[slider.at if slider else 0]["alt"])}
    return _PAGE.format(**THEMES, **words, css=style(), packed=_base64(zlib.compress(script.encode(), 9)))


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
