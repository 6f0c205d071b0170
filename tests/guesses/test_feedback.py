"""Feedback is never just right or wrong: it names the wrong model, or the term, that the guess
came nearest to."""

import pytest

from labkit.guesses import feedback
from labkit.guesses.feedback import Feedback, Quantity
from labkit.guesses.question import Question
from labkit.stats import Interval

FRACTION = Question("hidden", "Which fraction hides?", 0, 1)
TIME = Question("step", "How long?", 0.01, 1000.0, "ms")
SHARE = Question("utilization", "How busy?", 0, 100, "%")
FREE, SHARED, LATENCY = "if messages were free", "if all ranks shared one link", "the latency of 52 messages"
MODELS = {FREE: 0.1, SHARED: 40.0}
TERMS = {LATENCY: 5.2, "the bytes": 0.1}
HIDING = {"sending": 30.0, "what hides": -20.0}
SMALL = {"headers": 6.0, "the mean loss": 0.4}
NOTHING = {"if nothing overlapped": 0.0}

MORE = MODELS | {"if more": 32.0}
WIDE, WIDER = Interval(5.3, 3.1, 9.0), Interval(5.3, 3.1, 41.0)
NUMBERS = {  # guess, answer, wrong models, terms: what is said, and what was left out
    "a wrong model": (0.12, 5.3, MODELS, {}, "44 times too low. Your guess is near 0.1 ms, wh", FREE),
    "a wrong model above": (35.0, 5.3, MODELS, TERMS, SHARED, SHARED),
    "a term": (0.12, 5.3, {}, TERMS, f"leaves out is {LATENCY}: 5.2 of 5.3 ms", LATENCY),
    "a term that takes off": (30.0, 10.0, {}, HIDING, "what hides: it takes off 20 ms", "what hides"),
    "above all terms": (300.0, 5.3, {}, TERMS, f"57 times too high. The largest part is {LATENCY}", ""),
    "near no wrong model": (0.14, 5.3, MODELS, {}, "too low. It would be 0.1 ms if messages were", ""),
    "between two wrong models": (35.0, 5.3, MORE, {}, "5.3 ms: 6.6 times too high. It would", ""),
    "parts that leave out the most": (300.0, 50.0, {}, TERMS, "which leave out 44.7 ms, the largest is", ""),
    "a small term": (2.0, 6.4, {}, SMALL, "The largest part is headers", ""),
    "close": (5.0, 5.3, MODELS, TERMS, "close. The largest part is the latency", ""),
    "inside the interval": (4.0, WIDE, MODELS, {}, "5.3 (3.1 to 9.0) ms: this run cannot tell your", ""),
    "outside the interval": (0.12, WIDE, MODELS, {}, "(3.1 to 9.0) ms: 44 times too low. Your gu", FREE),
    "near a model that the interval holds": (38.0, WIDER, MODELS, {}, "cannot tell", ""),
    "beyond one that the interval holds": (42.0, WIDER, MODELS, {}, "too high. It would", ""),
    "no idea": (None, 5.3, MODELS, TERMS, f"It is 5.3 ms. The largest part is {LATENCY}", ""),
}
FRACTIONS = {
    "right": (0.5, 0.5, NOTHING, {}, "just what you said. It would be 0 if nothing", ""),
    "a fraction too low": (0.1, 0.72, NOTHING, {}, "0.62 too low. Your guess is near 0,", *NOTHING),
    "a guess of nothing": (0.0, 0.72, NOTHING, {}, "is what it would be if nothing overlapped", *NOTHING),
    "no idea, no terms": (None, 0.72, NOTHING, {}, "It would be 0 if nothing overlapped.", ""),
}


TOLD = {name: (TIME, *row) for name, row in NUMBERS.items()} | {
    name: (FRACTION, *row) for name, row in FRACTIONS.items()
}
TOLD["percentages"] = (SHARE, 50.0, 66.7, NOTHING, {}, "66.7%: you are 16.7 percentage points too low", "")


@pytest.mark.parametrize(("question", "guess", "answer", "as_if", "terms", "says", "left_out"), TOLD.values(), ids=TOLD)
def test_a_number_is_told_what_it_left_out(question, guess, answer, as_if, terms, says, left_out):
    models, parts = ({name: Quantity.of(value) for name, value in given.items()} for given in (as_if, terms))
    verdict = feedback.on_number(question, guess, answer, models, parts)
    assert says in verdict.text
    assert verdict.left_out == left_out


REASONS = {"threads": "Threads share the GIL.", "processes": "Processes send what they share."}


def test_a_choice_is_told_what_speaks_for_the_right_one_and_against_its_own():
    threads, processes, no_idea = (feedback.on_choice(guess, "processes", REASONS) for guess in (*REASONS, None))
    assert processes == Feedback("It is. Processes send what they share.")
    assert no_idea == Feedback("It is “processes”. Processes send what they share.")
    assert threads == Feedback(f"{no_idea.text} Your choice, “threads”: Threads share the GIL.")
