"""README and docs/ are true: their Python runs, their commands are understood, links lead on."""

from __future__ import annotations

import re
import shlex

import pytest
import warm_python
from environments import PROJECT
from to_do import task

from labkit.train import command

PAGES = [PROJECT / "README.md", *sorted((PROJECT / "docs").glob("*.md"))]


def blocks(page, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def commands(*pages) -> list[list[str]]:
    """What a reader may type, word by word, without comments."""
    lines = "\n".join(block for page in pages for block in blocks(page, "bash")).replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


WITH_PYTHON = {page.stem: page for page in PAGES if blocks(page, "python")}
TRAINS, READERS_OWN = {"training"}, {"schedules"}  # which calls the reader's pipe.5
EACH = "import runpy, sys\nfor file in sys.argv[1:]:\n    runpy.run_path(file, run_name='__main__')"


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(WITH_PYTHON.keys() - TRAINS - READERS_OWN, id="all others"),
        pytest.param(READERS_OWN, id="the reader's own", marks=task("pipe.5")),
        pytest.param(TRAINS, id="trains", marks=pytest.mark.slow),
    ],
)
def test_the_python_of_a_page_runs_from_top_to_bottom(names, tmp_path):
    """As a script each: what a block makes, the next may use. They share what starts ranks."""
    for name in names:
        (tmp_path / f"{name}.py").write_text("\n".join(blocks(WITH_PYTHON[name], "python")), encoding="utf-8")
    variables = {"MPLBACKEND": "Agg", "LABKIT_STATIC": "1", "PYTHONPATH": str(PROJECT), "LABKIT_FIGURES": str(tmp_path)}
    done = warm_python.run("-c", EACH, *sorted(tmp_path.iterdir()), folder=PROJECT, **variables)
    assert done.returncode == 0, done.stderr


def test_every_command_of_training_is_understood():
    typed = [words[words.index("labkit.train") + 1 :] for words in commands(*PAGES) if "labkit.train" in words]
    assert len(typed) > 10
    for words in typed:
        command.parse(words)


def test_every_target_of_make_is_there_and_every_file_that_is_run():
    targets = set(re.findall(r"^(\w+):", (PROJECT / "Makefile").read_text(), flags=re.MULTILINE))
    for words in commands(*PAGES):
        if words[0] == "make":
            assert words[1] in targets, words
        for word in words:
            if re.match(r"(examples|benchmarks|tests)/\w+.*\.py$", word):
                assert (PROJECT / word).exists(), word


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_and_pictures_of_a_page_are_there(page):
    text = page.read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)#]+)\)|(?:src|srcset)=\"([^\"]+)\"", text)
    for target in filter(None, (a or b for a, b in targets)):
        assert target.startswith("https://") or (page.parent / target).exists(), target


def test_the_first_page_is_short_and_its_first_commands_are_make_lab_and_make_test():
    assert len(PAGES[0].read_text().splitlines()) <= 150
    assert commands(PAGES[0])[:2] == [["make", "lab"], ["make", "test"]]
