"""Compare what ranks have written down with plain torch, and with each other."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from labkit.parity.record import Record

ROUNDING = 256.0  # times eps and the root of the number of terms: layers and steps make more of it


class Tolerance(NamedTuple):
    """How far a number may be off by rounding, relative to the largest entry of its tensor."""

    dtype: torch.dtype
    terms: int

    @property
    def relative(self) -> float:
        return ROUNDING * torch.finfo(self.dtype).eps * math.sqrt(self.terms)

    def __str__(self) -> str:
        name = str(self.dtype).removeprefix("torch.")
        return f"{self.relative:.1e} of a tensor's largest entry ({name}, sums of up to {self.terms:,} terms)"


class Difference(NamedTuple):
    """What is off: by ``amount``, relative to its largest entry, first in ``name`` at ``step``.

    ``ranks`` are the two that are apart, if it is between two of them.
    """

    amount: float
    name: str
    step: int
    ranks: tuple[int, ...] = ()


class Comparison:
    """Compare records with others, step by step.

    ``off`` is the first Difference that rounding does not explain, ``largest`` the largest amount.
    A parameter may differ by as much as the difference of its gradient can move it, which matters
    where that is below rounding: AdamW moves by the gradient's sign. ``moved`` is the largest such
    difference, and the parameter's name.
    """

    def __init__(self, beginning: Record, tolerance: float):
        self.off: Difference | None = None
        self.largest, self.moved = 0.0, (0.0, "")
        self._tolerance, self._before = tolerance, beginning.parameters
        self._reach = dict.fromkeys(beginning.parameters, 0.0)  # how far it has moved since it was in doubt
        self._doubt: dict[str, torch.Tensor] = {}  # differences of gradients, relative to themselves, at most 1

    def add(self, step: int, record: Record, expected: Record) -> None:
        """Compare one more step. What only one of the two has counts as zero."""
        found = dict(self._amounts(record, expected))
        self._before = expected.parameters
        self.largest = max([self.largest, *found.values()])
        beyond = [name for name, amount in found.items() if amount > self._tolerance]
        if beyond and self.off is None:
            self.off = Difference(max(found[name] for name in beyond), beyond[0], step)

    def _amounts(self, record: Record, expected: Record) -> Iterator[tuple[str, float]]:
        if record.loss is not None and expected.loss is not None:
            yield "the loss", _finite(abs(record.loss - expected.loss) / max(abs(expected.loss), 1.0))
        largest, self._largest = (
            max(map(_largest, of.values()), default=0.0) for of in (expected.gradients, expected.parameters)
        )
        for name, parameter in expected.parameters.items():
            mine, gradient = (each.gradients.get(name, torch.zeros_like(parameter)) for each in (record, expected))
            yield f"the gradient of {name}", self._gradient_off(name, mine, gradient, largest)
        for name, parameter in expected.parameters.items():
            yield name, self._parameter_off(name, record.parameters.get(name), parameter)

    def _gradient_off(self, name: str, mine: torch.Tensor, expected: torch.Tensor, largest: float) -> float:
        if mine.shape != expected.shape or torch.equal(mine, expected):
            return 0.0 if mine.shape == expected.shape else math.inf
        gap, scale = (mine - expected).abs(), _largest(expected)
        doubt = torch.nan_to_num(gap / expected.abs(), nan=0.0).clamp(max=1.0)
        self._doubt[name] = torch.maximum(doubt, self._doubt.get(name, doubt))
        # One that is zero but for rounding is as uncertain as the larger ones that it comes from.
        return _ratio(_largest(gap), largest if scale <= self._tolerance * largest else scale)

    def _parameter_off(self, name: str, mine: torch.Tensor | None, expected: torch.Tensor) -> float:
        if name in self._doubt:
            self._reach[name] += _largest(expected - self._before[name])
        if mine is None or mine.shape != expected.shape or torch.equal(mine, expected):
            return 0.0 if mine is not None and mine.shape == expected.shape else math.inf
        gap, scale = (mine - expected).abs(), _largest(expected)
        if scale <= self._tolerance * self._largest:  # zero but for rounding, as BERT's key.bias
            scale = self._largest
        allowed = 2 * self._reach[name] * self._doubt[name] if name in self._doubt else torch.zeros(())
        off, whole = _ratio(_largest((gap - allowed).clamp(min=0)), scale), _ratio(_largest(gap), scale)
        beside_others = torch.finfo(expected.dtype).eps * self._largest  # a parameter that is zero but for rounding
        if off <= self._tolerance < whole and _largest(gap) > beside_others:
            self.moved = max(self.moved, (whole, name))
        return off


def _largest(tensor: torch.Tensor) -> float:
    return _finite(tensor.abs().max().item()) if tensor.numel() else 0.0


def _ratio(amount: float, scale: float) -> float:
    return amount / scale if scale else math.inf if amount else 0.0


def _finite(number: float) -> float:
    """Return infinity for NaN, which would compare as if nothing were off."""
    return math.inf if math.isnan(number) else number


# --- the verdict of a way -------------------------------------------------------------------------


class Judgement(NamedTuple):
    """What the records of a way say.

    It is right by ``truth``, the number of one of the truths, or, if that is None, ``off``.
    """

    truth: int | None
    off: Difference | None
    largest: float
    moved: tuple[float, str] = (0.0, "")


def judge(ranks: Sequence[Sequence[Record]], truths: Sequence[Sequence[Record]], tolerance: float) -> Judgement:
    """Compare the records of each rank with each other, and together with the truths.

    ``ranks`` and ``truths`` have records from 0 on; ranks that have died have fewer. What is apart
    on two ranks comes before what is off at the same step.
    """
    first = ranks[0]
    beside = [Comparison(first[0], tolerance) for _ in ranks[1:]]
    comparisons = [Comparison(truth[0], tolerance) for truth in truths]
    for step in range(1, min(map(len, ranks))):
        for rank, comparison in enumerate(beside, 1):
            comparison.add(step, *_shared(ranks[rank][step], first[step]))
            if comparison.off:
                return Judgement(None, comparison.off._replace(ranks=(0, rank)), comparison.largest)
        together = _merged([records[step] for records in ranks])
        for comparison, truth in zip(comparisons, truths, strict=True):
            comparison.add(step, together, truth[step])
        if all(comparison.off for comparison in comparisons):
            break
    right = next((i for i, comparison in enumerate(comparisons) if comparison.off is None), None)
    if right is None:
        closest = min(comparisons, key=lambda each: (-each.off.step, each.off.amount) if each.off else (0, 0.0))
        return Judgement(None, closest.off, closest.largest)
    return Judgement(right, None, comparisons[right].largest, comparisons[right].moved)


def _merged(records: Sequence[Record]) -> Record:
    """Return what ranks have together. Their losses are those of shards, or one rank has it."""
    losses = [record.loss for record in records if record.loss is not None]
    merged = Record(sum(losses) / len(losses) if losses else None, {}, {})
    for record in reversed(records):
        merged.gradients.update(record.gradients)
        merged.parameters.update(record.parameters)
    return merged


def _shared(record: Record, first: Record) -> tuple[Record, Record]:
    """Return of two ranks' records what both have; their losses are those of their shards."""
    both = record.parameters.keys() & first.parameters.keys()
    one, other = (
        Record(None, *({n: t for n, t in of.items() if n in both} for of in (each.gradients, each.parameters)))
        for each in (record, first)
    )
    return one, other
