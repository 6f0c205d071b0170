"""A bed of odd but legal uses: each runs under a wrapper on two ranks and plainly in one process.

A use is a function of a *way*, by which it builds, trains and notes: the same lines run plainly,
where a way gives back what it was given, and under the lab's wrapper. What it notes (losses,
gradients before each step, parameters at the end) is compared, and so each use under each way has
one class: right, refused (by a sentence of the lab's own), riddle (any other error), wrong, hang.
"""

from __future__ import annotations

import dis
import functools
import gc
import json
import tempfile
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from odd_ways import WAYS, Note, Plain

import labkit
from labkit.launch import LaunchTimeout, RankError, workers

LABKIT = str(Path(labkit.__file__).parent)  # a checkout may have that name, too, and an environment in it


class Use(NamedTuple):
    """A use, and what is expected of it under each way: "right", "refused: …" with a part of the
    sentence, "documented: …" with the wrapper's own words. ``by_shards``: the plain run takes the
    two ranks' rows in turn."""

    function: Callable[[Any], None]
    expected: dict[str, str]
    by_shards: bool = False
    tolerance: float = 1e-8


USES: dict[str, Use] = {}


def use(*ways: str, by_shards: bool = False, tolerance: float = 1e-8, **differently: str) -> Callable[..., Any]:
    """Enter a function into the table: right under these ``ways``, but for ``differently``."""

    def enter(function: Callable[[Any], None]) -> Callable[[Any], None]:
        assert {*differently} <= {*ways} and function.__name__ not in USES, function.__name__
        expected = dict.fromkeys(ways, "right") | differently
        USES[function.__name__] = Use(function, expected, by_shards, tolerance)
        return function

    return enter


class Outcome(NamedTuple):
    """How a use went under a way: its class, and what was raised or was wrong."""

    kind: str
    words: str


def _notes(use: Use, way: Any, seed: int = 0) -> list[Note]:
    """Run a use in float64, by this seed; leave all else as it was."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            use.function(way)
            way.note_all("parameter", way.parameters)
        finally:
            torch.set_default_dtype(before)
    return way.notes


@functools.cache
def plainly(name: str) -> list[Note]:
    return _notes(USES[name], Plain(2 if USES[name].by_shards else 1))


def in_rank(use: Use, way_name: str, folder: str) -> Any:
    """Run a use in a rank. Return its notes, or what it raised, which ``folder`` gets too."""
    way = WAYS[way_name]()
    try:
        return [*_notes(use, way, dist.get_rank() if way.own_seeds else 0)]
    except BaseException as error:
        refusal = _outcome_of(error)
        Path(folder, f"{dist.get_rank()}.json").write_text(json.dumps(refusal))
        return refusal
    finally:
        gc.collect()


def _outcome_of(error: BaseException) -> Outcome:
    """Return what a rank raised: refused where a raise of the lab's made it, else a riddle."""
    last = error.__traceback__
    while last and last.tb_next:
        last = last.tb_next
    code = last.tb_frame.f_code
    raised = code.co_code[last.tb_lasti] == dis.opmap["RAISE_VARARGS"] and code.co_filename.startswith(LABKIT)
    refused = raised and isinstance(error, RuntimeError | ValueError | TypeError)
    where = traceback.extract_tb(error.__traceback__)[-1]
    words = f"{type(error).__name__}: {str(error).strip()[:400]} [{where.filename.split('/')[-1]}:{where.lineno}]"
    return Outcome("refused" if refused else "riddle", words)


def compared(ranks: Sequence[list[Note]], plain: list[Note], tolerance: float) -> Outcome:
    """Compare what ranks have noted with what one process has."""
    if any(len(notes) != len(plain) for notes in ranks):
        return Outcome("wrong", f"{[len(notes) for notes in ranks]} notes, expected {len(plain)}")
    for number, (kind, name, expected) in enumerate(plain):
        values: list[Any] = [notes[number].value for notes in ranks]
        if ranks[0][number].kind == "owned":
            values = [value for value in values if value is not None]
        if expected is None or any(value is None for value in values):
            if any(value is not expected for value in values):
                return Outcome("wrong", f"{name} is {values}, expected {expected}")
            continue
        if kind == "mean":
            values = [sum(values) / len(values)]
        elif kind == "rows":
            values = [torch.cat(values)]
        for rank, value in enumerate(values):
            if value.shape != expected.shape:
                return Outcome("wrong", f"{name} has shape {tuple(value.shape)} on rank {rank}")
            off = (value.to(expected.dtype) - expected).abs().max().item() if value.numel() else 0.0
            if not off <= tolerance * max(expected.abs().max().item() if value.numel() else 0.0, 1e-3):
                apart = max((each - values[0]).abs().max().item() for each in values)
                return Outcome("wrong", f"{name} off by {off:.2g} on rank {rank}, ranks {apart:.2g} apart")
    return Outcome("right", "")


def _all_there() -> float:
    total = torch.ones(3)
    dist.all_reduce(total)
    return total.sum().item()


class Bed:
    """Two ranks that stay warm from use to use, until one leaves them waiting for each other."""

    def __init__(self, timeout_s: float = 60) -> None:
        self._timeout_s, self._ranks = timeout_s, None

    def outcome(self, name: str, way: str) -> Outcome:
        self._ranks = self._ranks or workers(2, backend="gloo", timeout_s=self._timeout_s, threads=1)
        with tempfile.TemporaryDirectory() as folder:
            try:
                values = self._ranks.run(in_rank, USES[name], way, folder).values
            except (LaunchTimeout, RankError) as error:
                self.close()
                values = [Outcome(*json.loads(path.read_text())) for path in Path(folder).iterdir()]
                values = values or [Outcome("hang", str(error).splitlines()[0])]
        failures = [value for value in values if isinstance(value, Outcome)]
        if not failures:
            return compared(values, plainly(name), USES[name].tolerance)
        if self._ranks and not self._can_go_on():
            self.close()
        return min(failures, key=lambda each: ("Connection" in each.words, each.kind == "refused"))

    def _can_go_on(self) -> bool:
        """Whether the ranks are there, and no message of theirs is still on its way."""
        try:
            return self._ranks.run(_all_there).values == [6.0, 6.0]
        except (LaunchTimeout, RankError):
            return False

    def close(self) -> None:
        if self._ranks:
            self._ranks.close()
        self._ranks = None
