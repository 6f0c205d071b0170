"""Hold the controls of the schedule explorer: the menus and sliders that make up a state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ipywidgets as widgets

from labkit.explore.schedules.state import FIELDS, SCHEDULES, Choice, State, for_ranks

LOOK: dict[str, Any] = {"style": {"description_width": "140px"}}


class ScheduleControls(widgets.HBox):
    """Menus and sliders; ``read`` gives the state that they say, ``set(state)`` moves them.

    ``sliders`` has those of numbers by their keys in the state's text. That of a time shows rank
    0's. ``on_change(callback)`` is called once for each control that a reader or a program moves.
    """

    def __init__(self, state: State):
        self.schedule, self.chunks = _menu("schedule"), _slider("v")
        self.other, self.other_chunks = _menu("compare with", ("—", "")), _slider("v", "its chunks")
        self.sliders = {key: _slider(key) for key in ("n", "m", "F", "I", "W", "hop", "cap")}
        n_ranks, n_micro, *costs = self.sliders.values()
        self.capped = widgets.Checkbox(description="memory cap", layout=_layout(), **LOOK)
        self.sliders["cap"].value = 4.0  # what the box begins with
        schedules = (self.schedule, self.chunks, self.other, self.other_chunks, n_ranks, n_micro)
        costs.insert(-1, self.capped)
        super().__init__([widgets.VBox(schedules), widgets.VBox(costs)])
        self._quiet = False
        self._changed: Callable[[], Any] = lambda: None
        self.set(state)
        for control in (*schedules, *costs):
            control.observe(self._moved, "value")

    def on_change(self, callback: Callable[[], Any]) -> None:
        self._changed = callback

    def read(self, shown: State) -> State:
        """Return what the controls say, now that ``shown`` is shown.

        Its times of each rank stay where their slider has not moved.
        """
        said: dict[str, Any] = {FIELDS[key].name: _plain(slider.value) for key, slider in self.sliders.items()}
        for key, times in shown.times.items():
            name = FIELDS[key].name
            said[name] = for_ranks(times, said["n_ranks"]) if said[name] == _plain(times[0]) else (said[name],)
        said["cap"] = said["cap"] if self.capped.value else None
        other = _choice(self.other, self.other_chunks) if self.other.value else None
        return State(_choice(self.schedule, self.chunks), other, **said)

    def set(self, state: State) -> None:
        """Move all controls to ``state``."""
        self._quiet = True
        try:
            self.schedule.value, self.chunks.value = state.choice
            self.other.value, self.other_chunks.value = state.other or ("", self.other_chunks.value)
            times = {key: times[0] for key, times in state.times.items()}
            self.capped.value, cap = state.cap is not None, state.cap or self.sliders["cap"].value
            numbers = {"n": state.n_ranks, "m": state.n_micro, **times, "hop": state.hop, "cap": cap}
            for key, slider in self.sliders.items():
                slider.min, slider.max = min(slider.min, numbers[key]), max(slider.max, numbers[key])
                slider.value = numbers[key]
            self._arrange()
        finally:
            self._quiet = False

    def _moved(self, _: object) -> None:
        if not self._quiet:
            self._arrange()
            self._changed()

    def _arrange(self) -> None:
        """Show the controls that count."""
        _show(self.chunks, self.schedule.value == "interleaved")
        _show(self.other_chunks, self.other.value == "interleaved")
        _show(self.sliders["cap"], self.capped.value)
        for key in "IW":
            _show(self.sliders[key], {self.schedule.value, self.other.value} - {"forward", ""} != set())


def _show(control: widgets.Widget, counts: bool) -> None:
    control.layout.display = "" if counts else "none"


def _choice(menu: widgets.Dropdown, chunks: widgets.IntSlider) -> Choice:
    return Choice(menu.value, chunks.value) if menu.value == "interleaved" else Choice(menu.value)


def _layout() -> widgets.Layout:
    return widgets.Layout(width="350px")


def _menu(description: str, *others: tuple[str, str]) -> widgets.Dropdown:
    options = [*others, *((title, name) for name, (title, _) in SCHEDULES.items())]
    return widgets.Dropdown(description=description, options=options, layout=_layout(), **LOOK)


def _slider(key: str, description: str = "") -> Any:
    """Return the slider of a field: of whole numbers if it is a count."""
    field = FIELDS[key]
    look: dict[str, Any] = {"description": description or field.title, "layout": _layout(), **LOOK}
    if field.kind == "count":
        return widgets.IntSlider(min=int(field.least), max=int(field.most), **look)
    least, most, step = field.drag
    return widgets.FloatSlider(least, min=least, max=most, step=step, readout_format=".2f", **look)


def _plain(value: float) -> float:
    """Return what a slider means: 0.3, where its steps of 0.1 add up to 0.30000000000000004."""
    return round(value, 9)
