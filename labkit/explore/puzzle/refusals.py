"""Say why an op cannot be where a reader wants it, as data: a code, the ops, one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from labkit.base.texts import listed
from labkit.explore.puzzle.rows import Bar, Row
from labkit.explore.puzzle.rules import OF_KIND, Rules
from labkit.schedule import Op


@dataclass(frozen=True)
class Refusal:
    """Why a move is refused, or what is wrong on a board. Printed, it is its ``sentence``.

    ==========  ===================================================================================
    unknown     the puzzle has no such op
    placed      the op is on the board already
    absent      the op is not on the board
    time        the op cannot start at such a time
    dependency  what the op needs is not placed, or not there yet
    busy        the rank runs another op at that time
    memory      the rank would keep more activations than it may
    needed      another op needs this one
    order       the rank cannot run its ops in this order
    pattern     there is nothing to stamp, or nothing left to stamp it for
    ==========  ===================================================================================

    ``op`` is the op that was to be placed or removed, ``blocker`` the one that is in its way.
    """

    code: str
    sentence: str
    op: Op | None = None
    blocker: Op | None = None

    def __str__(self) -> str:
        return self.sentence


def unknown(op: Op, rules: Rules) -> Refusal:
    if op.stage >= rules.n_stages:
        why = f"the last stage is {rules.n_stages - 1}"
    elif op.micro_batch >= rules.n_micro:
        why = f"the last micro-batch is {rules.n_micro - 1}"
    elif rules.split:
        why = "a backward pass is split here, into the gradient of the input (I) and that of the weights (W)"
    else:
        why = "a backward pass is whole here (B)"
    return Refusal("unknown", f"there is no {op} in this level: {why}", op)


def placed(op: Op, bar: Bar) -> Refusal:
    return Refusal("placed", f"{op} is there already, from {bar.start_s:g} to {bar.end_s:g}", op, op)


def absent(op: Op) -> Refusal:
    return Refusal("absent", f"{op} is not placed", op)


def bad_time(op: Op, start_s: float) -> Refusal:
    return Refusal("time", f"{op} cannot start at {start_s:g}: time begins at 0", op)


def missing_input(op: Op, needed: Op) -> Refusal:
    return Refusal("dependency", f"{op} needs {_output(needed, op)}, which is not placed yet", op, needed)


def late_input(op: Op, needed: Bar, start_s: float, delay_s: float) -> Refusal:
    arrival = f" and takes {delay_s:g} more to arrive" if delay_s else ""
    sentence = (
        f"{op} needs {_output(needed.op, op)}, which ends at {needed.end_s:g}{arrival}: it cannot start at {start_s:g}"
    )
    return Refusal("dependency", sentence, op, needed.op)


def busy(op: Op, rank: int, other: Bar) -> Refusal:
    sentence = f"rank {rank} is busy with {other.op} from {other.start_s:g} to {other.end_s:g}: {op} does not fit"
    return Refusal("busy", sentence, op, other.op)


def no_room(op: Op, rank: int, row: Row, kept: Sequence[Bar], freeing: Sequence[Op]) -> Refusal:
    """Refuse the forward ``op``, as ``freeing`` are to free what the rank keeps."""
    count, blocker = int(row.cap), freeing[0]
    activations = f"{count} activation{'s' if count != 1 else ''}"
    those = f"{'that' if len(kept) == 1 else 'those'} of {_list([bar.op for bar in kept])}"
    stays = f"it keeps {those} until {_list(freeing, 'or')} has ended"
    where = "" if any(bar.op == blocker for bar in row.bars) else f", and {blocker} is not placed yet"
    return Refusal("memory", f"rank {rank} has room for {activations}: {stays}{where}. {op} has to wait", op, blocker)


def needed(op: Op, taker: Op) -> Refusal:
    return Refusal("needed", f"{taker} needs {op}: remove {taker} first, undo, or turn on free edit", op, taker)


def frees(op: Op, later: Op) -> Refusal:
    return Refusal("memory", f"{later} has room only because {op} frees it: remove {later} first", op, later)


def at_the_end(op: Op, rank: int, direction: int) -> Refusal:
    return Refusal("order", f"{op} is the {'first' if direction < 0 else 'last'} op of rank {rank} already", op)


def not_in_order(op: Op, other: Op, direction: int, why: Refusal) -> Refusal:
    where = f"{op} cannot go {'before' if direction < 0 else 'after'} {other}"
    if why.code == "dependency" and why.op and why.blocker:
        return Refusal(
            "order", f"{where}: {why.op} needs {_output(why.blocker, why.op)}, which would come later", op, other
        )
    return Refusal("order", f"{where}: {why}", op, other)


def _output(needed: Op, op: Op) -> str:
    """Name what ``op`` takes from ``needed``: the activation of 0F0."""
    if needed.stage == op.stage:
        return f"{needed}, the {OF_KIND[needed.kind]} of its own stage"
    return f"the {'activation' if needed.kind == 'F' else 'gradient'} of {needed}"


def _list(ops: Sequence[Op], word: str = "and") -> str:
    return listed(ops, word)
