"""A conclusion is the sentence that the run decides: above, below, or that it cannot tell."""

from __future__ import annotations

import pytest

from labkit.stats import Interval, conclusion

WORDS = """
[gains]
above = "Overlap is {found} times as fast; predicted {predicted}."
below = "Here the order is reversed: {found}, not above {than}; predicted {predicted}."
unclear = "This run cannot tell: {found}; predicted {predicted}."

[half]
above = "Yes."
below = "No."
"""


@pytest.fixture(autouse=True)
def lab(tmp_path, monkeypatch):
    monkeypatch.delenv("LABKIT_STATIC", raising=False)
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks" / "conclusions.toml").write_text(WORDS)
    monkeypatch.chdir(tmp_path / "notebooks")


@pytest.mark.parametrize(
    ("ends", "sentence"),
    [
        ((1.2, 1.4), "Overlap is 1.30 (1.20 to 1.40) times as fast; predicted 1.25."),
        ((0.6, 0.8), "Here the order is reversed: 0.70 (0.60 to 0.80), not above 1; predicted 1.25."),
        ((0.9, 1.1), "This run cannot tell: 1.00 (0.90 to 1.10); predicted 1.25."),
        ((1.0, 1.2), "This run cannot tell: 1.10 (1.00 to 1.20); predicted 1.25."),
    ],
)
def test_the_interval_decides_which_sentence_comes(ends, sentence):
    found = conclusion("gains", Interval(sum(ends) / 2, *ends), predicted=1.25)
    assert str(found) == sentence
    assert found.is_noise == sentence.startswith("This run cannot tell")


def test_repeats_are_compared_by_their_interval_with_any_number():
    assert conclusion("gains", [3.0] * 7, than=4.0, predicted=3.0).word == "below"
    assert conclusion("gains", [5.0] * 7, than=4.0, predicted=3.0).word == "above"


def test_a_stored_page_has_the_whole_sentence_in_brackets_as_any_run_may_say_another(monkeypatch):
    monkeypatch.setenv("LABKIT_STATIC", "1")
    text = str(conclusion("gains", [5.0] * 7, predicted=3.0))
    assert text.startswith("[~ Overlap") and text.endswith("]")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("half", "half lacks unclear: a run may decide either way, or not at all"),
        ("gains", "gains names 'predicted', and got found, than"),
        ("gain", "'gain' is not in conclusions.toml, expected one of gains, half"),
    ],
)
def test_words_that_lack_a_sentence_or_a_number_are_refused(name, message):
    with pytest.raises(ValueError, match=message):
        conclusion(name, [1.0] * 7)
