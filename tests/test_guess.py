"""A guess has no default, holds back the cells that reveal its answer, outlives the kernel, and is
final once the answer is out."""

from __future__ import annotations

import json
import re
from pathlib import Path

import nbformat
import pytest
from bs4 import BeautifulSoup
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

from labkit import todo
from labkit.course.student import is_student_edition
from labkit.guess import Guess, all_guesses, calibration, draw_calibration, guess, said_of_calibration
from labkit.guesses import store
from labkit.guesses.calibration import notebooks_that_ask
from labkit.guesses.question import Question
from labkit.stats import Interval

NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"


@pytest.fixture(autouse=True)
def own_answers(tmp_path, monkeypatch):
    """A reader with a lab and an answers folder of their own, in front of a live notebook."""
    monkeypatch.setenv("LABKIT_ANSWERS", str(tmp_path / "answers"))
    monkeypatch.delenv("LABKIT_STATIC", raising=False)
    monkeypatch.delenv(store.KEPT, raising=False)
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path / "notebooks")
    return tmp_path


@pytest.fixture
def hidden() -> Guess:
    return guess("hidden", "Which fraction hides?", low=0, high=1)


def test_a_guess_has_no_default_outlives_the_kernel_and_can_be_changed_until_the_answer_is_out(hidden):
    assert (hidden.value, hidden.given, hidden.final) == (None, False, False)
    assert "no guess yet" in repr(hidden)
    hidden.give(0.5)
    again = guess("hidden", "Which fraction hides?", low=0, high=1)
    assert again.value == 0.5
    again.give(None)
    assert (hidden.value, hidden.given, hidden.in_words()) == (None, True, "I don't know")


def test_once_the_answer_is_out_the_guess_is_final_until_it_is_forgotten(hidden, capsys):
    hidden.give(0.5)
    hidden.feedback(0.72, as_if={"if nothing overlapped": 0.0})
    assert "You said: 0.5. It is 0.72" in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"hidden is final.*forget"):
        hidden.give(0.7)
    hidden.forget()
    hidden.give(0.7)
    assert (hidden.value, hidden.final) == (0.7, False)


def test_a_damaged_file_is_named_and_kept(own_answers, hidden):
    hidden.give(0.5)
    file = own_answers / "answers" / "guesses.json"
    file.write_text(file.read_text()[:-4])
    with pytest.raises(ValueError, match=r"guesses\.json is damaged"):
        hidden.give(0.6)
    assert "0.5" in file.read_text()


# --- cells that wait ------------------------------------------------------------------------------


@pytest.fixture
def shell():
    shell = InteractiveShell.instance()
    todo.load_ipython_extension(shell)
    yield shell
    InteractiveShell.clear_instance()


def test_a_cell_that_reveals_the_answer_waits_for_the_guess(shell, hidden):
    cell = "%%needs guess.hidden\nprint('72 % hide')"
    with capture_output() as before:
        shell.run_cell(cell)
    hidden.give(None)
    with capture_output() as after:
        shell.run_cell(cell)
    (waits,) = before.outputs
    assert waits.data["text/plain"].startswith("GUESS hidden: give your guess first")
    assert after.stdout == "72 % hide\n"
    assert todo.missing("guess.of_another_day") == f"GUESS of_another_day: {todo.RUN_ABOVE}"


# --- kept pages -----------------------------------------------------------------------------------


@pytest.fixture
def kept_page(own_answers, monkeypatch):
    monkeypatch.setenv("LABKIT_STATIC", "1")
    file = own_answers / "notebooks" / "guesses.json"
    file.write_text(json.dumps({"hidden": {"guess": 0.5}}))
    return file


def test_a_stored_page_has_the_stored_guess_and_writes_nothing(kept_page, hidden, monkeypatch, capsys):
    before = kept_page.read_bytes()
    assert (hidden.value, hidden.given, hidden.final) == (0.5, True, False)
    hidden.feedback(0.72, as_if={"if nothing overlapped": 0.0})
    assert "You said: 0.5." in capsys.readouterr().out
    assert kept_page.read_bytes() == before
    assert not store.own_file().exists()
    monkeypatch.setenv("LABKIT_STATIC", "0")
    assert (hidden.value, hidden.given) == (None, False)  # in a live notebook the reader is asked


ASKS = re.compile(r"\bguess\(\s*\"(\w+)\"")
NEEDS = re.compile(r"\bguess\.(\w+)")


def test_every_question_of_the_notebooks_holds_a_cell_back_and_has_a_stored_guess(monkeypatch):
    for path in NOTEBOOKS.glob("*.ipynb"):
        code = [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
        heads = " ".join(source.partition("\n")[0] for source in code if source.startswith("%%needs"))
        assert set(ASKS.findall("\n".join(code))) <= set(NEEDS.findall(heads)), path.stem
    monkeypatch.chdir(NOTEBOOKS)
    if is_student_edition():
        assert not store.stored_file().exists()
    else:
        stored = json.loads(store.stored_file().read_text())
        assert list(stored) == list(notebooks_that_ask())
        assert all("guess" in facts and "answer" in facts for facts in stored.values())


# --- calibration ----------------------------------------------------------------------------------


def answered(**pairs) -> None:
    for name, (value, answer) in pairs.items():
        question = Guess(Question(name, "How long?", 0.01, 10_000.0))
        question.give(value)
        question.feedback(answer, as_if={"if messages were free": (0.1, "latency")})


def test_calibration_says_how_far_off_and_what_has_no_factor():
    answered(a=(1.0, 10.0), b=(90.0, 10.0), c=(8.0, 10.0), d=(11.0, 10.0), e=(None, 10.0))
    zero = Guess(Question("zero", "How many?", 0, 4))
    zero.give(2)
    zero.feedback(0, as_if={"if each counted": 2})
    table = calibration()
    assert table.factor.round(3).tolist()[:4] == [0.1, 9.0, 0.8, 1.1]
    assert table.factor.isna().tolist() == [False] * 4 + [True] * 2
    assert table.chance.round(3).tolist()[-1] == 0.6  # 0, 1 and 2 are as near as 2
    summary = said_of_calibration(table).text
    assert "Numbers: 5, typically" in summary and "In 1 of them the guess or the answer is 0" in summary
    assert "Choices: 0" in summary
    assert "That takes 12 numbers" in summary


def test_without_a_guess_nothing_is_drawn():
    with pytest.raises(ValueError, match="no number has been guessed"):
        draw_calibration(calibration())


def test_a_guess_that_the_run_cannot_tell_from_the_answer_is_not_booked_as_wrong():
    answered(inside=(0.04, Interval(0.25, 0.03, 1.0)), outside=(8.0, Interval(0.25, 0.03, 1.0)), unknown=(None, 1.0))
    table = calibration().set_index("question")
    assert table.factor.isna().tolist() == [True, False, True]
    assert table.chance.isna().tolist() == [True, False, True]
    assert table.undecided.tolist() == [True, False, False]
    assert table.answer.tolist() == ["0.25", "0.25", "1"]


QUESTIONS = """
[flat_bytes]
text = "From which size on do `bytes` take longer?"
low = 16
high = 4_194_304
unit = "bytes"

[which]
text = "Which is quicker?"
choices = ["ring", "server"]
"""
ASKING = 'size = guess("flat_bytes")', 'way = guess("which")'


def test_all_guesses_are_listed_by_notebook_in_words_with_their_unit_and_those_nobody_asks_any_more_last(
    own_answers, monkeypatch
):
    (own_answers / "notebooks" / "questions.toml").write_text(QUESTIONS)
    for name, cell in zip(("02_collectives", "03_data_parallel"), ASKING, strict=True):
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell)])
        nbformat.write(notebook, own_answers / "notebooks" / f"{name}.ipynb")
    guess("flat_bytes").give(1024)
    guess("flat_bytes").feedback(710_000.0, as_if={"if messages were free": 20.0})
    guess("which").give("server")
    guess("which").feedback("ring", as_if={"ring": "It is.", "server": ""}, measured=False)
    answered(gone=(10.0, 10.0), unknown=(None, 3.0))
    table = all_guesses(calibration())
    monkeypatch.setenv("LABKIT_STATIC", "1")
    assert repr(all_guesses(calibration())).splitlines() == [
        "02_collectives",
        "  From which size on do `bytes` take longer?",
        "    your guess: 1,024 bytes · the answer: [~ 710,000 bytes] · how far off: [~ 693 times too low]",
        "",
        "03_data_parallel",
        "  Which is quicker?",
        "    your guess: server · the answer: ring · how far off: wrong",
        "",
        "asked elsewhere",
        "  gone",
        "    your guess: 10 · the answer: [~ 10] · how far off: [~ right]",
        "  unknown",
        "    your guess: I don't know · the answer: [~ 3]",
    ]
    page = BeautifulSoup(table._repr_html_(), "html.parser")
    assert [each.th.get_text() for each in page.find_all("table")] == [
        "02_collectives",
        "03_data_parallel",
        "asked elsewhere",
    ]
    assert all("text-align: left" in cell["style"] for cell in page.find_all(["td", "th"]))
    assert page.find("code").get_text() == "bytes"


def test_with_none_or_one_guess_left_the_lines_and_the_picture_say_so():
    assert "No number has been guessed" in said_of_calibration(calibration()).text
    assert repr(all_guesses(calibration())) == "" == all_guesses(calibration())._repr_html_()
    answered(a=(1.0, 10.0))
    assert "Numbers: 1, typically 10 times off" in said_of_calibration(calibration()).text
    assert len(draw_calibration(calibration()).get_yticklabels()) == 1


def test_of_many_numbers_the_eight_furthest_off_are_drawn_the_furthest_on_top():
    answered(**{f"n{factor}": (float(factor), 1.0) for factor in range(2, 14)})
    labels = [label.get_text() for label in draw_calibration(calibration()).get_yticklabels()]
    assert [label.rpartition("n")[2] for label in labels] == [str(n) for n in range(13, 5, -1)]
