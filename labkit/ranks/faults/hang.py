"""Find out whether ranks that stand still can go on; if not, say why, and which is to blame.

Pure: what each rank has said of itself (:class:`labkit.ranks.messages.message.RankState`) goes in,
and sentences come out. A rank can go on if one of its threads waits for nothing, or if one of the
collectives and messages that it waits for may meet: all that belong to it have begun the same, or
can go on and may still do so. If no rank can, all of them are deadlocked.
"""

from __future__ import annotations

import ast
import linecache
import math
import threading
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import NamedTuple

from labkit.base.texts import listed
from labkit.ranks.messages.message import ANY, GPU, THREADS, Begun, Place, RankState

QUIET_S = 2.0  # so long ranks must have stood still together before they are taken for deadlocked
FRESH_S = 1.5  # what a rank has said of itself longer ago may not hold any more
DEFAULT_GROUP, OTHER = "0", ""  # as torch names it; of what is in no group's count
NOT_CALLED = "is not among the ranks of this cell"
_SIZED_BY_RANK = {"all_to_all", "alltoall", "barrier", "all_to_all_base"}  # shapes need not agree
_DTYPES = {"float": "float32", "double": "float64", "half": "float16", "long": "int64", "int": "int32"}  # of C++
_OPPOSITE = {"send": ("recv", "recv_anysource"), "recv": ("send",), "recv_anysource": ("send",)}


# Python 3.11 counts the depth of its parser for all threads at once, and raises SystemError where
# two of them parse.
_PARSING = threading.Lock()


class Hang(NamedTuple):
    """Why no rank can go on: a sentence, and a line for each rank."""

    cause: str
    lines: dict[int, str]


def find_hang(states: Mapping[int, RankState | None], quiet_s: float) -> Hang | None:
    """Return why no rank can go on; None while one may.

    ``states`` has every rank: None for one that has not said that it stands still. All must have
    stood still together, for ``quiet_s`` or longer.
    """
    known = {rank: state for rank, state in states.items() if state is not None}
    waiting = {rank for rank, state in known.items() if state.in_call}
    if not waiting or len(known) < len(states):
        return None
    until_ns = min(known[rank].at_ns for rank in waiting)
    together_s = (until_ns - max(state.since_ns for state in known.values())) * 1e-9
    ranks = _Ranks(known)
    if together_s < quiet_s or any(ranks.can_progress(rank) for rank in waiting):
        return None
    return Hang(ranks.cause(sorted(waiting)), {rank: ranks.line(rank) for rank in known})


class _Ranks:
    """What is known of all ranks, and which of them can go on."""

    def __init__(self, states: dict[int, RankState]):
        self.states = states
        self.blocked_by = {rank: self._blocked_by(state) for rank, state in states.items()}
        self.collectives: dict[tuple[int, str], dict[int, Begun]] = {}  # by rank and group, by number
        for rank, state in states.items():
            for each in [*state.begun, *self.blocked_by[rank]]:
                if each.peer is None:
                    self.collectives.setdefault((rank, each.group), {})[each.number] = each
        self._live: set[int] = set()
        while True:  # a rank that can go on may free others
            freed = {rank for rank in states if rank not in self._live and self._is_free(rank)}
            if not freed:
                break
            self._live |= freed

    def can_progress(self, rank: int) -> bool:
        return rank in self._live

    def _is_free(self, rank: int) -> bool:
        """Return whether a rank can go on by itself, or because what it waits for may meet."""
        state = self.states[rank]
        waits_for_nothing_known = state.in_call and state.wait != THREADS and not self.blocked_by[rank]
        meets = any(self._may_meet(rank, each) for each in self.blocked_by[rank])
        return state.can_progress or waits_for_nothing_known or meets

    def _blocked_by(self, state: RankState) -> list[Begun]:
        """Return what a rank waits for: all that is not done, or the last if it is in torch.

        A GPU takes the collectives of a group one after the other, so it waits in the first.
        """
        pending = [each for each in state.begun if not each.done]
        if state.wait == GPU and pending:
            return [each for each in pending if each.peer is not None or each.number == _first(pending, each.group)]
        if not state.in_call or not state.function:
            return pending
        if not pending:  # such as new_group, or what no recorder has
            return [Begun(OTHER, tuple(self.states), 0, state.function, (), (), False, state.place)]
        return [max(pending, key=lambda each: each.at_ns)._replace(root=state.root)]

    def _may_meet(self, rank: int, begun: Begun) -> bool:
        if not begun.ranks or begun.is_limited:  # of a group that torch no longer knows; it ends by itself
            return True
        if begun.peer is None:
            return all(self._joins(other, begun) for other in begun.ranks if other != rank)
        if begun.peer == ANY:
            return any(self._answers(rank, other, begun) for other in begun.ranks if other != rank)
        return begun.peer < len(begun.ranks) and self._answers(rank, begun.ranks[begun.peer], begun)

    def _joins(self, rank: int, begun: Begun) -> bool:
        """Return whether a rank has begun the same collective, or may still come to it."""
        theirs = self.of(rank, begun)
        return rank in self._live if theirs is None else _agree(theirs, begun)

    def of(self, rank: int, begun: Begun) -> Begun | None:
        """Return the collective that a rank has begun as this one; None if it has not come to it.

        One that is so long ago that nothing is known of it was the same.
        """
        begun_there = self.collectives.get((rank, begun.group), {})
        passed = begun if max(begun_there, default=-1) > begun.number else None
        return begun_there.get(begun.number, passed)

    def _answers(self, rank: int, other: int, begun: Begun) -> bool:
        """Return whether ``other`` has begun as many messages to ``rank`` as it takes, or may."""
        if other in self._live or other not in self.states:
            return True
        if rank not in begun.ranks:  # it is not in this group
            return True
        me = list(begun.ranks).index(rank)
        counts = [
            each.number
            for each in self.states[other].begun
            if each.group == begun.group and each.tag == begun.tag
            if each.name in _OPPOSITE[begun.name] and each.peer in (me, ANY)
        ]
        return sum(counts) >= begun.number

    # --- in words ---------------------------------------------------------------------------------

    def line(self, rank: int) -> str:
        """Return where a rank is."""
        state = self.states[rank]
        if not state.in_call:
            return "has returned" if state.called else NOT_CALLED
        where = in_words(state.place)
        if not self.blocked_by[rank]:
            return f"waits for {'its GPU' if state.wait == GPU else 'a thread of its own'}, {where}"
        if state.wait == GPU:
            first = self.blocked_by[rank][0]
            where = f"{in_words(first.place)}; its GPU does not come back from there"
        return f"waits in {listed([_named(each) for each in self.blocked_by[rank][:3]])}, {where}"

    def cause(self, waiting: Sequence[int]) -> str:
        """Return in a sentence why the ``waiting`` ranks cannot go on."""
        collectives = [(b.number, b) for r in waiting for b in self.blocked_by[r] if b.peer is None]
        for _, begun in sorted(collectives, key=lambda each: each[0]):
            others = {r: self.of(r, begun) for r in begun.ranks}
            if any(other is not None and not _agree(other, begun) for other in others.values()):
                return self._disagreement(begun, others)
            if absent := [r for r, other in others.items() if other is None]:
                return self._absence(begun, [r for r in others if r not in absent], absent)
        messages = [(b, r) for r in waiting for b in self.blocked_by[r] if b.peer is not None]
        if messages:
            return self._silence(messages)
        places = [f"rank {rank} ({_where(self.states[rank].place)})" for rank in waiting]
        return f"nothing will end the wait of {listed(places)} for a lock, a queue or a thread"

    def _disagreement(self, begun: Begun, others: Mapping[int, Begun | None]) -> str:
        """Return which ranks are in which collective, if not all in the same; most are right."""
        groups: dict[tuple[str, Place], list[int]] = {}
        for rank, other in others.items():
            if other is not None:
                groups.setdefault((_of(other), other.place), []).append(rank)
        parts = sorted(groups.items(), key=lambda each: -len(each[1]))
        doing = [
            f"{_ranks(r)} {'is' if len(r) == 1 else 'are'} in {what} ({_where(place)})" for (what, place), r in parts
        ]
        text = f"{_count(begun)}{'; '.join(doing)}"
        (_, first), (_, second) = parts[0][0], parts[1][0]
        if len(parts) == 2 and first != second and (why := _branch(first, second)):
            text += f". {why}"
        return text

    def _absence(self, begun: Begun, there: Sequence[int], absent: Sequence[int]) -> str:
        """Return which ranks have left out a collective that the others wait in."""
        wait = f"{_ranks(there)} wait{'s' * (len(there) == 1)} in {_of(begun)} ({_where(begun.place)})"
        returned = [rank for rank in absent if not self.states[rank].in_call]
        reasons = []
        if left := [rank for rank in returned if self.states[rank].called]:
            reasons = [f"{_ranks(left)} {'has' if len(left) == 1 else 'have'} returned without it"]
        reasons += [f"rank {rank} {self.line(rank)}" for rank in absent if rank not in left]
        why = _branch(begun.place, None if returned else self.states[absent[0]].place)
        return f"{_count(begun)}{wait}, and {listed(reasons)}" + (f". {why}" if why else "")

    def _silence(self, messages: Sequence[tuple[Begun, int]]) -> str:
        """Return which ranks wait for a message that no rank sends, or takes."""
        names = sorted({begun.name.partition("_")[0] for begun, _ in messages})
        waiting = listed([f"rank {rank} is in {_named(begun)} ({_where(begun.place)})" for begun, rank in messages])
        out = {rank: state for rank, state in self.states.items() if not state.in_call}
        gone = [f"rank {rank} {'has returned' if state.called else NOT_CALLED}" for rank, state in out.items()]
        nobody = {"send": "nobody receives", "recv": "nobody sends"}[names[0]]
        if len(names) > 1:
            cause = f"these messages do not meet: {waiting}"
        elif len({rank for _, rank in messages}) == len(self.states):
            cause = f"all ranks are in `{names[0]}`, {nobody}: {waiting}"
        else:
            cause = f"{waiting}, and {nobody}"
        return "; ".join([cause, *gone])


def _first(pending: Sequence[Begun], group: str) -> int:
    return min(each.number for each in pending if each.group == group and each.peer is None)


def _count(begun: Begun) -> str:
    return f"collective {begun.number}: " if begun.group != OTHER else ""


def _agree(one: Begun, other: Begun) -> bool:
    """Return whether two ranks' collectives are the same; shapes need not agree in all."""
    if one.name != other.name or (one.root != other.root and -1 not in (one.root, other.root)):
        return False
    return one.name in _SIZED_BY_RANK or (tuple(one.dtypes), _sizes(one)) == (tuple(other.dtypes), _sizes(other))


def _sizes(begun: Begun) -> list[int]:
    return [math.prod(shape) for shape in begun.shapes]


def in_words(place: Place) -> str:
    """Return a place and its source line: ``your cell, line 12: x = f(y)``."""
    source = linecache.getline(place.file, place.line).strip()
    return f"{_where(place)}{f': {source}' if source else ''}"


def _where(place: Place) -> str:
    """Return a place as a reader calls it: ``your cell, line 12``, ``dp.py, line 40``."""
    if not place.file:
        return "in no line of yours"
    name = PurePath(place.file).name
    is_cell = "ipykernel" in place.file or place.file.startswith("<")
    return f"{'your cell' if is_cell else name}, line {place.line}"


def _of(begun: Begun) -> str:
    """Return ``all_reduce of 1000 float``, ``barrier``."""
    size, dtype = sum(_sizes(begun)), next(iter(begun.dtypes), "")
    dtype = _DTYPES.get(dtype, dtype)
    group = f" in process group {begun.group}" if begun.group not in (DEFAULT_GROUP, OTHER) else ""
    if begun.group == OTHER:
        return begun.name
    if begun.root >= 0 and begun.peer is None:
        group = f", root {begun.root}{group}"
    return (begun.name if begun.name == "barrier" else f"{begun.name} of {size} {dtype}") + group


def _named(begun: Begun) -> str:
    if begun.peer is None:
        return _of(begun)
    if begun.peer == ANY:
        return f"{_of(begun).replace('_anysource', '')} from any rank"
    peer = begun.ranks[begun.peer] if begun.peer < len(begun.ranks) else begun.peer
    tag = f", tag {begun.tag}" if begun.tag else ""
    return f"{_of(begun)} {'to' if begun.name == 'send' else 'from'} rank {peer}{tag}"


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {listed(sorted(ranks))}"


def _branch(taken: Place, other: Place | None = None) -> str:
    """Return which `if` or loop may have led ranks to different lines of a file."""
    try:
        with _PARSING:
            tree = ast.parse("".join(linecache.getlines(taken.file)))
    except (SyntaxError, ValueError, SystemError):
        return ""
    around = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.If | ast.While | ast.For) and node.lineno <= taken.line <= (node.end_lineno or 0)
        if other is None or other.file != taken.file or _holds(node.body, taken.line) != _holds(node.body, other.line)
    ]
    if not around:
        return ""
    node = max(around, key=lambda each: each.lineno)
    word = "if" if isinstance(node, ast.If) else "loop"
    return f"The `{word}` in line {node.lineno} was not the same on all ranks"


def _holds(body: Sequence[ast.stmt], line: int) -> bool:
    return any(node.lineno <= line <= (node.end_lineno or 0) for node in body)
