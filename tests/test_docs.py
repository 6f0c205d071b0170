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


MARKS = {"schedules": task("pipe.5"), "training": pytest.mark.slow}  # one calls the reader's own, one trains
WITH_PYTHON = [
    pytest.param(page, id=page.stem, marks=MARKS.get(page.stem, [])) for page in PAGES if blocks(page, "python")
]


@pytest.mark.parametrize("page", WITH_PYTHON)
def test_the_python_of_a_page_runs_from_top_to_bottom(page, tmp_path):
    """As one script: what a block makes, the next may use."""
    script = tmp_path / "page.py"
    script.write_text("\n".join(blocks(page, "python")), encoding="utf-8")
    variables = {"MPLBACKEND": "Agg", "LABKIT_STATIC": "1", "PYTHONPATH": str(PROJECT), "LABKIT_FIGURES": str(tmp_path)}
    done = warm_python.run(script, folder=PROJECT, **variables)
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
