"""The project as a whole: pinned, in layers, light where it must be, and with no borrowed data."""

from __future__ import annotations

import ast
import gzip
import os
import re
import subprocess
import sys
import tomllib
import venv
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = Path(__file__).resolve().parent.parent
PYPROJECT = tomllib.loads((PROJECT / "pyproject.toml").read_text())
EXTRAS = PYPROJECT["project"]["optional-dependencies"]
ALL = [Requirement(text) for text in [*PYPROJECT["project"]["dependencies"], *chain(*EXTRAS.values())]]
REQUIREMENTS = [each for each in ALL if each.name != "labkit"]


def pins() -> dict[str, str]:
    lines = (PROJECT / "constraints.txt").read_text().splitlines()
    parts = [re.fullmatch(r"([\w.-]+)==([\w.+]+)", line) for line in lines if line and not line.startswith("#")]
    assert all(parts), "constraints.txt: every line pins one package by =="
    return {canonicalize_name(part[1]): part[2] for part in parts if part}


def test_every_dependency_is_pinned_to_a_version_that_it_allows():
    pinned = pins()
    assert [each for each in REQUIREMENTS if not each.specifier.contains(pinned[canonicalize_name(each.name)])] == []


def test_every_package_folder_is_installed():
    found = [path.parent.relative_to(PROJECT) for path in (PROJECT / "labkit").rglob("__init__.py")]
    folders = {
        ".".join(path.parts) for path in found if "layouts" not in path.parts
    }  # those are data: what archives have
    assert set(PYPROJECT["tool"]["setuptools"]["packages"]) == folders


def test_every_module_has_its_place_in_the_layers():
    contract, *_ = PYPROJECT["tool"]["importlinter"]["contracts"]
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
    "torch pandas matplotlib labkit.launch labkit.dp": ["check", "check.dp_8"],
    "torch numpy sklearn datasets": ["data"],
    "torch nbconvert bleach": ["course.report"],
    "torch transformers datasets": ["models"],
    "transformers": ["pipe"],
    "torch numpy pandas matplotlib labkit.cost": [
        "ranks.processes.rank_process",
        "ranks.processes.fork_server",
    ],  # as every rank begins
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


def long_lines(path: Path) -> set[str]:
    """The lines of a file, packed or not, that are long enough to be told apart."""
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return {line.strip() for line in content.decode(errors="replace").splitlines() if len(line.strip()) > 45}


def test_none_of_the_real_data_was_copied_into_the_project(real_data):
    borrowed = set().union(*(long_lines(path) for path in real_data.rglob("*") if path.is_file()))
    assert len(borrowed) > 1000
    folders = ("labkit", "tests", "notebooks", "data", "benchmarks", "figures")
    own = [path for folder in folders for path in (PROJECT / folder).rglob("*") if path.is_file()]
    assert [path for path in own if len(long_lines(path) & borrowed) > 10] == []  # fewer are a quotation


def test_a_terminal_of_make_lab_finds_the_environments_python_first_whatever_bashrc_puts_there(tmp_path):
    venv.create(tmp_path / "venv")
    for name, script in {"jupyter": 'for each; do echo "$each"; done', "labkit": ""}.items():
        (tmp_path / "venv/bin" / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "venv/bin" / name).chmod(0o755)
    (tmp_path / "venv/ready").touch()
    (tmp_path / ".bashrc").write_text(f"PATH={Path(sys.executable).parent}:$PATH\n")
    env = os.environ | {"HOME": str(tmp_path)}
    make = ["make", "--silent", "lab", f"VENV={tmp_path / 'venv'}"]
    jupyter = subprocess.run(make, cwd=PROJECT, env=env, capture_output=True, text=True, check=True).stdout
    (shell,) = re.findall(r"--ServerApp.terminado_settings=shell_command=(.*)", jupyter)
    terminal = [*ast.literal_eval(shell), "-i", "-c", "command -v python labkit"]
    found = subprocess.run(terminal, env=env, capture_output=True, text=True).stdout
    assert found.split() == [f"{tmp_path}/venv/bin/python", f"{tmp_path}/venv/bin/labkit"]


def test_another_torch_has_an_environment_of_its_own_and_all_other_packages_as_they_are_pinned(tmp_path):
    python, made = tmp_path / "python", tmp_path / "venv"
    python.write_text(f'#!/bin/sh\n[ "$2" != venv ] || {{ mkdir -p "$3/bin"; cp "{python}" "$3/bin/python"; }}\n')
    python.chmod(0o755)
    make = ["make", "--silent", "setup", f"PYTHON={python}", "TORCH=9.9.9"]
    assert ".venv-torch-9.9.9/constraints.txt" in subprocess.check_output([*make, "--dry-run"], cwd=PROJECT, text=True)
    subprocess.run([*make, f"VENV={made}"], cwd=PROJECT, check=True)
    given = dict(line.split("==") for line in (made / "constraints.txt").read_text().splitlines())
    assert {canonicalize_name(name): version for name, version in given.items()} == pins() | {"torch": "9.9.9"}
