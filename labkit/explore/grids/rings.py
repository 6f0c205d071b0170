"""Follow the parts of a tensor while N ranks add it up: around a ring, through a server, naively.

Three ways, each as a table of what is sent in which step. From such a table follow the grid of what
every rank holds after each step, and how many bytes have gone where.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pandas as pd

from labkit.base.checks import check_bytes, check_number, is_whole
from labkit.base.texts import listed
from labkit.explore.grids.cells import Grid, intervals

SENT_COLUMNS = ("step", "source", "target", "column", "carries")  # carries: a bit for each rank whose part is in it
MOST_RANKS = 16
MOST_NAMED = 4  # with more ranks a cell has their number instead of their names
Row = tuple[int, int, int, int, int]


def ring(n: int) -> list[Row]:
    """Return what is sent around a ring: each chunk travels by itself until all have its sum.

    It sets out at the rank of its own number, always goes to the next one, and takes up a part
    wherever it comes for the first time (Patarasu and Yuan 2009).
    """
    rows, everyone = [], list(range(n))
    for chunk in everyone:
        journey = (everyone[chunk:] + 2 * everyone)[: 2 * n - 1]
        carries = 0
        for step, (here, there) in enumerate(pairwise(journey)):
            carries |= 1 << here
            rows.append((step, here, there, chunk, carries))
    return rows


def parameter_server(n: int) -> list[Row]:
    """Return what is sent through rank 0: whole tensors to it, one after the other, and sums back.

    Its link takes one at a time.
    """
    total = (1 << n) - 1
    to_server = [(rank - 1, rank, 0, chunk, 1 << rank) for rank in range(1, n) for chunk in range(n)]
    back = [(n - 2 + rank, 0, rank, chunk, total) for rank in range(1, n) for chunk in range(n)]
    return to_server + back


def naive_ring(n: int) -> list[Row]:
    """Return what is sent if every rank's whole tensor goes once around, and all add up all."""
    rows = []
    for owner in range(n):
        stops = [(owner + hop) % n for hop in range(n)]
        for step, (here, there) in enumerate(pairwise(stops)):
            rows += [(step, here, there, chunk, 1 << owner) for chunk in range(n)]
    return rows


class Way(NamedTuple):
    """A way to add a tensor up over all ranks: what it is called, what it sends, its phases."""

    name: str
    sends: Callable[[int], list[Row]]
    first_half: str
    second_half: str


WAYS = {
    way.name: way
    for way in (
        Way("ring", ring, "reduce-scatter: who gets a chunk adds it to its own", "all-gather: whole sums go round"),
        Way("parameter server", parameter_server, "rank 0 adds up what it gets", "rank 0 sends the sum back"),
        Way("naive ring", naive_ring, *2 * ("all add up every tensor that comes by, and pass it on",)),
    )
}


class Story(NamedTuple):
    """What happened to a tensor that ``n`` ranks add up, step by step.

    ``states[step, rank, chunk]`` has a bit for each rank whose part has been added; a negative
    number -i is no sum of different ranks' parts, but what ``strange[i - 1]`` says. ``sent`` is a
    table of SENT_COLUMNS. ``bytes_sent[step, rank]`` is what a rank has sent before ``step``, in
    tensors; ``bytes_received`` likewise.
    """

    name: str
    n: int
    states: np.ndarray
    sent: pd.DataFrame
    bytes_sent: np.ndarray
    bytes_received: np.ndarray
    strange: Sequence[str] = ()

    @property
    def n_steps(self) -> int:
        return len(self.states) - 1


def follow(name: str, n: int) -> Story:
    """Return what happens when ``n`` ranks add up a tensor in the way of that name.

    Raises ValueError for an unknown way, and for fewer than 2 or more than MOST_RANKS ranks.
    """
    if name not in WAYS:
        raise ValueError(f"way is {name!r}, expected one of {', '.join(WAYS)}")
    check_ranks(n)
    sent = pd.DataFrame(WAYS[name].sends(n), columns=list(SENT_COLUMNS))
    step, _, target, column, carries = sent.to_numpy().T
    states = np.zeros((step.max() + 2, n, n), dtype=np.int64)
    states[0] = 1 << np.arange(n)[:, None]
    np.bitwise_or.at(states, (step + 1, target, column), carries)
    states = np.bitwise_or.accumulate(states, axis=0)
    out, into = (moved_before(step, rank, 1 / n, states.shape[:2]) for rank in (sent["source"], target))
    return Story(name, n, states, sent, out, into)


def check_ranks(n: int) -> None:
    """Raise TypeError or ValueError unless ``n`` ranks can be shown."""
    expected = f"a whole number of ranks, 2 to {MOST_RANKS}"
    check_number("world_size", n, lambda n: is_whole(n) and 2 <= n <= MOST_RANKS, expected)


def moved_before(step: np.ndarray, rank: np.ndarray | pd.Series, tensors: float | np.ndarray, shape: tuple[int, ...]):
    """Return how many tensors each rank has moved before each step, an array of ``shape``."""
    moved = np.zeros(shape)
    np.add.at(moved, (np.asarray(step) + 1, np.asarray(rank)), tensors)
    return np.cumsum(moved, axis=0)


# --- bytes ----------------------------------------------------------------------------------------


def least_tensors(n: int) -> float:
    """Return how many tensors the busiest of ``n`` ranks sends at least: 2 (N − 1) / N."""
    return 2 * (n - 1) / n


def bytes_table(stories: Sequence[Story], n_bytes: float) -> pd.DataFrame:
    """Return a row per way: its steps, and the bytes that go through links until the end.

    Columns: ``way, steps, busiest sends, busiest receives, all send, of the least``. The last one
    is what the busiest rank sends, divided by 2 (N − 1) / N · bytes.
    """
    check_bytes("n_bytes", n_bytes)
    rows = []
    for story in stories:
        sent, received = story.bytes_sent[-1] * n_bytes, story.bytes_received[-1] * n_bytes
        of_least = story.bytes_sent[-1].max() / least_tensors(story.n)
        rows.append((story.name, story.n_steps, sent.max(), received.max(), sent.sum(), of_least))
    columns = ["way", "steps", "busiest sends", "busiest receives", "all send", "of the least"]
    return pd.DataFrame(rows, columns=columns)


def bytes_so_far(story: Story, step: int, n_bytes: float) -> pd.DataFrame:
    """Return a row per rank: the bytes that it has sent and received before ``step``.

    Columns: ``rank, sent, received, least``; ``least`` is 2 (N − 1) / N · bytes.
    """
    check_bytes("n_bytes", n_bytes)
    step = min(max(step, 0), story.n_steps)
    sent, received = story.bytes_sent[step] * n_bytes, story.bytes_received[step] * n_bytes
    return pd.DataFrame(
        {"rank": range(story.n), "sent": sent, "received": received, "least": least_tensors(story.n) * n_bytes}
    )


def sent_cells(story: Story, n_bytes: float) -> pd.DataFrame:
    """Return cells that say, step by step, how many bytes each rank has sent so far."""
    cells = intervals(1 + np.rint(story.bytes_sent * n_bytes).astype(np.int64)[:, :, None])
    sent, least = cells["holds"] - 1, round(least_tensors(story.n) * n_bytes)
    cells["name"] = np.where(sent > least + 0.01 * n_bytes, "more than the least", "bytes sent")
    cells["shade"] = 0
    cells["label"] = [in_units(each) for each in sent]
    cells["sentence"] = [
        f"Rank {rank} has sent {in_units(each)} so far; the least that an all_reduce needs is {in_units(least)} a rank."
        for rank, each in zip(cells["rank"], sent, strict=True)
    ]
    return cells.drop(columns="holds")


def in_units(n_bytes: float) -> str:
    """Return bytes in the unit that fits, such as 1.5 MiB."""
    power = min(int(math.log2(n_bytes)) // 10, 4) if n_bytes >= 1 else 0
    return f"{digits(n_bytes / 1024**power)} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"


def digits(number: float) -> str:
    """Return a number with three digits, or with all that it has before the point."""
    return f"{number:.3g}" if number < 999.5 else f"{number:.0f}"


# --- the grid -------------------------------------------------------------------------------------


def grid(story: Story, title: str = "") -> Grid:
    """Return what each rank holds of each chunk after every step, and what moves in between."""
    cells = intervals(story.states)
    rank, column, appear, holds = (cells[name].to_numpy() for name in ("rank", "column", "appear", "holds"))
    looks = {value: _look(int(value), story) for value in np.unique(holds)}
    own = holds == 1 << rank
    names = [looks[value][0] for value in holds]
    cells["name"] = np.where(own, "own part", names)
    cells["shade"] = np.where(own, 0, [looks[value][1] for value in holds])
    cells["label"] = [looks[value][2] for value in holds]
    cells["sentence"] = [
        f"Rank {r}, chunk {c}, {'at the start' if s == 0 else f'from step {s} on'}: {looks[value][3]}."
        for r, c, s, value in zip(rank, column, appear, holds, strict=True)
    ]
    moves = story.sent[["step", "source", "target", "column"]].assign(
        label=[contributions(int(each), story.n) for each in story.sent["carries"]]
    )
    return Grid(
        cells=cells.drop(columns="holds"),
        columns=[str(chunk) for chunk in range(story.n)],
        steps=["before", *(f"after step {step}" for step in range(1, story.n_steps)), "at the end"],
        narrate=lambda step: _narrate(story, step),
        n_ranks=story.n,
        moves=moves,
        corner="chunk",
        title=title or story.name,
        facts=_facts(story),
    )


def contributions(bits: int, n: int) -> str:
    """Return what a cell has in it, short: the ranks, how many of them, or Σ for all."""
    if bits < 0:
        return "?"
    ranks = ranks_in(bits)
    if len(ranks) == n:
        return "Σ"
    return " ".join(map(str, ranks)) if n <= MOST_NAMED else str(len(ranks))


def ranks_in(bits: int) -> list[int]:
    """Return the numbers of the bits that are set."""
    return [rank for rank in range(bits.bit_length()) if bits >> rank & 1]


def _look(bits: int, story: Story) -> tuple[str, int, str, str]:
    """Return name, shade, label and a description of what a cell holds."""
    label, ranks = contributions(bits, story.n), ranks_in(max(bits, 0))
    if bits < 0:
        return "no such sum", 0, label, f"no sum of different ranks' parts, but {story.strange[-bits - 1]}"
    if len(ranks) == story.n:
        return "whole sum", 0, label, f"the whole sum, of all {story.n} ranks"
    if len(ranks) == 1:
        return "partial sum", story.n - 2, label, f"the part of rank {ranks[0]} alone"
    return "partial sum", story.n - 1 - len(ranks), label, f"the sum of ranks {in_words(ranks)}"


def in_words(numbers: Sequence[int]) -> str:
    """Return ``0, 1 and 3``."""
    return listed(numbers)


def _narrate(story: Story, step: int) -> str:
    """Return what happens next, in one sentence."""
    if step == story.n_steps:
        done = (story.states[-1] == (1 << story.n) - 1).sum()
        if done == story.n**2:
            return f"every rank has the whole sum of every chunk, {story.n_steps} steps after the start."
        return f"{done} of {story.n**2} cells are the whole sum, and nothing more is sent."
    moving = story.sent[story.sent["step"] == step]
    phase = ""
    if story.name in WAYS:
        way = WAYS[story.name]
        phase = (way.first_half if 2 * step < story.n_steps else way.second_half) + ". "
    text = f"{phase}Next, {_who_sends(moving, story.n)}."
    return text[0].upper() + text[1:]


def _who_sends(moving: pd.DataFrame, n: int) -> str:
    """Return who sends how much to whom, in words."""
    pairs: dict[tuple[int, int], list[int]] = defaultdict(list)
    for source, target, column in moving[["source", "target", "column"]].itertuples(index=False, name=None):
        pairs[source, target].append(column)
    sizes = {len(columns) for columns in pairs.values()}
    if len(pairs) > 1 and len(sizes) == 1:
        for hop, side in ((1, "right"), (n - 1, "left")):
            if [(source, (source + hop) % n) for source in range(n)] == sorted(pairs):
                return f"every rank sends {_chunks(min(sizes), n)} to its {side} neighbour"
    return ", ".join(
        f"rank {source} sends {'chunk ' + in_words(columns) if len(columns) < min(n, 3) else _chunks(len(columns), n)}"
        f" to rank {target}"
        for (source, target), columns in pairs.items()
    )


def _chunks(count: int, n: int) -> str:
    return "its whole tensor" if count == n else "a chunk" if count == 1 else f"{count} chunks"


def _facts(story: Story) -> str:
    busiest = story.bytes_sent[-1].max()
    return f"{story.n_steps} steps, the busiest rank sends {busiest:.3g} tensors (least: {least_tensors(story.n):.3g})"
