"""A course file: what it says, and what is wrong with one, in a sentence."""

import datetime

import pytest

from labkit import cli
from labkit.base.course import FILE, TASKS, CourseError, course
from labkit.check import check, points_of, record

TWO_PARTS = """
title = "Data parallelism"
languages = ["sv", "en"]
given = ["dp.2"]

[[parts]]
name = "Averages"
notebooks = ["01", "03_data_parallel"]
tasks = {"dp.4" = 25, "dp.1" = 0}
due = 2027-02-28T23:59:59-05:00

[[parts]]
name = "Pipelines"
tasks = ["pipe.2"]
"""


@pytest.fixture
def lab(tmp_path, monkeypatch):
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_labs_own_file_says_what_the_course_is(lab):
    (lab / FILE).write_text(TWO_PARTS)
    found = course()
    assert (found.title, found.layout, found.languages) == ("Data parallelism", "labkit", ("sv", "en"))
    assert found.tasks == ("dp.4", "dp.1", "pipe.2") and found.student_files == ("labkit/dp.py", "labkit/pipe.py")
    assert points_of(found) == {"dp.4": 25, "dp.1": 0, "pipe.2": record("pipe.2").points}
    assert found.parts[0].due == datetime.datetime(2027, 3, 1, 4, 59, 59, tzinfo=datetime.UTC)
    assert found.parts[0].notebooks == ("01", "03_data_parallel") and found.parts[1].due is None


def test_without_a_file_the_course_is_the_whole_lab(lab):
    assert course().tasks == TASKS and course().file is None
    assert points_of(course()) == {task: record(task).points for task in TASKS}


def test_a_task_that_the_course_leaves_out_is_given_and_not_judged(lab):
    (lab / FILE).write_text(TWO_PARTS)
    assert check("dp.3").passed and repr(check("dp.3")).startswith("dp.3 is given")


PART = '[[parts]]\nname = "A"\n'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("title = ", "is not TOML"),
        ('title = "T"', "it has no parts"),
        (PART + 'tasks = ["dp.1"]', "the course has no title"),
        ('title = "T"\n' + PART, "no part has a task"),
        ('title = "T"\n[[parts]]\ntasks = ["dp.1"]', "part 1 has no name"),
        ('title = "T"\n' + PART + 'tasks = ["dp.99"]', "there is no task 'dp.99', expected some of: dp.1"),
        ('title = "T"\ngiven = ["zero"]\n' + PART + 'tasks = ["dp.1"]', "there is no task 'zero'"),
        ('title = "T"\n' + PART + 'tasks = "dp.1"', "tasks of part 'A' is 'dp.1', expected a list"),
        ('title = "T"\n' + PART + "notebooks = [1]", "notebooks of part 'A' is [1], expected a list"),
        ('title = "T"\n' + PART + 'tasks = {"dp.1" = -1}', "dp.1 is worth -1, expected a number, 0 or more"),
        ('title = "T"\n' + PART + 'tasks = {"dp.1" = nan}', "dp.1 is worth nan"),
        ('title = "T"\n' + PART + 'tasks = {"dp.1" = true}', "dp.1 is worth True"),
        ('title = "T"\n' + PART + "due = 2027-02-28T23:59:59", "with its time zone"),
        ('title = "T"\n' + PART + "due = 2027-02-28", "with its time zone"),
        ('title = "T"\n' + PART + 'due = "tomorrow"', "with its time zone"),
        (
            'title = "T"\n' + PART + 'tasks = ["dp.1"]\n[[parts]]\nname = "B"\ntasks = ["dp.1"]',
            "dp.1 is in part 'A' and",
        ),
        ('title = "T"\n' + PART + 'notebooks = ["01", "01"]', "01 is in part 'A' and in part 'A': leave it in one"),
        ('title = "T"\ngiven = ["dp.1"]\n' + PART + 'tasks = ["dp.1"]', "dp.1 is in part 'A' and given"),
        ('title = "T"\n' + PART + 'task = ["dp.1"]', "part 'A' has 'task', expected some of: name"),
        ('title = "T"\nlate = 3\n' + PART + 'tasks = ["dp.1"]', "the file has 'late', expected some of: title"),
        ('title = "T"\nlanguages = ["sv"]\n' + PART + 'tasks = ["dp.1"]', "expected two, such as"),
        ('title = "T"\nlanguages = ["../", "en"]\n' + PART + 'tasks = ["dp.1"]', "there is no language '../'"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_in_a_sentence(text, says, lab, capsys):
    (lab / FILE).write_text(text)
    with pytest.raises(CourseError) as refused:
        course()
    assert says in str(refused.value) and str(refused.value).startswith(str(lab / FILE))
    assert cli.main(["check"]) == 2 and says in capsys.readouterr().err


def test_a_file_that_is_not_there_is_refused_before_anything_is_graded(lab, capsys):
    assert cli.main(["grade", str(lab), "--course", "mine.toml"]) == 2
    assert "mine.toml cannot be read: No such file" in capsys.readouterr().err
    assert not (lab / "grades").exists()
