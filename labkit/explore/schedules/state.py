"""Write what the schedule explorer shows as a line of text, and read it again.

    1f1b n=4 m=8 F=1 B=2 hop=0.5 vs interleaved v=2 cap=4

Two schedules (or one) of the same model, batch and machine. It fits in a cell, an exercise, a mail.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

NAMES = ("forward", "gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v")
MOST_RANKS, MOST_MICRO, MOST_CHUNKS = 16, 64, 4
SHORTEST, LONGEST = 0.001, 1000.0  # a time, in whatever unit the reader has in mind

_COUNTS = {"n": MOST_RANKS, "m": MOST_MICRO, "v": MOST_CHUNKS}
_TIMES = ("F", "B", "I", "W")
_KEYS = {key.casefold(): key for key in (*_COUNTS, *_TIMES, "hop", "cap")}
_NUMBER = re.compile(r"(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)

Times = tuple[float, ...]  # one for all stages, or one for each


class StateError(ValueError):
    """A text that is no state: ``position`` (from 0) and ``word`` say where, ``expected`` what.

    The message counts characters from 1.
    """

    def __init__(self, position: int, word: str, expected: str):
        super().__init__(position, word, expected)
        self.position, self.word, self.expected = position, word, expected

    def __str__(self) -> str:
        there = repr(self.word) if self.word else "the end"
        return f"character {self.position + 1}, {there}: expected {self.expected}"


class Choice(NamedTuple):
    """One of the schedules of NAMES; ``chunks`` are those of the interleaved one."""

    name: str = "1f1b"
    chunks: int = 2

    def __str__(self) -> str:
        return f"{self.name} v={self.chunks}" if self.name == "interleaved" else self.name


DEFAULT = Choice()


@dataclass(frozen=True)
class State:
    """What the schedule explorer shows; ``str(state)`` is its text, ``parse(text)`` the way back.

    Times are those of a *rank's* part of the model, for one micro-batch: each a tuple of one
    number, or of one per rank. Of a schedule with v stages a rank each stage takes the v-th part.
    ``cap`` is how many micro-batches' activations a rank has memory for, None without a limit.
    ``other`` is the schedule to compare with, None without one.
    """

    choice: Choice = DEFAULT
    other: Choice | None = None
    n_ranks: int = 4
    n_micro: int = 8
    forward: Times = (1.0,)
    input_grad: Times = (1.0,)
    weight_grad: Times = (1.0,)
    hop: float = 0.0
    cap: float | None = None

    @property
    def choices(self) -> list[Choice]:
        """Return the schedules that are shown: one is not compared with itself."""
        return [self.choice] if self.other in (None, self.choice) else [self.choice, self.other]

    def __str__(self) -> str:
        words = [str(self.choice), f"n={self.n_ranks}", f"m={self.n_micro}", f"F={_written(self.forward)}"]
        if self.input_grad == self.weight_grad:
            words.append(f"B={_written(tuple(2 * time for time in self.input_grad))}")
        else:
            words += [f"I={_written(self.input_grad)}", f"W={_written(self.weight_grad)}"]
        words += [f"hop={_number(self.hop)}"] * (self.hop > 0)
        words += [f"vs {self.other}"] * (self.other is not None)
        words += [f"cap={_number(self.cap)}"] if self.cap is not None else []
        return " ".join(words)


def _written(times: Times) -> str:
    return ",".join(map(_number, times))


def _number(value: float) -> str:
    return repr(float(value)).removesuffix(".0")


# --- reading --------------------------------------------------------------------------------------


class _Word(NamedTuple):
    at: int
    text: str

    def wrong(self, expected: str) -> StateError:
        return StateError(self.at, self.text, expected)


def parse(text: str) -> State:
    """Return the state that ``text`` says; an empty one says the default, 1F1B with 4 ranks.

    First the schedule (forward, gpipe, 1f1b, interleaved, zb-h1, zb-h2, zb-v), then in any order
    ``n`` ranks, ``m`` micro-batches, the times ``F`` and ``B`` (or ``I`` and ``W``, where they are
    not equal), ``hop``, and ``cap``. ``vs`` and a second schedule compare. A time is a number or
    one per rank: ``F=1,1,1,2``. ``v``, the chunks of an interleaved schedule, stands behind its
    name; all else holds for both schedules. What is left out is as in ``1f1b n=4 m=8 F=1``; I and W
    are then as long as F.

    Raises StateError, a ValueError, that says where the text is wrong and what was expected there;
    TypeError for what is no str.
    """
    if not isinstance(text, str):
        raise TypeError(f"the state is a {type(text).__name__}, expected a text, such as '1f1b n=4 m=8 F=1 B=2'")
    words = [_Word(match.start(), match[0]) for match in re.finditer(r"\S+", text)]
    choices: list[Choice] = []
    given: dict[str, tuple[_Word, Times]] = {}
    for is_schedule, word in _sorted_out(words, len(text)):
        if is_schedule:
            choices.append(Choice(_schedule_name(word)))
            continue
        key, value = _key_and_value(word)
        if key == "v":
            choices[-1:] = [_with_chunks(choices, word, value)]
        elif key in given:
            raise word.wrong(f"{key} only once")
        else:
            given[key] = word, value
    return _state(choices, given)


def _sorted_out(words: list[_Word], end: int) -> Iterator[tuple[bool, _Word]]:
    """Yield each word but ``vs``, and whether it is to name a schedule."""
    seen_vs, after_vs = False, False
    for i, word in enumerate(words):
        if word.text.casefold() == "vs":
            if seen_vs or i == 0:
                raise word.wrong("a schedule before vs" if i == 0 else "two schedules at most")
            seen_vs = after_vs = True
        else:
            yield after_vs or (i == 0 and "=" not in word.text), word
            after_vs = False
    if after_vs:
        raise StateError(end, "", f"a schedule after vs: {', '.join(NAMES)}")


def _schedule_name(word: _Word) -> str:
    name = word.text.casefold()
    if name not in NAMES:
        raise word.wrong(f"a schedule: {', '.join(NAMES)}")
    return name


def _key_and_value(word: _Word) -> tuple[str, Times]:
    name, equals, text = word.text.partition("=")
    key = _KEYS.get(name.casefold())
    if not equals or key is None:
        raise word.wrong(f"one of {', '.join(f'{key}=' for key in _KEYS.values())}, or vs and a second schedule")
    if key in _COUNTS:
        if not re.fullmatch(r"[0-9]{1,9}", text) or not 1 <= int(text) <= _COUNTS[key]:
            raise word.wrong(f"a whole number from 1 to {_COUNTS[key]}, such as {key}=4")
        return key, (float(text),)
    several = key in _TIMES
    parts = text.split(",") if several else [text]
    least, most = 0.0 if key == "hop" else SHORTEST, LONGEST
    if key == "B":  # I and W are half of it
        least, most = 2 * least, 2 * most
    if not all(_NUMBER.fullmatch(part) and least <= float(part) <= most for part in parts):
        or_several = f", or one per rank, such as {key}=1,1,1,2" if several else f", such as {key}=0.5"
        raise word.wrong(f"a number from {_number(least)} to {_number(most)}{or_several}")
    return key, tuple(map(float, parts))


def _with_chunks(choices: list[Choice], word: _Word, value: Times) -> Choice:
    if not choices or choices[-1].name != "interleaved":
        raise word.wrong("v= only after interleaved, whose chunks it counts")
    return choices[-1]._replace(chunks=int(value[0]))


def _state(choices: list[Choice], given: dict[str, tuple[_Word, Times]]) -> State:
    """Put together what was read. Raises StateError where it does not fit together."""
    values = {key: value for key, (_, value) in given.items()}
    if "B" in given and (half := next((key for key in "IW" if key in given), None)):
        raise given[half][0].wrong("B, or I and W, not both: B is I + W")
    default = State()
    n_ranks = int(values["n"][0]) if "n" in values else default.n_ranks
    for key in _TIMES:
        if key in values and len(values[key]) not in (1, n_ranks):
            count = len(values[key])
            raise given[key][0].wrong(f"one time, or one for each of the n={n_ranks} ranks, and there are {count}")
    forward = values.get("F", default.forward)
    halves = tuple(time / 2 for time in values["B"]) if "B" in values else forward
    return State(
        choice=choices[0] if choices else default.choice,
        other=choices[1] if len(choices) > 1 else None,
        n_ranks=n_ranks,
        n_micro=int(values["m"][0]) if "m" in values else default.n_micro,
        forward=forward,
        input_grad=values.get("I", halves),
        weight_grad=values.get("W", halves),
        hop=values["hop"][0] if "hop" in values else default.hop,
        cap=values["cap"][0] if "cap" in values else default.cap,
    )
