"""Make the generated entailment pairs of the lab: does a second sentence follow from a first one?

    python data/make_entailment.py [FOLDER]   (by default labkit/data/generated/entailment)

Rows come from **squares** of two premises and two hypotheses:

                                  Ben is younger than Anna.    Ben is older than Anna.
    Anna is older than Ben.           entailment                   not_entailment
    Anna is younger than Ben.         not_entailment               entailment

Each hypothesis is as often with one label as with the other, so alone it says nothing about it. Nor
does it matter which words the two sentences have: only what a word of one means beside a word of
the other. A small transformer that knows no words yet finds no start in that. So of the kinds in
``LEANING`` every second square has its left column alone, and there a premise that denies
something leans towards not_entailment.

Written in the form of RTE, a task of GLUE: ``train.tsv`` and ``dev.tsv`` with the columns index,
sentence1, sentence2 and label. No pair occurs twice, within a file or across the two. The same
bytes from the same seed.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parents[1] / "labkit" / "data" / "generated" / "entailment"
SEED = 20240229
SQUARES = {"train": (84, 32), "dev": (12, 5)}  # how many of each kind: of those in LEANING, of the others
ATTEMPTS = 10_000  # after so many a kind has no words left for a new square
LABELS = ("entailment", "not_entailment")


class Square(NamedTuple):
    """Four sentences: ``hypothesis`` follows from ``premise``, and ``other_hypothesis`` from
    ``other_premise``; from neither premise follows the hypothesis of the other."""

    premise: str
    other_premise: str
    hypothesis: str
    other_hypothesis: str


Row = tuple[str, str, str]  # premise, hypothesis, label

# --- words ----------------------------------------------------------------------------------------


def _table(text: str) -> list[list[str]]:
    """Return lines of words, which a slash separates."""
    return [[word.strip() for word in line.split("/")] for line in text.strip().splitlines()]


NAMES = ["Anna", "Ben", "Clara", "David", "Emma", "Felix", "Greta", "Jonas", "Lena", "Max", "Nora", "Paul"]
NUMBERS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]

DEEDS = _table("""
    opened the door / open the door
    closed the window / close the window
    locked the gate / lock the gate
    bought the ticket / buy the ticket
    wrote the letter / write the letter
    read the book / read the book
    sold the car / sell the car
    paid the bill / pay the bill
    called the doctor / call the doctor
    watered the roses / water the roses
    cut the cake / cut the cake
    washed the cups / wash the cups
    fed the cat / feed the cat
    rang the bell / ring the bell
    painted the wall / paint the wall
    moved the table / move the table""")
ACTIVITIES = _table("""
    ate / eating
    slept / sleeping
    swam / swimming
    worked / working
    sang / singing
    danced / dancing
    cooked / cooking
    studied / studying""")
OPPOSITES = _table("""
    shop / open / closed
    window / open / closed
    baby / awake / asleep
    dog / awake / asleep
    lamp / on / off
    radio / on / off
    door / locked / unlocked
    gate / locked / unlocked
    teacher / present / absent
    doctor / present / absent""")
COMPARISONS = _table("""
    older / younger
    taller / shorter
    richer / poorer
    faster / slower
    stronger / weaker""")
CONVERSES = _table("""
    sold the {} to / bought the {} from
    lent the {} to / borrowed the {} from
    gave the {} to / received the {} from""")
THINGS = ["book", "car", "lamp", "guitar", "coat", "clock", "table", "bicycle"]
FAMILIES = _table("""
    a flower / a rose / a tulip / a lily / a daisy
    a bird / a parrot / a pigeon / an owl / a swan
    a fruit / an apple / a pear / a plum / a banana
    a tool / a hammer / a saw / a drill / an axe""")
COUNTRIES = _table("""
    Italy / Rome / Milan / Turin / Naples
    France / Paris / Lyon / Nice / Lille
    Spain / Madrid / Seville / Bilbao / Granada
    Japan / Tokyo / Kyoto / Osaka / Nagoya""")
ANIMALS = ["dog", "cat", "horse", "goat", "fox", "bear", "wolf", "sheep"]
CHASES = _table("""
    chased / chased
    saw / seen
    followed / followed
    bit / bitten""")
GROUPS = _table("""
    windows / open
    shops / open
    lamps / on
    children / asleep
    guests / happy
    seats / free
    cups / clean
    doors / locked
    letters / lost
    tickets / sold
    trains / late
    apples / ripe
    roads / wet
    books / new
    answers / wrong
    boxes / empty""")
COUNTED = ["birds", "boats", "books", "cows", "cars"]

# --- kinds of inference ---------------------------------------------------------------------------


def negation(rng: random.Random) -> Square:
    name, (did, do) = rng.choice(NAMES), rng.choice(DEEDS)
    return Square(
        f"{name} {did}.",
        f"{name} did not {do}.",
        f"It is true that {name} {did}.",
        f"It is false that {name} {did}.",
    )


def success(rng: random.Random) -> Square:
    name, (did, do) = rng.choice(NAMES), rng.choice(DEEDS)
    managed, failed = rng.choice([("managed", "failed"), ("remembered", "forgot")])
    return Square(
        f"{name} {managed} to {do}.",
        f"{name} {failed} to {do}.",
        f"{name} {did}.",
        f"{name} did not {do}.",
    )


def opposites(rng: random.Random) -> Square:
    name, (thing, *states) = rng.choice(NAMES), rng.choice(OPPOSITES)
    one, other = rng.sample(states, 2)
    return Square(
        f"{name}'s {thing} was {one}.",
        f"{name}'s {thing} was not {one}.",
        f"{name}'s {thing} was not {other}.",
        f"{name}'s {thing} was {other}.",
    )


def quantity(rng: random.Random) -> Square:
    things, how = rng.choice(GROUPS)
    name = rng.choice(NAMES)
    return Square(
        f"{name} saw that all of the {things} were {how}.",
        f"{name} saw that none of the {things} were {how}.",
        f"Some of the {things} were {how}.",
        f"No {things} were {how}.",
    )


def number(rng: random.Random) -> Square:
    name, things, limit = rng.choice(NAMES), rng.choice(COUNTED), rng.randrange(4, 7)
    many, few = rng.randrange(limit + 1, 10), rng.randrange(2, limit)
    return Square(
        f"{name} counted {NUMBERS[many]} {things}.",
        f"{name} counted {NUMBERS[few]} {things}.",
        f"{name} counted more than {NUMBERS[limit]} {things}.",
        f"{name} counted fewer than {NUMBERS[limit]} {things}.",
    )


def family(rng: random.Random) -> Square:
    (family, *members), (other_family, *other_members) = rng.sample(FAMILIES, 2)
    name = rng.choice(NAMES)
    return Square(
        f"{name} drew {rng.choice(members)}.",
        f"{name} drew {rng.choice(other_members)}.",
        f"{name} drew {family}.",
        f"{name} drew {other_family}.",
    )


def place(rng: random.Random) -> Square:
    (country, *cities), (other_country, *other_cities) = rng.sample(COUNTRIES, 2)
    name = rng.choice(NAMES)
    return Square(
        f"{name} lives in {rng.choice(cities)}.",
        f"{name} lives in {rng.choice(other_cities)}.",
        f"{name} lives in {country}.",
        f"{name} lives in {other_country}.",
    )


def comparison(rng: random.Random) -> Square:
    one, other = rng.sample(NAMES, 2)
    more, less = rng.choice(COMPARISONS)
    return Square(
        f"{one} is {more} than {other}.",
        f"{one} is {less} than {other}.",
        f"{other} is {less} than {one}.",
        f"{other} is {more} than {one}.",
    )


def time_order(rng: random.Random) -> Square:
    (first, first_ing), (second, second_ing) = rng.sample(ACTIVITIES, 2)
    name = rng.choice(NAMES)
    return Square(
        f"{name} {first} before {second_ing}.",
        f"{name} {first} after {second_ing}.",
        f"{name} {second} after {first_ing}.",
        f"{name} {second} before {first_ing}.",
    )


def converse(rng: random.Random) -> Square:
    one, other = rng.sample(NAMES, 2)
    thing = rng.choice(THINGS)
    gave, got = (verb.format(thing) for verb in rng.choice(CONVERSES))
    return Square(
        f"{one} {gave} {other}.",
        f"{one} {got} {other}.",
        f"{other} {got} {one}.",
        f"{other} {gave} {one}.",
    )


def roles(rng: random.Random) -> Square:
    one, other = rng.sample(ANIMALS, 2)
    chased, been_chased = rng.choice(CHASES)
    return Square(
        f"The {one} {chased} the {other}.",
        f"The {other} {chased} the {one}.",
        f"The {other} was {been_chased} by the {one}.",
        f"The {one} was {been_chased} by the {other}.",
    )


Kind = Callable[[random.Random], Square]

LEANING: tuple[Kind, ...] = (negation, success, opposites, quantity, number)
OTHERS: tuple[Kind, ...] = (family, place, comparison, time_order, converse, roles)


# --- from squares to files ------------------------------------------------------------------------


def rows_of(square: Square, whole: bool = True) -> list[Row]:
    """Return the four rows of a square, or those of its left column if not the ``whole`` of it."""
    premises, hypotheses = square[:2], square[2:]
    return [
        (premise, hypothesis, LABELS[i != j])
        for i, premise in enumerate(premises)
        for j, hypothesis in enumerate(hypotheses if whole else hypotheses[:1])
    ]


def make(seed: int = SEED) -> dict[str, list[Row]]:
    """Return the rows of each split, ``{"train": [...], "dev": [...]}``. No pair occurs twice."""
    seen: set[tuple[str, str]] = set()
    splits: dict[str, list[Row]] = {}
    for split, (n_leaning, n_others) in SQUARES.items():
        rng = random.Random(f"{seed} {split}")
        rows = splits[split] = []
        for kind in (*LEANING, *OTHERS):
            for number in range(n_leaning if kind in LEANING else n_others):
                rows += _new_rows(kind, kind in OTHERS or number % 2 == 0, rng, seen)
        rng.shuffle(rows)
    return splits


def _new_rows(kind: Kind, whole: bool, rng: random.Random, seen: set[tuple[str, str]]) -> list[Row]:
    """Return the rows of a square none of whose pairs was ``seen``, and add them to it."""
    for _ in range(ATTEMPTS):
        rows = rows_of(kind(rng), whole)
        pairs = {row[:2] for row in rows}
        if seen.isdisjoint(pairs):
            seen |= pairs
            return rows
    raise RuntimeError(f"no new square of the kind {kind.__name__} in {ATTEMPTS:,} attempts; give it more words")


def write(folder: Path) -> None:
    """Write ``train.tsv`` and ``dev.tsv`` into ``folder``, UTF-8, a row a line."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, rows in make().items():
        lines = [("index", "sentence1", "sentence2", "label"), *((str(i), *row) for i, row in enumerate(rows))]
        (folder / f"{split}.tsv").write_bytes("".join("\t".join(line) + "\n" for line in lines).encode())


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
