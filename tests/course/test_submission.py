"""What a student hands in: whole files, checked in a copy of the lab as a grader will."""

import contextlib
import json
import os
import shutil
import zipfile
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from labkit import cli
from labkit.base.course import Course, Part, course
from labkit.check import CheckResult, Claim
from labkit.course import archive, submission
from labkit.course.archive import STUDENT_FILES, read_submission

ROOT = Path(__file__).parents[2]


# --- a request that cannot be ---------------------------------------------------------------------


WRONG: set[str] = set()  # tasks that the fake judge finds wrong


def judged(task: str) -> CheckResult:
    return CheckResult(task, (Claim("It ends", f"at {os.getcwd()}" if task in WRONG else None),))


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """A lab whose path has a space and an umlaut, in which nothing is judged."""
    folder = tmp_path / "my course ü" / "lab"
    (folder / "labkit").mkdir(parents=True)
    (folder / "notebooks").mkdir()
    for name in STUDENT_FILES:
        shutil.copy(ROOT / name, folder / name)
    WRONG.clear()
    monkeypatch.setattr(submission, "Judge", contextlib.nullcontext)
    monkeypatch.setattr(submission, "judge_in_copy", lambda files, tasks, judge: [judged(task) for task in tasks])
    monkeypatch.chdir(folder)
    return folder


def request(lab: Path, **options) -> submission.SubmitRequest:
    return submission.SubmitRequest(
        **{"out": lab.parent / "mine.zip", "course": course(), "layout": "labkit", "tasks": ["pipe.2"], **options}
    )


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"layout": "cos598d"}, "give --name NETID_First_Last"),
        ({"layout": "cos598d", "name": "../../ab12_Ada_Lovelace"}, "give --name NETID_First_Last"),
        ({"out": Path("no/such/folder/mine.zip")}, "there is no folder"),
        ({"out": Path("labkit/dp.py")}, "is not an archive"),
        ({"with_guesses": True}, "there are none yet"),
        ({"notebooks": [Path("no.ipynb")]}, "there is no such notebook"),
    ],
)
def test_a_wrong_request_is_refused_before_anything_runs(options, says, lab):
    before = (lab / "labkit/dp.py").read_bytes()
    with pytest.raises((ValueError, OSError), match=says):
        submission.submit(request(lab, **options), say=pytest.fail)
    assert (lab / "labkit/dp.py").read_bytes() == before


@pytest.mark.parametrize("step", ["judge_in_copy", "_manifest"])
def test_an_interrupted_submit_leaves_nothing_behind(step, lab, monkeypatch, capsys):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(submission, step, interrupt)
    before = {*lab.rglob("*")}
    assert cli.main(["submit", "--only", "pipe.2"]) == 130
    assert {*lab.rglob("*")} == before


# --- what is packed, and what is said of it -------------------------------------------------------


def notebook(*cells) -> str:
    return nbformat.writes(new_notebook(cells=[new_markdown_cell("# What?"), *cells]))


def ran(source: str, count: int, *outputs, text: str = "", **options) -> nbformat.NotebookNode:
    shown = [new_output("display_data", data={"text/plain": text})] * bool(text)
    return new_code_cell(source, execution_count=count, outputs=[*outputs, *shown], **options)


def submitted(lab: Path, capsys, **options) -> tuple[bool, list[str], zipfile.ZipFile]:
    """Submit; return whether nothing is left to do, the lines that were said, and the archive."""
    capsys.readouterr()
    nothing_left = submission.submit(request(lab, **options))
    return nothing_left, capsys.readouterr().out.splitlines(), zipfile.ZipFile(lab.parent / "mine.zip")


def test_it_packs_whole_files_and_what_the_student_made_and_no_other_file(lab, capsys, monkeypatch):
    (lab / "labkit/dp.py").write_bytes(b"def (:\r\n\xff")  # even one that is no Python
    for name in ("labkit/launch.py", "venv/lib/x.py", "my notes.txt", "figures/a.svg", "figures/explorers/b.svg"):
        (lab / name).parent.mkdir(parents=True, exist_ok=True)
        (lab / name).write_text("mine")
    for name in ("merged.json", "loss_0.txt", "events.csv", "model0_gradients.pth"):
        (lab / "runs/one").mkdir(parents=True, exist_ok=True)
        (lab / "runs/one" / name).write_text("{}")
    (lab / "notebooks/01_a.ipynb").write_text(saved := notebook(ran('check("pipe.2")', 1)))
    (lab / "notebooks/03_c.ipynb").write_text(notebook(ran('check("dp.1")', 1)))  # of a task that is not asked for
    (lab / "notebooks/06_d.ipynb").write_text(notebook(new_code_cell("1")))  # of no task, and never run
    needs_more = new_code_cell("%%needs pipe.1 pipe.2\n1")  # that cannot be run with this task alone
    (lab / "notebooks/09_e.ipynb").write_text(notebook(needs_more))
    for name in ("Untitled", "01_a-Copy1", "mine"):  # not the lab's
        (lab / f"notebooks/{name}.ipynb").write_text(saved)
    (lab / ".labkit").mkdir()
    (lab / ".labkit/guesses.json").write_text('{"how": {"guess": 3}}')
    monkeypatch.setenv("LABKIT_ANSWERS", str(lab / ".labkit"))
    nothing_left, lines, members = submitted(lab, capsys)
    expected = {*STUDENT_FILES, "manifest.json", "figures/a.svg"}
    expected |= {"notebooks/01_a.ipynb", "notebooks/09_e.ipynb", "notebooks/01_a.html"}
    expected |= {"runs/one/merged.json", "runs/one/loss_0.txt"}
    assert {*members.namelist()} == expected
    assert members.read("labkit/dp.py") == b"def (:\r\n\xff" and members.read("notebooks/01_a.ipynb").decode() == saved
    assert nothing_left and lines[-1] == "Nothing is left to do: hand in mine.zip."
    (lab / "notebooks/questions.toml").write_text("[how]")
    more = submitted(lab, capsys, with_guesses=True, notebooks=[lab / "notebooks/mine.ipynb"])[2]
    requested = {"guesses.json", "notebooks/questions.toml", "notebooks/mine.ipynb", "notebooks/mine.html"}
    assert {*more.namelist()} == {*expected, *requested}


def test_the_manifest_names_versions_hashes_checks_and_no_person_or_place(lab, capsys, monkeypatch):
    monkeypatch.setenv("USER", "max")
    (lab / "notebooks/01_a.ipynb").write_text(notebook(ran("max(1, 2)", 1, text=str(lab))))
    WRONG.add("pipe.2")
    _, lines, members = submitted(lab, capsys)
    text = members.read("manifest.json").decode()
    manifest = json.loads(text)
    assert {*manifest} == {"course", "layout", "versions", "runs", "checks", "sha256"}
    assert {"python", "labkit", "torch"} <= {*manifest["versions"]}
    assert manifest["checks"] == {"pipe.2": {"passed": False, "claims": {"It ends": "✗"}}}
    assert {*manifest["sha256"]} == {*members.namelist()} - {"manifest.json"}
    for private in (str(lab), json.dumps(str(lab))[1:-1], str(Path.home()), "max"):
        assert private not in text
    assert "max(1, 2)" in members.read("notebooks/01_a.ipynb").decode()  # nothing is rewritten for a user called max
    assert lines[-1].startswith("Next: pipe.2 is not right yet; labkit check pipe.2 says more.")


NORMAL = {
    "an exercise that ends in LaunchTimeout": [
        ran("launch(late)", 1, new_output("error", ename="LaunchTimeout", evalue="", traceback=[])),
        ran('check("pipe.2")', 2),
    ],
    "a check that was run again after a fix": [ran('check("pipe.2")', 9), ran("1", 2)],
}


@pytest.mark.parametrize("what", NORMAL)
def test_it_does_not_complain_of_normal_work(what, lab, capfd):
    (lab / "notebooks/01_a.ipynb").write_text(notebook(*NORMAL[what]))
    os.utime(lab / "notebooks/01_a.ipynb", (1, 1))  # saved before dp.py was edited for another task
    assert submission.submit(request(lab))
    printed = capfd.readouterr()
    assert printed.out.splitlines()[-1] == "Nothing is left to do: hand in mine.zip." and not printed.err
    assert "\n- " not in printed.out


def test_what_is_left_to_do_is_said_in_a_line_each_and_the_last_line_says_what_is_next(lab, capsys, monkeypatch):
    todo = "TODO pipe.2: labkit/pipe.py, line 9; GUESS how: run it first; GUESS why: run it first"
    waits = ran("%%needs pipe.2 guess.how guess.why", 2, text=todo)
    (lab / ".labkit").mkdir()
    (lab / ".labkit/guesses.json").write_text('{"why": {"guess": null}}')
    monkeypatch.setenv("LABKIT_ANSWERS", str(lab / ".labkit"))
    (lab / "notebooks/01_a.ipynb").write_text(notebook(ran('check("pipe.2")', 1), waits))
    (lab / "notebooks/02_b.ipynb").write_text("not JSON")
    (lab / "notebooks/08_e.ipynb").write_text(notebook(new_code_cell("%%needs pipe.2 guess.how\n1")))
    with (lab / "labkit/pipe.py").open("a") as file:
        file.write("\nimport deepspeed\n")
    (lab / "figures").mkdir()
    (lab / "figures/model.bin").write_bytes(bytes(archive.MAX_PACKED_BYTES + 1))
    nothing_left, lines, members = submitted(lab, capsys)
    remarks = [line.removeprefix("- ") for line in lines if line.startswith("- ")]
    begins = [
        "labkit/pipe.py, line ",
        "01 has cells that waited for pipe.2, which you have done since: run it again",
        "01 has cells that waited for your guesses why, given since: run it again",
        "01 waits for your guesses: how",
        "02_b.ipynb cannot be read as a notebook",
        "you have not run 08; it needs pipe.2 and your guesses",
        "figures/model.bin is left out: it has 10 MB, more than 10",
    ]
    assert len(remarks) == len(begins)
    for remark, begin in zip(remarks, begins, strict=True):
        assert remark.startswith(begin)
    assert not nothing_left and lines[-1].startswith("Next: see to the lines that begin with -")
    assert "It is packed all the same. The exit status is 1 until" in lines[-1]
    assert "notebooks/02_b.ipynb" in members.namelist() and "notebooks/08_e.html" not in members.namelist()


COURSE = """
title = "Pipelines"
[[parts]]
name = "Clocks"
tasks = ["pipe.2"]
due = 2027-02-28T23:59:59-05:00
"""


def test_a_course_has_its_tasks_files_and_due_dates_and_the_archive_names_it(lab, capsys):
    (lab / "course.toml").write_text(COURSE)
    needs_what_is_given = ran('%%needs dp.1\ncheck("pipe.2")', 1)
    (lab / "notebooks/08_a.ipynb").write_text(notebook(needs_what_is_given))
    assert cli.main(["submit"]) == 0
    printed = capsys.readouterr().out
    assert "Clocks is due Sunday, 2027-02-28 23:59 UTC-05:00." in printed and "Nothing is left to do" in printed
    with zipfile.ZipFile(lab / "submission.zip") as members:
        assert {name for name in members.namelist() if name.endswith(".py")} == {"labkit/pipe.py"}
        manifest = json.loads(members.read("manifest.json"))
    assert manifest["course"] == "Pipelines" and [*manifest["checks"]] == ["pipe.2"]
    (lab / "course.toml").write_text(COURSE.replace("[[parts]]", 'layout = "mine"\n[[parts]]'))
    assert cli.main(["submit"]) == 2
    assert "course.toml: there is no layout 'mine', expected one of: labkit" in capsys.readouterr().err


# --- somebody else's archive ----------------------------------------------------------------------


def zipped(path: Path, members: dict[str, str | bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as file:
        for name, text in members.items():
            file.writestr(name, text)
    return path


@pytest.mark.parametrize(
    ("members", "says"),
    [
        ({"manifest.json": "{}"}, "has no labkit/dp.py and no labkit/pipe.py"),
        ({"../labkit/dp.py": "", "/labkit/pipe.py": "", "a/b/labkit/pipe.py": ""}, "has no labkit/dp.py"),
        ({"labkit/dp.py": "#" * (archive.MAX_READ_BYTES + 1)}, "more than 1,048,576 bytes"),
    ],
)
def test_an_archive_that_labkit_has_not_made_is_refused(members, says, tmp_path):
    with pytest.raises(ValueError, match=says):
        read_submission(zipped(tmp_path / "x.zip", members), course())
    assert {*tmp_path.iterdir()} == {tmp_path / "x.zip"}


def test_what_a_grader_should_know_of_an_archive_is_said(tmp_path):
    assert read_submission(zipped(tmp_path / "x.zip", {"mine/labkit/pipe.py": "1"}), course()).remarks == [
        "its manifest.json is missing or cannot be read: labkit submit did not make it",
        "labkit/dp.py is not in it",
        "labkit/shard.py is not in it",
    ]
    members = {"labkit/dp.py": "1", "old/labkit/dp.py": "2", "labkit/pipe.py": "3", "manifest.json": '{"sha256": {}}'}
    members["labkit/shard.py"] = "4"
    found = read_submission(zipped(tmp_path / "x.zip", members), course())
    assert found.files == {"labkit/dp.py": b"1", "labkit/pipe.py": b"3", "labkit/shard.py": b"4"}
    assert found.remarks == [
        "there are 2 labkit/dp.py in it: labkit/dp.py was taken",
        "labkit/dp.py was changed after labkit submit had packed it",
        "labkit/pipe.py was changed after labkit submit had packed it",
        "labkit/shard.py was changed after labkit submit had packed it",
    ]


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_of_two_members_of_one_name_the_last_one_counts_as_for_unzip(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as file:
        for content in ("1", "2"):
            file.writestr("labkit/dp.py", content)
    found = read_submission(tmp_path / "x.zip", course())
    assert found.files == {"labkit/dp.py": b"2"}
    assert "there are 2 labkit/dp.py in it: the last labkit/dp.py was taken" in found.remarks


def test_an_archive_of_another_course_says_so(tmp_path):
    packed = zipped(tmp_path / "x.zip", {"labkit/pipe.py": "1", "manifest.json": '{"course": "Spring"}'})
    autumn = Course("Autumn", (Part("Pipelines", (), {"pipe.2": 10}),))
    assert read_submission(packed, autumn).remarks == [
        "it was packed for the course 'Spring', and this is the course 'Autumn'"
    ]
