"""Write schedules as the page reads them, which draws and explains them by itself.

It has the orders of their ops and their times: see browser/schedules.js. The orders of all
schedules up to MAX_RANKS and MAX_MICRO are an asset, LIBRARY. Make it again with

    python -m labkit.explore.schedules.orders
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from labkit.draw.layout import time_axis
from labkit.explore.scene_message import axis_message, styles_message
from labkit.explore.schedules.state import FIELDS, PRESETS, SCHEDULES, Choice, State
from labkit.explore.schedules.values import n_micro_of, timed_schedule
from labkit.schedule import EVENT_NAMES, Schedule
from labkit.simulate.simulator import UNITS

UNIT_AXIS = time_axis(1.0, UNITS)
MAX_RANKS, MAX_MICRO = 8, 16  # of the schedules that the page has
LIBRARY = Path(__file__).with_name("orders.json.deflated")
_CHUNKS = range(1, int(FIELDS["v"].high) + 1)
Orders = dict[str, dict[str, Any]]  # by choice its title, and its orders by "n,m", each as torch's CSV


def schedule_form() -> dict[str, Any]:
    """Return what the page needs for its controls, and how it draws a schedule."""
    fields = {}
    for key, field in FIELDS.items():
        low, high, step = (field.low, field.high, 1) if field.kind == "count" else field.drag
        fields[key] = {"label": field.title, "min": low, "max": high, "step": step}
        fields[key] |= {"kind": field.kind, "low": field.low, "high": field.high, "expected": field.expected}
    titles = {name: title for name, (title, _) in SCHEDULES.items()}
    shades = [styles_message(EVENT_NAMES.values(), chunks) for chunks in _CHUNKS]
    return {
        "fields": fields,
        "schedules": titles,
        "presets": PRESETS,
        "look": {"axis": axis_message(UNIT_AXIS), "shades": shades},
    }


def pipeline_message(state: State, schedules: Iterable[Schedule]) -> dict[str, Any]:
    """Return a state with the orders of its ``schedules``."""
    return {
        "orders": {schedule.name: schedule.to_csv() for schedule in schedules},
        "choice": state.choice._asdict(),
        "other": state.other and state.other._asdict(),
        "n": state.n_ranks,
        "m": state.n_micro,
        "times": state.times,
        "hop": state.hop,
        "cap": state.cap,
    }


def schedule_library(state: State) -> dict[str, Any]:
    """Return the form of a file, and the orders that it has: see :func:`file_orders`."""
    n, m, form = state.n_ranks, state.n_micro, schedule_form()
    if is_small := n <= MAX_RANKS and m <= MAX_MICRO:
        form["fields"]["n"]["max"], form["fields"]["m"]["max"] = MAX_RANKS, MAX_MICRO
    else:
        form["fields"]["n"] |= {"min": n, "max": n}
        form["fields"]["m"] |= {"min": m, "max": m}
    sizes = (
        f"up to {MAX_RANKS} ranks and {MAX_MICRO} micro-batches"
        if is_small
        else f"{n} ranks and {m} micro-batches alone"
    )
    limit = f"This file has schedules of {sizes}; in a notebook there are more."
    return {"schedules": form | {"limit": limit}, "orders": library_orders() if is_small else orders_of([n], [m])}


def library_orders() -> Orders:
    """Return the orders of LIBRARY."""
    orders: Orders = json.loads(zlib.decompress(LIBRARY.read_bytes()))
    return orders


def orders_of(ranks: Iterable[int], micros: Iterable[int]) -> Orders:
    """Return the orders of all schedules for these ranks and micro-batches.

    Where interleaved 1F1B cannot share out as many, all have those of the nearest number too.
    """
    choices = [Choice(name) for name in SCHEDULES if name != "interleaved"]
    choices += [Choice("interleaved", v) for v in _CHUNKS]
    sizes = {(n, m) for n in ranks for m in micros}
    shared = {(n, n_micro_of(State(choices[-1], n_ranks=n, n_micro=m))) for n, m in sizes}
    library: Orders = {}
    for choice in choices:
        for n, m in sorted(shared if choice.name == "interleaved" else sizes | shared):
            schedule = timed_schedule(State(choice, n_ranks=n, n_micro=m), choice).schedule
            library.setdefault(str(choice), {"title": schedule.name, "orders": {}})["orders"][f"{n},{m}"] = (
                schedule.to_csv()
            )
    return library


if __name__ == "__main__":
    whole = orders_of(range(1, MAX_RANKS + 1), range(1, MAX_MICRO + 1))
    LIBRARY.write_bytes(zlib.compress(json.dumps(whole, separators=(",", ":")).encode(), 9))
