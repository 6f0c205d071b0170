"""The wheel, alone in an empty environment and an empty folder, does what its extras promise."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import environments
import pytest
from environments import PROJECT
from packaging.requirements import Requirement
from to_do import task

from labkit.course.student import tracked_files

pytestmark = pytest.mark.slow

SCRIPT = """
import torch.distributed as dist
from labkit.launch import launch

def ranks():
    dist.all_gather_object(found := [None] * dist.get_world_size(), dist.get_rank())
    return found

if __name__ == "__main__":
    print(launch(ranks, world_size=2).values)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of a copy of the project: pip leaves its build in the folder that it builds."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in tracked_files(PROJECT):
        if name.startswith("labkit/") or "/" not in name:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(PROJECT / name, folder / name)
    try:
        environments.pip("wheel", "--no-deps", "--wheel-dir", str(folder), str(folder))
    except environments.Offline as error:
        pytest.skip(str(error))
    (made,) = folder.glob("labkit-*.whl")
    return made


class Environment:
    """An environment without labkit's repository; what it runs, it runs in ``folder``."""

    def __init__(self, root: Path, wheel: Path):
        self.programs, self.folder = root / "venv" / "bin", root / "empty"
        self.folder.mkdir()
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", root / "venv"], check=True)
        (self.packages,) = root.glob("venv/lib/python*/site-packages")
        environments.install(["--no-deps", "--no-index", str(wheel)], str(self.programs / "python"))

    def add_requirements(self, extra: str = "") -> None:
        """Link what the wheel says that it needs, and what that needs, from this environment.

        pip would unpack the same versions once more, two gigabytes.
        """
        (labkit,) = metadata.distributions(name="labkit", path=[str(self.packages)])
        waiting, found = [("labkit", extra)], set()
        while waiting:
            if (wanted := waiting.pop()) in found:
                continue
            found.add(wanted)
            name, extra = wanted
            package = labkit if name == "labkit" else metadata.distribution(name)
            for each in map(Requirement, package.requires or []):
                if each.marker is None or each.marker.evaluate({"extra": extra}):
                    waiting += [(each.name, extra) for extra in ("", *each.extras)]
            for top in {file.parts[0] for file in package.files or [] if package is not labkit} - {"..", "__pycache__"}:
                if not (self.packages / top).exists():
                    (self.packages / top).symlink_to(package.locate_file(top))

    def run(self, program: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "LABKIT_"))}
        command = [str(self.programs / program), *arguments]
        environment = kept | {"HF_HUB_OFFLINE": "1"} | variables
        return subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def core(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """With the packages that labkit itself depends on, and no other."""
    environment = Environment(tmp_path_factory.mktemp("core"), wheel)
    environment.add_requirements()
    return environment


@pytest.fixture(scope="module")
def with_lab(core: Environment) -> Environment:
    core.add_requirements("lab")
    return core


def test_the_wheel_has_every_file_of_the_package(wheel):
    files = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert files == {name for name in tracked_files(PROJECT) if name.startswith("labkit/")}


def test_a_script_launches_ranks(core):
    (core.folder / "script.py").write_text(SCRIPT)
    done = core.run("python", "script.py")
    assert done.stdout == "[[0, 1], [0, 1]]\n", done.stderr


def test_sentences_come_with_it_and_need_no_network(core):
    done = core.run("python", "-c", "from labkit.data import translation; print(*translation('train')[0].values())")
    german, english = (
        (PROJECT / f"labkit/data/generated/translation/train.{side}").read_text().split("\n")[0]
        for side in ("de", "en")
    )
    assert done.stdout.splitlines()[-1] == f"{german} {english}", done.stderr


@task("dp.6")
def test_check_judges_an_answer(core):
    done = core.run("labkit", "check", "dp.6")
    assert (done.returncode, done.stdout.splitlines()[:1]) == (0, ["dp.6 is right"]), done.stderr


@pytest.mark.parametrize(
    ("program", "line"),
    [
        (
            ("labkit", "train", "translate"),
            "labkit train: No module named 'transformers': in the lab's folder, pip install",
        ),
        (("labkit", "report", "05"), "labkit report: No module named 'nbformat': in the lab's folder, pip install"),
    ],
)
def test_what_needs_an_extra_says_in_its_last_line_how_to_install_it(program, line, core):
    done = core.run(*program)
    assert done.returncode != 0 and line in done.stderr.splitlines()[-1]


def test_with_the_extra_lab_the_first_notebook_runs(with_lab):
    notebooks = with_lab.folder / "notebooks"
    notebooks.mkdir()
    # A student edition has no stored guesses.
    for name in ("00_start_here.ipynb", "questions.toml", "figures.toml", "conclusions.toml", "guesses.json"):
        if (PROJECT / "notebooks" / name).exists():
            shutil.copy(PROJECT / "notebooks" / name, notebooks)
    arguments = ["--timeout", "300", "--output", "ran.ipynb", "notebooks/00_start_here.ipynb"]
    done = with_lab.run("python", "-c", "from nbclient.cli import main; main()", *arguments, LABKIT_STATIC="1")
    assert done.returncode == 0, done.stderr
    cells = json.loads((notebooks / "ran.ipynb").read_text())["cells"]
    shown = "".join(line for cell in cells for o in cell.get("outputs", []) for line in o.get("text", []))
    assert "different processes: 3" in shown  # two ranks and the kernel
