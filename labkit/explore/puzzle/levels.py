"""Say what each level asks and teaches, and which schedule sets its par.

The page plays them: browser/puzzle.js.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from labkit.base.checks import check_number, is_whole
from labkit.explore.puzzle.board import Board
from labkit.explore.puzzle.rules import Rules
from labkit.schedule import (
    EVENT_NAMES,
    Schedule,
    gpipe,
    interleaved,
    one_f_one_b,
    zero_bubble_h1,
    zero_bubble_h2,
    zero_bubble_v,
)
from labkit.simulate import TimedSchedule, makespan


@dataclass(frozen=True, eq=False)
class Level:
    """A puzzle: its ``rules``, what it ``teaches`` (a sentence) and what it ``asks`` of the reader.

    What it teaches gives the answer away, so it is for readers who have reached par.

    The ``goal`` is to end early ("makespan"), or to have every rank done soon after its own first
    op ("span"): what counts where the next step begins on each rank as soon as it is done. Par is
    what the schedule of the rules needs.
    """

    title: str
    teaches: str
    asks: str
    rules: Rules
    goal: str = "makespan"

    @cached_property
    def solution(self) -> Board:
        """The finished board of the schedule that sets par, whose moves are in order of time."""
        ops = [op for order in self.rules.timed.schedule.ops for op in order]
        start_s = dict(zip(ops, self.rules.timed.simulate()["start_s"], strict=True))
        return Board(self.rules, tuple(sorted(ops, key=lambda op: (start_s[op], op))))

    @cached_property
    def par_s(self) -> float:
        """What the goal measures of the solution: less is better."""
        events = self.rules.timed.simulate()
        return max(spans_s(events)) if self.goal == "span" else makespan(events)

    @cached_property
    def message(self) -> dict[str, Any]:
        """The level as the page reads it."""
        rules = self.rules
        return {
            "title": self.title,
            "teaches": self.teaches,
            "asks": self.asks,
            "goal": self.goal,
            "par": self.par_s,
            "solution": " ".join(map(str, self.solution.moves)),
            "rank_of_stage": rules.rank_of_stage,
            "times": {kind: rules.timed.per_stage(EVENT_NAMES[kind]) for kind in rules.kinds},
            "hop": rules.timed.hop,
            "caps": rules.caps,
        }


def spans_s(events: pd.DataFrame) -> list[float]:
    """Return how long each rank takes from the start of its first op to the end of its last."""
    by_rank = events.groupby("rank")
    return (by_rank["end_s"].max() - by_rank["start_s"].min()).tolist()


def level(number: int) -> Level:
    """Return level ``number``, counted from 1.

    Raises TypeError for anything but a number, ValueError for a level that does not exist.
    """
    expected = f"a whole number from 1 to {len(LEVELS)}"
    check_number("level", number, lambda number: is_whole(number) and 1 <= number <= len(LEVELS), expected)
    return LEVELS[number - 1]


LEVELS = [
    Level(
        "There and back",
        teaches="An op can run only once the one whose output it takes has ended.",
        asks="Rank 0 has the first half of a model (stage 0), rank 1 the second (stage 1). Take "
        "one micro-batch forward (F) through both and backward (B) again; 1B0 is stage 1, "
        "backward, micro-batch 0.",
        rules=Rules(TimedSchedule(gpipe(2, 1))),
    ),
    Level(
        "Two at once",
        teaches="While one rank works for one micro-batch, the other can work for the next.",
        asks="Two micro-batches. One after the other they would take twice as long as one: overlap them.",
        rules=Rules(TimedSchedule(gpipe(2, 2))),
    ),
    Level(
        "Little room",
        teaches="A rank that takes each backward pass as soon as it may keeps few activations, and that costs no time.",
        asks="What a forward computes, its activation, is kept until the backward of that "
        "micro-batch has ended, and now a rank has room for few. Place four micro-batches, and end "
        "as early as you would with room for all.",
        rules=Rules(TimedSchedule(one_f_one_b(3, 4)), caps=[3, 2, 1]),
    ),
    Level(
        "Room for all",
        teaches="While a pipeline fills and drains, ranks are idle: with n ranks and m "
        "micro-batches the bubble is (n − 1) / (m + n − 1) at least, here 3 / 7, also for GPipe, "
        "which does all forwards before any backward.",
        asks="Four ranks, four micro-batches, room for all activations. How much of the ranks' "
        "time is idle at best, and does it matter when the backward passes begin?",
        rules=Rules(TimedSchedule(gpipe(4, 4))),
    ),
    Level(
        "One forward, one backward",
        teaches="1F1B has the bubble of GPipe, and of n ranks rank r keeps at most n − r "
        "activations, however many micro-batches there are.",
        asks="Four ranks, six micro-batches, and the later a rank, the less room it has. End as "
        "early as with room for all.",
        rules=Rules(TimedSchedule(one_f_one_b(4, 6)), caps=[4, 3, 2, 1]),
    ),
    Level(
        "A slow stage",
        teaches="The slowest stage sets the pace: it must never wait, and all others will.",
        asks="Stage 1 takes twice as long as the others. Keep rank 1 busy from its first op to its "
        "last; ranks 0 and 1 have room for one activation more than in level 3.",
        rules=Rules(
            TimedSchedule(
                Schedule.from_csv(
                    "0F0,0F1,0F2,0F3,0B0,0B1,0B2,0B3\n1F0,1F1,1F2,1B0,1F3,1B1,1B2,1B3\n2F0,2B0,2F1,2B1,2F2,2B2,2F3,2B3"
                ),
                forward=[1.0, 2.0, 1.0],
                backward=[2.0, 4.0, 2.0],
            ),
            caps=[4, 3, 1],
        ),
    ),
    Level(
        "A long way",
        teaches="Where sending takes time, more micro-batches have to be under way to keep ranks busy.",
        asks="What one rank sends is at the other 1 later. Never let rank 1 wait between its ops: "
        "how many forwards must rank 0 be ahead?",
        rules=Rules(
            TimedSchedule(
                Schedule.from_csv("0F0,0F1,0F2,0B0,0F3,0B1,0B2,0B3\n1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3"), hop=1.0
            ),
            caps=[3, 1],
        ),
    ),
    Level(
        "Backward in two",
        teaches="Only the gradient of the input (I) is awaited elsewhere; that of the weights (W) can fill a gap.",
        asks="Each backward is split into I, which the stage before waits for, and W, which nobody "
        "waits for, but which frees the activation. Use W where a rank would be idle.",
        rules=Rules(TimedSchedule(zero_bubble_h1(2, 3)), caps=[2, 2]),
    ),
    Level(
        "W in the gaps",
        teaches="ZB-H1 (zero bubble, though not quite): with W in the gaps a rank is idle for a third of the "
        "time that it is in 1F1B, a bubble of 12 % instead of 29 %, in the memory of 1F1B's first rank.",
        asks="Three ranks, five micro-batches. The last rank has to begin late: let it never wait after that.",
        rules=Rules(TimedSchedule(zero_bubble_h1(3, 5)), caps=[3, 3, 3]),
    ),
    Level(
        "No gap at all",
        teaches="ZB-H2 (zero bubble): with more forwards ahead, up to 2n − 1 activations on each "
        "of n ranks, no rank waits between its first op and its last.",
        asks="The same, with room for more activations. What counts is now each rank's own time, "
        "from its first op to its last: leave no gap in any of them.",
        rules=Rules(TimedSchedule(zero_bubble_h2(3, 5)), caps=[5, 5, 5]),
        goal="span",
    ),
    Level(
        "Two stages a rank",
        teaches="Interleaved 1F1B: with v stages a rank the pipeline fills v times as fast, at the "
        "price of more messages.",
        asks="The model is cut in four: rank 0 has stages 0 and 2, rank 1 stages 1 and 3. A "
        "micro-batch passes each rank twice on its way, so beware of filling a rank with what "
        "cannot come back.",
        rules=Rules(TimedSchedule(interleaved(2, 4, 2)), caps=[5, 3]),
    ),
    Level(
        "Down and up again",
        teaches="ZB-V (zero bubble, in a V): with stages r and 2n − 1 − r on rank r of n no rank "
        "waits between its first op and its last, in the memory of 1F1B.",
        asks="Rank 0 has stages 0 and 3, rank 1 has 1 and 2, so that the last stage is where the "
        "first one is. Let no rank wait between its first op and its last.",
        rules=Rules(TimedSchedule(zero_bubble_v(2, 3)), caps=[4, 4]),
        goal="span",
    ),
]
