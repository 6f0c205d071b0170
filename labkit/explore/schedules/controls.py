"""Hold the controls of the schedule explorer: sliders, menus and texts that make up a state."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import ipywidgets as widgets

from labkit.explore.schedules.state import MOST_CHUNKS, MOST_MICRO, MOST_RANKS, Choice, State, StateError, Times, parse
from labkit.explore.schedules.values import with_ranks

TITLES = {
    "Forward only": "forward",
    "GPipe": "gpipe",
    "1F1B": "1f1b",
    "Interleaved 1F1B": "interleaved",
    "ZB-H1": "zb-h1",
    "ZB-H2": "zb-h2",
    "ZB-V": "zb-v",
}
_WIDE = {"description_width": "120px"}
_LAYOUT = widgets.Layout(width="330px")


class ScheduleControls(widgets.HBox):
    """Sliders and menus; ``state`` is what they say, ``set(state)`` moves them.

    ``on_change(callback)`` is called once for whatever a reader or a program changes, also if that
    moves several controls. With ``per_rank`` on, times are those of the texts ``forward_per_rank``,
    … instead of the sliders: one for each rank.
    """

    def __init__(self, state: State):
        self.schedule, self.chunks = _menu("schedule", TITLES), _count("chunks", MOST_CHUNKS)
        self.other, self.other_chunks = _menu("compare with", {"—": "", **TITLES}), _count("its chunks", MOST_CHUNKS)
        self.n_ranks, self.n_micro = _count("ranks", MOST_RANKS), _count("micro-batches", MOST_MICRO)
        self.forward, self.input_grad, self.weight_grad = map(_time, ("F", "I: input grad", "W: weight grad"))
        self.hop, self.cap = _time("hop", least=0.0), _time("cap (0: none)", least=0.0, most=64.0, step=0.5)
        self.per_rank = widgets.Checkbox(description="times per rank", indent=False, layout=_LAYOUT)
        self.forward_per_rank, self.input_grad_per_rank, self.weight_grad_per_rank = map(_times, "FIW")
        self.text = widgets.Text(description="state", continuous_update=False, style=_WIDE)
        self.text.layout.width = "auto"
        self._quiet, self._changed = False, [lambda: None]
        self._sliders = (self.forward, self.input_grad, self.weight_grad)
        self._texts = (self.forward_per_rank, self.input_grad_per_rank, self.weight_grad_per_rank)
        schedules = (self.schedule, self.chunks, self.other, self.other_chunks, self.n_ranks, self.n_micro)
        costs = (*self._sliders, self.hop, self.cap, self.per_rank, *self._texts)
        super().__init__([widgets.VBox(schedules), widgets.VBox(costs)])
        self.set(state)
        for control in (*schedules, *costs):
            control.observe(self._moved, "value")

    def on_change(self, callback: Callable[[], Any]) -> None:
        self._changed[0] = callback

    # --- what they say ----------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """Return what the controls say.

        Raises StateError for a text of times that says nothing.
        """
        forward, input_grad, weight_grad = self._all_times()
        return State(
            choice=_choice(self.schedule.value, self.chunks.value),
            other=_choice(self.other.value, self.other_chunks.value) if self.other.value else None,
            n_ranks=self.n_ranks.value,
            n_micro=self.n_micro.value,
            forward=forward,
            input_grad=input_grad,
            weight_grad=weight_grad,
            hop=_plain(self.hop.value),
            cap=_plain(self.cap.value) or None,
        )

    def _all_times(self) -> tuple[Times, Times, Times]:
        if not self.per_rank.value:
            forward, input_grad, weight_grad = ((_plain(slider.value),) for slider in self._sliders)
            return forward, input_grad, weight_grad
        read = self._read_texts(self.n_ranks.value)
        return read.forward, read.input_grad, read.weight_grad

    def _read_texts(self, n_ranks: int) -> State:
        written = [f"{key}={''.join(text.value.split())}" for key, text in zip("FIW", self._texts, strict=True)]
        return parse(" ".join([f"n={n_ranks}", *written]))

    # --- to move them -----------------------------------------------------------------------------

    def set(self, state: State) -> None:
        """Move all controls to ``state``."""
        with self._quietly():
            self.schedule.value, self.chunks.value = state.choice
            self.other.value, self.other_chunks.value = state.other or ("", self.other_chunks.value)
            self.n_ranks.value, self.n_micro.value = state.n_ranks, state.n_micro
            times = (state.forward, state.input_grad, state.weight_grad)
            self.per_rank.value = any(len(given) > 1 for given in times)
            for slider, text, given in zip(self._sliders, self._texts, times, strict=True):
                _slide(slider, given[0])
                text.value = _written(given)
            _slide(self.hop, state.hop)
            _slide(self.cap, state.cap or 0.0)
            self._arrange()
        self.text.value = str(state)

    def _moved(self, change: dict[str, Any]) -> None:
        if self._quiet:
            return
        with self._quietly():
            if change["owner"] is self.per_rank and self.per_rank.value:
                for slider, text in zip(self._sliders, self._texts, strict=True):
                    text.value = _written((_plain(slider.value),) * self.n_ranks.value)
            elif change["owner"] is self.n_ranks and self.per_rank.value:
                self._fit_to_ranks(change["old"])
            self._arrange()
        self._changed[0]()

    def _fit_to_ranks(self, n_before: int) -> None:
        with contextlib.suppress(StateError):  # texts that say nothing stay as they are
            now = with_ranks(self._read_texts(n_before), self.n_ranks.value)
            for text, times in zip(self._texts, (now.forward, now.input_grad, now.weight_grad), strict=True):
                text.value = _written(times)

    def _arrange(self) -> None:
        """Show the controls that count."""
        self.chunks.disabled = self.schedule.value != "interleaved"
        self.other_chunks.disabled = self.other.value != "interleaved"
        for slider, text in zip(self._sliders, self._texts, strict=True):
            slider.layout.display, text.layout.display = ("none", "") if self.per_rank.value else ("", "none")

    @contextlib.contextmanager
    def _quietly(self) -> Iterator[None]:
        self._quiet = True
        try:
            yield
        finally:
            self._quiet = False


def _choice(name: str, chunks: int) -> Choice:
    return Choice(name, chunks) if name == "interleaved" else Choice(name)


def _menu(description: str, titles: dict[str, str]) -> widgets.Dropdown:
    return widgets.Dropdown(description=description, options=list(titles.items()), style=_WIDE, layout=_LAYOUT)


def _count(description: str, most: int) -> widgets.IntSlider:
    return widgets.IntSlider(min=1, max=most, description=description, style=_WIDE, layout=_LAYOUT)


def _time(description: str, least: float = 0.1, most: float = 4.0, step: float = 0.1) -> widgets.FloatSlider:
    shown: dict[str, Any] = {"description": description, "readout_format": ".2f", "style": _WIDE}
    return widgets.FloatSlider(least, min=least, max=most, step=step, layout=widgets.Layout(width="330px"), **shown)


def _times(description: str) -> widgets.Text:
    layout = widgets.Layout(width="330px")
    return widgets.Text(description=f"{description} per rank", continuous_update=False, style=_WIDE, layout=layout)


def _slide(slider: widgets.FloatSlider, value: float) -> None:
    """Move ``slider``, and widen it for a value beyond its ends."""
    slider.min, slider.max = min(slider.min, value), max(slider.max, value)
    slider.value = value


def _plain(value: float) -> float:
    """Return what a slider means: 0.3, where its steps of 0.1 add up to 0.30000000000000004."""
    return round(value, 9)


def _written(times: Times) -> str:
    return ",".join(f"{time:.12g}" for time in times)
