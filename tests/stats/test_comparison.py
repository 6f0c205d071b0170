"""labkit.stats: a sentence that compares has its words from the data, and is as sure as it says."""

import math
import re

import pytest

from labkit.stats import interval, verdict

pytestmark = pytest.mark.usefixtures("static")


def test_the_interval_goes_between_the_order_statistics_of_the_textbook():
    """The table of Le Boudec, appendix A: for n values the ranks of a 95 % interval."""
    for n, (low, high) in {6: (1, 6), 8: (1, 8), 9: (2, 8), 10: (2, 9), 12: (3, 10), 20: (6, 15), 30: (10, 21)}.items():
        assert interval(range(n, 0, -1)) == ((n + 1) / 2, low, high)


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([1.2, 1.31, 1.35, 1.4, 1.4, 1.4, 1.45, 1.47, 1.47, 1.6], "1.40 (1.31 to 1.47) s"),
        ([11, 12, 1288, 1300, 1310, 1320, 1330, 1350, 1360, 9999], "1315 (12 to 1360) s"),
        ([0.5] * 6, "0.5000 s"),
        ([0.0] * 6, "0 s"),
        ([32.0, 256.0, 256.0, 256.0, 256.0, 1024.0], "256 (32 to 1024) s"),
        ([0.03125, 0.25, 0.25, 0.25, 0.25, 1.0], "0.250 (0.031 to 1.000) s"),
    ],
)
def test_an_interval_is_written_with_the_digits_that_it_bears(values, shown):
    assert interval(values).text("s") == shown


ONE = [1.0, 1.1, 0.9, 1.05, 1.2, 0.95, 1.0, 1.15, 0.98, 1.02]


@pytest.mark.parametrize(
    ("times", "word", "unit"), [(2, "faster", "fast"), (0.5, "slower", "long"), (1, "within noise", "fast")]
)
def test_word_and_number_of_a_verdict_come_from_the_data(times, word, unit):
    rates = [0.97, 1.02, 1.0, 0.99, 1.03, 0.98, 1.01, 1.0, 0.96, 1.04]
    found = verdict("threads", [b / times * rate for b, rate in zip(ONE, rates, strict=True)], "one", ONE)
    assert found.word == word
    assert found.interval.median == pytest.approx(times, rel=0.02)
    shown = re.fullmatch(
        r"threads, compared with one: \[~ (.*?) *\] \(median of 10 pairs and its 95 % interval\)", str(found)
    )
    assert shown[1].startswith("within noise, ") == (word == "within noise")
    number = float(re.search(r"[\d.]+ \(", shown[1])[0].removesuffix(" ("))
    assert number == pytest.approx(max(times, 1 / times), rel=0.02) and shown[1].endswith(f"times as {unit}")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: interval([1.0] * 5), "got 5 values, expected at least 6"),
        (lambda: interval([1.0] * 6 + [math.nan]), "not a finite number"),
        (lambda: verdict("threads", ONE, "one", ONE[1:]), "10 times of threads and 9 of one, expected pairs"),
        (lambda: verdict("threads", [0.0, *ONE[1:]], "one", ONE), "not positive"),
    ],
)
def test_too_few_values_and_what_is_no_pair_or_no_time_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
