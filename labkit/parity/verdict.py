"""Say the verdict of a way in a sentence."""

from __future__ import annotations

import re

from labkit.base import formats
from labkit.base.texts import listed
from labkit.launch import LaunchTimeout, RankError
from labkit.parity.judge import Difference, Judgement
from labkit.parity.rank import Refused
from labkit.parity.truth import Facts
from labkit.parity.ways import Way


def sentence(failed: str, found: Judgement | None, way: Way, facts: Facts, rows: int) -> str:
    """Return what became of a way: what its ranks have written down, and how they have ended."""
    if found is not None and found.off is not None:
        wrong = _off(found.off)
        if facts.draws and way.n_stages:
            wrong += ". The model draws random numbers, and in a pipeline each stage draws its own: set dropout to 0"
        return f"{wrong}; then {failed}" if failed else wrong
    if failed or found is None:
        return failed
    right = "right"
    if found.truth:
        right = f"right, but the batch is not the mean of its shards: {_cause(way, facts, rows)}"
    amount, name = found.moved
    if amount:
        right += f". {name} differs by {formats.measured(amount, width=7)} where its gradient is below rounding"
    return right


def _off(off: Difference) -> str:
    amount = formats.loss(f"{off.amount:.2g}")
    if off.ranks:
        return f"ranks {off.ranks[0]} and {off.ranks[1]} are {amount} apart, first in {off.name}, at step {off.step}"
    return f"off by {amount}, first in {off.name}, at step {off.step}"


def _cause(way: Way, facts: Facts, rows: int) -> str:
    sizes = way.cut.sizes(rows)
    causes = []
    if len(set(sizes)) > 1 and way.cut.mean == "parts":
        causes.append(f"they have {listed(sorted(set(sizes), reverse=True), 'or')} rows")
    if facts.batch_norm:
        causes.append("BatchNorm takes its means over a shard")
    if facts.draws:
        causes.append("random numbers, such as dropout's, are drawn for each shard")
    return (
        ", and ".join(causes) or "the loss is not a mean over rows (over tokens, perhaps), or rows depend on each other"
    )


def failure(error: RankError | LaunchTimeout) -> str:
    """Return what a rank has raised, what it has died of, or where ranks hang."""
    if isinstance(error, LaunchTimeout):
        return _hang(error)
    raised = re.fullmatch(r"rank \d+ raised \w+: (.*?)(?: \(and so did rank [\d, ]+\))?", str(error), re.DOTALL)
    if raised is None:
        return f"raised: {error}"
    if error.error_type == Refused.__name__:
        return f"refused: {raised[1]}"
    return f"raised: rank {error.rank}, {error.error_type}: {(raised[1].splitlines() or [''])[0]}"


def _hang(error: LaunchTimeout) -> str:
    if error.hang:
        return f"hung: {error.hang.cause}"
    frames = [line.strip() for stack in error.stacks.values() for line in stack.splitlines() if " line " in line]
    return f"hung: {str(error).split('. ')[0]}; {frames[-1] if frames else ''}"
