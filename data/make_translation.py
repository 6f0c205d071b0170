"""Make the generated German-English sentences of the lab: number words, dates and clock times.

    python data/make_translation.py [FOLDER]   (by default labkit/data/generated/translation)

German says the units before the tens: 23 is *dreiundzwanzig*, three-and-twenty. A model that copies
word after word gets it wrong, and so does one that learns each number by heart: the numbers in
HELD_OUT never occur in the training sentences, neither alone nor inside a longer number, a date, a
year or a time. *Halb drei* is half past **two**.

Written as parallel text: ``train.de`` and ``train.en`` hold one sentence a line, ``val`` and
``test`` likewise. No German sentence occurs twice, within a split or across splits. The same bytes
from the same seed.
"""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Callable
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "labkit" / "data" / "generated" / "translation"
SEED = 20240229
SIZES = {"train": 4000, "val": 300, "test": 400}
NOVEL_SHARE = 0.5  # in val and test, how often a number slot takes a number that training never showed

Pair = tuple[str, str]  # German, English

# --- numbers --------------------------------------------------------------------------------------

UNITS_DE = ["null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn", "elf", "zwölf"]
UNITS_DE += ["dreizehn", "vierzehn", "fünfzehn", "sechzehn", "siebzehn", "achtzehn", "neunzehn"]
TENS_DE = ["", "", "zwanzig", "dreißig", "vierzig", "fünfzig", "sechzig", "siebzig", "achtzig", "neunzig"]

UNITS_EN = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
UNITS_EN += ["thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"]
TENS_EN = ["", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]

# Two of the nine units of every ten, moving on from ten to ten, so that each unit and each ten is
# met in other company.
HELD_OUT = frozenset(
    10 * ten + 1 + unit % 9 for ten in range(2, 10) for unit in (2 * ten - 2, 2 * ten - 1)
)  # 23 24 35 36 47 48 59 51 62 63 74 75 86 87 98 99


def number_de(n: int) -> str:
    """Return German for 0 <= n < 1,000,000, in one word: 123 is ``einhundertdreiundzwanzig``."""
    if n < 20:
        return UNITS_DE[n]
    if n < 100:
        tens, units = divmod(n, 10)
        return f"{_joined_de(units)}und{TENS_DE[tens]}" if units else TENS_DE[tens]
    base, word = (100, "hundert") if n < 1000 else (1000, "tausend")
    high, low = divmod(n, base)
    return _joined_de(high) + word + (number_de(low) if low else "")


def _joined_de(n: int) -> str:
    return "ein" if n == 1 else number_de(n)  # eins loses its s inside a longer word: einundzwanzig, einhundert


def number_en(n: int) -> str:
    """Return British English for 0 <= n < 1,000,000: 123 is ``one hundred and twenty-three``."""
    if n < 20:
        return UNITS_EN[n]
    if n < 100:
        tens, units = divmod(n, 10)
        return TENS_EN[tens] + (f"-{UNITS_EN[units]}" if units else "")
    base, word = (100, "hundred") if n < 1000 else (1000, "thousand")
    high, low = divmod(n, base)
    if not low:
        return f"{number_en(high)} {word}"
    return f"{number_en(high)} {word} {'and ' if low < 100 else ''}{number_en(low)}"


def ordinal_de(n: int) -> str:
    """Return the German ordinal for 1 <= n < 100 as after *am*: 23 is ``dreiundzwanzigsten``."""
    irregular = {1: "ersten", 3: "dritten", 7: "siebten", 8: "achten"}
    return irregular.get(n) or number_de(n) + ("ten" if n < 20 else "sten")


def ordinal_en(n: int) -> str:
    """Return the English ordinal for 1 <= n < 100: 3 is ``third``, 23 is ``twenty-third``."""
    irregular = {1: "first", 2: "second", 3: "third", 5: "fifth", 8: "eighth", 9: "ninth", 12: "twelfth"}
    if n in irregular:
        return irregular[n]
    if n > 20 and n % 10:
        return f"{TENS_EN[n // 10]}-{ordinal_en(n % 10)}"
    word = number_en(n)
    return word[:-1] + "ieth" if word.endswith("y") else word + "th"


def year_de(year: int) -> str:
    """Return a year as Germans say it: 1984 is ``neunzehnhundertvierundachtzig``."""
    if not 1100 <= year < 2000:
        return number_de(year)
    century, rest = divmod(year, 100)
    return number_de(century) + "hundert" + (number_de(rest) if rest else "")


def year_en(year: int) -> str:
    """Return a year as the British say it: 1984 is ``nineteen eighty-four``."""
    if not 1100 <= year < 2000:
        return number_en(year)
    century, rest = divmod(year, 100)
    tail = "hundred" if not rest else f"oh-{UNITS_EN[rest]}" if rest < 10 else number_en(rest)
    return f"{number_en(century)} {tail}"


# --- clock times and dates ------------------------------------------------------------------------

MONTHS = "Januar January Februar February März March April April Mai May Juni June Juli July August August"
MONTHS += " September September Oktober October November November Dezember December"
WEEKDAYS = "Montag Monday Dienstag Tuesday Mittwoch Wednesday Donnerstag Thursday Freitag Friday Samstag Saturday"
WEEKDAYS += " Sonntag Sunday"
DAYS_IN_MONTH = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def _pairs(words: str) -> list[Pair]:
    listed = words.split()
    return list(zip(listed[::2], listed[1::2], strict=True))


def clock(hour: int, minute: int) -> Pair:
    """Return a time of day, hour 1 to 12, as it is spoken: (2, 30) is ``halb drei``."""
    following = hour % 12 + 1
    this_de, next_de = UNITS_DE[hour], UNITS_DE[following]
    this_en, next_en = UNITS_EN[hour], UNITS_EN[following]
    oclock_de = "ein Uhr" if hour == 1 else f"{this_de} Uhr"
    spoken = {
        0: (oclock_de, f"{this_en} o'clock"),
        15: (f"Viertel nach {this_de}", f"a quarter past {this_en}"),
        25: (f"fünf vor halb {next_de}", f"twenty-five past {this_en}"),
        30: (f"halb {next_de}", f"half past {this_en}"),
        35: (f"fünf nach halb {next_de}", f"twenty-five to {next_en}"),
        45: (f"Viertel vor {next_de}", f"a quarter to {next_en}"),
    }
    if minute in spoken:
        return spoken[minute]
    if minute in (5, 10, 20):
        return f"{UNITS_DE[minute] if minute < 20 else 'zwanzig'} nach {this_de}", f"{number_en(minute)} past {this_en}"
    if minute in (40, 50, 55):
        return f"{number_de(60 - minute)} vor {next_de}", f"{number_en(60 - minute)} to {next_en}"
    tail = f"oh {UNITS_EN[minute]}" if minute < 10 else number_en(minute)
    return f"{oclock_de} {number_de(minute)}", f"{this_en} {tail}"


# --- words for the slots of a sentence ------------------------------------------------------------


def _phrases(text: str) -> list[Pair]:
    """Return pairs from ``German = English`` lines."""
    pairs = [line.split(" = ") for line in text.strip().splitlines()]
    return [(german.strip(), english.strip()) for german, english in pairs]


NAMES = ["Anna", "Ben", "Clara", "David", "Emma", "Felix", "Greta", "Jonas", "Lena", "Max", "Nora", "Paul"]
PEOPLE = [(name, name) for name in NAMES]
PEOPLE += _phrases("""
    meine Schwester = my sister
    unser Nachbar = our neighbour
    die Lehrerin = the teacher
    sein Bruder = his brother
    ihre Tante = her aunt""")
CITIES = _pairs(
    "Berlin Berlin Bonn Bonn Hamburg Hamburg Köln Cologne München Munich Wien Vienna Genf Geneva Prag Prague"
)
VEHICLES = _phrases("""
    der Zug = the train
    der Bus = the bus
    der Nachtzug = the night train
    der Reisebus = the coach""")
EVENTS = _phrases("""
    der Film = the film
    das Konzert = the concert
    die Besprechung = the meeting
    der Unterricht = the lesson
    das Spiel = the match
    die Führung = the tour""")
SHOPS = _phrases("""
    die Bäckerei = the bakery
    das Museum = the museum
    die Bibliothek = the library
    das Schwimmbad = the swimming pool
    der Markt = the market
    die Apotheke = the pharmacy""")
GOODS = _phrases("""
    der Mantel = the coat
    die Lampe = the lamp
    das Wörterbuch = the dictionary
    der Tisch = the table
    die Uhr = the clock
    das Zelt = the tent""")
THINGS = _phrases("""
    Stühle = chairs
    Bücher = books
    Briefe = letters
    Äpfel = apples
    Fahrkarten = tickets
    Flaschen = bottles
    Teller = plates
    Kerzen = candles""")
BUILDINGS = _phrases("""
    die Brücke = the bridge
    das Rathaus = the town hall
    die Kirche = the church
    der Turm = the tower
    die Schule = the school
    das Theater = the theatre""")

# Slots in braces; a digit tells two slots of one kind apart. English and German may name them in
# different orders.
SENTENCES = _phrases("""
    {person} ist {number} Jahre alt. = {person} is {number} years old.
    {person1} ist {number1} Jahre alt, {person2} erst {number2}. = {person1} is {number1} years old, {person2} only {number2}.
    {person} wird am {date} {number}. = {person} turns {number} on the {date}.
    {vehicle} nach {city} fährt um {clock} ab. = {vehicle} to {city} leaves at {clock}.
    Um {clock} fährt {vehicle} nach {city} ab. = {vehicle} to {city} leaves at {clock}.
    Ich weiß, dass {vehicle} um {clock} ankommt. = I know that {vehicle} arrives at {clock}.
    {event} beginnt um {clock} und dauert {number} Minuten. = {event} begins at {clock} and lasts {number} minutes.
    Am {date} beginnt {event} um {clock}. = {event} begins at {clock} on the {date}.
    {shop} ist von {clock1} bis {clock2} geöffnet. = {shop} is open from {clock1} to {clock2}.
    Am {weekday} schließt {shop} schon um {clock}. = {shop} already closes at {clock} on {weekday}.
    {goods} kostet {number} Euro. = {goods} costs {number} euros.
    {goods} kostet {hundreds} Euro, also {number} mehr als früher. = {goods} costs {hundreds} euros, {number} more than before.
    {person} hat am {weekday} {number} {things} gekauft. = {person} bought {number} {things} on {weekday}.
    Wir brauchen noch {number} {things}. = We need {number} more {things}.
    Im Lager liegen {hundreds} {things}. = There are {hundreds} {things} in the warehouse.
    {person} wohnt im Haus Nummer {number}. = {person} lives in house number {number}.
    {building} wurde im Jahr {year} gebaut. = {building} was built in {year}.
    Im Jahr {year} hatte {building} {number} Fenster. = In {year} {building} had {number} windows.
    {person} wurde am {date} {year} geboren. = {person} was born on the {date} {year}.
    Kannst du mich um {clock} anrufen? = Can you call me at {clock}?
    Es ist jetzt {clock}. = It is now {clock}.
    Bis {city} sind es noch {hundreds} Kilometer. = It is another {hundreds} kilometres to {city}.
    Bitte lies bis {weekday} die Seiten {number} und {hundreds}. = Please read pages {number} and {hundreds} by {weekday}.
    Am {weekday}, dem {date}, haben wir frei. = We have the day off on {weekday} the {date}.
    Die Rechnung über {hundreds} Euro kam am {date}. = The bill for {hundreds} euros came on the {date}.
    Das Wasser hat {number1} Grad, vorher waren es {number2}. = The water is at {number1} degrees, before it was {number2}.
    Wenn {person} um {clock1} kommt, essen wir um {clock2}. = If {person} comes at {clock1}, we eat at {clock2}.
    Um {clock} habe ich {number} {things} gezählt. = At {clock} I counted {number} {things}.
    """)


# --- from slots to sentences ----------------------------------------------------------------------


class Writer:
    """Fills sentences at random.

    ``novel_share`` is how often a number ends in one of HELD_OUT, new to the reader.
    """

    def __init__(self, rng: random.Random, novel_share: float):
        self.rng, self.novel_share = rng, novel_share
        choose = rng.choice
        self.slots: dict[str, Callable[[], Pair]] = {
            "person": lambda: choose(PEOPLE),
            "city": lambda: choose(CITIES),
            "vehicle": lambda: choose(VEHICLES),
            "event": lambda: choose(EVENTS),
            "shop": lambda: choose(SHOPS),
            "goods": lambda: choose(GOODS),
            "things": lambda: choose(THINGS),
            "building": lambda: choose(BUILDINGS),
            "weekday": lambda: choose(_pairs(WEEKDAYS)),
            "number": lambda: self.spell(range(2, 100)),
            "hundreds": lambda: self.spell([n for n in range(102, 1000) if n % 100 != 1]),  # einhunderteins Bücher?
            "year": self.year,
            "date": self.date,
            "clock": self.clock,
        }

    def pair(self) -> Pair:
        """Return one sentence and its translation."""
        german, english = self.rng.choice(SENTENCES)
        fills: dict[str, Pair] = {}
        for name in re.findall(r"{(\w+)}", german):
            kind = name.rstrip("12")
            fill = self.slots[kind]()
            while fill in fills.values():  # two people, two times: two different ones
                fill = self.slots[kind]()
            fills[name] = fill
        return (
            _capitalised(german.format(**{name: fill[0] for name, fill in fills.items()})),
            _capitalised(english.format(**{name: fill[1] for name, fill in fills.items()})),
        )

    def number(self, candidates: range | list[int]) -> int:
        """Return one of ``candidates``, held out from training as often as ``novel_share`` says.

        What is held out are its last two digits.
        """
        novel = self.rng.random() < self.novel_share
        return self.rng.choice([n for n in candidates if (n % 100 in HELD_OUT) is novel])

    def spell(self, candidates: range | list[int]) -> Pair:
        n = self.number(candidates)
        return number_de(n), number_en(n)

    def year(self) -> Pair:
        year = self.number([*range(1700, 2000), *range(2002, 2025)])
        return year_de(year), year_en(year)

    def date(self) -> Pair:
        month = self.rng.randrange(12)
        day = self.number(range(1, 1 + DAYS_IN_MONTH[month]))
        month_de, month_en = _pairs(MONTHS)[month]
        return f"{ordinal_de(day)} {month_de}", f"{ordinal_en(day)} of {month_en}"

    def clock(self) -> Pair:
        hour = self.rng.randrange(1, 13)
        on_the_dial = self.rng.random() < 0.7  # most times people say are whole, half or quarter hours
        return clock(hour, 5 * self.rng.randrange(12) if on_the_dial else self.number(range(60)))


def _capitalised(sentence: str) -> str:
    return sentence[0].upper() + sentence[1:]


def make(sizes: dict[str, int] | None = None, seed: int = SEED) -> dict[str, list[Pair]]:
    """Return the sentences of each split: ``{"train": [(German, English), ...], ...}``.

    No German sentence occurs twice.
    """
    seen: set[str] = set()
    splits: dict[str, list[Pair]] = {}
    for split, size in (sizes or SIZES).items():
        stream = (
            "test_2016_flickr" if split == "test" else split
        )  # its old name: recorded scores are of these sentences
        writer = Writer(random.Random(f"{seed} {stream}"), novel_share=0.0 if split == "train" else NOVEL_SHARE)
        pairs = splits[split] = []
        while len(pairs) < size:
            pair = writer.pair()
            if pair[0] not in seen:
                seen.add(pair[0])
                pairs.append(pair)
    return splits


def write(folder: Path) -> None:
    """Write every split into ``folder``: two files each, UTF-8, one sentence a line."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, pairs in make().items():
        for side, language in enumerate(("de", "en")):
            text = "".join(pair[side] + "\n" for pair in pairs)
            (folder / f"{split}.{language}").write_bytes(text.encode())


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
