"""A question, or what is said of its guess, as lines with a bar at their left."""

from __future__ import annotations

import re

from labkit.base.said import Lines, as_html


class Card(Lines):
    """Lines of a question. In HTML a measured sentence has no mark, as it is one as a whole."""

    def _repr_html_(self) -> str:
        lines = re.sub(r' style="[^"]*"', "", as_html(self.text)).replace("\n", "<br>")
        return f'<div style="border-left: 4px solid #777777; padding: 0.3em 0.9em">{lines}</div>'
