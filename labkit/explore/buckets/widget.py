"""Let a reader try buckets: parameters as blocks, and the Reducer over time."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ipywidgets
import pandas as pd

from labkit.base.checks import check_number, check_world_size
from labkit.cost import Link
from labkit.draw.layout import time_axis
from labkit.draw.painter import panel_figure
from labkit.draw.panel import Panel, TimeAxis
from labkit.explore.buckets.bucket_plan import ASSIGN, RULES, make_buckets
from labkit.explore.buckets.gradients import MIB, MODELS, Gradients, check_model, predicted_gradients
from labkit.explore.buckets.panels import blocks_panel, pass_panel, summary
from labkit.explore.buckets.reducer import Reduction, best_cap, predict
from labkit.explore.explorer import Explorer, table_html
from labkit.explore.standalone_html import Slider
from labkit.explore.static_fallback import StaticForm
from labkit.explore.timeline import Timeline

CAPS_MB = (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 20, 25, 35, 50, 75, 100, 200, 500)
MAX_RANKS = 64
DEFAULT_LINK = Link(20e-6, 12.5e9)  # 100 Gbit/s
_OWN = "own"  # the reader's model
_AS_OTHERS = 0.0  # MiB: the first bucket is as large as the others


def bucket_explorer(
    model: str | Gradients = "gpt2",
    cap_mb: float = 25,
    first_cap_mb: float | None = 1,
    world_size: int = 8,
    link: Link = DEFAULT_LINK,
    backward_s: float | None = None,
) -> BucketExplorer:
    """Show how DDP's buckets hide communication behind backward, to be changed by sliders.

    ``model`` is ``"gpt2"``, ``"bert"``, ``"convnet"`` or ``"mlp"``, or the
    :class:`~labkit.explore.buckets.gradients.Gradients` of a model of the reader's own, with the
    times that were measured. Buckets are those of the reader's own ``assign_buckets``, with
    capacities in MiB; ``first_cap_mb=None`` is the same for all. ``backward_s`` is by default what
    the model's FLOPs take on an assumed GPU.

    Controls can be set from Python too, to what their sliders offer: ``explorer.cap_mb.value = 5``;
    for the first bucket, 0 is the same as the others. ``explorer.reduction`` is the pass that is
    shown.

    Raises ValueError for an unknown model and for a number that is not more than 0, TypeError for
    anything but a Link.
    """
    if not isinstance(model, Gradients):
        check_model(model)
    if not isinstance(link, Link):
        raise TypeError(f"link is {link!r}, expected a labkit.cost.Link, such as Link(20e-6, 12.5e9)")
    check_world_size(world_size)
    for name, value in (("cap_mb", cap_mb), ("first_cap_mb", first_cap_mb), ("backward_s", backward_s)):
        if value is not None:
            check_number(name, value, lambda value: 0 < value < math.inf, "a finite number, more than 0")
    return BucketExplorer(model, cap_mb, first_cap_mb, world_size, link, backward_s)


class BucketExplorer(Explorer):
    """What :func:`bucket_explorer` returns: sliders, a Timeline and numbers."""

    def __init__(
        self,
        model: str | Gradients,
        cap_mb: float,
        first_cap_mb: float | None,
        world_size: int,
        link: Link,
        backward_s: float | None,
    ):
        self.reduction: Reduction
        self._models = {name: predicted_gradients(name) for name in MODELS}
        if isinstance(model, Gradients):
            self._models[_OWN], model = model, _OWN
        most, backwards_ms = max(MAX_RANKS, world_size), [1000 * each.backward_s for each in self._models.values()]
        backward_ms = 1000 * (backward_s or self._models[model].backward_s)
        names = [(each.model, name) for name, each in self._models.items()]
        self.model = ipywidgets.Dropdown(options=names, value=model, description="model", **_LOOK)
        self.rule = ipywidgets.Dropdown(options=list(RULES), description="buckets", **_LOOK)
        self.cap_mb = _slider("bucket size", _size, cap_mb, *CAPS_MB)
        self.first_cap_mb = _slider("first bucket", _size, first_cap_mb or _AS_OTHERS, _AS_OTHERS, *CAPS_MB)
        self.latency_us = _log_slider("latency", "µs", (0, 4), 1e6 * link.latency_s)
        self.bandwidth_gb_s = _log_slider("bandwidth", "GB/s", (-2, 3), link.bytes_per_s / 1e9)
        self.world_size = ipywidgets.IntSlider(world_size, 1, most, description="world size", **_LOOK)
        self.backward_ms = _log_slider("backward", "ms", (0, 4), backward_ms, *backwards_ms)
        controls = [self.rule, self.cap_mb, self.first_cap_mb, self.latency_us, self.bandwidth_gb_s]
        controls += [self.world_size, self.backward_ms]
        self.numbers, timeline = ipywidgets.HTML(), Timeline()
        columns = ipywidgets.Layout(grid_template_columns="repeat(auto-fit, minmax(min(330px, 100%), 1fr))")
        grid = ipywidgets.GridBox([self.model, *controls], layout=columns)
        super().__init__([grid, timeline, self.numbers], timeline)
        timeline.slider = self._slider_of_file
        self.model.observe(self.guarded(self._model_changed), "value")
        for control in controls:
            control.observe(self.guarded(self.refresh), "value")
        self.guarded(self.refresh)()

    # --- what the controls say --------------------------------------------------------------------

    @property
    def link(self) -> Link:
        return Link(self.latency_us.value / 1e6, 1e9 * self.bandwidth_gb_s.value)

    @property
    def _first_cap_mb(self) -> float | None:
        return self.first_cap_mb.value or None

    @property
    def gradients(self) -> Gradients:
        return self._models[self.model.value].lasting(self.backward_ms.value / 1000)

    def _model_changed(self) -> None:
        """Show another model, whose backward pass takes another time."""
        backward_ms = 1000 * self._models[self.model.value].backward_s
        if backward_ms == self.backward_ms.value:
            self.refresh()
        self.backward_ms.value = backward_ms  # which refreshes if it is another one

    # --- what is shown ----------------------------------------------------------------------------

    def refresh(self) -> None:
        """Predict the pass that the controls describe, and show it."""
        self.reduction, fault = self._predict(self.cap_mb.value)
        by_size = self.rule.value == ASSIGN and not fault
        self.cap_mb.disabled = self.first_cap_mb.disabled = not by_size
        _show_pass(self.timeline, self.reduction, self._note)
        numbers = _numbers_of(self.reduction)
        if by_size:
            passes = {cap: self._predict(cap)[0] for _, cap in self.cap_mb.options}
            numbers.loc["best bucket size on the slider"] = f"{best_cap(passes):g} MiB"
        self.numbers.value = table_html(numbers, index=True)
        self.say(fault or self.timeline.scene["alt"])

    @property
    def _note(self) -> str:
        return f"When gradients are ready: {self.gradients.source.partition(' at ')[0]}; link: {self.link}"

    def _predict(self, cap_mb: float) -> tuple[Reduction, str]:
        """Return the pass with buckets of this size, and what is wrong with them, if anything."""
        plan = make_buckets(self.gradients.sizes_bytes, self.rule.value, cap_mb, self._first_cap_mb)
        return predict(self.gradients, plan.buckets, self.world_size.value, self.link), plan.note

    def _slider_of_file(self) -> Slider | None:
        """Return the slider of bucket sizes for a file, which has no kernel."""
        if self.cap_mb.disabled:
            return None
        texts, caps = zip(*self.cap_mb.options, strict=True)
        note = self._note

        def show(timeline: Timeline, place: int) -> None:
            _show_pass(timeline, self._predict(caps[place])[0], note)

        return Slider(self.cap_mb.description, list(texts), self.cap_mb.index, show)

    def static_form(self) -> StaticForm:
        figure = panel_figure(*_panels(self.reduction), self._note)
        return StaticForm(figure, self.timeline.scene["alt"], _numbers_of(self.reduction))


def _panels(reduction: Reduction) -> tuple[list[Panel], TimeAxis]:
    """Return the blocks, and under them the pass, with the axis of the latter."""
    axis = time_axis(reduction.end_s)
    return [blocks_panel(reduction), pass_panel(reduction, axis)], axis


def _show_pass(timeline: Timeline, reduction: Reduction, note: str) -> None:
    """Show blocks and pass in a Timeline."""
    panels, axis = _panels(reduction)
    alt = f"Gradients and all_reduces, predicted: {summary(reduction, axis)}."
    timeline.show(panels, time=axis, alt=alt, note=note)


_LOOK: dict[str, Any] = {"style": {"description_width": "90px"}, "layout": {"width": "auto"}}
_STEPS = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)  # of each power of ten


def _slider(description: str, text: Callable[[float], str], *values: float) -> ipywidgets.SelectionSlider:
    """Return a slider over ``values``, of which the first is chosen; ``text`` says each."""
    options = [(text(value), value) for value in sorted({*values})]
    return ipywidgets.SelectionSlider(options=options, value=values[0], description=description, **_LOOK)


def _size(cap_mb: float) -> str:
    return f"{cap_mb:g} MiB" if cap_mb else "same as the others"


def _log_slider(description: str, unit: str, powers: tuple[int, int], *values: float) -> ipywidgets.SelectionSlider:
    """Return a slider over powers of ten and ``values``, of which the first is chosen.

    ipywidgets has one of its own, which moves what it is given to the nearest step.
    """
    grid = [step * 10.0**power for power in range(*powers) for step in _STEPS]

    def text(value: float) -> str:
        return f"{value:,.0f} {unit}" if value >= 1000 else f"{value:.3g} {unit}"

    return _slider(description, text, *values, *grid, 10.0 ** powers[1])


def _numbers_of(one: Reduction) -> pd.DataFrame:
    hidden, axis = one.hidden_share, time_axis(one.end_s)
    numbers = {
        "gradients": f"{len(one.gradients.names)}, {one.gradients.n_bytes / MIB:.4g} MiB",
        "buckets": f"{len(one.buckets)}",
        "backward": axis(one.backward_s),
        "communication": axis(one.communication_s),
        "exposed communication": axis(one.exposed_s),
        "hidden": "nothing is sent" if hidden is None else f"{100 * hidden:.0f} %",
        "until all gradients are averaged": axis(one.end_s),
    }
    return pd.DataFrame({"predicted": numbers})
