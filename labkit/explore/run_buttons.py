"""Run something on real ranks from a button, and let it be stopped."""

from __future__ import annotations

import html
import threading
from collections.abc import Callable

import ipywidgets

from labkit.explore.explorer import sentence_of
from labkit.ranks.messages.message import Progress
from labkit.ranks.output.cell_output import is_stopped, on_progress
from labkit.todo import TodoError


class RunButtons(ipywidgets.HBox):
    """Run something in a thread: the notebook stays free meanwhile, and the run can be stopped.

    A bar says what runs in the ranks, and how far the slowest of them is
    (:func:`labkit.launch.progress`).

    ``stop`` ends the ranks within half a second, or a launch that comes next.

    ``action()`` does it, and returns the sentence to ``say`` when it is over. One run at a time:
    a second start while one is under way only says so. If a task is still a TODO, that stands
    beside the button, which the reader has just pressed.
    """

    def __init__(self, label: str, action: Callable[[], str], say: Callable[[str], None]):
        self.start = ipywidgets.Button(description=label, icon="play", button_style="primary")
        self.stop = ipywidgets.Button(description="Stop", icon="stop", disabled=True)
        self.bar = ipywidgets.IntProgress(style={"description_width": "initial"})
        self.bar.layout.width, self.bar.layout.display = "420px", "none"
        self.refusal = ipywidgets.HTML()
        super().__init__(children=[self.start, self.stop, self.bar, self.refusal])
        self.layout.flex_flow = "row wrap"
        self._action, self._say = action, say
        self._one_at_a_time, self._stop_asked = threading.Lock(), threading.Event()
        self._thread: threading.Thread | None = None
        self.start.on_click(lambda _: self.begin())
        self.stop.on_click(lambda _: self.interrupt())

    def begin(self) -> None:
        """Start a run, unless one is under way."""
        if not self._one_at_a_time.acquire(blocking=False):
            self._say("A run is under way already: wait for it, or stop it.")
            return
        self._stop_asked.clear()
        self.start.disabled, self.stop.disabled = True, False
        self._show_progress(Progress("Starting ranks", 0, None))
        self.bar.layout.display, self.refusal.value = "", ""
        self._say("Running on real ranks …")
        self._thread = threading.Thread(target=self._run, name=self.start.description, daemon=True)
        self._thread.start()

    def interrupt(self) -> None:
        """Stop the run, if there is one."""
        self.stop.disabled = True
        self._stop_asked.set()

    def wait(self) -> None:
        """Wait for the end of the run."""
        if self._thread is not None:
            self._thread.join()

    def _show_progress(self, progress: Progress) -> None:
        desc, done, total, *_ = progress
        self.bar.max, self.bar.value = total or 1, done if total else 0
        self.bar.description = f"{desc}: {done} of {total}" if total else f"{desc} …"

    def _run(self) -> None:
        on_progress.set(self._show_progress)  # in this thread, as the next
        is_stopped.set(self._stop_asked.is_set)
        try:
            narration = self._action()
        except KeyboardInterrupt:
            narration = "Stopped: its ranks have ended."
        except TodoError as error:
            narration, self.refusal.value = "", f'<span role="alert">{html.escape(sentence_of(error))}</span>'
        except Exception as error:
            narration = sentence_of(error)
        self.start.disabled, self.stop.disabled, self.bar.layout.display = False, True, "none"
        self._one_at_a_time.release()
        self._say(narration)
