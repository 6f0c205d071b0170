"""Write the numbers of the schedule explorer: metrics side by side, and where time went."""

from __future__ import annotations

import html
from collections.abc import Mapping

import pandas as pd

from labkit.base.formats import MeasuredTable
from labkit.draw.layout import TimeAxis
from labkit.explore.explorer import table_html
from labkit.explore.schedules.values import Metrics
from labkit.simulate.gap import CAUSES


def facts(metrics: Metrics, time: TimeAxis) -> str:
    """Return the line that stands beside the title of a panel."""
    return f"makespan {time(metrics.makespan_s)}, bubble {_percent(metrics.bubbles.fraction)}"


def metrics(runs: Mapping[str, Metrics], time: TimeAxis, cap: float | None) -> pd.DataFrame:
    """Return the metrics of several runs as text, a column for each, against the memory ``cap``."""
    return pd.DataFrame({name: _column(found, time, cap) for name, found in runs.items()})


def _column(found: Metrics, time: TimeAxis, cap: float | None) -> dict[str, str]:
    over = "" if cap is None else f", over the cap of {cap:g}" if found.peak > cap else f", within the cap of {cap:g}"
    return {
        "makespan": time(found.makespan_s),
        "bubble 1: idle ÷ (ranks × makespan)": _percent(found.bubbles.fraction),
        "bubble 2: idle ÷ ideal (Megatron)": _percent(found.bubbles.of_ideal),
        "bubble 3: idle time of a rank": time(found.bubbles.idle_s),
        "bubble 4: between first and last op (zero bubble)": _percent(found.bubbles.inside),
        "peak activations, in micro-batches": f"{found.peak:g} on rank {found.peak_rank}{over}",
        "critical path": f"{found.critical_ops} ops, computing {_percent(found.critical_share)} of the time",
    }


def _percent(share: float) -> str:
    return f"{100 * share + 0.0:.1f} %"


# --- where the time went --------------------------------------------------------------------------


def gap_as_html(name: str, gap: pd.DataFrame) -> str:
    """Return in a sentence where the time of a run went, with the table of its stages folded up."""
    ms = 1000 * pd.DataFrame(gap).set_index("stage")
    causes = ", ".join(f"{cause.removesuffix('_s')} {ms[cause].sum():.1f}" for cause in CAUSES)
    total = ms["total_s"].sum()
    sentence = f"{name}: measured − predicted is {total:.1f} ms: {causes}."
    written = ms.rename(columns=lambda column: f"{column.removesuffix('_s')} (ms)").map("{:.1f}".format)
    stages = table_html(written.rename(index="stage {}".format), index=True)
    return f"<p>{html.escape(sentence)}</p><details><summary>by stage</summary>{stages}</details>"


def gaps(by_name: Mapping[str, pd.DataFrame]) -> MeasuredTable:
    """Return the gap tables of several runs as one, in milliseconds, by schedule and stage."""
    parts = [gap.assign(schedule=name) for name, gap in by_name.items()]
    table = pd.concat([pd.DataFrame(part) for part in parts]).set_index(["schedule", "stage"])
    result = MeasuredTable((1000 * table).rename(columns=lambda name: name.replace("_s", "_ms")))
    result.attrs = dict(parts[0].attrs)
    return result
