"""Write the two outputs of a widget: itself, and what is seen where it is not."""

from __future__ import annotations

from typing import Any

# Of the two, one is seen. In JupyterLab the class jupyter-widgets on an output itself says that the
# widget's model is gone; a living one has it further in. The class output_container is VS Code's.
# In a dark page a picture is turned dark: its white becomes black, its hues stay about the same.
_ONE_OF_TWO = """<style>
:is(.jp-OutputArea-child, .output_container):has(.labkit-timeline, .labkit-guess, > .lm-Panel:not(.jupyter-widgets))
  + :has(.labkit-static),
.jp-OutputArea-child:has(> .jupyter-widgets):has(+ * .labkit-static) { display: none; }
[data-jp-theme-light="false"] .labkit-static img { filter: invert(0.93) hue-rotate(180deg); }
</style>"""


def widget_view(model_id: str) -> dict[str, Any]:
    """Return the output that shows a widget, for ``display(..., raw=True)``."""
    return {"application/vnd.jupyter.widget-view+json": {"version_major": 2, "version_minor": 0, "model_id": model_id}}


def instead_of_widget(html: str) -> str:
    """Return HTML for the output after a widget: it is seen where the widget is not."""
    return f'{_ONE_OF_TWO}<div class="labkit-static">{html}</div>'
