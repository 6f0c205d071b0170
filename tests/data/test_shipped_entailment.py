"""The generated entailment set has right labels, which neither sentence alone gives away."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from num2words import num2words
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression

from labkit import data
from labkit.data.sources import GENERATED, Rows

PROJECT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def train() -> Rows:
    return data.rte("train", "shipped")


@pytest.fixture(scope="module")
def dev() -> Rows:
    return data.rte("validation", "shipped")


def test_the_script_makes_the_committed_files_byte_for_byte(tmp_path: Path) -> None:
    subprocess.run([sys.executable, PROJECT / "data" / "make_entailment.py", tmp_path], check=True)
    for name in ("train.tsv", "dev.tsv"):
        made = (tmp_path / name).read_bytes()
        assert made == (GENERATED / "entailment" / name).read_bytes(), name
        assert len(made) < 400_000


def test_no_pair_occurs_twice_within_or_across_the_splits(train: Rows, dev: Rows) -> None:
    pairs = [(row["sentence1"], row["sentence2"]) for row in (*train, *dev)]
    assert len(pairs) == len(set(pairs)) == 2028 + 300


# --- labels, by a reader who knows nothing of the generator ---------------------------------------

# What is done, is: a word, and what it says. An opposite has a minus.
BASE = dict(opened="open", closed="close", locked="lock", bought="buy", wrote="write", sold="sell", paid="pay")
BASE |= dict(called="call", watered="water", washed="wash", fed="feed", rang="ring", painted="paint", moved="move")
BASE |= dict(ate="eating", slept="sleeping", swam="swimming", worked="working", sang="singing", danced="dancing")
BASE |= dict(cooked="cooking", studied="studying", chased="chase", saw="see", seen="see", followed="follow")
BASE |= dict(bit="bite", bitten="bite")
OPPOSITE = dict(closed="open", asleep="awake", off="on", unlocked="locked", absent="present")
LESS = dict(younger="older", shorter="taller", poorer="richer", slower="faster", weaker="stronger")
GIVING = dict(bought="sold", borrowed="lent", received="gave")
IS_A = {
    word: family
    for family, words in {
        "flower": "rose tulip lily daisy",
        "bird": "parrot pigeon owl swan",
        "fruit": "apple pear plum banana",
        "tool": "hammer saw drill axe",
        "Italy": "Rome Milan Turin Naples",
        "France": "Paris Lyon Nice Lille",
        "Spain": "Madrid Seville Bilbao Granada",
        "Japan": "Tokyo Kyoto Osaka Nagoya",
    }.items()
    for word in words.split()
}
COUNT = {num2words(n): n for n in range(10)}


def meaning(sentence: str) -> tuple[object, ...]:
    """Return what a sentence says, the same for all ways to say it; its last item can be denied."""

    def says(pattern: str) -> tuple[str, ...] | None:
        found = re.fullmatch(pattern, sentence.removesuffix("."))
        return found and found.groups()

    if words := says(r"It is (true|false) that (.+)"):
        truth, rest = words
        *what, holds = meaning(rest)
        return (*what, holds is (truth == "true"))
    if words := says(r"(\w+) (managed|remembered|failed|forgot) to (\w+) (.+)"):
        who, how, deed, what = words
        return who, deed, what, how in ("managed", "remembered")
    if words := says(r"(\w+) did not (\w+) (the \w+)"):
        return (*words, False)
    if words := says(r"(\w+)'s (\w+) was (not )?(\w+)"):
        who, thing, denied, state = words
        return who, thing, OPPOSITE.get(state, state), (denied is None) is (state not in OPPOSITE)
    if words := says(r"(?:\w+ saw that )?(all of the|none of the|some of the|no) (\w+) were (\w+)") or says(
        r"(Some of the|No) (\w+) were (\w+)"
    ):
        how_many, things, state = words
        return things, state, how_many in ("all of the", "Some of the")
    if words := says(r"(\w+) counted (?:(more|fewer) than )?(\w+) (\w+)"):
        who, bound, count, things = words
        return who, things, bound, COUNT[count]
    if words := says(r"(\w+) (?:drew an?|lives in) (\w+)"):
        who, what = words
        return who, IS_A.get(what, what)
    if words := says(r"(\w+) is (\w+) than (\w+)"):
        one, more, other = words
        return (other, one, LESS[more]) if more in LESS else (one, other, more)
    if words := says(r"(\w+) (\w+) (before|after) (\w+)"):
        who, first, order, second = words
        return (who, BASE[first], second) if order == "before" else (who, second, BASE[first])
    if words := says(r"(\w+) (sold|lent|gave|bought|borrowed|received) the (\w+) (?:to|from) (\w+)"):
        one, verb, thing, other = words
        return (other, thing, GIVING[verb], one) if verb in GIVING else (one, thing, verb, other)
    if words := says(r"The (\w+) was (\w+) by the (\w+)"):
        patient, verb, agent = words
        return agent, BASE[verb], patient
    if words := says(r"The (\w+) (\w+) the (\w+)"):
        agent, verb, patient = words
        return agent, BASE[verb], patient
    words = says(r"(\w+) (\w+) (the \w+)")
    assert words, sentence
    who, verb, what = words
    return who, BASE.get(verb, verb), what, True


def follows(premise: str, hypothesis: str) -> bool:
    said, asked = meaning(premise), meaning(hypothesis)
    if " counted " not in hypothesis:
        return said == asked
    *counted, _, count = said
    *wanted, bound, limit = asked
    return counted == wanted and (count > limit if bound == "more" else count < limit)  # type: ignore[operator]


def test_every_label_is_right(train: Rows, dev: Rows) -> None:
    for row in (*train, *dev):
        assert follows(row["sentence1"], row["sentence2"]) is (row["label"] == 0), row


# --- what gives no label away ---------------------------------------------------------------------


def test_every_hypothesis_is_as_often_with_one_label_as_with_the_other(train: Rows, dev: Rows) -> None:
    for rows in (train, dev):
        leaning = Counter[str]()
        for row in rows:
            leaning[row["sentence2"]] += 1 if row["label"] else -1
        assert set(leaning.values()) == {0}


def accuracy_from(side: str, train: Rows, dev: Rows) -> float:
    """Return what a linear classifier of the words of one sentence reaches on dev."""
    words = CountVectorizer(ngram_range=(1, 2), token_pattern=r"\w+")
    x = words.fit_transform(row[side] for row in train)
    model = LogisticRegression(max_iter=1000).fit(x, [row["label"] for row in train])
    return float(model.score(words.transform(row[side] for row in dev), [row["label"] for row in dev]))


def test_the_words_of_the_hypothesis_give_no_label_away_and_those_of_the_premise_few(train: Rows, dev: Rows) -> None:
    assert abs(accuracy_from("sentence2", train, dev) - 0.5) < 0.04
    assert accuracy_from("sentence1", train, dev) < 0.65


def test_sentences_are_short_enough_for_forty_tokens(train: Rows, dev: Rows) -> None:
    longest = max(len(re.findall(r"\w+|[^\w\s]", row["sentence1"] + row["sentence2"])) for row in (*train, *dev))
    assert longest + 3 <= 40
