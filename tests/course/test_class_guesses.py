"""labkit guesses: what a class guessed, on one page without names; nothing is mixed in silence."""

import json
import zipfile

import nbformat
import pytest
from bs4 import BeautifulSoup
from nbformat.v4 import new_code_cell, new_notebook

from labkit import cli

QUESTIONS = """
[later]
text = "Which is first?"
choices = ["GPipe", "1F1B"]

[ratio]
text = "How many times does `all_reduce` take?"
low = 1.0
high = 100.0
unit = "×"

[ratio.wrong]
free = {phrase = "if {n} messages were free", forgets = "latency"}

[few]
text = "How many?"
low = 0
high = 4
"""
STORED = {
    "ratio": {"answer": 10.0, "between": [8.0, 20.0]},
    "later": {"answer": "1F1B"},
    "few": {"answer": 1},
}


@pytest.fixture
def lab(tmp_path, monkeypatch):
    notebooks = tmp_path / "notebooks"
    notebooks.mkdir()
    (notebooks / "questions.toml").write_text(QUESTIONS)
    (notebooks / "guesses.json").write_text(json.dumps(STORED))
    for name, asks in {"02_b": ["later"], "01_a": ["ratio", "few"]}.items():
        cells = [new_code_cell(f'x = guess("{question}")') for question in asks]
        nbformat.write(new_notebook(cells=cells), notebooks / f"{name}.ipynb")
    (tmp_path / "handed_in").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def hand_in(lab, name: str, questions: str = QUESTIONS, left_out: str = "", **guesses) -> None:
    facts = {name: {"guess": value, "answer": 1, "left_out": left_out} for name, value in guesses.items()}
    with zipfile.ZipFile(lab / "handed_in" / f"{name}.zip", "w") as archive:
        archive.writestr("labkit/dp.py", "")
        if guesses:
            archive.writestr("guesses.json", json.dumps(facts))
            archive.writestr("notebooks/questions.toml", questions)


def page_of(lab) -> BeautifulSoup:
    return BeautifulSoup((lab / "handed_in/guesses.html").read_text(), "html.parser")


def test_a_page_has_a_histogram_a_question_in_the_order_of_the_notebooks_and_no_names(lab, capsys):
    hand_in(lab, "ada", ratio=1.0, later="GPipe", few=0, left_out="if 7 messages were free")
    hand_in(lab, "bob", ratio=99.0, later="1F1B", few=4)
    hand_in(lab, "eve", ratio=1.01, later="1F1B", few=None, left_out="call me eve")
    assert cli.main(["guesses", "handed_in"]) == 0
    page = page_of(lab)
    assert not any(name in str(page) for name in ("ada", "bob", "eve"))
    assert [title.text for title in page("h3")] == [
        "How many times does all_reduce take?",
        "How many?",
        "Which is first?",
    ]
    ratio, few, later = page("section")
    counts = [bar.span and bar.span.text for bar in ratio.find(class_="bars")("div")]
    assert (counts[0], counts[-1]) == ("2", "1") and not any(counts[1:-1])
    assert "10 (8 to 20)×" in ratio.p.text and "left: 50.0%" in ratio.find(class_="found")["style"].replace("calc(", "")
    assert [cell.text for cell in ratio.find("tbody")("td")] == ["1", "if {n} messages were free", "latency"]
    assert [bar.span and bar.span.text for bar in few.find(class_="bars")("div")] == ["1", None, None, None, "1"]
    assert "1 “I don't know”" in few.p.text
    assert [[cell.text for cell in row(["th", "td"])][:2] for row in later("tr")] == [["GPipe", "1"], ["1F1B", "2"]]
    assert later.find("tr", class_="right").th.text == "1F1B"


def test_guesses_that_do_not_count_are_named_first_and_leave_the_others(lab, capsys):
    hand_in(lab, "good_123_456_submission", ratio=2.0, later="GPipe")  # Canvas, or as Moodle has it:
    (lab / "handed_in/Zoe_7_assignsubmission_file").mkdir()
    hand_in(lab, "Zoe_7_assignsubmission_file/submission", ratio=4.0)
    hand_in(lab, "none")
    hand_in(lab, "old", QUESTIONS.replace("Which is first?", "Which is last?"), ratio=3.0, later="GPipe")
    hand_in(lab, "forged", later="<b>me</b>", few=5)
    (lab / "handed_in/broken.zip").write_bytes(b"no archive")
    assert cli.main(["guesses", "handed_in", "--out", "handed_in/guesses.html"]) == 1
    printed = capsys.readouterr().out
    assert "- broken cannot be read as an archive" in printed
    assert "- none has no guesses: labkit submit --with-guesses packs them" in printed
    assert "- old: left out later: its edition asks something else there, or nothing\n" in printed
    assert "- forged: left out later, few: the guess is not one that the question allows\n" in printed
    ratio, later = page_of(lab)("section")
    assert "3 guesses" in ratio.p.text and "1 guess," in later.p.text and "From 3 archives" in page_of(lab).p.text


@pytest.mark.parametrize(
    ("prepare", "says"),
    [
        (lambda lab: None, "there is no archive in handed_in"),
        (lambda lab: (lab / "handed_in").rmdir(), "No such file"),
        (
            lambda lab: hand_in(lab, "ada"),
            "no archive in handed_in has guesses of this edition; ada has no guesses",
        ),
        (lambda lab: hand_in(lab, "ada", "", ratio=2.0), "ada: left out ratio: its edition asks something else"),
        (lambda lab: hand_in(lab, "ada", ratio=[]), "ada: left out ratio: the guess is not one"),
        (lambda lab: hand_in(lab, "ada", "[", ratio=2.0), "guesses that cannot be read"),
        (lambda lab: (lab / "notebooks/guesses.json").unlink(), "run this in the repository with the solutions"),
    ],
)
def test_a_folder_without_guesses_of_this_edition_is_refused_and_nothing_is_written(prepare, says, lab, capsys):
    prepare(lab)
    before = {*lab.rglob("*")}
    assert cli.main(["guesses", "handed_in"]) == 2
    (sentence,) = capsys.readouterr().err.splitlines()
    assert sentence.startswith("labkit guesses: ") and says in sentence
    assert {*lab.rglob("*")} == before
