"""reveal says with the words of questions.toml how far off a guess is; guess asks with them."""

import pytest

from labkit.guess import guess, reveal
from labkit.guesses import store
from labkit.stats import Interval

QUESTIONS = """
[wait]
text = "How long does a rank wait?"
low = 1.0
high = 1000.0
unit = "ms"

[wait.wrong]
free = {phrase = "if {n} messages were free", forgets = "latency"}
asleep = {phrase = "if it slept", would_be = 900.0}

[wait.parts]
sent = {phrase = "the bytes", forgets = "bytes"}

[ranks]
text = "How many ranks?"
low = 1
high = 8
exact = true

[ranks.wrong]
one = {phrase = "if there were one", would_be = 1}
"""


@pytest.fixture(autouse=True)
def lab(tmp_path, monkeypatch):
    """A lab with these questions, and a reader with answers of their own."""
    monkeypatch.setenv("LABKIT_ANSWERS", str(tmp_path / "answers"))
    monkeypatch.delenv("LABKIT_STATIC", raising=False)
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks" / "questions.toml").write_text(QUESTIONS)
    monkeypatch.chdir(tmp_path / "notebooks")


def guessed(name, value):
    made = guess(name)
    made.give(value)
    return made


def test_seconds_are_told_in_the_unit_of_the_question_and_fields_are_filled(capsys):
    reveal(guessed("wait", 2.0), Interval(0.0050, 0.0045, 0.0055), free=0.002, sent=0.001, n=4)
    printed = capsys.readouterr().out
    assert "It is 5.0 (4.5 to 5.5) ms: 2.5 times too low." in printed
    assert "Your guess is what it would be if 4 messages were free." in printed
    kept = store.load()["wait"]
    assert (kept["answer"], kept["measured"]) == (5.0, True)


def test_an_experiment_after_the_answer_tells_its_own_and_leaves_the_answer_that_is_kept(capsys):
    given = guessed("wait", 2.0)
    reveal(given, 0.005, free=0.002, sent=0.001, n=4)
    reveal(given, 0.020, free=0.002, sent=0.001, n=4)
    assert "It is 20 ms: 10 times too low." in capsys.readouterr().out
    assert store.load()["wait"]["answer"] == 5.0


def test_what_no_run_changes_stands_in_the_file_in_the_unit_of_the_question(capsys):
    reveal(guessed("wait", 900.0), 0.005, free=0.002, sent=0.001, n=4)
    assert "Your guess is what it would be if it slept." in capsys.readouterr().out


def test_repeats_are_told_as_their_median_and_interval(capsys):
    reveal(guessed("wait", 5.0), [0.003, 0.004, 0.005, 0.006, 0.007, 0.008], free=0.001, sent=0.003, n=4)
    assert "It is 5.5 (3.0 to 8.0) ms: this run cannot tell your guess from that." in capsys.readouterr().out


def test_an_exact_answer_is_no_measurement_and_a_whole_number_stays_whole(capsys):
    reveal(guessed("ranks", 1), 4)
    printed = capsys.readouterr().out
    assert "It is 4: 4 times too low. Your guess is what it would be if there were one." in printed
    assert store.load()["ranks"]["answer"] == 4 and not store.load()["ranks"]["measured"]


REFUSED = {
    "a wrong model without its number": ("wait", {"sent": 1.0, "n": 4}, "expected free, sent, n"),
    "a number without words": ("ranks", {"two": 2}, "got two, expected none"),
    "the number of a wrong model that has its own": ("ranks", {"one": 1}, "got one, expected none"),
}


@pytest.mark.parametrize(("name", "numbers", "says"), REFUSED.values(), ids=REFUSED)
def test_a_keyword_that_is_missing_or_has_no_words_is_refused_and_the_guess_stays_open(name, numbers, says):
    made = guessed(name, 2)
    with pytest.raises(TypeError, match=says):
        reveal(made, 3, **numbers)
    assert not made.final


def test_a_question_that_is_not_there_is_refused_with_those_that_are():
    with pytest.raises(ValueError, match=r"'wiat' is not in questions.toml, expected one of wait, ranks"):
        guess("wiat")
