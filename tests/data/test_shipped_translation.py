"""The generated sentences are right German and English, and hold out the numbers that they say."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
from num2words import num2words

from labkit import data
from labkit.data import sources

PROJECT = Path(__file__).resolve().parents[2]
FILES = [f"{split}.{language}" for split in ("train", "val", "test") for language in ("de", "en")]


@pytest.fixture(scope="module")
def maker():
    spec = importlib.util.spec_from_file_location("make_translation", PROJECT / "data" / "make_translation.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_script_makes_the_committed_files_byte_for_byte(tmp_path):
    subprocess.run([sys.executable, PROJECT / "data" / "make_translation.py", tmp_path], check=True)
    for name in FILES:
        assert (tmp_path / name).read_bytes() == (sources.GENERATED / "translation" / name).read_bytes(), name


def test_number_words_are_those_of_num2words(maker):
    for n in [*range(2200), *range(2200, 1_000_000, 7919)]:
        assert maker.number_de(n) == num2words(n, lang="de")
        assert maker.number_en(n) == num2words(n, lang="en").replace(",", "")
    for n in range(1, 100):
        assert maker.ordinal_de(n) == num2words(n, lang="de", to="ordinal") + "n"  # as it stands after "am"
        assert maker.ordinal_en(n) == num2words(n, lang="en", to="ordinal")
    for year in range(1700, 2025):
        assert maker.year_de(year) == num2words(year, lang="de", to="year")
        english = num2words(year, lang="en", to="year" if year < 2000 else "cardinal")
        assert maker.year_en(year) == english


GERMAN = {num2words(n, lang="de"): n for n in range(60)} | {"ein": 1, "Viertel": 15}
ENGLISH = {num2words(n): n for n in range(60)} | {"half": 30, "a quarter": 15}


def _minutes_de(words: str) -> int:
    """Read a spoken German time, by a grammar that knows nothing of the generator."""
    if found := re.fullmatch(r"(\w+) Uhr(?: (\w+))?", words):
        return 60 * GERMAN[found[1]] + (GERMAN[found[2]] if found[2] else 0)
    found = re.fullmatch(r"(?:(\w+) (vor|nach) )?(halb )?(\w+)", words)
    assert found, words
    shift = GERMAN[found[1]] * (-1 if found[2] == "vor" else 1) if found[1] else 0
    return 60 * GERMAN[found[4]] - (30 if found[3] else 0) + shift


def _minutes_en(words: str) -> int:
    if found := re.fullmatch(r"(.+) (past|to) (\w+)", words):
        return 60 * ENGLISH[found[3]] + ENGLISH[found[1]] * (-1 if found[2] == "to" else 1)
    hour, _, rest = words.partition(" ")
    return 60 * ENGLISH[hour] + (0 if rest == "o'clock" else ENGLISH[rest.removeprefix("oh ")])


def test_each_minute_of_the_clock_is_said_rightly_in_both_languages(maker):
    assert maker.clock(2, 30) == ("halb drei", "half past two")
    for hour in range(1, 13):
        for minute in range(60):
            german, english = maker.clock(hour, minute)
            expected = (60 * hour + minute) % 720
            assert _minutes_de(german) % 720 == expected, german
            assert _minutes_en(english) % 720 == expected, english


def test_no_german_sentence_occurs_twice_within_or_across_splits():
    sentences = [pair["de"] for split in ("train", "val", "test") for pair in data.translation(split, "shipped")]
    assert len(sentences) == len(set(sentences)) == 4700


def test_training_never_shows_a_held_out_number_and_test_shows_all_of_them(maker):
    words = {n: (num2words(n, lang="de"), num2words(n), num2words(n, to="ordinal")) for n in maker.HELD_OUT}
    train = data.translation("train", "shipped")
    german, english = ("\n".join(pair[side] for pair in train) for side in ("de", "en"))
    test = " ".join(pair["de"] for pair in data.translation("test", "shipped"))
    for n, (de, en, ordinal) in words.items():
        assert not re.search(de, german.lower()), n
        assert not re.search(rf"\b({en}|{ordinal})\b", english.lower()), n
        assert de in test.lower(), n


def test_training_shows_each_unit_and_each_ten_of_the_held_out_numbers(maker):
    train = " ".join(pair["en"] for pair in data.translation("train", "shipped")).lower()
    shown = {n for n in range(21, 100) if n % 10 and re.search(rf"\b{num2words(n)}\b", train)}
    assert {n % 10 for n in shown} >= {n % 10 for n in maker.HELD_OUT}
    assert {n // 10 for n in shown} >= {n // 10 for n in maker.HELD_OUT}
    assert not shown & maker.HELD_OUT
