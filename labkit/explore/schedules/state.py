"""Write what the schedule explorer shows as a line of text, and read it again.

    1f1b n=4 m=8 F=1 B=2 hop=0.5 vs interleaved v=2 cap=4

Two schedules (or one) of the same model, batch and machine. It fits in a cell, an exercise, a mail.
FIELDS is the one place that says which numbers there are, and what each may be.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from labkit.schedule import (
    Schedule,
    forward_only,
    gpipe,
    interleaved,
    one_f_one_b,
    zero_bubble_h1,
    zero_bubble_h2,
    zero_bubble_v,
)

SCHEDULES: dict[str, tuple[str, Callable[..., Schedule]]] = {  # by name in the text: title in a menu, who makes it
    "forward": ("Forward only", forward_only),
    "gpipe": ("GPipe", gpipe),
    "1f1b": ("1F1B", one_f_one_b),
    "interleaved": ("Interleaved 1F1B", interleaved),
    "zb-h1": ("ZB-H1", zero_bubble_h1),
    "zb-h2": ("ZB-H2", zero_bubble_h2),
    "zb-v": ("ZB-V", zero_bubble_v),
}
PRESETS = {  # by what their buttons say
    "GPipe vs 1F1B": "gpipe n=4 m=8 F=1 B=2 vs 1f1b",
    "memory cap 4": "1f1b n=4 m=8 F=1 B=2 vs zb-h2 cap=4",
    "slow link": "gpipe n=4 m=8 F=1 B=2 hop=1 vs 1f1b",
}
Times = tuple[float, ...]  # one for all ranks, or one for each
_COUNT = re.compile(r"[0-9]{1,9}")
_NUMBER = re.compile(r"(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)


class Field(NamedTuple):
    """A number of a state: ``key=number`` in its text, ``name`` in State, ``title`` at its slider.

    It is from ``low`` to ``high``, times in whatever unit the reader has in mind. ``kind`` is
    ``"count"`` (a whole number), ``"number"``, or ``"times"`` (a number, or one per rank). Where it
    is not a count, ``drag`` says between which ends a slider moves it, and in which steps.
    """

    key: str
    name: str
    title: str
    kind: str
    low: float
    high: float
    drag: tuple[float, float, float] = (0.1, 4.0, 0.1)

    @property
    def expected(self) -> str:
        what = "a whole number" if self.kind == "count" else "a number"
        several = ", or one per rank" if self.kind == "times" else ""
        example = {"count": "4", "number": "0.5", "times": "1,1,1,2"}[self.kind]
        return f"{what} from {written(self.low)} to {written(self.high)}{several}, such as {self.key}={example}"

    def read(self, text: str) -> Any:
        """Return the value that ``text`` says: an int, a float or Times; None if it says none."""
        parts = text.split(",") if self.kind == "times" else [text]
        pattern = _COUNT if self.kind == "count" else _NUMBER
        if not all(pattern.fullmatch(part) and self.low <= float(part) <= self.high for part in parts):
            return None
        return tuple(map(float, parts)) if self.kind == "times" else int(text) if self.kind == "count" else float(text)


_FIELDS = (
    Field("n", "n_ranks", "ranks", "count", 1, 16),
    Field("m", "n_micro", "micro-batches", "count", 1, 64),
    Field("v", "chunks", "chunks", "count", 1, 4),
    Field("F", "forward", "F: forward", "times", 0.001, 1000),
    Field("B", "backward", "B", "times", 0.002, 2000),  # of I and W together, half of it each
    Field("I", "input_grad", "I: input gradient", "times", 0.001, 1000),
    Field("W", "weight_grad", "W: weight gradient", "times", 0.001, 1000),
    Field("hop", "hop", "hop", "number", 0, 1000, (0.0, 4.0, 0.05)),
    Field("cap", "cap", "cap", "number", 0.001, 1000, (0.5, 64.0, 0.5)),
)
FIELDS = {field.key: field for field in _FIELDS}
_BY_KEY = {key.casefold(): field for key, field in FIELDS.items()}


def written(value: float | Times) -> str:
    """Return a number or times as they stand in the text."""
    return ",".join(repr(float(time)).removesuffix(".0") for time in (value if isinstance(value, tuple) else (value,)))


class StateError(ValueError):
    """A text that is not a state: the message names its wrong word, and what was expected."""


class Choice(NamedTuple):
    """One of SCHEDULES; ``chunks`` are those of the interleaved one."""

    name: str = "1f1b"
    chunks: int = 2

    def __str__(self) -> str:
        return f"{self.name} v={self.chunks}" if self.name == "interleaved" else self.name


DEFAULT, DEFAULT_TIMES = Choice(), (1.0,)


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
    forward: Times = DEFAULT_TIMES
    input_grad: Times = DEFAULT_TIMES
    weight_grad: Times = DEFAULT_TIMES
    hop: float = 0.0
    cap: float | None = None

    @property
    def choices(self) -> list[Choice]:
        """Return the schedules that are shown: one is not compared with itself."""
        return [self.choice] if self.other in (None, self.choice) else [self.choice, self.other]

    @property
    def times(self) -> dict[str, Times]:
        """Return the times by their keys in the text."""
        return {"F": self.forward, "I": self.input_grad, "W": self.weight_grad}

    def __str__(self) -> str:
        numbers: dict[str, Any] = {"n": self.n_ranks, "m": self.n_micro, **self.times}
        if self.input_grad == self.weight_grad:
            del numbers["I"], numbers["W"]
            numbers["B"] = tuple(2 * time for time in self.input_grad)
        numbers |= {"hop": self.hop} if self.hop else {}
        words = [str(self.choice), *(f"{key}={written(value)}" for key, value in numbers.items())]
        words += [f"vs {self.other}"] * (self.other is not None)
        words += [f"cap={written(self.cap)}"] if self.cap is not None else []
        return " ".join(words)


# --- reading --------------------------------------------------------------------------------------


def parse(text: str) -> State:
    """Return the state that ``text`` says; an empty one says the default, 1F1B with 4 ranks.

    First the schedule (forward, gpipe, 1f1b, interleaved, zb-h1, zb-h2, zb-v), then in any order
    ``n`` ranks, ``m`` micro-batches, the times ``F`` and ``B`` (or ``I`` and ``W``, where they are
    not equal), ``hop``, and ``cap``. ``vs`` and a second schedule compare. A time is a number or
    one per rank: ``F=1,1,1,2``. ``v``, the chunks of an interleaved schedule, stands behind its
    name; all else holds for both schedules. What is left out is as in ``1f1b n=4 m=8 F=1``; I and W
    are then as long as F.

    Raises StateError, a ValueError, that names the word that is wrong and what was expected;
    TypeError for anything but a str.
    """
    if not isinstance(text, str):
        raise TypeError(f"the state is a {type(text).__name__}, expected a text, such as '1f1b n=4 m=8 F=1 B=2'")
    choices, given = [DEFAULT], dict[str, tuple[str, Any]]()
    words = text.split()
    if words and "=" not in words[0]:
        choices = [_choice(words.pop(0))]
    while words:
        word = words.pop(0)
        if word.casefold() == "vs":
            _check(len(choices) == 1, word, "two schedules at most")
            choices.append(_choice(words.pop(0) if words else ""))
            continue
        key, value = _key_and_value(word)
        if key == "v":
            _check(choices[-1].name == "interleaved", word, "v= only after interleaved, whose chunks it counts")
            choices[-1] = Choice("interleaved", value)
        else:
            _check(key not in given, word, f"{key} only once")
            given[key] = word, value
    return State(choices[0], choices[1] if len(choices) > 1 else None, **_numbers(given))


def _check(is_right: bool, word: str, expected: str) -> None:
    if not is_right:
        raise StateError(f"{repr(word) if word else 'the end'}: expected {expected}")


def _choice(word: str) -> Choice:
    _check(word.casefold() in SCHEDULES, word, f"a schedule: {', '.join(SCHEDULES)}")
    return Choice(word.casefold())


def _key_and_value(word: str) -> tuple[str, Any]:
    name, _, text = word.partition("=")
    field = _BY_KEY.get(name.casefold())
    if field is None or "=" not in word:
        keys = ", ".join(f"{key}=" for key in FIELDS)
        raise StateError(f"{word!r}: expected one of {keys}, or vs and a second schedule")
    value = field.read(text)
    _check(value is not None, word, field.expected)
    return field.key, value


def _numbers(given: dict[str, tuple[str, Any]]) -> dict[str, Any]:
    """Return the fields of State. Raises StateError where what was read does not fit together."""
    values = {key: value for key, (_, value) in given.items()}
    if half := next((given[key][0] for key in "IW" if key in given), ""):
        _check("B" not in given, half, "B, or I and W, not both: B is I + W")
    n = values.get("n", State.n_ranks)
    for key in "FBIW":
        count = len(values.get(key, DEFAULT_TIMES))
        if count not in (1, n):
            raise StateError(f"{given[key][0]!r}: expected one time, or one for each of the n={n} ranks, not {count}")
    forward = values.get("F", DEFAULT_TIMES)
    halves = tuple(time / 2 for time in values.pop("B")) if "B" in values else forward
    return {"input_grad": halves, "weight_grad": halves} | {FIELDS[key].name: value for key, value in values.items()}
