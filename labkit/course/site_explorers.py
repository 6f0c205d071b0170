"""Make the explorers of a site: those that its page "play" has, and those that notebooks show.

What a cell shows can be made again if its call has nothing but literals:

    puzzle = schedule_puzzle(level=3)
    puzzle
"""

from __future__ import annotations

import ast
import functools
import hashlib
import json
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from labkit import explore
from labkit.explore.explorer import Explorer
from labkit.explore.grids.ring_answer import RingAnswer
from labkit.explore.standalone_html import file_content, packed
from labkit.explore.timeline import Timeline
from labkit.schedule import one_f_one_b
from labkit.simulate import by_stage, simulate
from labkit.trace import event_table

EXPLORERS = (
    "schedule_explorer",
    "schedule_puzzle",
    "bucket_explorer",
    "ring_explorer",
    "collectives_explorer",
    "fill_ring",
)
QUEUE = Path(__file__).with_name("worker_queue.csv")  # by data/make_worker_queue.py
RING = """
    before  0 0 0 | 1 1 1 | 2 2 2
    step 1  ? ? ? | ? ? ? | ? ? ?
    step 2  ? ? ? | ? ? ? | ? ? ?
    step 3  ? ? ? | ? ? ? | ? ? ?
    step 4  ? ? ? | ? ? ? | ? ? ?
"""


class Playing(NamedTuple):
    """A picture that plays on a page: its alt text, its ``name``, and what it loads, by name.

    Each file is text that is packed. A picture shares some files with others.
    """

    alt: str
    name: str
    files: dict[str, str]


class Section(NamedTuple):
    """A part of the page "play": ``shown`` is a call of an explorer, or a name in MADE."""

    title: str
    words: str
    shown: str


def _slow_rank() -> Timeline:
    schedule = one_f_one_b(4, 8)
    seconds = {"forward": [0.010, 0.010, 0.015, 0.010], "backward": [0.020, 0.020, 0.030, 0.020]}
    return Timeline(simulate(schedule, **seconds, hop=0.002), schedule, title="1F1B, rank 2 is slow")


def _begun_puzzle() -> Timeline:
    puzzle = explore.schedule_puzzle(3)
    for op in ("0F0", "0F1", "0F2", "1F0", "2F0", "2B0"):
        puzzle.place(op)
    return puzzle.timeline


def _recorded_queue() -> Timeline:
    """Return what record_queue gave once. Without a kernel nothing can be recorded."""
    columns = {str(name): values for name, values in pd.read_csv(QUEUE).items()}
    return Timeline(by_stage(event_table(columns, measured=True)), title="Worker threads and their queues")


MADE = {"slow_rank": _slow_rank, "schedule_puzzle, begun": _begun_puzzle, "record_queue": _recorded_queue}
PLAY = (
    Section(
        "Schedules",
        "Choose a schedule and one to compare it with. Change ranks, micro-batches, times and the memory cap.",
        'schedule_explorer("1f1b n=4 m=8 vs zb-h1")',
    ),
    Section(
        "A slow rank",
        "Simulated: rank 2 is slow, and a message takes a while. Point at an op: it says what it needs, what waits for it "
        "and why it is late.",
        "slow_rank",
    ),
    Section(
        "Buckets",
        "The gradients of GPT-2 on eight ranks: how much of their communication hides behind backward? Change the buckets.",
        "bucket_explorer()",
    ),
    Section(
        "Rings",
        "Step through an all-reduce, chunk by chunk, and compare it with another algorithm.",
        "ring_explorer()",
    ),
    Section(
        "A ring to fill in",
        "Three ranks add up a tensor of three chunks. Whose parts are added up in each chunk after each step?",
        f"fill_ring({RING!r})",
    ),
    Section("Collectives", "What each rank has before and after, for seven of them.", "collectives_explorer()"),
    Section(
        "A schedule by hand",
        "Place ops one by one. Here is level 3 of twelve, begun: three stages, four micro-batches.",
        "schedule_puzzle, begun",
    ),
    Section(
        "Queues of workers",
        "Recorded once, on a two-core CPU: eight micro-batches pass the two worker threads of a "
        "Pipe. When does a task lie in a queue, and when does its result wait to be fetched?",
        "record_queue",
    ),
)


def explorer_in(source: str) -> str | None:
    """Return the call of the explorer that a cell shows last, if all its arguments are literals."""
    try:
        *before, last = ast.parse("\n".join(line for line in source.splitlines() if not line.startswith("%"))).body
    except (SyntaxError, ValueError):  # not Python alone, or nothing
        return None
    shown = last.value if isinstance(last, ast.Expr) else None
    if isinstance(shown, ast.Name):  # it is made above, and nothing is done to it
        named = [
            statement
            for statement in before
            for node in ast.walk(statement)
            if isinstance(node, ast.Name) and node.id == shown.id
        ]
        shown = named[0].value if len(named) == 1 and isinstance(named[0], ast.Assign) else None
    match shown:
        case ast.Call(ast.Name(name) | ast.Attribute(attr=name), args, options) if name in EXPLORERS:
            if all(_is_literal(each) for each in (*args, *(option.value for option in options))):
                return ast.unparse(ast.Call(ast.Name(name), args, options))
    return None


def _is_literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except ValueError:
        return False
    return True


@functools.cache
def playing(call: str) -> Playing:
    """Return what a call of an explorer shows. Raises what the explorer raises.

    Orders of schedules, the largest part, are a file of their own, which explorers share.
    """
    timeline = _timeline(call)
    library = timeline.library()
    if not library or "orders" not in library:
        return of_content(packed(file_content(timeline.scene, library)), timeline.scene["alt"])
    orders = packed(json.dumps(library["orders"], separators=(",", ":")))
    shown = of_content(packed(file_content(timeline.scene, library | {"orders": _name(orders)})), timeline.scene["alt"])
    return shown._replace(files=shown.files | {_name(orders): orders})


def of_content(content: str, alt: str) -> Playing:
    """Return a picture whose content is packed already."""
    return Playing(alt, _name(content), {_name(content): content})


def _name(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()[:12]


def _timeline(call: str) -> Timeline:
    """Return the Timeline of an explorer."""
    if call in MADE:
        return MADE[call]()
    made = ast.parse(call, mode="eval").body
    assert isinstance(made, ast.Call) and isinstance(made.func, ast.Name)
    options = {option.arg: ast.literal_eval(option.value) for option in made.keywords if option.arg}
    explorer: Explorer | RingAnswer = getattr(explore, made.func.id)(*map(ast.literal_eval, made.args), **options)
    return explorer.timeline
