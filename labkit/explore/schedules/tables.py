"""Write the numbers of the schedule explorer: metrics side by side, and where time went."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence

import pandas as pd

from labkit.base.formats import MeasuredTable, short
from labkit.base.measurement_html import without_marks
from labkit.draw.timelines import pieces_of
from labkit.explore.html_table import table_html
from labkit.explore.schedules.measure import ScheduleRun
from labkit.simulate import TimedSchedule, bubble_fraction, critical_path, makespan
from labkit.simulate.gap import CAUSES
from labkit.stats import interval, verdict


def metrics(timed: Sequence[TimedSchedule], cap: float | None) -> pd.DataFrame:
    """Return the metrics of schedules as they should run, as text: a column for each, by its name.

    ``cap`` is that of memory. The page has these and more: browser/table.js.
    """
    return pd.DataFrame({each.schedule.name: _column(each, cap) for each in timed})


def _column(timed: TimedSchedule, cap: float | None) -> dict[str, str]:
    events = timed.simulate()
    critical = critical_path(timed.schedule, events)
    computing = (critical["end_s"] - critical["start_s"]).sum() / makespan(events)
    peaks = pieces_of(events, makespan(events)).groupby("rank")["micro_batches"].max()
    peak = float(peaks.max())
    against = "" if cap is None else f", {'over' if peak > cap else 'within'} the cap of {short(cap)}"
    return {
        "makespan": short(makespan(events)),
        "bubble: idle ÷ (ranks × makespan)": f"{100 * bubble_fraction(events):z.1f} %",
        "peak activations, in micro-batches": f"{short(peak)} on rank {peaks.idxmax()}{against}",
        "critical path": f"{len(critical)} ops, computing {100 * computing:.1f} % of the time",
    }


# --- repeated steps -------------------------------------------------------------------------------


def steps_interval(run: ScheduleRun) -> str:
    """Return the median makespan of all steps of a run, with its interval."""
    return interval(1000 * seconds for seconds in run.steps_s).text("ms")


def comparison(runs: Sequence[ScheduleRun]) -> str:
    """Say which of two runs was faster, or that it is noise; of one, how long its steps took."""
    if len(runs) == 1:
        (run,) = runs
        return f"{run.schedule.name}: {steps_interval(run)} (median of {len(run.steps_s)} steps and its 95 % interval)"
    (one, one_s), (other, other_s) = ((run.schedule.name, run.steps_s) for run in runs)
    return without_marks(verdict(one, one_s, other, other_s).text)


# --- where the time went --------------------------------------------------------------------------


def gap_as_html(name: str, gap: pd.DataFrame) -> str:
    """Return in a sentence where the time of a run went, with the table of its stages folded up."""
    ms = 1000 * pd.DataFrame(gap).set_index("stage")
    causes = ", ".join(f"{_words(cause)} {ms[cause].sum():z.1f}" for cause in CAUSES)
    total = ms["total_s"].sum()
    sentence = f"{name}: measured − predicted is {total:z.1f} ms: {causes}."
    written = ms.rename(columns=lambda column: f"{_words(column)} (ms)").map("{:z.1f}".format)
    stages = table_html(written.rename(index="stage {}".format))
    return f"<p>{html.escape(sentence)}</p><details><summary>by stage</summary>{stages}</details>"


def _words(column: str) -> str:
    return column.removesuffix("_s").replace("_", " ")


def gaps(by_name: Mapping[str, pd.DataFrame]) -> MeasuredTable:
    """Return the gap tables of several runs as one, in milliseconds, by schedule and stage."""
    parts = [gap.assign(schedule=name) for name, gap in by_name.items()]
    table = pd.concat([pd.DataFrame(part) for part in parts]).set_index(["schedule", "stage"])
    result = MeasuredTable((1000 * table).rename(columns=lambda name: name.replace("_s", "_ms")))
    result.attrs = dict(parts[0].attrs)
    return result
