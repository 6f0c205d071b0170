"""What a student hands in: always packed, nothing private in it, checked as a grader would."""

from __future__ import annotations

import ast
import getpass
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import zipfile
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from labkit import cli
from labkit.course import archive, grading, regions, report, student, submission
from labkit.course.edition import STUDENT_FILES, Edition
from labkit.course.student import write_student_edition
from labkit.todo import FUNCTIONS, TASKS

ROOT = Path(__file__).parents[2]
SOLVED = not student.is_student_edition()
in_the_marked_source = pytest.mark.skipif(not SOLVED, reason="a student edition has no solution to hand in")
WRITES_CLOCKS = "\n    yield from ([(c, 0)] for c in range(num_batches))\n"


# --- what a student has written -------------------------------------------------------------------

GIVEN = '''"""Given."""

import os


def given():
    return 1


class Pipe:
    size = 1

    def forward(self, x):
        """Do it."""
        raise TodoError("pipe.3")

    def close(self):
        return os.getpid()


def split_module(modules):
    raise TodoError("pipe.1")
'''


@in_the_marked_source
def test_the_functions_of_each_task_are_those_with_its_regions():
    found: dict[str, set[str]] = {}
    for name in STUDENT_FILES:
        lines = (ROOT / name).read_text().split("\n")
        functions = {
            function: submission.regions._place(node)
            for function, node in regions._definitions(ast.parse("\n".join(lines)).body).items()
        }
        for region in student.regions(lines, name):
            found.setdefault(region.task, set()).update(
                function for function, (start, end) in functions.items() if start <= region.start < end
            )
    assert found == {task: set(names) for task, names in FUNCTIONS.items()}


def test_what_a_student_wrote_is_set_in_where_it_stood_and_edits_of_given_code_are_left_out():
    written = (
        GIVEN.replace('raise TodoError("pipe.3")', "return helper(x)")
        .replace("return 1", "return 2")
        .replace("import os\n", "import os\nimport math\n\nFIRST = 1\nSECOND = FIRST\n\ndef helper(x):\n    return x\n")
        .replace("    size = 1\n", "    size = 2\n    more = 3\n")
        .replace("    def close", "    @property\n    def own(self):\n        return 5\n\n    def close")
    )
    result = regions.set_into(GIVEN, written)
    assert "return helper(x)" in result and "return 1\n" in result and "size = 1" in result and "more = 3" in result
    order = ["import math", "FIRST = 1", "SECOND", "def helper", "def given", "class Pipe", "@property", "def close"]
    assert sorted(order, key=result.index) == order
    assert 'raise TodoError("pipe.1")' in result
    ast.parse(result)


@in_the_marked_source
@pytest.mark.parametrize("name", STUDENT_FILES)
def test_a_whole_solution_set_into_the_student_edition_is_the_solution(name):
    source = (ROOT / name).read_text()
    result = regions.set_into(student.student_source(source, name)[0], source)
    assert ast.dump(ast.parse(result)) == ast.dump(ast.parse(source))


# --- a request that cannot be ---------------------------------------------------------------------


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """A lab whose path has a space and an umlaut, in which nothing is checked."""
    folder = tmp_path / "my course ü" / "lab"
    (folder / "labkit").mkdir(parents=True)
    (folder / "notebooks").mkdir()
    for name in STUDENT_FILES:
        shutil.copy(ROOT / name, folder / name)
    monkeypatch.setattr(submission, "REPOSITORY", folder)
    monkeypatch.setattr(submission, "check", lambda task: grading.Checked(task, True, []))
    monkeypatch.setattr(submission, "_tried", lambda *_: [])
    monkeypatch.setattr(submission, "_differences", lambda *_: [])
    monkeypatch.setattr(submission, "_add_report", lambda *_: None)
    monkeypatch.chdir(folder)
    return folder


def request(lab: Path, **options) -> submission.Request:
    return submission.Request(**{"out": lab.parent / "mine.zip", "tasks": ["pipe.2"], **options})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"layout": "cos598d"}, "give --name NETID_First_Last"),
        ({"layout": "cos598d", "name": "../../ab12_Ada_Lovelace"}, "give --name NETID_First_Last"),
        ({"out": Path("there.zip")}, "is there already"),
        ({"out": Path("no/such/folder/mine.zip")}, "there is no folder"),
        ({"out": Path("notebooks")}, "is a folder"),
        ({"out": Path("labkit/dp.py"), "force": True}, "is no archive"),
    ],
)
def test_a_wrong_request_is_refused_before_anything_runs(options, says, lab):
    (lab / "there.zip").write_text("mine")
    with pytest.raises((ValueError, OSError), match=says):
        submission.submit(request(lab, **options), say=pytest.fail)
    assert (lab / "there.zip").read_text() == "mine"


@pytest.mark.parametrize(
    "arguments", [["submit", "--only", "dp.99"], ["check", "--from", "absent.zip"], ["submit", "--layout", "cos598d"]]
)
def test_a_wrong_call_ends_with_2_and_a_sentence(arguments, capsys, lab):
    assert cli.main(arguments) == 2
    assert capsys.readouterr().err.startswith(f"labkit {arguments[0]}: ")


@pytest.mark.parametrize(
    "step", ["check", "_broken", "_add_notebooks", "_add_own_files", "_add_report", "_tried", "_publish"]
)
def test_an_interrupted_submit_leaves_nothing_behind(step, lab, monkeypatch, capsys):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(submission, step, interrupt)
    before = {*lab.rglob("*")}
    assert cli.main(["submit", "--only", "pipe.2"]) == 130
    assert {*lab.rglob("*")} == before


def test_of_two_submits_at_once_the_second_leaves_the_firsts_archive_alone(lab, monkeypatch):
    mine = request(lab)
    monkeypatch.setattr(submission, "_tried", lambda *_: mine.out.write_text("the other's") and [])
    with pytest.raises(FileExistsError, match="another submit"):
        submission.submit(mine, say=lambda _: None)
    assert mine.out.read_text() == "the other's"
    assert [*lab.parent.glob("packing-*")] == []


def test_a_full_disk_is_an_error_that_leaves_nothing_behind(lab, monkeypatch, capsys):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(archive.Archive, "write", full)
    assert cli.main(["submit", "--only", "pipe.2"]) == 2
    assert "No space left on device" in capsys.readouterr().err
    assert not [*lab.glob("*.zip"), *lab.glob("packing-*")]


# --- what is packed, and what is said of it -------------------------------------------------------


def notebook(*cells) -> str:
    return nbformat.writes(new_notebook(cells=[new_markdown_cell("# What?"), *cells]))


def ran(source: str, count: int, text: str = "", **options) -> nbformat.NotebookNode:
    return new_code_cell(
        source, execution_count=count, outputs=[new_output("stream", text=text)] * bool(text), **options
    )


def packed(lab: Path, **options) -> tuple[zipfile.ZipFile, dict]:
    (lab.parent / "mine.zip").unlink(missing_ok=True)
    submission.submit(request(lab, **options), say=lambda _: None)
    members = zipfile.ZipFile(lab.parent / "mine.zip")
    return members, json.loads(members.read("manifest.json"))


def test_nothing_in_the_archive_says_who_or_where_somebody_is(lab, monkeypatch):
    monkeypatch.setattr(getpass, "getuser", lambda: "ada")
    monkeypatch.setattr(socket, "gethostname", lambda: "analytical-engine")
    monkeypatch.setattr(Path, "home", lambda: Path("/home/ada lovelace"))
    seen = f"{lab}/x.py of ada at analytical-engine, /home/ada lovelace/y, {json.dumps(str(lab))}, canada, Ada_data"
    (lab / "notebooks/01_a.ipynb").write_text(notebook(ran('check("pipe.2")', 1, seen)))
    (lab / "runs/of ada").mkdir(parents=True)
    (lab / "runs/of ada/merged.json").write_text(json.dumps({"folder": str(lab), "host": "analytical-engine"}))
    members, _ = packed(lab)
    assert len(members.namelist()) > 5
    for name in members.namelist():
        text = members.read(name).decode("utf-8", "replace")
        for private in (str(lab), json.dumps(str(lab))[1:-1], "analytical-engine", "/home/ada", " ada "):
            assert private not in text, f"{private} in {name}"
        assert not re.search("(?i)(?<![a-z])ada(?![a-z])", name + (text if name.endswith((".ipynb", ".json")) else ""))
    assert "canada" in members.read("notebooks/01_a.ipynb").decode()


def test_it_says_what_costs_a_grade_and_packs_all_the_same(lab, monkeypatch):
    monkeypatch.setattr(Edition, "names", lambda self: [])
    broken = ran('check("pipe.2")', 2)
    broken.outputs = [new_output("error", ename="ValueError", evalue="no")]
    (lab / "notebooks/01_a.ipynb").write_text(
        notebook(ran("%%needs guess.how", 3, "GUESS how: run the cell first\n"), broken, new_code_cell("1"))
    )
    (lab / "notebooks/02_b.ipynb").write_text("not JSON")
    (lab / "notebooks/03_c.ipynb").write_text(notebook(ran('check("dp.1")', 1)))
    (lab / "notebooks/04_d.ipynb").write_text(notebook(ran('check("pipe.2")', 1)))
    os.utime(lab / "notebooks/04_d.ipynb", (1, 1))
    (lab / "figures").mkdir()
    (lab / "figures/a.alt.txt").write_text("Over an emulated link.")
    (lab / "figures/b.csv").symlink_to("/etc/hostname")
    (lab / "runs/one").mkdir(parents=True)
    (lab / "runs/one/model.bin").write_bytes(bytes(archive.MOST_BYTES + 1))
    run = {"config": {"seed": 0}, "world_size": 1, "devices": ["cpu"], "backend": "gloo"}
    (lab / "runs/one/merged.json").write_text(json.dumps(run))
    (lab / "my notes.txt").write_text("")
    with (lab / "labkit/pipe.py").open("a") as file:
        file.write(f"\nHERE = {str(lab)!r}\n")
    members, manifest = packed(lab)
    said = "\n".join(manifest["warnings"])
    for words in (
        "not run: 01_a.ipynb (1 of 3, the first is number 3)",
        "01_a.ipynb: its cells were run in another order",
        "01_a.ipynb: code cell 2 ended with ValueError",
        "01_a.ipynb: 1 guesses are not given: how",
        "02_b.ipynb is no notebook",
        "04_d.ipynb: it was saved before labkit/pipe.py was",
        "figures/a shows an emulated run",
        "figures/b.csv is left out: it is a link",
        "runs/one/model.bin is left out: it has 10 MB",
        "these runs were on CPUs",
        "my notes.txt did not come with the lab, and is left out",
        "labkit/pipe.py, line ",
    ):
        assert words in said, words
    assert {"notebooks/02_b.ipynb", "notebooks/01_a.html", "figures/a.alt.txt"} <= {*members.namelist()}
    assert "notebooks/03_c.ipynb" not in members.namelist()  # of a task that nobody asked for


@pytest.mark.parametrize("content", [b"def (:\n", b"\xff\xfe"])
def test_a_file_that_is_no_python_is_packed_and_the_other_ones_regions_too(content, lab):
    (lab / "labkit/dp.py").write_bytes(content)
    edition = Edition(ROOT)
    made = archive.Archive(lab)
    submission._add_own_files(made, edition, [*TASKS])
    assert made.files["labkit/dp.py"] == content
    assert {n for n in made.files if n.startswith("regions/")} == {f"regions/pipe.{i}.py" for i in range(1, 6)}


def test_without_its_cells_a_report_has_the_questions(tmp_path):
    texts = {"question": "Why?", "answer": "So."}
    cells = [new_markdown_cell(text, metadata={"tags": [tag]}) for tag, text in texts.items()]
    path = tmp_path / "05_a.ipynb"
    path.write_text(notebook(new_code_cell("1", metadata={"tags": ["report"]}), *cells))
    with pytest.raises(report.ReportError, match="has not been run"):
        report.read_report(path)
    assert [cell.source for cell in report.read_report(path, texts_alone=True).cells[1:]] == ["Why?", "So."]


# --- somebody else's archive ----------------------------------------------------------------------


def zipped(path: Path, **members: str) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, text in members.items():
            file.writestr(name, text)
    return path


@pytest.mark.parametrize(
    ("members", "says"),
    [
        ({"manifest.json": "{}"}, "has neither labkit/dp.py nor labkit/pipe.py"),
        ({"../labkit/dp.py": "", "/labkit/pipe.py": ""}, "has neither"),
        ({"labkit/dp.py": "#" * (grading.MOST_BYTES + 1)}, "more than 1,048,576 bytes"),
    ],
)
def test_an_archive_that_labkit_has_not_made_is_refused(members, says, tmp_path):
    with pytest.raises(ValueError, match=says):
        grading.check_archive(zipped(tmp_path / "x.zip", **members), ROOT, ["pipe.2"])
    assert {*tmp_path.iterdir()} == {tmp_path / "x.zip"}


@in_the_marked_source
def test_an_archive_tells_its_layout_and_may_have_its_files_in_a_folder(tmp_path):
    given = Edition(ROOT).programs["labkit/pipe.py"]
    members = {"mine/labkit/pipe.py": f"import itertools\n{given}", "manifest.json": '{"layout": "11-868"}'}
    results, remarks = grading.check_archive(zipped(tmp_path / "x.zip", **members), ROOT, ["pipe.2"])
    assert [each.passed for each in results] == [False]
    assert any("import itertools is not allowed" in remark for remark in remarks)
    assert "labkit/dp.py is not in it" in remarks


@in_the_marked_source
@pytest.mark.parametrize(
    ("old", "new", "edited"), [("order = list", "order = [*()] or list", False), ("(sizes: S", "(own: S", True)]
)
def test_an_edit_of_given_code_in_a_students_file_is_noticed(old, new, edited):
    source = (ROOT / "labkit/dp.py").read_text()
    assert old in source
    assert grading.edits_what_was_given(Edition(ROOT), "labkit/dp.py", source.replace(old, new).encode()) == edited


def test_a_file_that_is_no_archive_is_refused(tmp_path):
    (tmp_path / "x.zip").write_text("no")
    with pytest.raises(ValueError, match="no archive that can be read"):
        grading.check_archive(tmp_path / "x.zip", ROOT, ["pipe.2"])


# --- as a student does it -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def edition(tmp_path_factory):
    """A student edition: dp.1 is written, pipe.2 is written wrongly, a given file was edited."""
    folder = tmp_path_factory.mktemp("my course ü")
    for part in ("labkit", "notebooks", "data"):
        shutil.copytree(
            ROOT / part, folder / "repository" / part, ignore=shutil.ignore_patterns("__pycache__", "0[1-46-9]*", "1*")
        )
    shutil.copy(ROOT / "pyproject.toml", folder / "repository")
    write_student_edition(folder / "lab", folder / "repository")
    lab = folder / "lab"
    dp, pipe = lab / "labkit/dp.py", lab / "labkit/pipe.py"
    solved = {*FUNCTIONS["dp.1"]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(regions, "_WRITTEN", solved)
        dp.write_text(regions.set_into(dp.read_text(), (ROOT / "labkit/dp.py").read_text()))
    todo = 'raise TodoError("pipe.2")'
    pipe.write_text(pipe.read_text().replace(f"    {todo}\n", f"    {WRITES_CLOCKS.strip()}\n"))
    with (lab / "labkit/launch.py").open("a") as file:
        file.write("# edited\n")
    return lab


def labkit(lab: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(lab)}
    command = [sys.executable, "-m", "labkit.cli", *arguments]
    return subprocess.run(command, cwd=lab, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
@in_the_marked_source
def test_what_a_student_submits_is_checked_from_the_archive_as_before_it_was_packed(edition):
    ended = labkit(edition, "submit", "--only", "dp.1, pipe.2", "--out", "labkit/mine.zip")
    assert ended.returncode == 1, ended.stderr
    assert "labkit/launch.py was edited: 1 line from line" in ended.stdout
    rows = [line for line in ended.stdout.splitlines() if line.startswith(("dp.1 ", "pipe.2 "))]
    assert rows[0].split() == ["dp.1", "yes"] and rows[1].split()[1] == "no"
    assert "\nlabkit/mine.zip, " in ended.stdout and "packing-" not in ended.stdout
    with zipfile.ZipFile(edition / "labkit/mine.zip") as members:
        manifest = json.loads(members.read("manifest.json"))
        assert "class Partition" not in members.read("regions/dp.1.py").decode()
        assert "def partition_dataset" in members.read("regions/dp.1.py").decode()
    assert "report-05.html" in manifest["sha256"]
    assert {*manifest["sha256"]} == {*members.namelist()} - {"manifest.json"}
    graded = labkit(ROOT, "check", "--from", str(edition / "labkit/mine.zip"), "dp.1", "pipe.2")
    assert [line for line in graded.stdout.splitlines() if line.startswith(("dp.1 ", "pipe.2 "))] == rows
