"""What the two assignments ask for: figures of runs that can be compared, and programs that run."""

import gzip
import json
import os
import re
import runpy
import shlex
import zipfile
from pathlib import Path

import pandas as pd
import pytest
import torch
import warm_python
from to_do import task
from train_commands import ENVIRONMENT

from labkit.base import machine
from labkit.base.rendezvous import free_port
from labkit.course import assignments
from labkit.course.archive import Archive
from labkit.ranks.processes import plan
from labkit.ranks.processes.plan import decide
from labkit.todo import TASKS
from labkit.train import command

ROOT = Path(__file__).parents[2]
STUDENT_FILES = ("dp.py", "pipe.py", "shard.py")


ONE = {"mode": "data_parallel", "world_size": 1, "batch_size": 64}
TWO = {"mode": "data_parallel", "world_size": 2, "batch_size": 128}
MODEL_PARALLEL = {"mode": "model_parallel", "world_size": 1, "batch_size": 64}
PIPELINE = MODEL_PARALLEL | {"mode": "pipeline_parallel"}


def write_run(lab: Path, name: str, seconds: float = 2.0, **settings) -> Path:
    """Write a run on CPUs; each is later than the one before."""
    found = {"world_size": 1, "data_source": "shipped"}
    of_machine = ("world_size", "data_source", "devices", "threads_per_rank", "backend", "steps_per_epoch")
    found |= {name: settings.pop(name) for name in of_machine if name in settings}
    found.setdefault("devices", ["cpu"] * found["world_size"])
    config = {"seed": 0, "size": "mini", "n_devices": 2, "epochs": 2, "limit": None} | settings
    spread = {"mean": seconds, "std": None}
    merged = found | {"config": config, "training_time_s": spread, "tokens_per_s": spread}
    (folder := lab / "runs" / name).mkdir(parents=True)
    (folder / "merged.json").write_text(json.dumps(merged))
    n = len([*folder.parent.iterdir()])
    os.utime(folder / "merged.json", (n, n))
    return folder


def means(files: dict[str, bytes], name: str, folder: Path) -> dict[str, float]:
    (folder / "figure.csv").write_bytes(files[f"submit_figures/{name}.csv"])
    return pd.read_csv(folder / "figure.csv", index_col="run")["mean"].to_dict()


def test_runs_that_differ_in_nothing_else_are_drawn_with_their_numbers(tmp_path):
    write_run(tmp_path, "one", 4.0, **ONE)
    write_run(tmp_path, "two", 2.5, **TWO)
    files, missing = assignments.draw_figures(tmp_path)
    assert means(files, "ddp_training_time", tmp_path) == {"one device": 4.0, "two devices": 2.5}
    assert files["submit_figures/ddp_tokens_per_second.png"].startswith(b"\x89PNG")
    assert json.loads(files["submit_figures/ddp_two_devices.json"])["world_size"] == 2
    assert [line.partition(":")[0] for line in missing] == ["submit_figures has nothing for problem 2.3"]


@pytest.mark.parametrize(
    ("first", "second", "says"),
    [
        (ONE | {"size": "nano"}, TWO, "size is nano and mini, expected the same"),
        (ONE, TWO | {"batch_size": 64}, "batch_size is 64 and 64, expected 64 and 128"),
        (ONE, TWO | {"data_source": "hub"}, "data_source is shipped and hub, expected the same"),
        (ONE, TWO | {"epochs": 5, "limit": 9}, "limit is None and 9, expected the same; epochs is 2 and 5, expected"),
        (ONE, TWO | {"devices": ["cuda:0", "cuda:1"]}, "the device is cpu and cuda, expected the same"),
        (
            ONE | {"threads_per_rank": 2},
            TWO | {"threads_per_rank": 1},
            "threads_per_rank is 2 and 1, expected the same",
        ),
        (
            ONE | {"epochs": 1},
            TWO | {"epochs": 1, "steps_per_epoch": 8},
            "first is of an earlier labkit, whose seconds an epoch lack the warm-up steps",
        ),
        (MODEL_PARALLEL, PIPELINE | {"batch_size": 32}, "batch_size is 64 and 32, expected the same"),
    ],
)
def test_runs_that_differ_are_named_and_not_drawn(first, second, says, tmp_path):
    write_run(tmp_path, "first", **first)
    write_run(tmp_path, "second", **second)
    files, missing = assignments.draw_figures(tmp_path)
    assert not files
    assert f"of runs/first and runs/second, {says}" in "\n".join(missing)


def test_each_command_that_a_missing_run_names_makes_that_run():
    for problem in assignments.PROBLEMS:
        made = []
        for wanted in problem.compared:
            config, start = command.parse(shlex.split(wanted.command)[3:])
            made.append({"world_size": start.size(config.default_world_size), **vars(config)})
            assert {name: made[-1][name] for name in wanted.settings} == wanted.settings
        sizes = [each["batch_size"] for each in made]
        assert sizes == (problem.batch_sizes or sizes[:1] * 2)


def as_planned(wanted: assignments.Wanted) -> dict:
    """What the run would be that a command names, here and now: its settings and its machine's."""
    config, start = command.parse(shlex.split(wanted.command)[3:])
    size = start.size(config.default_world_size)
    plan = decide(size, start.backend, threads=start.threads_of_a_process(size))
    return vars(config) | {"world_size": size, "devices": plan.devices, "threads_per_rank": plan.threads}


@pytest.mark.parametrize("gpus", [0, 1, 2])
def test_the_commands_make_runs_that_can_be_compared_however_many_gpus_there_are(gpus, tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "usable_gpus", lambda: gpus)
    monkeypatch.setattr(plan, "_gpu_count", lambda: gpus)
    monkeypatch.setattr(machine, "cores", lambda: 8)
    device = "cuda:0" if gpus else "cpu"
    write_run(tmp_path, "where one rank has the GPU", **ONE | {"devices": [device], "size": "nano"})
    write_run(tmp_path, "and two have none", **TWO)
    first, _ = assignments.draw_figures(tmp_path)
    assert not first
    for number, wanted in enumerate(assignments.PROBLEMS[0].compared):
        write_run(tmp_path, f"as asked {number}", **as_planned(wanted))
    files, missing = assignments.draw_figures(tmp_path)
    assert "submit_figures/ddp_training_time.png" in files and "problem 1.3" not in "".join(missing)
    glue = [as_planned(wanted) for wanted in (assignments._ONE_PROCESS, *assignments.GLUE_TASKS.values())]
    assert len({run["devices"][0].partition(":")[0] for run in glue}) == 1
    assert len({run["threads_per_rank"] for run in glue}) == 1
    utils = runpy.run_path(str(ROOT / "labkit/course/layouts/11-868/project/utils.py"))
    args = utils["flag_parser"]("", 1, 8).parse_args([])
    assert {"gpt2" in utils["train_flags"](args, [], n) for n in (1, 2)} == {gpus == 2}


def test_runs_in_one_table_that_differ_in_more_than_their_way_are_told_apart(tmp_path):
    alike = {"backend": "gloo", "batch_size": 64, "model": "auto", "threads_per_rank": 1}
    for sync, n in {"none": 1, "gather_scatter": 2, "all_reduce": 2, "ddp": 2}.items():
        write_run(tmp_path, sync, **alike, sync=sync, world_size=n)
    assert assignments.glue_differences(tmp_path) == []
    write_run(tmp_path, "ddp again", **alike | {"batch_size": 256, "threads_per_rank": 2}, sync="ddp", world_size=4)
    (sentence,) = assignments.glue_differences(tmp_path)
    for part in (
        "batch_size is 64, 64, 64, 256",
        "threads_per_rank is 1, 1, 1, 2",
        "world_size is 2, 2, 4",
        "do not compare the runs none, gather_scatter, all_reduce, ddp: ",
    ):
        assert part in sentence
    assert f"**D{sentence[1:]}.**" in assignments.report_of_glue(tmp_path)
    archive = Archive(tmp_path)
    assignments.LAYOUTS["cos598d"].add(archive)
    assert sentence in archive.warnings


def test_four_runs_on_cpus_with_gradients_leave_nothing_to_warn_of(tmp_path):
    for number, settings in enumerate((ONE, TWO, MODEL_PARALLEL, PIPELINE)):
        write_run(tmp_path, str(number), **settings)
    for folder, size in (("large", 200), ("small", 100)):
        kept = write_run(tmp_path, folder, **TWO, save_gradients=True, size="nano")
        for rank in (0, 1):
            (kept / f"model{rank}_gradients.pth").write_bytes(bytes(size))
    archive = Archive(tmp_path)
    assignments.LAYOUTS["11-868"].add(archive)
    assert archive.warnings == []
    assert [len(archive.files[f"tests/model{rank}_gradients.pth"]) for rank in (0, 1)] == [100, 100]
    drawn = {name for name in archive.files if name.endswith(".png")}
    assert drawn == {f"submit_figures/{p}_{n}.png" for p in ("ddp", "pp") for n in assignments._SHOWN}


def test_without_a_run_each_warning_names_a_command(tmp_path):
    for layout, n_warnings in (("11-868", 3), ("cos598d", 3)):
        archive = Archive(tmp_path)
        assignments.LAYOUTS[layout].add(archive)
        assert sum("ake " in line and "python -m labkit.train" in line for line in archive.warnings) == n_warnings


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """The labkit that is installed where a submission is unpacked: with all TODOs still to do."""
    package = tmp_path / "installed" / "labkit"
    package.mkdir(parents=True)
    for entry in (ROOT / "labkit").iterdir():
        if entry.name not in ("__pycache__", *STUDENT_FILES):
            (package / entry.name).symlink_to(entry)
    unfilled = "from labkit.todo import TodoError\n" + "".join(f"raise TodoError('{name}')\n" for name in TASKS)
    for name in STUDENT_FILES:
        (package / name).write_text(unfilled)
    for name, value in (ENVIRONMENT | {"PYTHONPATH": str(package.parent), "MASTER_PORT": str(free_port())}).items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def unpacked(tmp_path, installed):
    """A submission in the layout of 11-868, in a folder with a space and ü."""
    archive = Archive(ROOT)
    assignments.LAYOUTS["11-868"].add(archive)
    for name in STUDENT_FILES:
        archive.add(f"labkit/{name}", (ROOT / "labkit" / name).read_bytes())
    archive.write(tmp_path / "submission.zip")
    with zipfile.ZipFile(tmp_path / "submission.zip") as members:
        members.extractall(tmp_path / "handed in ü")
    return tmp_path / "handed in ü"


def python(folder: Path, *arguments: str) -> str:
    """What a program in ``folder`` prints, which is to end well."""
    done = warm_python.run(*arguments, folder=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


AS_THE_COURSE_TESTS = """
import pytest
import torch
from torch import nn

from data_parallel.dataset import DataPartitioner, Partition, partition_dataset
from pipeline.model_parallel import GPT2LMHeadModelParallel  # noqa: F401
from pipeline.partition import WithDevice, _split_module
from pipeline.pipe import Pipe, _clock_cycles  # noqa: F401


@pytest.mark.a4_1_1
def test_loaders_have_each_sample_once():
    loaders = [partition_dataset(rank, 2, list(range(12)), 4) for rank in (0, 1)]
    assert sorted(int(x) for loader in loaders for batch in loader for x in batch) == list(range(12))
    assert [*map(len, next(iter(zip(*loaders))))] == [2, 2]
    assert isinstance(DataPartitioner("abcd", [0.5, 0.5]).use(1), Partition)


@pytest.mark.a5_2_1
@pytest.mark.a5_2_2
def test_a_pipe_computes_what_its_modules_do():
    first, second = nn.Linear(3, 4), nn.Linear(4, 5)
    model = nn.Sequential(WithDevice(first, "cpu:0"), WithDevice(nn.Sigmoid(), "cpu:0"), WithDevice(second, "cpu:1"))
    partitions, devices = _split_module(model)
    assert [*map(len, partitions)] == [2, 1] and [*map(str, devices)] == ["cpu:0", "cpu:1"]
    x = torch.randn(7, 3)
    torch.testing.assert_close(Pipe(model, split_size=2)(x), second(torch.sigmoid(first(x))))
"""


@task("dp.1", "pipe.1", "pipe.2", "pipe.3", "pipe.4")
def test_the_assignments_names_are_those_of_the_files_handed_in(unpacked):
    (unpacked / "tests").mkdir(exist_ok=True)
    (unpacked / "tests" / "test_names.py").write_text(AS_THE_COURSE_TESTS)
    options = ("-q", "-p", "no:cacheprovider", "-W", "error::pytest.PytestUnknownMarkWarning")
    assert "2 passed" in python(unpacked, "-m", "pytest", *options, "tests/test_names.py")


TINY = ("--dataset", "shipped", "--size", "nano", "--limit-eval", "4", "--benchmark_only")
IN_ITS_OWN_PROCESS = """
import runpy, sys
from labkit import dp

sys.path.insert(0, "project")
dp.run_processes = lambda fn, world_size, backend: fn(0, world_size, backend)  # a start takes seconds
runpy.run_path("project/run_data_parallel.py", run_name="__main__")
"""


@pytest.mark.slow
@task("dp.1", "dp.2", "dp.4", "dp.8")
def test_two_ranks_that_the_student_started_keep_the_gradient_of_the_whole_batch(unpacked):
    def gradients(n: int) -> list[dict[str, torch.Tensor]]:
        flags = ("--pytest", "True", "--batch_size", "16", "--world_size", str(n))
        how = ("-c", IN_ITS_OWN_PROCESS) if n == 1 else ("project/run_data_parallel.py",)
        python(unpacked, *how, *TINY, *flags)
        return [torch.load(unpacked / "tests" / f"model{rank}_gradients.pth") for rank in range(n)]

    (whole,) = gradients(1)
    for of_rank in gradients(2):
        assert "transformer.wte.weight" in of_rank and of_rank.keys() == whole.keys()
        for name, gradient in of_rank.items():
            torch.testing.assert_close(gradient, whole[name], rtol=1e-3, atol=1e-6)


@pytest.mark.slow
@task("dp.1", "pipe.1", "pipe.2", "pipe.3", "pipe.4")
def test_gpt2_learns_the_same_model_parallel_and_piped_and_the_two_ways_are_drawn(unpacked):
    flags = (*TINY, "--n_epochs", "2", "--batch_size", "8", "--max_batches", "2", "--n_chunk", "2")
    for mode in ("model_parallel", "pipeline_parallel"):
        python(unpacked, "project/run_pipeline.py", f"--model_parallel_mode={mode}", *flags)
    merged = [json.loads(file.read_text()) for file in unpacked.glob("runs/*/merged.json")]
    losses = [each["validation_loss"][-1] for each in merged]
    assert len(losses) == 2 and losses == pytest.approx(losses[:1] * 2, rel=1e-4)
    printed = python(unpacked, "project/plot.py").splitlines()
    assert {"submit_figures/pp_training_time.png", "submit_figures/pp_tokens_per_second.png"} <= {*printed}
    assert {name for name in printed if name.endswith(".png")} <= {
        file.relative_to(unpacked).as_posix() for file in unpacked.glob("submit_figures/*")
    }


@pytest.mark.parametrize(("folder", "sync"), [("task2a", "gather_scatter"), ("task2b", "all_reduce"), ("task3", "ddp")])
def test_the_program_of_each_task_trains_in_its_way(folder, sync, monkeypatch):
    given = []
    monkeypatch.setattr("labkit.train.main", given.append)
    monkeypatch.setattr("sys.argv", ["run_glue.py", "--do_train"])
    runpy.run_path(str(ROOT / f"labkit/course/layouts/cos598d/{folder}/run_glue.py"), run_name="__main__")
    assert given == [["glue", "--sync", sync, "--do_train"]]


@pytest.mark.slow
def test_the_program_of_task_4_keeps_a_trace_of_three_steps_and_prints_what_of_them_is_communication(tmp_path):
    flags = ["--sync", "ddp", "--data_dir", "shipped", "--model_name_or_path", "auto", "--do_train", "--limit", "384"]
    done = warm_python.run(assignments.TASK_4, *flags, "--world_size", "1", "--local_rank", "0", folder=tmp_path)
    assert re.search(r"communication, %.*\n.*\n1 .*\n2 .*\n3 ", done.stdout), done.stderr
    trace = json.loads(gzip.decompress((tmp_path / assignments.TRACES / "ddp_0.json.gz").read_bytes()))
    steps = {event["name"] for event in trace["traceEvents"] if event.get("name", "").startswith("ProfilerStep#")}
    assert steps == {"ProfilerStep#2", "ProfilerStep#3", "ProfilerStep#4"}
    archive = Archive(tmp_path)
    assignments.LAYOUTS["cos568"].add(archive)
    assert {"task4/ddp_0.json.gz", "task4/run_glue.py"} <= archive.files.keys()
