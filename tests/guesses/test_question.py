"""A question takes the guesses that it asks for, and says what it expects of any other."""

import math

import pytest

from labkit.guesses.question import Question

FRACTION = {"low": 0, "high": 1}
COUNT = {"low": 1, "high": 30}
CHOICE = {"choices": ("GPipe", "1F1B", "ZB-H1")}

REFUSED = [(FRACTION, 1.2), (FRACTION, "0.5"), (FRACTION, True), (FRACTION, math.nan), (COUNT, 3.5), (COUNT, 0)]
REFUSED += [({"low": 0.0}, -1), (CHOICE, "gpipe")]


@pytest.mark.parametrize(("options", "value"), REFUSED)
def test_a_guess_that_does_not_fit_is_refused_with_what_is_expected(options, value):
    with pytest.raises(ValueError, match="expected"):
        Question("hidden", "How many?", **options).accept(value)


def test_whole_bounds_are_written_out():
    assert Question("size", "From where on?", 16, 4194304, "bytes").expected() == (
        "a whole number from 16 to 4,194,304 bytes"
    )


IN_ANOTHER_UNIT = [((1.0, 1000.0, "ms"), 0.05, "50 ms"), ((0.01, 25.0, "MiB"), 2**20, "1 MiB")]


@pytest.mark.parametrize(("asked", "value", "meant"), IN_ANOTHER_UNIT)
def test_a_guess_out_of_range_is_asked_for_its_unit(asked, value, meant):
    with pytest.raises(ValueError, match=f"Do you mean .* That is {meant}"):
        Question("hidden", "How much?", *asked).accept(value)
    with pytest.raises(ValueError, match=r"expected (?!.*Do you mean)"):
        Question("hidden", "How much?", *asked).accept(-1)


def test_a_number_with_a_comma_that_may_be_two_numbers_is_asked_which():
    with pytest.raises(ValueError, match=r"'1,500', expected a number .*\. Do you mean 1\.500, or 1500\?"):
        Question("slow", "How long?", 1.0, 2000.0, "ms").accept("1,500")


@pytest.mark.parametrize(
    ("low", "high", "unit", "expected"),
    [
        (16, 2**22, "bytes", "a whole number from 16 to 4,194,304 bytes"),
        (1e-5, 1.5, "s", "a number from 0.00001 to 1.5 s"),
        (None, 12345.678, "", "a number up to 12,346"),
    ],
)
def test_a_bound_is_written_without_an_exponent(low, high, unit, expected):
    assert Question("hidden", "How much?", low, high, unit).expected() == expected


FITS = [(FRACTION, 1, 1.0), (COUNT, 30.0, 30), ({}, -7, -7.0), (CHOICE, "1F1B", "1F1B")]


@pytest.mark.parametrize(("options", "value", "kept"), FITS)
def test_a_guess_that_fits_is_kept_as_what_was_asked_for(options, value, kept):
    accepted = Question("hidden", "How many?", **options).accept(value)
    assert accepted == kept
    assert type(accepted) is type(kept)


CHANCES = [  # bounds, guess, answer, and how many random guesses are as near
    ((0.0, 10.0), 4.0, 5.0, 0.2),
    ((0.0, 10.0), 2.0, 0.0, 0.2),  # none of them is below 0
    ((1.0, 10_000.0), 1000.0, 100.0, 0.5),  # by factors, as the slider goes
    ((0, 4), 1, 2, 3 / 5),
    ((0, 4), 2, 2, 1 / 5),
    ((0.0, 10.0), 9.0, 12.0, 0.1),  # the answer may lie outside
    ((None, 10.0), 9.0, 8.0, None),
    ((0.0, 10.0), None, 8.0, None),
]


@pytest.mark.parametrize(("bounds", "guess", "answer", "chance"), CHANCES)
def test_a_guess_is_compared_with_random_ones_in_its_range(bounds, guess, answer, chance):
    found = Question("hidden", "How many?", *bounds).chance(guess, answer)
    assert found is None if chance is None else found == pytest.approx(chance)
    assert Question("which", "Which?", choices=("a", "b")).chance("a", "a") is None
