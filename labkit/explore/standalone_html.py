"""Write a picture as one HTML file that plays and explains without kernel and network."""

from __future__ import annotations

import base64
import html
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from labkit.draw.palette import THEMES

BROWSER = Path(__file__).parent / "browser"
_IMPORT = re.compile(r'^import .* from "\./(\w+)\.js";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:class|function|const) (\w+))", re.MULTILINE)
MOST_EXPLAINED = 20_000  # bars: an explanation takes some 300 bytes of the file
MOST_NARRATED = 3000  # steps by clock, and by event

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
<script type="application/json" id="scene">{scene}</script>
<script type="module">
{module}
const {{ scene, written }} = JSON.parse(document.getElementById("scene").textContent);
openFile(document.getElementById("timeline"), scene, written);
</script>
</body>
</html>
"""


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
    colours = {theme: " ".join(f"--lk-{name}: {each};" for name, each in THEMES[theme].items()) for theme in THEMES}
    themes = f'.labkit-timeline {{ {colours["light"]} }}\n.labkit-timeline[data-theme="dark"] {{ {colours["dark"]} }}\n'
    return themes + (BROWSER / "timeline.css").read_text(encoding="utf-8")


def standalone_html(scene: dict[str, Any], written: dict[str, Any], title: str) -> str:
    """Return the file: a scene as :mod:`labkit.explore.scene_message` makes it, with all answers.

    ``written`` has them by kind, panel and index. Bytes become text in base64.
    """
    said = {"scene": scene, "written": written}
    content = json.dumps(said, separators=(",", ":"), default=_base64).replace("<", "\\u003c")
    code = module().replace("export default { render };", "").replace("</script", "<\\/script")
    words = {"title": html.escape(title), "alt": html.escape(scene["alt"])}
    return _PAGE.format(**THEMES, **words, css=style(), scene=content, module=code)


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
