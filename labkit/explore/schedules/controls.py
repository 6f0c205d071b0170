"""Hold the controls of the schedule explorer: sliders, menus and texts that make up a state."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import ipywidgets as widgets

from labkit.explore.schedules.state import FIELDS, SCHEDULES, Choice, State, StateError, for_ranks, parse, written

_WIDE = {"description_width": "140px"}


class ScheduleControls(widgets.HBox):
    """Sliders and menus; ``state`` is what they say, ``set(state)`` moves them.

    ``on_change(callback)`` is called once for whatever a reader or a program changes, also if that
    moves several controls. With ``per_rank`` on, times are those of the texts ``forward_per_rank``,
    … instead of the sliders: one for each rank.
    """

    def __init__(self, state: State):
        self.schedule, self.chunks = _menu("schedule"), _slider("v")
        self.other, self.other_chunks = _menu("compare with", {"": "—"}), _slider("v", "its chunks")
        self.n_ranks, self.n_micro = _slider("n"), _slider("m")
        self.forward, self.input_grad, self.weight_grad = map(_slider, "FIW")
        self.hop, self.cap = _slider("hop"), _slider("cap")
        self.per_rank = widgets.Checkbox(description="times per rank", indent=False, layout=_layout())
        self.forward_per_rank, self.input_grad_per_rank, self.weight_grad_per_rank = map(_text, "FIW")
        self.text = widgets.Text(description="state", continuous_update=False, style=_WIDE)
        self.text.layout.width = "auto"
        self._quiet = False
        self._changed: Callable[[], Any] = lambda: None
        self._sliders = {"F": self.forward, "I": self.input_grad, "W": self.weight_grad}
        self._texts = {"F": self.forward_per_rank, "I": self.input_grad_per_rank, "W": self.weight_grad_per_rank}
        schedules = (self.schedule, self.chunks, self.other, self.other_chunks, self.n_ranks, self.n_micro)
        costs = (*self._sliders.values(), self.hop, self.cap, self.per_rank, *self._texts.values())
        super().__init__([widgets.VBox(schedules), widgets.VBox(costs)])
        self.set(state)
        for control in (*schedules, *costs):
            control.observe(self._moved, "value")

    def on_change(self, callback: Callable[[], Any]) -> None:
        self._changed = callback

    # --- what they say ----------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """Return what the controls say.

        Raises StateError for a text of times that says nothing.
        """
        return replace(
            self._read_times(self.n_ranks.value),
            choice=_choice(self.schedule, self.chunks),
            other=_choice(self.other, self.other_chunks) if self.other.value else None,
            n_micro=self.n_micro.value,
            hop=_plain(self.hop.value),
            cap=_plain(self.cap.value) or None,
        )

    def _read_times(self, n_ranks: int) -> State:
        """Return a state with the times of so many ranks, read as they would stand in its text."""
        if self.per_rank.value:
            times = {key: "".join(text.value.split()) for key, text in self._texts.items()}
        else:
            times = {key: written(_plain(slider.value)) for key, slider in self._sliders.items()}
        return parse(" ".join([f"n={n_ranks}", *(f"{key}={text}" for key, text in times.items())]))

    # --- to move them -----------------------------------------------------------------------------

    def set(self, state: State) -> None:
        """Move all controls to ``state``."""
        with self._quietly():
            self.schedule.value, self.chunks.value = state.choice
            self.other.value, self.other_chunks.value = state.other or ("", self.other_chunks.value)
            self.n_ranks.value, self.n_micro.value = state.n_ranks, state.n_micro
            self.per_rank.value = any(len(times) > 1 for times in state.times.values())
            for key, times in state.times.items():
                _slide(self._sliders[key], times[0])
                self._texts[key].value = written(times)
            _slide(self.hop, state.hop)
            _slide(self.cap, state.cap or 0.0)
            self._arrange()
        self.text.value = str(state)

    def _moved(self, change: dict[str, Any]) -> None:
        if self._quiet:
            return
        with self._quietly():
            if change["owner"] is self.per_rank and self.per_rank.value:
                for key, slider in self._sliders.items():
                    self._texts[key].value = written((_plain(slider.value),) * self.n_ranks.value)
            elif change["owner"] is self.n_ranks and self.per_rank.value:
                self._fit_to_ranks(change["old"])
            self._arrange()
        self._changed()

    def _fit_to_ranks(self, n_before: int) -> None:
        with contextlib.suppress(StateError):  # texts that say nothing stay as they are
            for key, times in self._read_times(n_before).times.items():
                self._texts[key].value = written(for_ranks(times, self.n_ranks.value))

    def _arrange(self) -> None:
        """Show the controls that count."""
        self.chunks.disabled = self.schedule.value != "interleaved"
        self.other_chunks.disabled = self.other.value != "interleaved"
        for key, slider in self._sliders.items():
            text = self._texts[key]
            slider.layout.display, text.layout.display = ("none", "") if self.per_rank.value else ("", "none")

    @contextlib.contextmanager
    def _quietly(self) -> Iterator[None]:
        self._quiet = True
        try:
            yield
        finally:
            self._quiet = False


def _choice(menu: widgets.Dropdown, chunks: widgets.IntSlider) -> Choice:
    return Choice(menu.value, chunks.value) if menu.value == "interleaved" else Choice(menu.value)


def _layout() -> widgets.Layout:
    return widgets.Layout(width="350px")


def _menu(description: str, without: dict[str, str] | None = None) -> widgets.Dropdown:
    options = [(title, name) for name, title in ((without or {}) | SCHEDULES).items()]
    return widgets.Dropdown(description=description, options=options, style=_WIDE, layout=_layout())


def _slider(key: str, description: str = "") -> Any:
    """Return the slider of a field: of whole numbers if it is a count."""
    field = FIELDS[key]
    look: dict[str, Any] = {"description": description or field.title, "style": _WIDE, "layout": _layout()}
    if field.kind == "count":
        return widgets.IntSlider(min=int(field.least), max=int(field.most), **look)
    least, most, step = field.drag
    return widgets.FloatSlider(least, min=least, max=most, step=step, readout_format=".2f", **look)


def _text(key: str) -> widgets.Text:
    return widgets.Text(description=f"{key} per rank", continuous_update=False, style=_WIDE, layout=_layout())


def _slide(slider: widgets.FloatSlider, value: float) -> None:
    """Move ``slider``, and widen it for a value beyond its ends."""
    slider.min, slider.max = min(slider.min, value), max(slider.max, value)
    slider.value = value


def _plain(value: float) -> float:
    """Return what a slider means: 0.3, where its steps of 0.1 add up to 0.30000000000000004."""
    return round(value, 9)
