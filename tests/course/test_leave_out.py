### INSTRUCTORS ONLY: a student edition has no solutions of which it could leave some out
"""What a course leaves out is out of its student edition, and what stays leads nowhere else."""

import json
import re
from pathlib import Path

import pytest
import warm_python

from labkit import cli
from labkit.base.course import TASKS, course
from labkit.course.leave_out import Kept, from_markdown, from_words, kept
from labkit.course.plan import plan
from labkit.course.student import tracked_files
from labkit.course.submission import _NEEDS

ROOT = Path(__file__).parents[2]
NOTEBOOKS = tuple(sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb")))
KEEPS = Kept(NOTEBOOKS, ("01_shards", "08_clock_cycles"), ("dp.1", "pipe.2"))

# --- texts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a<!-- if 01 --> b<!-- end --> c", "a b c"),
        ("a<!-- if 04 --> b<!-- end --> c", "a c"),
        ("<!-- if 08_clock_cycles -->\nb\n<!-- end -->\nc", "b\nc"),
        ("a\n<!-- if pipe.1 -->\nb\n<!-- end -->\nc", "a\nc"),
        ("<!-- if 01 pipe.2 -->b<!-- end --><!-- if 01 dp.2 -->c<!-- end -->", "b"),
        (
            "| `04_overlap` | x |\n| `01_shards` | y |\n| dp.3 | z |\n| dp.1 | z |\n",
            "| `01_shards` | y |\n| dp.1 | z |\n",
        ),
    ],
)
def test_a_mark_keeps_its_text_where_all_that_it_names_is_kept_and_rows_need_none(text, expected):
    assert from_markdown(text, KEEPS, "a.md") == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("<!-- if dp.99 -->b<!-- end -->", "no task or number 'dp.99'"),
        ("<!-- if 01 -->b", "has no partner"),
        ("b<!-- end -->", "<!-- end --> has no partner"),
        ("<!-- if 01 -->a<!-- if 08 -->b<!-- end --><!-- end -->", "has no partner"),
    ],
)
def test_marks_that_do_not_fit_are_refused_with_their_file(text, says):
    with pytest.raises(ValueError, match=f"^a.md: .*{says}"):
        from_markdown(text, KEEPS, "a.md")


def test_the_words_of_a_notebook_go_with_it():
    text = "# all\n\n# --- 01_shards ---\n[a]\n\n# --- 04_overlap ---\n[b]\n\n# --- 08_clock_cycles ---\n[c]\n"
    assert from_words(text, KEEPS) == text.replace("# --- 04_overlap ---\n[b]\n\n", "")
    assert from_words("01_shards = 2\n04_overlap = 1\n", KEEPS) == "01_shards = 2\n"


# --- notebooks ------------------------------------------------------------------------------------

OTHERS = re.compile(rf"\b(?:{'|'.join(NOTEBOOKS)})\b|[Nn]otebooks? \d\d|\(\d\d\)|\b(?:dp|pipe|shard)\.\d\b")


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_names_what_a_course_may_leave_out_only_between_marks(name):
    """Its own number, and the tasks that it needs, are there wherever it is."""
    cells = json.loads((ROOT / f"notebooks/{name}.ipynb").read_text(encoding="utf-8"))["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    own = {name, f"notebook {name[:2]}", *" ".join(map("".join, _NEEDS.findall(code))).split()}
    alone = Kept(NOTEBOOKS, (name,), ())
    texts = [from_markdown("".join(cell["source"]), alone, name) for cell in cells if cell["cell_type"] == "markdown"]
    assert [found for text in texts for found in OTHERS.findall(text) if found.replace("N", "n") not in own] == []


def test_marks_name_notebooks_that_are_there():
    pages = [
        ROOT / "README.md",
        ROOT / "labkit/course/assistants.md",
        *ROOT.glob("docs/*.md"),
        *ROOT.glob("notebooks/*.ipynb"),
    ]
    marks = [
        name
        for page in pages
        for found in re.findall("<!-- if (.+?) -->", page.read_text("utf-8"))
        for name in found.split()
    ]
    assert len(marks) > 20 and [name for name in marks if not KEEPS.knows(name)] == []


# --- plans ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", sorted((ROOT / "courses").glob("*.toml")), ids=lambda file: file.stem)
def test_the_plan_of_each_course_counts_each_task_once_and_has_its_notebooks_in_order(file):
    taught = course(file)
    text = plan(taught, ROOT, kept(taught, NOTEBOOKS))
    assert re.findall(r"\| `(\d\d)_", text) == [name for part in taught.parts for name in part.notebooks]
    rows = [[cell.strip() for cell in line.split("|")] for line in text.splitlines() if "`" in line]
    assert sum(float(row[8] or 0) for row in rows) == float(text.splitlines()[-1].split("|")[8])
    assert all(task in text for task in taught.tasks)


# --- an edition, as a lecturer builds it ----------------------------------------------------------

FOUR_WEEKS = (
    (ROOT / "courses/four-weeks.toml").read_text().replace("[[parts]]", 'languages = ["sv", "en"]\n\n[[parts]]', 1)
)
DUE = 'tasks = {"dp.2" = 1, "dp.1" = 2, "dp.4" = 7}\ndue = 2027-02-28T23:59:59+01:00'


@pytest.fixture(scope="module")
def edition(tmp_path_factory) -> Path:
    """Data parallelism and pipelines without sharding; points and a date of its own."""
    folder = tmp_path_factory.mktemp("course")
    (folder / "mine.toml").write_text(FOUR_WEEKS.replace('tasks = ["dp.2", "dp.1", "dp.4"]', DUE))
    assert cli.main(["student", str(folder / "edition"), "--course", str(folder / "mine.toml")]) == 0
    return folder / "edition"


def test_it_says_which_tasks_are_given_and_what_they_give_away(tmp_path, capsys):
    assert cli.main(["student", str(tmp_path / "edition"), "--course", str(ROOT / "courses/four-weeks.toml")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:] == [
        "Given, filled in and not graded: dp.3, dp.5, shard.1, shard.2, shard.3",
        "dp.3 is given, and gives dp.4 away",
    ]


def test_it_has_its_notebooks_words_and_tests_and_no_others(edition):
    there = tracked_files(edition)
    assert not [name for name in there if re.search("02_|05_|06_|07_|courses/|test_shard|test_parallel_linear", name)]
    assert {"notebooks/01_shards.ipynb", "labkit/shard.py", "labkit/check/shard_1.py", "course.toml"} <= {*there}
    assert "# --- 07_sharding" not in (edition / "notebooks/questions.toml").read_text()
    assert 'raise TodoError("dp.4")' in (edition / "labkit/dp.py").read_text()
    assert "SOLUTION" not in (edition / "labkit/shard.py").read_text() + (edition / "labkit/dp.py").read_text()
    assert "TodoError(" not in (edition / "labkit/shard.py").read_text()


def test_no_page_names_what_is_left_out_and_its_links_lead_on(edition):
    page = (edition / "docs/student.md").read_text()
    assert "07" not in page and "shard.2" not in page and "report 05" not in page
    assert (edition / "README.md").read_text().startswith("# Data parallelism and pipelines in four weeks\n\n| part ")
    assert "Sunday 2027-02-28 23:59 UTC+01:00" in (edition / "README.md").read_text()
    assert [f for f in edition.glob("labkit/**/*.py") if re.search(r"[Nn]otebook 0[2567]", f.read_text("utf-8"))] == []
    for file in [*edition.glob("*.md"), *edition.glob("docs/*.md"), *edition.glob("notebooks/*.ipynb")]:
        text = file.read_text(encoding="utf-8")
        assert "<!-- if" not in text, file
        assert not re.search(r"\b(02_collectives|05_gradient_sync|06_ladder|07_sharding)\b", text), file
        assert not re.search(r"\b([Nn]otebooks?|so|or) 0[2567]\b", text), file
        for target in re.findall(r"\]\(([^)#\s]+)[)#]", text):
            assert target.startswith("https://") or (file.parent / target).exists(), (file, target)


IMPORTS_ALL = """
import importlib, pkgutil, sys
sys.meta_path[:] = [each for each in sys.meta_path if "__editable__" not in getattr(each, "__module__", "")]
sys.path[:] = [folder] + [each for each in sys.path if not __import__("os").path.isdir(f"{each or '.'}/labkit")]
import labkit
from labkit import cli
names = [each.name for each in pkgutil.walk_packages(labkit.__path__, "labkit.")]
for name in names:
    if not name.endswith("__main__"):
        assert importlib.import_module(name).__file__.startswith(folder), name
print(len(names), *labkit.__path__)
assert cli.main(["check", "dp.3"]) == 0
raise SystemExit(cli.main(["check"]))
"""


def test_each_module_of_it_can_be_imported_with_no_other_labkit_and_check_says_todo_or_given(edition):
    run = warm_python.run("-c", f"folder = {str(edition)!r}\n{IMPORTS_ALL}", folder=edition)
    first, given, *lines = run.stdout.splitlines()
    assert first.endswith(f" {edition / 'labkit'}") and run.returncode == 1, run.stderr
    assert [line.split(":")[0] for line in lines] == [f"TODO {task}" for task in course(edition / "course.toml").tasks]
    assert given.startswith("dp.3 is given")


@pytest.mark.parametrize(
    ("part", "says"),
    [
        ('notebooks = ["99"]\ntasks = ["dp.1"]', "there is no notebook '99', expected some of: 00_start_here"),
        ('notebooks = ["01", "01_shards"]\ntasks = ["dp.1"]', "01_shards is there twice"),
        ('tasks = ["dp.1"]', "no part has a notebook"),
        ('layout = "mine"', "part 'A' has 'layout'"),
    ],
)
def test_a_course_that_cannot_be_is_refused_before_anything_is_written(part, says, tmp_path, capsys):
    (tmp_path / "mine.toml").write_text(f'title = "T"\n[[parts]]\nname = "A"\n{part}\n')
    assert cli.main(["student", str(tmp_path / "edition"), "--course", str(tmp_path / "mine.toml")]) == 2
    assert says in capsys.readouterr().err and not (tmp_path / "edition").exists()


def test_without_a_course_each_task_is_to_do():
    assert course().tasks == TASKS and kept(course(), NOTEBOOKS).notebooks == NOTEBOOKS
