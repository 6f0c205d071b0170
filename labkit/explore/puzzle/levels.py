"""The levels of the puzzle: what each asks and teaches, and the schedule that sets its par."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from labkit.explore.puzzle.board import Board
from labkit.explore.puzzle.rules import Rules
from labkit.schedule import (
    Schedule,
    gpipe,
    interleaved,
    one_f_one_b,
    zero_bubble_h1,
    zero_bubble_h2,
    zero_bubble_v,
)

WHOLE = {"F": 1.0, "B": 2.0}
SPLIT = {"F": 1.0, "I": 1.0, "W": 1.0}


@dataclass(frozen=True, eq=False)
class Level:
    """A puzzle: its ``rules``, what it ``teaches`` (a sentence) and what it ``asks`` of the reader.

    What it teaches gives the answer away, so it is for who has reached par; ``then`` says by name
    of the schedule that was built what to try next.

    The ``goal`` is to end early ("makespan"), or to have every rank done soon after its own first
    op ("span"): what counts where the next step begins on each rank as soon as it is done. Par is
    what ``reference`` needs; it also says which rank has which stage, and how many micro-batches
    there are. ``times``, ``hop`` and ``caps`` are those of the rules, a time per kind or one for
    each stage. ``named`` is false where a finished schedule's name is not to be told, as the reader
    has met none yet.
    """

    title: str
    teaches: str
    asks: str
    reference: Schedule
    times: Mapping[str, float | list[float]] = field(default_factory=lambda: WHOLE)
    hop: float = 0.0
    caps: Sequence[int] | None = None
    goal: str = "makespan"
    named: bool = True
    then: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def rules(self) -> Rules:
        homes = {op.stage: rank for rank, ops in enumerate(self.reference.ops) for op in ops}
        times = {kind: time if isinstance(time, list) else [time] * len(homes) for kind, time in self.times.items()}
        return Rules([homes[stage] for stage in sorted(homes)], self.reference.n_micro, times, self.hop, self.caps)

    @cached_property
    def reference_board(self) -> Board:
        return Board(self.rules, tuple(map(tuple, self.reference.ops)))

    @cached_property
    def par_s(self) -> float:
        return self.result_s(self.reference_board)

    def result_s(self, board: Board) -> float:
        """Return what the goal measures of a finished board: less is better."""
        return max(map(board.span_s, range(self.rules.n_ranks))) if self.goal == "span" else board.makespan_s


def level(number: int) -> Level:
    """Return level ``number``, counted from 1.

    Raises TypeError for what is no whole number, ValueError for a level that does not exist.
    """
    message = f"level is {number!r}, expected a whole number from 1 to {len(LEVELS)}"
    if isinstance(number, bool) or not isinstance(number, int):
        raise TypeError(message)
    if not 1 <= number <= len(LEVELS):
        raise ValueError(message)
    return LEVELS[number - 1]


LEVELS = [
    Level(
        "There and back",
        teaches="An op can run only once the one whose output it takes has ended.",
        asks="Rank 0 has the first half of a model (stage 0), rank 1 the second (stage 1). Take one micro-batch forward "
        "(F) through both and backward (B) again; 1B0 is stage 1, backward, micro-batch 0.",
        reference=gpipe(2, 1),
        named=False,
    ),
    Level(
        "Two at once",
        teaches="While one rank works for one micro-batch, the other can work for the next.",
        asks="Two micro-batches. One after the other they would take twice as long as one: overlap them.",
        reference=gpipe(2, 2),
        named=False,
    ),
    Level(
        "Little room",
        teaches="A rank that takes each backward pass as soon as it may keeps few activations, and that costs no time.",
        asks="What a forward computes, its activation, is kept until the backward of that micro-batch has ended, and now "
        "a rank has room for few. Place four micro-batches, and end as early as you would with room for all.",
        caps=[3, 2, 1],
        reference=one_f_one_b(3, 4),
    ),
    Level(
        "Room for all",
        teaches="While a pipeline fills and drains, ranks are idle: with n ranks and m micro-batches the bubble is "
        "(n − 1) / (m + n − 1) at least, here 3 / 7, also for GPipe, which does all forwards before any backward.",
        asks="Four ranks, four micro-batches, room for all activations. How much of the ranks' time is idle at "
        "best, and does it matter when the backward passes begin?",
        reference=gpipe(4, 4),
        then={
            "1F1B": "Now clear the board, put all forwards first, and compare what the ranks keep.",
            "GPipe": "Now clear the board, let each backward go as soon as it may, and compare what the ranks keep.",
        },
    ),
    Level(
        "One forward, one backward",
        teaches="1F1B has the bubble of GPipe, and of n ranks rank r keeps at most n − r activations, however many "
        "micro-batches there are.",
        asks="Four ranks, six micro-batches, and the later a rank, the less room it has. End as early as with room for all.",
        caps=[4, 3, 2, 1],
        reference=one_f_one_b(4, 6),
    ),
    Level(
        "A slow stage",
        teaches="The slowest stage sets the pace: it must never wait, and all others will.",
        asks="Stage 1 takes twice as long as the others. Keep rank 1 busy from its first op to its last; ranks 0 and 1 "
        "have room for one activation more than in level 3.",
        times={"F": [1.0, 2.0, 1.0], "B": [2.0, 4.0, 2.0]},
        caps=[4, 3, 1],
        reference=Schedule.from_csv(
            "0F0,0F1,0F2,0F3,0B0,0B1,0B2,0B3\n1F0,1F1,1F2,1B0,1F3,1B1,1B2,1B3\n2F0,2B0,2F1,2B1,2F2,2B2,2F3,2B3\n"
        ),
    ),
    Level(
        "A long way",
        teaches="Where sending takes time, more micro-batches have to be under way to keep ranks busy.",
        asks="What one rank sends is at the other 1 later. Never let rank 1 wait between its ops: how many forwards "
        "must rank 0 be ahead?",
        hop=1.0,
        caps=[3, 1],
        reference=Schedule.from_csv("0F0,0F1,0F2,0B0,0F3,0B1,0B2,0B3\n1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3\n"),
    ),
    Level(
        "Backward in two",
        teaches="Only the gradient of the input (I) is awaited elsewhere; that of the weights (W) can fill a gap.",
        asks="Each backward is split into I, which the stage before waits for, and W, which nobody waits for, but which "
        "frees the activation. Use W where a rank would be idle.",
        times=SPLIT,
        caps=[2, 2],
        reference=zero_bubble_h1(2, 3),
    ),
    Level(
        "W in the gaps",
        teaches="ZB-H1 (zero bubble, though not quite): with W in the gaps the bubble is a third of 1F1B's, in the memory "
        "of 1F1B's first rank.",
        asks="Three ranks, five micro-batches. The last rank has to begin late: let it never wait after that.",
        times=SPLIT,
        caps=[3, 3, 3],
        reference=zero_bubble_h1(3, 5),
    ),
    Level(
        "No gap at all",
        teaches="ZB-H2 (zero bubble): with more forwards ahead, up to 2n − 1 activations on each of n ranks, no rank "
        "waits between its first op and its last.",
        asks="The same, with room for more activations. What counts is now each rank's own time, from its first op to its "
        "last: leave no gap in any of them.",
        times=SPLIT,
        caps=[5, 5, 5],
        reference=zero_bubble_h2(3, 5),
        goal="span",
    ),
    Level(
        "Two stages a rank",
        teaches="Interleaved 1F1B: with v stages a rank the pipeline fills v times as fast, at the price of more messages.",
        asks="The model is cut in four: rank 0 has stages 0 and 2, rank 1 stages 1 and 3. A micro-batch passes each "
        "rank twice on its way, so beware of filling a rank with what cannot come back.",
        caps=[5, 3],
        reference=interleaved(2, 4, 2),
    ),
    Level(
        "Down and up again",
        teaches="ZB-V (zero bubble, in a V): with stages r and 2n − 1 − r on rank r of n no rank waits between its first "
        "op and its last, in the memory of 1F1B.",
        asks="Rank 0 has stages 0 and 3, rank 1 has 1 and 2, so that the last stage is where the first one is. Let no "
        "rank wait between its first op and its last.",
        times=SPLIT,
        caps=[4, 4],
        reference=zero_bubble_v(2, 3),
        goal="span",
    ),
]
