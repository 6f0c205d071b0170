"""Let a reader try buckets: parameters as blocks, and the Reducer over time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd

from labkit.base.units import MIB
from labkit.cost import Link
from labkit.draw.layout import time_axis
from labkit.draw.panel import TimeAxis
from labkit.explore.buckets.gradients import MODELS, Gradients, predicted_gradients
from labkit.explore.buckets.panels import blocks_panel, pass_panel, summary
from labkit.explore.buckets.reducer import ASSIGN, RULES, Reduction, best_cap, make_buckets, predict
from labkit.explore.form_explorer import Control, FormExplorer, View
from labkit.explore.panel import Panel

CAPS_MB = (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 20, 25, 35, 50, 75, 100, 200, 500)
MAX_RANKS = 64
_AS_OTHERS = 0  # MiB: the first bucket is as large as the others
_START = {"rule": ASSIGN, "latency_us": 20, "bandwidth_gb_s": 12.5}  # 100 Gbit/s


def bucket_explorer(
    model: str = "gpt2", cap_mb: float = 25, first_cap_mb: float | None = 1, world_size: int = 8
) -> BucketExplorer:
    """Show how DDP's buckets hide communication behind backward, to be changed by sliders.

    ``model`` is ``"gpt2"``, ``"bert"``, ``"convnet"`` or ``"mlp"``. Buckets are those of the
    reader's own ``assign_buckets``, with capacities in MiB; ``first_cap_mb=None`` is the same for
    all. Backward takes at first what the model's FLOPs take on an assumed GPU.

    Controls can be set from Python too, to what their sliders offer: ``explorer.cap_mb = 5``; for
    the first bucket, 0 is the same as the others. ``explorer.reduction`` is the pass that is
    shown.

    Raises ValueError for an unknown model, TraitError for what no slider offers.
    """
    return BucketExplorer(model, cap_mb, first_cap_mb or _AS_OTHERS, world_size)


class BucketExplorer(FormExplorer):
    """What :func:`bucket_explorer` returns: a form, a Timeline and numbers."""

    model: str  # a trait, as all controls are
    backward_ms: float

    def __init__(self, model: str, cap_mb: float, first_cap_mb: float, world_size: int):
        backward_s = predicted_gradients(model).backward_s
        self._models = {name: predicted_gradients(name) for name in MODELS}
        backwards_ms = [1000 * each.backward_s for each in self._models.values()]
        controls = [
            Control("model", "model", {each.model: name for name, each in self._models.items()}),
            Control("rule", "buckets", {rule: rule for rule in RULES}, in_file=RULES),
            _slider("cap_mb", "bucket size", _size, *CAPS_MB)._replace(in_file=CAPS_MB),
            _slider("first_cap_mb", "first bucket", _size, _AS_OTHERS, *CAPS_MB),
            _log_slider("latency_us", "latency", "µs", (0, 4)),
            _log_slider("bandwidth_gb_s", "bandwidth", "GB/s", (-2, 3), 12.5),
            Control("world_size", "world size", {str(n): n for n in range(1, MAX_RANKS + 1)}, "slider"),
            _log_slider("backward_ms", "backward", "ms", (0, 4), *backwards_ms),
        ]
        self._model = model
        given = {"cap_mb": cap_mb, "first_cap_mb": first_cap_mb, "world_size": world_size}
        start = {**_START, **given, "model": model, "backward_ms": 1000 * backward_s}
        super().__init__(self._view, controls, start)

    def refresh(self) -> None:
        """Show what is chosen; the backward pass of another model takes as long as its own."""
        own_ms = 1000 * self._models[self.model].backward_s
        is_other, self._model = self.model != self._model, self.model
        if is_other and own_ms != self.backward_ms:
            self.backward_ms = own_ms  # which comes back here
        else:
            super().refresh()

    @property
    def gradients(self) -> Gradients:
        """The model's gradients, and when they are ready."""
        return _gradients(self._models, **self.values)

    @property
    def reduction(self) -> Reduction:
        """The pass that is shown."""
        return _predict(self.gradients, **self.values)[0]

    def _view(self, _: None, **values: Any) -> View:
        """Return the pass of these values as a picture."""
        gradients = _gradients(self._models, **values)
        reduction, fault = _predict(gradients, **values)
        by_size = values["rule"] == ASSIGN and not fault
        numbers = _numbers_of(reduction)
        if by_size:
            caps = self.controls["cap_mb"].options.values()
            best = best_cap({cap: _predict(gradients, **values | {"cap_mb": cap})[0] for cap in caps})
            numbers.loc["best bucket size on the slider"] = f"{best:g} MiB"
        panels, axis = _panels(reduction)
        alt = f"Gradients and all_reduces, predicted: {summary(reduction, axis)}."
        title = f"{gradients.model} in {len(reduction.buckets)} buckets, on {values['world_size']} ranks"
        note = f"When gradients are ready: {gradients.source.partition(' at ')[0]}; link: {_link(**values)}"
        disabled = () if by_size else ("cap_mb", "first_cap_mb")
        return View(panels, alt, numbers, note, time=axis, narration=fault or alt, disabled=disabled, title=title)


def _gradients(models: dict[str, Gradients], *, model: str, backward_ms: float, **_: Any) -> Gradients:
    return models[model].lasting(backward_ms / 1000)


def _link(*, latency_us: float, bandwidth_gb_s: float, **_: Any) -> Link:
    return Link(latency_us / 1e6, 1e9 * bandwidth_gb_s)


def _predict(
    gradients: Gradients, *, rule: str, cap_mb: float, first_cap_mb: float, world_size: int, **values: Any
) -> tuple[Reduction, str]:
    """Return the pass with buckets of this size, and what is wrong with them, if anything."""
    buckets, fault = make_buckets(gradients.sizes_bytes, rule, cap_mb, first_cap_mb or None)
    return predict(gradients, buckets, world_size, _link(**values)), fault


def _panels(reduction: Reduction) -> tuple[list[Panel], TimeAxis]:
    """Return the blocks, and under them the pass with its axis."""
    axis = time_axis(reduction.end_s)
    return [blocks_panel(reduction), pass_panel(reduction, axis)], axis


_STEPS = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)  # of each power of ten


def _slider(name: str, label: str, text: Callable[[float], str], *values: float) -> Control:
    """Return a slider over ``values``; ``text`` says each."""
    by_text = {text(value): value for value in values}  # of two that are written alike, the later one
    return Control(name, label, dict(sorted(by_text.items(), key=lambda each: each[1])), "slider")


def _size(cap_mb: float) -> str:
    return f"{cap_mb:g} MiB" if cap_mb else "same as the others"


def _log_slider(name: str, label: str, unit: str, powers: tuple[int, int], *values: float) -> Control:
    """Return a slider over powers of ten and ``values``."""
    grid = [step * 10.0**power for power in range(*powers) for step in _STEPS]

    def text(value: float) -> str:
        return f"{value:,.0f} {unit}" if value >= 1000 else f"{value:.3g} {unit}"

    return _slider(name, label, text, *grid, 10.0 ** powers[1], *values)


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
