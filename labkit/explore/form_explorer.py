"""Show a picture over a form: every choice is a control in the page and a trait in Python."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import pandas as pd
import traitlets

from labkit.draw.panel import TimeAxis
from labkit.explore.explorer import Explorer
from labkit.explore.html_table import table_html
from labkit.explore.panel import Panel
from labkit.explore.run_buttons import RunButtons
from labkit.explore.scene_message import scene_of
from labkit.explore.static_fallback import StaticForm
from labkit.explore.timeline import Timeline


class Control(NamedTuple):
    """A choice of a form: ``options`` are its values by what they are called.

    ``look`` is ``"menu"``, ``"slider"`` or ``"buttons"``. A file without a kernel has the pictures
    of the options ``in_file`` alone.
    """

    name: str
    label: str
    options: Mapping[str, Any]
    look: str = "menu"
    in_file: Collection[Any] = ()

    def text_of(self, value: Any) -> str:
        return next(text for text, option in self.options.items() if option == value)


class View(NamedTuple):
    """What an explorer shows: panels with their alt text and note, and a table of numbers.

    Panels lie on an axis of ``time``, or without it on columns; a grid ``opens_at`` a step.
    ``narration`` stands above the picture, and controls that do not count now are ``disabled``.
    ``title`` stands over a file. In print it is ``printed``, if that is something else.
    """

    panels: Sequence[Panel]
    alt: str
    table: pd.DataFrame
    note: str = ""
    opens_at: int = 0
    time: TimeAxis | None = None
    narration: str = ""
    disabled: Collection[str] = ()
    title: str = ""
    printed: View | None = None


class FormExplorer(Explorer):
    """A picture over a form.

        explorer = ring_explorer()
        explorer.ranks = 8                       # as its slider does
        explorer.observe(print, "ranks")

    ``view(recorded, **values)`` returns what to show for the ``values`` of ``controls``;
    ``recorded`` is what real ranks did, None before. ``run`` is a button's label, and what it does
    to the explorer; that returns the narration.
    Assigning anything but an option raises TraitError.
    """

    def __init__(
        self,
        view: Callable[..., View],
        controls: Sequence[Control],
        values: Mapping[str, Any],
        *,
        run: tuple[str, Callable[[Any], str]] | None = None,
    ):
        self.view, self.recorded = view, None
        self.controls = {control.name: control for control in controls}
        self.record: Callable[[], str] | None = None
        self.runner: RunButtons | None = None
        if run:
            label, action = run
            self.record = partial(action, self)
            self.runner = RunButtons(label, self.record, self.say)
        timeline = Timeline()
        super().__init__([*([self.runner] if self.runner else []), timeline], timeline)
        options = {name: list(control.options.values()) for name, control in self.controls.items()}
        self.add_traits(**{name: traitlets.Enum(options[name], default_value=values[name]) for name in options})
        self.observe(self.guarded(lambda _: self.refresh()), [*options])
        self.timeline.on_control = self.guarded(self._take)
        self.timeline.library = self._library
        self.refresh()

    @property
    def values(self) -> dict[str, Any]:
        """What is chosen, by the names of the controls."""
        return {name: getattr(self, name) for name in self.controls}

    def _take(self, name: str, text: str) -> None:
        """Choose what a reader chose in the page."""
        setattr(self, name, self.controls[name].options[text])

    def refresh(self) -> None:
        """Show what is chosen."""
        self.shown = shown = self.view(self.recorded, **self.values)
        with self.timeline.hold_sync():
            self.timeline.form = {"controls": self._form(shown)}
            self.timeline.show(shown.panels, **self._about(shown))

    def _about(self, shown: View) -> dict[str, Any]:
        names = ("time", "alt", "narration", "note", "opens_at", "title")
        return {name: getattr(shown, name) for name in names} | {"numbers": table_html(shown.table)}

    def _form(self, shown: View) -> list[dict[str, Any]]:
        return [
            {
                "name": name,
                "label": control.label,
                "look": control.look,
                "options": [*control.options],
                "value": control.text_of(getattr(self, name)),
                "disabled": name in shown.disabled,
            }
            for name, control in self.controls.items()
        ]

    def _library(self) -> dict[str, Any]:
        """Return the form of a file, and the pictures of all of its choices, by their texts."""
        form = []
        for each in self._form(self.shown):
            options = self.controls[each["name"]].options
            texts = [text for text, value in options.items() if value in self.controls[each["name"]].in_file]
            if each["value"] in texts and not each["disabled"]:
                form.append(each | {"options": texts})
        scenes = {}
        for choice in itertools.product(*(each["options"] for each in form)):
            chosen = {each["name"]: text for each, text in zip(form, choice, strict=True)}
            values = {name: self.controls[name].options[text] for name, text in chosen.items()}
            shown = self.view(self.recorded, **self.values | values)
            scene = scene_of(shown.panels, **self._about(shown))
            scenes["\n".join(choice)] = scene | {"disabled": [*shown.disabled]}
        return {"controls": form, "scenes": scenes}

    def show_recorded(self, recorded: Any, **values: Any) -> None:
        """Show what real ranks did, and choose ``values``."""
        self.recorded = recorded
        with self.hold_trait_notifications():
            for name, value in values.items():
                setattr(self, name, value)
        self.refresh()

    def table(self) -> pd.DataFrame:
        """Return the numbers that belong to the picture."""
        return self.shown.table

    def static_form(self) -> StaticForm:
        """Return what stands for it in print: its picture, and the table."""
        shown = self.shown.printed or self.shown
        return StaticForm(shown.alt, shown.table, scene=lambda: scene_of(shown.panels, **self._about(shown)))
