"""Add what each assignment asks for: CMU's 11-868, and Princeton's COS 568, once COS 598D.

The programs in ``layouts`` are thin. They run the labkit that is installed, but with the student
files of the archive, beside which lies ``layouts/student_files/labkit/__init__.py``.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from labkit.base.texts import listed
from labkit.course.archive import Archive

TREES = Path(__file__).parent / "layouts"


class Layout(NamedTuple):
    """How an archive is laid out.

    ``add(archive)`` adds what only this layout has. The report of one that ``needs_name`` is named
    after its author.
    """

    add: Callable[[Archive], None]
    needs_name: bool = False


class TrainingRun(NamedTuple):
    """A run in the lab: its folder, and its ``merged.json``."""

    folder: Path
    merged: dict[str, Any]

    def setting(self, name: str) -> Any:
        """Return what it found, such as its model, or what it was told, such as its ``size``."""
        return self.merged.get(name, self.merged["config"].get(name))


class Wanted(NamedTuple):
    """A training run that an assignment asks for: its settings, and the flags that make it."""

    label: str
    settings: dict[str, Any]
    flags: str

    @property
    def command(self) -> str:
        """How to make it. With one GPU two ranks are on the CPU, and so is what is compared."""
        from labkit.base import machine  # asks for GPUs

        backend = " --backend gloo" if machine.usable_gpus() == 1 else ""
        return f"python -m labkit.train {self.flags}{backend}"


def runs(lab: Path) -> Iterator[TrainingRun]:
    """Yield each training run in the lab, the latest last."""
    files = [*lab.glob("runs/*/merged.json"), *lab.glob("*/merged.json")]
    for file in sorted(files, key=lambda file: file.stat().st_mtime):
        try:
            merged = json.loads(file.read_text(encoding="utf-8"))
            merged["config"]["seed"], merged["world_size"], merged["devices"]  # of another version, or half of it
        except (OSError, ValueError, KeyError, TypeError):
            continue
        yield TrainingRun(file.parent, merged)


def _fitting(lab: Path, wanted: Wanted) -> list[TrainingRun]:
    """Return the runs that are as ``wanted``, the latest first."""
    items = wanted.settings.items()
    return [run for run in runs(lab) if all(run.setting(name) == value for name, value in items)][::-1]


def _add_tree(archive: Archive, tree: str) -> None:
    """Add the files of ``layouts/tree``."""
    folder = TREES / tree
    for file in sorted(each for each in folder.rglob("*") if each.is_file() and each.suffix != ".pyc"):
        archive.add(file.relative_to(folder).as_posix(), file.read_bytes())


# --- CMU 11-868 -----------------------------------------------------------------------------------

ALIKE = ("data_source", "limit", "max_length", "vocab_size", "size", "n_layer", "n_devices", "epochs")


class Problem(NamedTuple):
    """A problem whose figures compare runs: of these batch sizes, or if None, all of the same."""

    number: str
    name: str
    compared: tuple[Wanted, Wanted]
    batch_sizes: list[int] | None = None


def _trains(label: str, flags: str, mode: str, **settings: Any) -> Wanted:
    return Wanted(label, {"mode": mode, **settings}, f"translate {flags}")


PROBLEMS = (
    Problem(
        "1.3",
        "ddp",
        (
            _trains("one device", "--world-size 1 --batch-size 64", "data_parallel", world_size=1),
            _trains("two devices", "--world-size 2 --batch-size 128", "data_parallel", world_size=2),
        ),
        [64, 128],
    ),
    Problem(
        "2.3",
        "pp",
        (
            _trains("model parallel", "--mode model_parallel", "model_parallel"),
            _trains("pipeline parallel", "--mode pipeline_parallel", "pipeline_parallel"),
        ),
    ),
)
_ONE_BATCH = _trains(
    "one batch",
    "--world-size 2 --size nano --batch-size 128 --limit 128 --epochs 1 --no-bleu --save-gradients",
    "data_parallel",
    world_size=2,
    save_gradients=True,
)
_SHOWN = {
    "training_time": ("training_time_s", "s an epoch"),
    "tokens_per_second": ("tokens_per_s", "tokens per second"),
}


def _add_11_868(archive: Archive) -> None:
    """Add the assignment's programs, ``submit_figures`` with its runs, and the gradients."""
    for tree in ("11-868", "student_files"):
        _add_tree(archive, tree)
    files, missing = draw_figures(archive.lab)
    for name, content in files.items():
        archive.add(name, content)
    archive.warnings += missing
    names = ("model0_gradients.pth", "model1_gradients.pth")
    kept = [[run.folder / name for name in names] for run in _fitting(archive.lab, _ONE_BATCH)]
    kept = [each for each in kept if all(file.is_file() for file in each)]
    for file in min(kept, key=lambda each: each[0].stat().st_size, default=[]):
        archive.add_file(file, f"tests/{file.name}")
    if not {f"tests/{name}" for name in names} <= archive.files.keys():
        archive.warnings.append(f"the ranks' gradients of problem 1.2 are missing. Make them: {_ONE_BATCH.command}")


def draw_figures(lab: Path) -> tuple[dict[str, bytes], list[str]]:
    """Return the files of submit_figures, by name, and in a sentence each what is missing and why.

    A problem's figures compare the latest runs that can be compared: their batch sizes are the
    assignment's, and data, model, epochs and kind of device are the same.
    """
    files, missing = dict[str, bytes](), []
    for problem in PROBLEMS:
        found = {wanted.label: _fitting(lab, wanted) for wanted in problem.compared}
        pairs = itertools.product(*found.values())
        if pair := next((pair for pair in pairs if not _differences(problem, pair)), None):
            files |= _figures(problem, pair)
            continue
        if absent := [f"no run of {label}" for label, fitting in found.items() if not fitting]:
            why = f"there is {listed(absent)}"
        else:
            latest = [fitting[0] for fitting in found.values()]
            names = listed([run.folder.relative_to(lab).as_posix() for run in latest])
            why = f"of {names}, {'; '.join(_differences(problem, latest))}"
        commands = " and ".join(wanted.command for wanted in problem.compared)
        missing.append(
            f"submit_figures has nothing for problem {problem.number}: {why}. Make both with the same settings: {commands}"
        )
    return files, missing


def _differences(problem: Problem, pair: Sequence[TrainingRun]) -> list[str]:
    """Return why runs cannot be compared, such as "size is nano and mini, expected the same"."""
    settings = {name: [str(run.setting(name)) for run in pair] for name in (*ALIKE, "batch_size")}
    settings |= _machines(pair)
    expected = {"batch_size": [str(size) for size in problem.batch_sizes]} if problem.batch_sizes else {}
    return [
        f"{name} is {' and '.join(values)}, expected {' and '.join(expected.get(name, ['the same']))}"
        for name, values in settings.items()
        if values != expected.get(name, values[:1] * 2)
    ] + [
        f"{run.folder.name} is of an earlier labkit, whose seconds an epoch lack the warm-up steps"
        for run in pair
        if run.setting("epochs") == 1 and "steps_per_epoch" not in run.merged
    ]


def _machines(runs: Sequence[TrainingRun]) -> dict[str, list[str]]:
    """Return what runs need alike to compare their times: kind of device and, on CPUs, threads."""
    devices = [run.merged["devices"][0].partition(":")[0] for run in runs]
    threads = [str(run.setting("threads_per_rank")) for run in runs]
    return {"the device": devices} | ({"threads_per_rank": threads} if set(devices) == {"cpu"} else {})


def _figures(problem: Problem, pair: Sequence[TrainingRun]) -> dict[str, bytes]:
    """Return the figures of a problem, times and rates, with their numbers and the runs'."""
    import pandas as pd

    from labkit.draw import charts
    from labkit.draw.picture import figure_of, render

    labels = [wanted.label for wanted in problem.compared]
    devices = listed(sorted({device for run in pair for device in run.merged["devices"]}))
    devices += ": CPU cores, which virtual devices share" if "cpu" in devices else ""
    files = {
        f"submit_figures/{problem.name}_{label.replace(' ', '_')}.json": (run.folder / "merged.json").read_bytes()
        for label, run in zip(labels, pair, strict=True)
    }
    for name, (measured, unit) in _SHOWN.items():
        spreads = [run.merged[measured] for run in pair]
        rows = pd.DataFrame({"run": labels, "mean": [s["mean"] for s in spreads], "std": [s["std"] for s in spreads]})
        ends = rows.assign(low=rows["mean"] - rows["std"], high=rows["mean"] + rows["std"])
        error = ("low", "high") if rows["std"].notna().all() else None
        axes = charts.bars(ends, group="run", value="mean", error=error, label=unit, note=devices)
        bars = ", ".join(f"{row['run']} {row['mean']:.3g} {unit}" for row in rows.to_dict("records"))
        alt = f"Problem {problem.number}, on {devices}: {bars}"
        file = f"submit_figures/{problem.name}_{name}"
        files |= {
            f"{file}.png": render(figure_of(axes, name), "png", alt),
            f"{file}.csv": rows.to_csv(index=False).encode(),
        }
    return files


# --- Princeton COS 598D ---------------------------------------------------------------------------


def _agrees_by(sync: str) -> Wanted:
    return Wanted(sync, {"sync": sync}, f"glue --sync {sync} --output-dir runs/{sync}")


GLUE_ALIKE = (
    *("data_source", "model", "limit", "max_length", "vocab_size", "batch_size", "learning_rate", "epochs"),
    *("iterations", "seed", "dropout", "weight_decay", "max_grad_norm", "precision"),
)
GLUE_TASKS = {"task2a": _agrees_by("gather_scatter"), "task2b": _agrees_by("all_reduce"), "task3": _agrees_by("ddp")}
_ONE_PROCESS = _agrees_by("none")
TASK_4 = TREES / "cos598d" / "task4" / "run_glue.py"
TRACES = "runs/task4"  # of the lab: where that program writes


def _add_cos598d(archive: Archive) -> None:
    """Add a program for each task, with the losses of its run, and traces of three steps."""
    for tree in ("cos598d", "student_files"):
        _add_tree(archive, tree)
    for task, wanted in GLUE_TASKS.items():
        if not (found := _fitting(archive.lab, wanted)):
            archive.warnings.append(f"{task} has no losses: there is no run. Make it: {wanted.command}")
            continue
        folder = found[0].folder
        for file in (folder / "merged.json", *sorted(folder.glob("loss_*.txt"))):
            archive.add_file(file, f"{task}/losses/{file.name}")
    archive.warnings += glue_differences(archive.lab)
    for file in (traces := sorted((archive.lab / TRACES).glob("*.json.gz"))):
        archive.add_file(file, f"task4/{file.name}")
    if not traces:
        flags = "--sync ddp --data_dir shipped --model_name_or_path auto --do_train"
        command = f"torchrun --nproc-per-node 2 {os.path.relpath(TASK_4, archive.lab)} {flags}"
        archive.warnings.append(f"task4 has no trace of three steps. Make it: {command}")


def report_of_glue(lab: Path, name: str = "") -> str:
    """Return the assignment's table as Markdown: accuracies (task 1), times (tasks 2 and 3)."""
    columns = ("run", "ranks", "data, model", "accuracy after each epoch", "iterations", "s per iteration")
    rows = [columns, ["---"] * len(columns)]
    for task, wanted in {"task 1": _ONE_PROCESS, **GLUE_TASKS}.items():
        cells = (f"not run: `{wanted.command}`", *[""] * 4)
        if found := _fitting(lab, wanted):
            merged = found[0].merged
            accuracy = ", ".join(f"{each:.4f}" for each in merged.get("accuracy", []))
            ranks = f"{merged['world_size']} on {merged['backend']}, {', '.join(sorted(set(merged['devices'])))}"
            ranks += f", threads each: {merged['threads_per_rank']}" if "threads_per_rank" in merged else ""
            what = f"{merged.get('data_source', '')}; {merged.get('model', '')}"
            seconds = merged.get("seconds_per_iteration")
            n_iterations = str(len(merged.get("mean_losses", [])))
            cells = (ranks, what, accuracy, n_iterations, "" if seconds is None else f"{seconds:.4g}")
        rows.append([f"{task}: {wanted.label}", *cells])
    lines = [f"| {' | '.join(row)} |" for row in rows]
    note = "Seconds are the mean over the first 40 iterations, or as many as there are, without the first if there are more."
    notes = [note, *(f"**{each[0].upper()}{each[1:]}.**" for each in glue_differences(lab))]
    return "\n".join([f"*{name}*", "", "## Tasks 1 to 3, from the training runs", "", *lines, "", "\n\n".join(notes)])


def glue_differences(lab: Path) -> list[str]:
    """Return a sentence where the table's runs differ in more than how their ranks agree."""
    latest = {wanted.label: _fitting(lab, wanted)[:1] for wanted in (_ONE_PROCESS, *GLUE_TASKS.values())}
    runs = {label: found[0] for label, found in latest.items() if found}
    settings = {name: [str(run.setting(name)) for run in runs.values()] for name in GLUE_ALIKE}
    settings |= _machines([*runs.values()])
    settings["world_size"] = [str(run.setting("world_size")) for label, run in runs.items() if label != "none"]
    differ = [f"{name} is {', '.join(values)}" for name, values in settings.items() if len(set(values)) > 1]
    if not differ:
        return []
    again = f"make them again with the same flags, as in {_ONE_PROCESS.command}"
    return [f"do not compare the runs {', '.join(runs)}: {'; '.join(differ)}, expected the same; {again}"]


_COS_568 = Layout(_add_cos598d, needs_name=True)
LAYOUTS = {
    "labkit": Layout(lambda archive: None),
    "11-868": Layout(_add_11_868),
    "cos568": _COS_568,
    "cos598d": _COS_568,  # as the course was called
}
