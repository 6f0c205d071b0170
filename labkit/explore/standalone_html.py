"""Write a picture as one HTML file that plays and explains without kernel and network."""

from __future__ import annotations

import base64
import html
import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from labkit.base.javascript import bundle
from labkit.draw.palette import THEMES
from labkit.guesses.form import form_style

BROWSER = Path(__file__).parent / "browser"

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
#picture:target :is(h1, #timeline > p:not([class]), .lk-toolbar, .lk-card, .lk-form, .lk-numbers, .lk-below) {{ display: none; }}
#picture:target .lk-narration {{ min-height: 0; }}
#picture:target .labkit-timeline:not([data-drawn]) {{ visibility: hidden; }}
{css}
</style>
</head>
<body>
<main id="picture">
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


def module() -> str:
    """Return the files of ``browser`` as one module."""
    return bundle(BROWSER / "widget.js")


def style() -> str:
    """Return the style sheet, with the colours of both themes."""
    return form_style("labkit-timeline") + (BROWSER / "timeline.css").read_text(encoding="utf-8")


def standalone_html(scene: dict[str, Any], title: str, library: dict[str, Any] | None = None) -> str:
    """Return the file of a scene as :mod:`labkit.explore.scene_message` makes it.

    With a ``library`` it has a form, which chooses from it. At ``#picture`` it shows nothing to
    press.
    """
    shown = f'openFile(document.getElementById("timeline"), {file_content(scene, library)});'
    words = {"title": html.escape(title), "alt": html.escape(scene["alt"])}
    return _PAGE.format(**THEMES, **words, css=style(), packed=packed(file_module() + shown))


def file_module() -> str:
    """Return the module of a page without a kernel, in which ``openFile`` shows a content."""
    return module().replace("export default { render };", "")


def file_content(scene: dict[str, Any], library: dict[str, Any] | None = None) -> str:
    """Return, as JSON, what ``openFile`` shows: a scene, and what its form chooses from.

    Bytes become text in base64. Scenes share what they have in common: texts, and columns, are in
    it once.
    """
    scenes = [scene, *(library or {}).get("scenes", {}).values()]
    shared, numbers = _share(scenes)
    if library and "scenes" in library:
        library = library | {"scenes": dict(zip(library["scenes"], numbers[1:], strict=True))}
    return json.dumps(shared | {"library": library}, separators=(",", ":"), default=_base64)


def packed(text: str) -> str:
    """Return a text as a page unpacks it: deflated, in base64."""
    return _base64(zlib.compress(text.encode(), 9))


def _share(scenes: Sequence[dict[str, Any]]) -> tuple[dict[str, Any], list[int]]:
    """Return scenes that have numbers of panels, panels that have numbers of texts, and these.

    What there is twice is there once: with it come the numbers of the scenes. Texts are sorted, so
    those that are alike pack well.
    """
    texts = sorted({text for scene in scenes for panel in scene["panels"] for text in panel.get("sentences", ())})
    number = {text: k for k, text in enumerate(texts)}
    panels, different = dict[str, int](), dict[str, int]()

    def numbered(shown: dict[str, Any], known: dict[str, int]) -> int:
        written = json.dumps(shown, separators=(",", ":"), default=_base64)
        return known.setdefault(written, len(known))

    def of_panel(panel: dict[str, Any]) -> int:
        sentences = {"sentences": [number[text] for text in panel["sentences"]]} if "sentences" in panel else {}
        return numbered(panel | sentences, panels)

    numbers = [numbered(scene | {"panels": [*map(of_panel, scene["panels"])]}, different) for scene in scenes]
    return {"scenes": [*map(json.loads, different)], "panels": [*map(json.loads, panels)], "texts": texts}, numbers


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
