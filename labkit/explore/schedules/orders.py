"""Write schedules as the page reads them, which draws them by itself (browser/schedules.js).

It does while a slider is dragged, and in a file without a kernel.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from labkit.explore.scene_message import styles_message
from labkit.explore.schedules.state import SCHEDULES, Choice, State
from labkit.explore.schedules.values import n_micro_of, timed_schedule
from labkit.schedule import EVENT_NAMES, Schedule

UNITS = "time (units)"
MAX_RANKS, MAX_MICRO, MAX_CHUNKS = 8, 16, 4  # of the schedules in a file


def pipeline_message(state: State, schedules: Iterable[Schedule]) -> dict[str, Any]:
    """Return what the page needs to draw ``schedules`` with other times than those of ``state``."""
    numbers = {"n": state.n_ranks, "m": state.n_micro, "times": state.times, "hop": state.hop, "cap": state.cap}
    shades = [styles_message(EVENT_NAMES.values(), 1 + chunk) for chunk in range(MAX_CHUNKS)]
    orders = {schedule.name: schedule.to_csv() for schedule in schedules}
    return {"orders": orders, "axis": {"label": UNITS, "unit": "", "per_second": 1.0}, "shades": shades, **numbers}


def schedule_library(state: State) -> dict[str, Any]:
    """Return the orders of all schedules, by name and by ``n,m``.

    They are those up to MAX_RANKS and MAX_MICRO; if ``state`` has more, those of its size alone.
    """
    n, m = state.n_ranks, n_micro_of(state)
    is_small = n <= MAX_RANKS and m <= MAX_MICRO
    ranks, micros = (range(1, MAX_RANKS + 1), range(1, MAX_MICRO + 1)) if is_small else ([n], [m])
    choices = [Choice(name) for name in SCHEDULES] + [Choice("interleaved", v) for v in range(3, MAX_CHUNKS + 1)]
    orders: dict[str, dict[str, str]] = {}
    for choice in dict.fromkeys([*choices, *state.choices]):
        for size in (State(choice, n_ranks=n, n_micro=m) for n in ranks for m in micros):
            if n_micro_of(size) == size.n_micro:
                schedule = timed_schedule(size, choice).schedule
                orders.setdefault(schedule.name, {})[f"{size.n_ranks},{size.n_micro}"] = schedule.to_csv()
    return {"orders": orders}
