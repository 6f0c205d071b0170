"""Show grids in a notebook, step by step: a ring, seven collectives."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from labkit.base.texts import listed
from labkit.base.units import bytes_in_words
from labkit.cost import Link
from labkit.draw.layout import time_axis
from labkit.explore.form_explorer import Control, FormExplorer, View
from labkit.explore.grids import rings
from labkit.explore.grids.collectives import SEVEN, seen_collectives
from labkit.explore.grids.ring_panel import MAX_NAMED, ring_panel, verdict
from labkit.explore.grids.ring_recording import YOURS, RingError, record_ring
from labkit.explore.grids.rings import ALGORITHMS, MAX_RANKS, RingTrace, simulate_ring

# --- the ring -------------------------------------------------------------------------------------

SIZES = {"64 KiB": 2**16, "1 MiB": 2**20, "25 MiB": 25 * 2**20, "475 MiB (GPT-2's gradients)": 475 * 2**20}
NOTHING = "nothing"
LINK = Link(20e-6, 12.5e9)  # 100 Gbit/s
MAX_RANKS_IN_FILE = 8


def ring_explorer(world_size: int = 4) -> FormExplorer:
    """Return an explorer of the ring all-reduce: which chunk goes where, and what is added.

    Step through it (``.`` and ``,``) or play it; beside it runs a parameter server, a naive ring,
    or your own ``ring_all_reduce`` as **Run mine** recorded it in real ranks. On the right stands
    what each rank has sent so far. From Python: ``explorer.ranks = 8``, and likewise ``size``,
    ``algorithm``, ``compare_with``; ``explorer.record()`` does what **Run mine** does.

    Raises TypeError or ValueError for fewer than 2 or more than 16 ranks.
    """
    rings.check_ranks(world_size)
    algorithms = {name: name for name in (*ALGORITHMS, YOURS)}
    in_file = [NOTHING, *ALGORITHMS]
    controls = [
        Control(
            "ranks",
            "ranks",
            {str(n): n for n in range(2, MAX_RANKS + 1)},
            "slider",
            in_file=range(2, MAX_RANKS_IN_FILE + 1),
        ),
        Control("size", "tensor", SIZES),
        Control("algorithm", "algorithm", algorithms, in_file=in_file),
        Control("compare_with", "compare with", {NOTHING: NOTHING, **algorithms}, in_file=in_file),
    ]
    values = {"ranks": world_size, "size": SIZES["1 MiB"], "algorithm": "ring", "compare_with": "parameter server"}
    return FormExplorer(ring_view, controls, values, run=("Run mine", _record_ring))


def ring_view(recorded: RingTrace | None, ranks: int, size: int, algorithm: str, compare_with: str) -> View:
    """Return the algorithm that was chosen and the one to compare it with, and the bytes of all."""
    traces = {name: simulate_ring(name, ranks) for name in ALGORITHMS}
    if recorded is not None and recorded.n == ranks:
        traces[YOURS] = recorded
    chosen = [traces[name] for name in dict.fromkeys([algorithm, compare_with]) if name in traces]
    chosen = chosen or [traces["ring"]]
    missing = YOURS in (algorithm, compare_with) and YOURS not in traces
    narration = f"Your own ring has not run on {ranks} ranks yet." if missing else ""
    panels, table = [ring_panel(trace, size) for trace in chosen], _bytes_table(traces.values(), size)
    facts = "; ".join(
        f"{trace.n_steps} steps, the busiest rank sends {trace.busiest:.3g} times the tensor" for trace in chosen
    )
    alt = (
        f"Grids of {ranks} ranks by {ranks} chunks, step by step: {' and '.join(trace.name for trace in chosen)}. "
        f"Each cell tells whose parts are added up in it; in the end each should be the sum of all. {facts}."
    )
    cell = "names the ranks" if ranks <= MAX_NAMED else "has the number of ranks"
    note = f"A cell {cell} whose parts are added up in it; Σ: all. An arrow: what is sent next."
    title = f"{' and '.join(trace.name for trace in chosen)}, {ranks} ranks"
    shown = View(panels, alt, table, note, narration=narration, title=title)
    return shown._replace(printed=shown._replace(opens_at=ranks - 1))  # halfway: a ring has one sum on each rank


def _bytes_table(traces: Iterable[RingTrace], size: int) -> pd.DataFrame:
    """Return a row per algorithm: its steps, how long they take on LINK, and the bytes sent.

    The last column is what the busiest rank sends, divided by 2 (N − 1) / N · bytes.
    """
    rows = []
    for trace in traces:
        tensors = trace.busiest, trace.bytes_sent[-1].sum()
        seconds = trace.seconds(size, LINK)
        ratio = f"{trace.busiest / rings.min_tensors(trace.n):.3g} ×"
        row = trace.n_steps, time_axis(seconds)(seconds), *(bytes_in_words(each * size) for each in tensors)
        rows.append((trace.name, *row, ratio))
    columns = ["algorithm", "steps", f"time at {LINK}", "busiest sends", "all send", "× minimum"]
    return pd.DataFrame(rows, columns=columns)


def _record_ring(explorer: FormExplorer) -> str:
    """Record the reader's own ring in real ranks, show it, and say what it did."""
    n = explorer.ranks
    try:
        trace = record_ring(n)
    except Exception as error:
        explorer.show_recorded(None)  # an earlier ring is not this one
        if isinstance(error, RingError):
            return str(error)
        raise
    if n != (now := explorer.ranks):
        return f"Recorded on {n} ranks, but the slider has been moved to {now} meanwhile."
    explorer.show_recorded(trace, compare_with=YOURS)
    return verdict(trace)


# --- seven collectives ----------------------------------------------------------------------------

_NUMBERS = "A number: the rank that a chunk comes from. Σ: the sum of all ranks' chunks."


def collectives_explorer(world_size: int = 4) -> FormExplorer:
    """Return an explorer of seven collectives: what each rank had before, and has after.

    It runs them in ``world_size`` real ranks; rank 0 is the root. From Python:
    ``explorer.collective = "all_gather"``. Errors are those of seen_collectives.
    """
    panels = seen_collectives(world_size)
    table = pd.DataFrame({"collective": list(SEVEN), "what it does": list(SEVEN.values())})
    all_alt = f"Seven collectives on {world_size} ranks, before and after: {listed(SEVEN)}."
    in_print = View([*panels.values()], all_alt, table, opens_at=1, narration=_NUMBERS)

    def view(_: None, collective: str) -> View:
        alt = f"{collective}, before and after. {SEVEN[collective]}"
        return View([panels[collective]], alt, table, _NUMBERS, opens_at=1, printed=in_print)

    buttons = Control("collective", "collective", {name: name for name in SEVEN}, "buttons", in_file=[*SEVEN])
    return FormExplorer(view, [buttons], {"collective": "broadcast"})
