"""Add what each assignment asks for: CMU's 11-868, and Princeton's COS 598D."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from labkit.base.texts import listed
from labkit.course.archive import Archive

TRAIN = "python -m labkit.train"


class Layout(NamedTuple):
    """How an archive is laid out.

    ``add(archive)`` adds what only this layout has. The report of one that ``needs_name``
    is named after its author.
    """

    add: Callable[[Archive], None]
    needs_name: bool = False


class Wanted(NamedTuple):
    """A training run that an assignment asks for: what it is, how to tell it, how to make it."""

    label: str
    fits: Callable[[dict[str, Any]], bool]
    command: str


def runs(lab: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield folder and ``merged.json`` of each training run in the lab, the latest last."""
    files = [*lab.glob("runs/*/merged.json"), *lab.glob("*/merged.json")]
    for file in sorted(files, key=lambda file: file.stat().st_mtime):
        try:
            merged = json.loads(file.read_text(encoding="utf-8"))
            merged["config"]["seed"], merged["world_size"], merged["devices"]  # of another version, or half of it
        except (OSError, ValueError, KeyError, TypeError):
            continue
        yield file.parent, merged


def _latest(lab: Path, wanted: Wanted) -> tuple[Path, dict[str, Any]] | None:
    return next((each for each in reversed(list(runs(lab))) if wanted.fits(each[1])), None)


# --- CMU 11-868 -----------------------------------------------------------------------------------


def _translates(mode: str, world_size: int = 1) -> Callable[[dict[str, Any]], bool]:
    def fits(merged: dict[str, Any]) -> bool:
        return bool(merged["config"].get("mode") == mode and merged["world_size"] == world_size)

    return fits


_PROBLEMS = {
    "1.3": (
        Wanted("one device", _translates("data_parallel"), f"{TRAIN} translate --world-size 1"),
        Wanted("two devices", _translates("data_parallel", 2), f"{TRAIN} translate --world-size 2 --save-gradients"),
    ),
    "2.3": tuple(
        Wanted(mode.replace("_", " "), _translates(mode), f"{TRAIN} translate --mode {mode}")
        for mode in ("model_parallel", "pipeline_parallel")
    ),
}
_SHOWN = {
    "training_time": ("epoch_s", "epoch_std", "s an epoch"),
    "tokens_per_second": ("tokens_per_s", "tokens_std", "tokens per second"),
}


def _add_11_868(archive: Archive) -> None:
    """Add ``submit_figures`` with the runs that they show."""
    for problem, compared in _PROBLEMS.items():
        found = {wanted.label: _latest(archive.lab, wanted) for wanted in compared}
        for wanted in compared:
            if found[wanted.label] is None:
                archive.warnings.append(
                    f"submit_figures: those of problem {problem} are missing: there is no run of {wanted.label}. "
                    f"Make it: {wanted.command}"
                )
        there = {label: each for label, each in found.items() if each}
        for label, (folder, _) in there.items():
            archive.add_file(folder / "merged.json", f"submit_figures/{problem}_{label.replace(' ', '_')}.json")
        if len(there) == len(found):
            _add_figures(archive, problem, {label: merged for label, (_, merged) in there.items()})
    two = _latest(archive.lab, _PROBLEMS["1.3"][1])
    gradients = sorted(two[0].glob("*_gradients.pth")) if two else []
    for file in gradients:
        archive.add_file(file, f"submit_figures/{file.name}")
    if not gradients:
        archive.warnings.append(
            f"the ranks' gradients of problem 1.2 are missing. Make them: {_PROBLEMS['1.3'][1].command}"
        )


def _add_figures(archive: Archive, problem: str, merged: dict[str, dict[str, Any]]) -> None:
    """Add the figures of a problem: times and rates of its two runs."""
    from labkit.draw import charts
    from labkit.draw.picture import figure_of, render
    from labkit.train.metrics import table

    rows = pd.DataFrame(table(merged))
    devices = listed(sorted({each for run in merged.values() for each in run["devices"]}))
    devices += ": CPU cores, which virtual devices share" if "cpu" in devices else ""
    for name, (value, error, label) in _SHOWN.items():
        some = rows[error].notna().all()
        axes = charts.bars(rows, group="run", value=value, error=error if some else None, label=label, note=devices)
        bars = ", ".join(f"{row['run']} {row[value]:.3g} {label}" for row in rows.to_dict("records"))
        alt = f"Problem {problem}, on {devices}: {bars}"
        figure = figure_of(axes, name)
        archive.add(f"submit_figures/{problem}_{name}.png", render(figure, "png", alt))
        archive.add(f"submit_figures/{problem}_{name}.csv", rows.to_csv(index=False))


# --- Princeton COS 598D ---------------------------------------------------------------------------

_RUN_GLUE = '''"""Train BERT on RTE: task {task}, in which the ranks agree by {sync}.

    python run_glue.py [other args] --master_ip $ip --master_port $port --world_size 4 --local_rank $rank
"""

import sys

from labkit.train import main

if __name__ == "__main__":
    main(["glue", "--sync", "{sync}", *sys.argv[1:]])
'''


def _agrees_by(sync: str) -> Wanted:
    def fits(merged: dict[str, Any]) -> bool:
        return bool(merged["config"].get("sync") == sync)

    return Wanted(sync, fits, f"{TRAIN} glue --sync {sync} --output-dir runs/{sync}")


GLUE_TASKS = {"task2a": _agrees_by("gather_scatter"), "task2b": _agrees_by("all_reduce"), "task3": _agrees_by("ddp")}
_ONE_PROCESS = _agrees_by("none")


def _add_cos598d(archive: Archive) -> None:
    """Add a directory for each task that runs by itself, with the losses of its run."""
    for task, wanted in GLUE_TASKS.items():
        archive.add(f"{task}/run_glue.py", _RUN_GLUE.format(task=task.removeprefix("task"), sync=wanted.label))
        if (found := _latest(archive.lab, wanted)) is None:
            archive.warnings.append(f"{task} has no losses: there is no run. Make it: {wanted.command}")
            continue
        for file in (found[0] / "merged.json", *sorted(found[0].glob("loss_*.txt"))):
            archive.add_file(file, f"{task}/losses/{file.name}")


def report_of_glue(lab: Path, name: str = "") -> str:
    """Return the assignment's table as Markdown: accuracies (task 1), times (tasks 2 and 3)."""
    columns = ("run", "ranks", "data, model", "accuracy after each epoch", "iterations", "s per iteration")
    rows = [columns, ["---"] * len(columns)]
    for task, wanted in {"task 1": _ONE_PROCESS, **GLUE_TASKS}.items():
        cells = (f"not run: `{wanted.command}`", *[""] * 4)
        if found := _latest(lab, wanted):
            merged = found[1]
            accuracy = ", ".join(f"{each:.4f}" for each in merged.get("accuracy", []))
            ranks = f"{merged['world_size']} on {merged['backend']}, {', '.join(sorted(set(merged['devices'])))}"
            what = f"{merged.get('data_source', '')}; {merged.get('model', '')}"
            seconds = merged.get("seconds_per_iteration")
            n_iterations = str(len(merged.get("mean_losses", [])))
            cells = (ranks, what, accuracy, n_iterations, "" if seconds is None else f"{seconds:.4g}")
        rows.append([f"{task}: {wanted.label}", *cells])
    lines = [f"| {' | '.join(row)} |" for row in rows]
    note = "Seconds are the mean over the first 40 iterations, or as many as there are, without the first if there are more."
    return "\n".join([f"*{name}*", "", "## Tasks 1 to 3, from the training runs", "", *lines, "", note])


LAYOUTS = {
    "labkit": Layout(lambda archive: None),
    "11-868": Layout(_add_11_868),
    "cos598d": Layout(_add_cos598d, needs_name=True),
}
