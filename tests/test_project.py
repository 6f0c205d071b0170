"""The project as a whole: pinned, in layers, light where it must be, and with no borrowed data."""

from __future__ import annotations

import gzip
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = Path(__file__).resolve().parent.parent
PYPROJECT = tomllib.loads((PROJECT / "pyproject.toml").read_text())
REQUIREMENTS = [
    Requirement(text)
    for text in [*PYPROJECT["project"]["dependencies"], *PYPROJECT["project"]["optional-dependencies"]["test"]]
]
OWN_FOLDERS = ("labkit", "tests", "notebooks", "data", "benchmarks", "figures")


def own_files() -> list[Path]:
    found = [path for folder in OWN_FOLDERS for path in (PROJECT / folder).rglob("*")]
    return [path for path in found if path.is_file() and "__pycache__" not in path.parts]


def pins() -> dict[str, str]:
    lines = (PROJECT / "constraints.txt").read_text().splitlines()
    parts = [re.fullmatch(r"([\w.-]+)==([\w.+]+)", line) for line in lines if line and not line.startswith("#")]
    assert all(parts), "constraints.txt: every line pins one package by =="
    return {canonicalize_name(part[1]): part[2] for part in parts if part}


def test_every_dependency_is_pinned_to_a_version_that_it_allows():
    pinned = pins()
    assert [each for each in REQUIREMENTS if not each.specifier.contains(pinned[canonicalize_name(each.name)])] == []


def test_conda_installs_python_and_this_project_under_the_same_constraints_and_nothing_else():
    environment = yaml.safe_load((PROJECT / "environment.yml").read_text())
    assert environment["name"] == PYPROJECT["project"]["name"]
    conda = [Requirement(re.sub(r"(?<=\w)=(?=\d)", "==", entry)) for entry in environment["dependencies"][:-1]]
    python, *others = conda
    assert python.name == "python" and [other.name for other in others] == ["pip"]
    version = next(iter(python.specifier)).version
    assert Requirement("python" + PYPROJECT["project"]["requires-python"]).specifier.contains(version)
    assert environment["dependencies"][-1] == {"pip": ["--constraint constraints.txt", "--editable .[test]"]}


def test_every_package_folder_is_installed():
    found = [path.parent.relative_to(PROJECT) for path in (PROJECT / "labkit").rglob("__init__.py")]
    folders = {
        ".".join(path.parts) for path in found if "layouts" not in path.parts
    }  # those are data: what archives have
    assert set(PYPROJECT["tool"]["setuptools"]["packages"]) == folders


def test_imports_point_downward():
    linter = shutil.which("lint-imports", path=str(Path(sys.executable).parent))
    assert linter, "import-linter is not installed; run make setup"
    done = subprocess.run([linter], cwd=PROJECT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout and "0 kept" not in done.stdout


def test_every_module_has_its_place_in_the_layers():
    contract, _ = PYPROJECT["tool"]["importlinter"]["contracts"]
    placed = [name.strip(" ()") for layer in contract["layers"] for name in re.split(r"[|:]", layer)]
    there = {f"labkit.{path.stem}" for path in (PROJECT / "labkit").glob("*.py") if path.stem != "__init__"}
    there |= {f"labkit.{path.parent.name}" for path in (PROJECT / "labkit").glob("*/__init__.py")}
    assert sorted(placed) == sorted(there)


LIGHT = {
    "torch pandas numpy matplotlib": [
        *("base.checks", "base.files", "base.machine", "base.rendezvous"),  # these, and the next, every rank imports
        *("stats", "trace", "trace.traffic", "todo"),
        "cost import ETHERNET_1G; ETHERNET_1G.message_s(1)",
        "schedule import *; validate(zero_bubble_v(4, 8))",
        "explore",
    ],
    "torch matplotlib": [
        "simulate import *; from labkit.schedule import *; simulate(gpipe(2, 2))",
        "base.formats",
        "explore.schedules.values, labkit.explore.schedules.measure",
    ],
    "torch": ["draw", "draw.charts", "explore import *"],
    "torch pandas numpy IPython": ["cli import main; main(['check', 'dp.99'])"],
    "torch pandas matplotlib labkit.launch labkit.dp": ["check", "check.dp_2"],
    "torch numpy sklearn datasets": ["data"],
    "torch nbconvert bleach": ["course.report"],
}


@pytest.mark.parametrize(("heavy", "uses"), LIGHT.items(), ids=LIGHT)
def test_what_stays_light_loads_nothing_heavy(heavy, uses):
    lines = [f"from labkit.{use}" if " import " in use else f"import labkit.{use}" for use in uses]
    code = "\n".join(["import sys", *lines, f"print({{*{heavy.split()}}} & {{*sys.modules}} or '')"])
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (loaded.returncode, loaded.stdout.strip()) == (0, ""), loaded.stderr


def test_a_modules_first_line_says_what_it_is_for():
    first = {path: path.read_text().split("\n", 1)[0] for path in (PROJECT / "labkit").rglob("*.py")}
    assert {path: line for path, line in first.items() if not re.match(r'"""\w.{20,}', line)} == {}


def test_the_changelog_is_at_most_one_page():
    assert len((PROJECT / "CHANGELOG.md").read_text().splitlines()) <= 60


def text_of(path: Path) -> str:
    """The file's text, unpacked if it is packed; whatever is no text becomes replacement signs."""
    content = path.read_bytes()
    return (gzip.decompress(content) if path.suffix == ".gz" else content).decode(errors="replace")


def long_lines(path: Path) -> set[str]:
    """The lines that are long enough to be told apart."""
    return {line.strip() for line in text_of(path).splitlines() if len(line.strip()) > 45}


def copied(borrowed: set[str], files: list[Path]) -> dict[str, int]:
    """Per file, how many of the borrowed lines stand in it, where it is more than a quotation."""
    counts = {str(path): len(long_lines(path) & borrowed) for path in files}
    return {path: count for path, count in counts.items() if count > 10}


def test_none_of_the_real_data_was_copied_into_the_project(real_data):
    borrowed = set().union(*(long_lines(path) for path in real_data.rglob("*") if path.is_file()))
    assert len(borrowed) > 1000
    assert copied(borrowed, own_files()) == {}


def test_a_copied_file_would_be_noticed_packed_too(real_data, tmp_path):
    source = real_data / "glue" / "RTE" / "train.tsv"
    text = ("# mine\n" + text_of(source)[:20_000]).encode()
    plain, packed = tmp_path / "mine.txt", tmp_path / "mine.txt.gz"
    plain.write_bytes(text)
    packed.write_bytes(gzip.compress(text))
    assert list(copied(long_lines(source), [plain, packed])) == [str(plain), str(packed)]
