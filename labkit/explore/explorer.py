"""Give all explorers the same frame: controls, a Timeline, and a line that says how it went."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import ipywidgets

from labkit.explore.static_fallback import StaticFallback, StaticForm
from labkit.explore.timeline import Timeline
from labkit.todo import TodoError


class Explorer(StaticFallback, ipywidgets.VBox):
    """Controls over a Timeline. Kept outputs (LABKIT_STATIC=1) show its static form instead.

    A derived class makes its controls, calls ``super().__init__(rows)`` with them and the
    ``timeline`` among them, and gives ``static_form``. If a callback that is :meth:`guarded`
    fails, the Timeline's line says why, and the explorer lives on.
    """

    def __init__(self, rows: Sequence[ipywidgets.Widget], timeline: Timeline):
        super().__init__(children=list(rows))
        self.add_class("labkit-explorer")
        self.timeline = timeline
        timeline.static_form, timeline.keeps_picture = self.static_form, self.keep_picture

    def __repr__(self) -> str:
        return repr(self.timeline)

    def static_form(self) -> StaticForm:
        """Return what stands for the explorer in print."""
        raise NotImplementedError

    def to_html(self, path: str | os.PathLike[str] | None = None) -> str | None:
        """Write the explorer, as it stands, to ``path``: see :meth:`Timeline.to_html`."""
        return self.timeline.to_html(path)

    def say(self, text: str) -> None:
        """Say ``text`` in the line above the picture, which a screen reader reads aloud."""
        self.timeline.narration = text

    def guarded(self, action: Callable[..., None]) -> Callable[..., str]:
        """Return a callback that does ``action``, and says and returns what it raises, or ""."""

        def callback(*arguments: Any) -> str:
            try:
                action(*arguments)
            except Exception as error:
                self.say(why := sentence_of(error))
                return why
            return ""

        return callback


def sentence_of(error: BaseException) -> str:
    """Return an error as one line for a reader, without its traceback."""
    if isinstance(error, TodoError):
        return f"{error}. Real ranks run your own code: fill in {error.task} first."
    first = next((line for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
