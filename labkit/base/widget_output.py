"""Write the two outputs of a widget: itself, and what is seen where it is not."""

from __future__ import annotations

from html import escape
from typing import Any

# On a dark page of JupyterLab, VS Code or Colab white becomes black, and hues stay about the same.
_DARK_PAGE = ':is([data-jp-theme-light="false"], .vscode-dark, [theme="dark"])'
_DARKENED = "filter: invert(0.93) hue-rotate(180deg);"

# Of the two, one is seen. In JupyterLab the class jupyter-widgets on an output itself says that the
# widget's model is gone; a living one has it further in. The class output_container is VS Code's.
_ONE_OF_TWO = """<style>
:is(.jp-OutputArea-child, .output_container):has(.labkit-timeline, .labkit-guess, > .lm-Panel:not(.jupyter-widgets))
  + :has(.labkit-static),
.jp-OutputArea-child:has(> .jupyter-widgets):has(+ * .labkit-static) { display: none; }
</style>"""


def widget_view(model_id: str) -> dict[str, Any]:
    """Return the output that shows a widget, for ``display(..., raw=True)``."""
    return {"application/vnd.jupyter.widget-view+json": {"version_major": 2, "version_minor": 0, "model_id": model_id}}


def instead_of_widget(html: str) -> str:
    """Return HTML for the output after a widget: it is seen where the widget is not."""
    return f'{_ONE_OF_TWO}{_darkens(".labkit-static img")}<div class="labkit-static">{html}</div>'


def themed_picture(source: str, alt: str, size: tuple[int, int]) -> str:
    """Return HTML of a light picture that is turned dark on a dark page; its size is in pixels."""
    width, height = size
    picture = f'<img class="labkit-picture" src="{source}" alt="{escape(alt)}" width="{width}" height="{height}">'
    return _darkens(".labkit-picture") + picture


def _darkens(pictures: str) -> str:
    return f"<style>{_DARK_PAGE} {pictures} {{ {_DARKENED} }}</style>"
