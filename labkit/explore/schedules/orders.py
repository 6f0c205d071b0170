"""Write schedules as the page reads them, which draws and explains them by itself.

It has the orders of their ops and their times: see browser/schedules.js.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from labkit.draw.layout import time_axis
from labkit.explore.scene_message import styles_message
from labkit.explore.schedules.state import FIELDS, PRESETS, SCHEDULES, Choice, State
from labkit.explore.schedules.values import n_micro_of, timed_schedule
from labkit.schedule import EVENT_NAMES, Schedule
from labkit.simulate.simulator import UNITS

UNIT_AXIS = time_axis(1.0, UNITS)
MAX_RANKS, MAX_MICRO = 8, 16  # of the schedules in a file


def schedule_form(most: dict[str, float] | None = None) -> dict[str, Any]:
    """Return what the page needs for its controls; ``most`` are other upper ends, by key."""
    fields = {}
    for key, field in FIELDS.items():
        low, high, step = (field.least, field.most, 1) if field.kind == "count" else field.drag
        fields[key] = {"label": field.title, "min": low, "max": (most or {}).get(key, high), "step": step}
    titles = {name: title for name, (title, _) in SCHEDULES.items()}
    return {"fields": fields, "schedules": titles, "presets": PRESETS}


def pipeline_message(state: State, schedules: Iterable[Schedule]) -> dict[str, Any]:
    """Return a state with the orders of its ``schedules``."""
    numbers = {"n": state.n_ranks, "m": state.n_micro, "times": state.times, "hop": state.hop, "cap": state.cap}
    shades = [styles_message(EVENT_NAMES.values(), chunks) for chunks in range(1, int(FIELDS["v"].most) + 1)]
    return {
        "orders": {schedule.name: schedule.to_csv() for schedule in schedules},
        "choice": state.choice._asdict(),
        "other": state.other and state.other._asdict(),
        "axis": {"label": UNIT_AXIS.label, "unit": UNIT_AXIS.unit, "per_second": UNIT_AXIS.per_second},
        "shades": shades,
        **numbers,
    }


def schedule_library(state: State) -> dict[str, Any]:
    """Return the form of a file, and the orders of all schedules, by their choice and by ``n,m``.

    They are those up to MAX_RANKS and MAX_MICRO; if ``state`` has more, those of its size alone.
    """
    n, m = state.n_ranks, n_micro_of(state)
    is_small = n <= MAX_RANKS and m <= MAX_MICRO
    ranks, micros = (range(1, MAX_RANKS + 1), range(1, MAX_MICRO + 1)) if is_small else ([n], [m])
    chunks = range(1, int(FIELDS["v"].most) + 1)
    choices = [Choice(name) for name in SCHEDULES if name != "interleaved"]
    choices += [Choice("interleaved", v) for v in chunks]
    library: dict[str, dict[str, Any]] = {}
    for choice in choices:
        for size in (State(choice, n_ranks=n, n_micro=m) for n in ranks for m in micros):
            if n_micro_of(size) == size.n_micro:
                schedule = timed_schedule(size, choice).schedule
                found = library.setdefault(str(choice), {"title": schedule.name, "orders": {}})
                found["orders"][f"{size.n_ranks},{size.n_micro}"] = schedule.to_csv()
    form = schedule_form({"n": max(ranks), "m": max(micros)})
    if not is_small:
        form["fields"]["n"]["min"], form["fields"]["m"]["min"] = n, m
    return {"schedules": form, "orders": library}
