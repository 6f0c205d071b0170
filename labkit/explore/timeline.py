"""Show panels in a notebook: the one widget that all interactive pictures of the lab use."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import anywidget
import pandas as pd
import traitlets

from labkit import draw
from labkit.base.files import write_atomically
from labkit.base.formats import emulated
from labkit.draw.layout import RANK, TimeAxis, from_start, row_word, time_axis, unit_label
from labkit.draw.palette import words_of
from labkit.explore import standalone_html
from labkit.explore.event_tables import EventTables
from labkit.explore.panel import Panel
from labkit.explore.scene_message import scene_of
from labkit.explore.static_fallback import KEPT_CONTENT, StaticFallback, StaticForm
from labkit.schedule import Schedule
from labkit.trace import timings


class Timeline(StaticFallback, anywidget.AnyWidget):
    """An event table to point at, to step through and to zoom into.

    ``narration`` is the line over it, which a screen reader reads aloud. ``static_form()`` returns
    what stands for it where there is no browser. In its file the controls of its ``form`` choose
    from the ``library()``. ``on_control(name, value)`` is called with what a reader chooses, and
    returns why it cannot be, or "".

    ``events`` is what ``simulate(...)`` or a run gives. With a ``schedule``, or where the table is
    one step of a pipeline, each op says what it needs, what waits for it and why it is late. With
    ``ideal``, a second event table of the same ops, what happened lies under what should have.

    Over a measured step of a pipeline are switches: each takes away what the step has lost to a
    cause, as :func:`labkit.simulate.explain_gap` tells causes apart, and the bars slide to where
    they would have run.

        run = launch(step, world_size=4)
        Timeline(run.events, ideal=simulate(schedule, forward=0.01))

    Raises ValueError for a table that is empty, lacks columns, or has times that are missing or
    run backwards, and for one that is not a step of ``schedule``; TypeError for anything but a
    table.
    """

    _esm, _css = standalone_html.module(), standalone_html.style()
    scene: traitlets.Dict = traitlets.Dict().tag(sync=True)
    form: traitlets.Dict = traitlets.Dict().tag(sync=True)  # see labkit.explore.form_explorer, guesses/browser/form.js
    narration = traitlets.Unicode().tag(sync=True)

    def __init__(
        self,
        events: pd.DataFrame | None = None,
        schedule: Schedule | None = None,
        ideal: pd.DataFrame | None = None,
        *,
        title: str = "",
    ):
        super().__init__()
        self.on_control: Callable[..., str] = lambda *_: ""
        self._version = 0
        self.keeps_picture: Callable[[bytes, tuple[int, int]], None] = self.keep_picture
        self.static_form: Callable[[], StaticForm] = self._no_static_form
        self.library: Callable[[], dict[str, Any] | None] = lambda: None
        self.on_msg(self._receive)
        if events is None:
            return
        shown = EventTables.of(events, schedule, ideal, title)
        given = [table for table in (events, ideal) if table is not None]
        if ideal is None:
            table, axis = from_start(shown.tables[""])
            shown = shown._replace(tables={"": table})
        else:
            axis = time_axis(max(float(table["end_s"].max()) for table in shown.tables.values()), unit_label(*given))
        note = emulated(*given)
        takes = _duration(events, ideal, axis)
        self.show([shown], time=axis, alt=f"{_what(events)} {takes}", narration=takes, note=note, title=title)
        self.static_form = lambda: _static_form(events, ideal, self.scene["alt"])

    def __repr__(self) -> str:
        return self.scene.get("alt", "an empty Timeline")

    # --- what is shown ----------------------------------------------------------------------------

    def show(self, panels: Sequence[Panel | EventTables], **about: Any) -> None:
        """Show ``panels`` one under the other, with what :func:`scene_of` says ``about`` them.

        Where the axis is as long as before, the reader's zoom stays.
        """
        self._version += 1
        scene = scene_of(panels, version=self._version, **about)
        with self.hold_sync():  # picture and words arrive together
            self.scene, self.narration = scene, scene["narration"]

    # --- what a reader does -----------------------------------------------------------------------

    def _receive(self, _: Any, message: dict[str, Any], buffers: Sequence[Any]) -> None:
        if "save" in message:
            self._download(message["view"])
        elif "picture" in message:
            self.keeps_picture(bytes(buffers[0]), message["picture"])
        else:
            self._take(message["control"], message["text"])

    def _take(self, control: str, text: Any) -> None:
        """Do what a control says; the form marks the one that was refused, with the reason."""
        why = self.on_control(control, text)
        fault = {"name": control, "text": why} if why else {}
        if fault != self.form.get("fault", {}):
            self.form = self.form | {"fault": fault}

    # --- to keep ----------------------------------------------------------------------------------

    def to_html(self, path: str | os.PathLike[str] | None = None) -> str | None:
        """Write the picture to ``path``: one HTML file that plays and explains without a kernel.

        Without a path, return the text of that file.
        """
        text = self._html()
        if path is None:
            return text
        write_atomically(Path(path), text.encode())
        return None

    def _html(self) -> str:
        title = self.scene["title"] or self.scene["alt"].removesuffix(".") or "labkit timeline"
        return standalone_html.standalone_html(self.scene, title, self.library())

    def kept_content(self) -> dict[str, str]:
        """Return the picture for the metadata of a kept output.

        It plays again on a static site: what was measured stands nowhere else in a notebook.
        """
        return {KEPT_CONTENT: standalone_html.packed(standalone_html.file_content(self.scene))}

    def save(self, name: str, *, alt: str = "", colors: Mapping[str, Any] | None = None) -> draw.Picture:
        """Write ``name`` as .png, .svg, .csv, .alt.txt and .html into the folder of figures.

        The last plays without a kernel, in the colours of its page. ``alt`` is the alt text, if it
        is to say more than the picture's own; ``colors`` are the picture's colours by name. Errors
        are those of :func:`labkit.draw.save` and :func:`labkit.draw.timeline`, and ValueError for a
        picture that is not of events: ``to_html`` writes it, and its button PNG saves it.
        """
        from labkit.base.lab import lab

        form = self.static_form()
        if form.draw is None:
            raise ValueError("save: the page draws this picture; to_html(path) writes it, its button PNG saves it")
        picture = draw.save(form.draw(colors=colors), name, alt=alt or form.alt)
        write_atomically(lab().figures / f"{name}.html", self._html().encode())
        return picture

    def _no_static_form(self) -> StaticForm:
        raise ValueError("this Timeline has no static form: give it one, timeline.static_form = ...")

    def _download(self, view: str) -> None:
        message = {"view": view, "name": "labkit-timeline.html", "type": "text/html"}
        self.send(message, [self._html().encode()])


def _static_form(events: pd.DataFrame, ideal: pd.DataFrame | None, alt: str) -> StaticForm:
    table = timings(events).rename(columns={RANK: row_word(events)})
    if ideal is not None:
        return StaticForm(alt, table, partial(draw.overlay, ideal, events))
    return StaticForm(alt, table, partial(draw.timeline, events))


def _what(events: pd.DataFrame) -> str:
    """Return a sentence on the picture, for readers who cannot see it."""
    ranks, row = sorted(set(events["rank"])), row_word(events)
    names = [words_of(name) for name in dict.fromkeys(events["name"])]
    return f"Timeline of {len(ranks)} {row}{'s' * (len(ranks) > 1)} with {len(events)} bars: {', '.join(names[:6])}."


def _duration(events: pd.DataFrame, ideal: pd.DataFrame | None, time: TimeAxis) -> str:
    ends = f"It takes {time(float(events['end_s'].max() - events['start_s'].min()))}."
    if ideal is None:
        return ends
    return f"{ends} Over it the prediction, which takes {time(float(ideal['end_s'].max() - ideal['start_s'].min()))}."
