"""Show grids in a notebook, step by step: a ring, seven collectives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import ipywidgets
import pandas as pd
from ipywidgets import Dropdown, IntSlider, ToggleButtons, Widget
from matplotlib.figure import Figure

from labkit.base.texts import listed
from labkit.draw.cells import GridStep, in_lines, printed_steps
from labkit.draw.painter import panel_figure
from labkit.draw.panel import Panel
from labkit.explore.explorer import Explorer, RunButtons, table_html
from labkit.explore.grids import rings
from labkit.explore.grids.collectives import SEVEN, seen_collectives
from labkit.explore.grids.ring_panel import MAX_NAMED, ring_panel, step_titles, verdict
from labkit.explore.grids.ring_recording import YOURS, RingError, record_ring
from labkit.explore.grids.rings import ALGORITHMS, MAX_RANKS, RingTrace, in_units, simulate_ring
from labkit.explore.static_fallback import StaticForm
from labkit.explore.timeline import Timeline


class GridView(NamedTuple):
    """What an explorer of grids shows: panels with their alt text and note, and a table.

    ``figure()`` is what stands for it in print, with an alt text of its own if ``printed_alt`` is
    one. ``options`` are what can be chosen now in some of the controls. It ``opens_at`` a step.
    """

    panels: Sequence[Panel]
    alt: str
    table: pd.DataFrame
    figure: Callable[[], Figure]
    note: str = ""
    options: Mapping[str, list[Any]] = {}
    printed_alt: str = ""
    opens_at: int = 0


class GridExplorer(Explorer):
    """Grids to step through under controls: every explorer of this package is one.

    ``controls`` are rows of widgets by name, each an attribute too. ``view(recorded, **values)``
    returns what to show for their values; ``recorded`` is what real ranks did, None before.
    ``run`` is a button's label, and what it does to the explorer and says. ``with_table`` puts the
    table below.
    """

    def __init__(
        self,
        view: Callable[..., GridView],
        *controls: Mapping[str, Widget],
        run: tuple[str, Callable[[GridExplorer], str]] | None = None,
        with_table: bool = True,
    ):
        self.view, self.recorded, self.metrics, timeline = view, None, ipywidgets.HTML(), Timeline()
        self.controls = {name: control for row in controls for name, control in row.items()}
        self.__dict__.update(self.controls)
        rows: list[Any] = [[*row.values()] for row in controls]
        if run:
            label, action = run
            self.record: Callable[[], str] = partial(action, self)
            self.run = RunButtons(label, self.record, self.say)
            rows[-1].append(self.run)
        boxes = [ipywidgets.HBox(row) if len(row) > 1 else row[0] for row in rows]
        super().__init__([*boxes, timeline, *[self.metrics] * with_table], timeline)
        for control in self.controls.values():
            control.observe(self.guarded(self.refresh), "value")
        self.refresh()

    def refresh(self) -> None:
        """Show what the controls say."""
        shown = self.view(self.recorded, **{name: control.value for name, control in self.controls.items()})
        for name, options in shown.options.items():
            control = self.controls[name]
            if list(control.options) != options:
                value = control.value if control.value in options else options[0]
                control.options = options  # which chooses the first of them
                control.value = value
        self.shown = shown
        self.timeline.show(shown.panels, alt=shown.alt, note=shown.note, opens_at=shown.opens_at)
        self.metrics.value = table_html(shown.table)

    def show_recorded(self, recorded: Any, control: str, value: str) -> None:
        """Show what real ranks did, by choosing it in a control."""
        self.recorded = recorded
        self.refresh()
        self.controls[control].value = value

    def table(self) -> pd.DataFrame:
        """Return the numbers that belong to the picture."""
        return self.shown.table

    def static_form(self) -> StaticForm:
        """Return what stands for it in print: the steps as small pictures, and the table."""
        shown = self.shown
        return StaticForm(shown.figure(), shown.printed_alt or shown.alt, shown.table)


# --- the ring -------------------------------------------------------------------------------------

SIZES = {"64 KiB": 2**16, "1 MiB": 2**20, "25 MiB": 25 * 2**20, "475 MiB (GPT-2's gradients)": 475 * 2**20}
NOTHING = "nothing"
_NOTE = "An arrow: what is sent next. A cell names the ranks whose parts are added up in it; Σ is the sum of all."
_NOTE_OF_MANY = "An arrow: what is sent next. A cell has the number of ranks whose parts are added up in it; Σ is all."


def ring_explorer(world_size: int = 4) -> GridExplorer:
    """Return an explorer of the ring all-reduce: which chunk goes where, and what is added.

    Step through it (``.`` and ``,``) or play it; beside it runs a parameter server, a naive ring,
    or your own ``ring_all_reduce`` as **Run mine** recorded it in real ranks. On the right stands
    what each rank has sent so far. From Python: ``explorer.ranks.value = 8``, and likewise
    ``size``, ``way``, ``beside``; ``explorer.record()`` does what **Run mine** does.

    Raises TypeError or ValueError for fewer than 2 or more than 16 ranks.
    """
    rings.check_ranks(world_size)
    ranks = IntSlider(world_size, min=2, max=MAX_RANKS, description="ranks")
    size = Dropdown(options=SIZES, value=SIZES["1 MiB"], description="tensor")
    way = Dropdown(options=list(ALGORITHMS), description="way")
    beside = Dropdown(options=[NOTHING, *ALGORITHMS], value="parameter server", description="beside it")
    controls = {"ranks": ranks, "size": size}, {"way": way, "beside": beside}
    return GridExplorer(ring_view, *controls, run=("Run mine", _record_ring))


def ring_view(recorded: RingTrace | None, ranks: int, size: int, way: str, beside: str) -> GridView:
    """Return the algorithm that was chosen and the one beside it, and the bytes of all."""
    traces = {name: simulate_ring(name, ranks) for name in ALGORITHMS}
    if recorded is not None and recorded.n == ranks:
        traces[YOURS] = recorded
    chosen = [traces[name] for name in dict.fromkeys([way if way in traces else "ring", beside]) if name in traces]
    panels, table = [ring_panel(trace, size) for trace in chosen], _bytes_table(traces.values(), size)
    facts = "; ".join(
        f"{trace.n_steps} steps, the busiest rank sends {trace.busiest:.3g} times the tensor" for trace in chosen
    )
    alt = (
        f"Grids of {ranks} ranks by {ranks} chunks, step by step: {' and '.join(trace.name for trace in chosen)}. "
        f"Each cell tells whose parts are added up in it; in the end each should be the sum of all. {facts}."
    )
    note = _NOTE if ranks <= MAX_NAMED else _NOTE_OF_MANY

    printed = zip(chosen, panels, strict=True)
    lines = [
        line
        for trace, panel in printed
        for line in in_lines(printed_steps(panel, step_titles(trace)), panel.title, panel.facts)
    ]
    figure = partial(panel_figure, lines, note=note)
    return GridView(panels, alt, table, figure, note, {"way": [*traces], "beside": [NOTHING, *traces]})


def _bytes_table(traces: Iterable[RingTrace], size: int) -> pd.DataFrame:
    """Return a row per algorithm: its steps, and the bytes that go through links until the end.

    The last column is what the busiest rank sends, divided by 2 (N − 1) / N · bytes.
    """
    rows = []
    for trace in traces:
        tensors = trace.busiest, trace.bytes_received[-1].max(), trace.bytes_sent[-1].sum()
        least = f"{trace.busiest / rings.least_tensors(trace.n):.3g} ×"
        rows.append((trace.name, trace.n_steps, *(in_units(each * size) for each in tensors), least))
    columns = ["way", "steps", "busiest sends", "busiest receives", "all send", "of the least"]
    return pd.DataFrame(rows, columns=columns)


def _record_ring(explorer: GridExplorer) -> str:
    """Record the reader's own ring in so many real ranks, show it, and say what it did."""
    n = explorer.controls["ranks"].value
    try:
        trace = record_ring(n)
    except RingError as error:
        return str(error)
    if n != (now := explorer.controls["ranks"].value):
        return f"Recorded on {n} ranks, but the slider has been moved to {now} meanwhile."
    explorer.show_recorded(trace, "beside", YOURS)
    return verdict(trace)


# --- seven collectives ----------------------------------------------------------------------------

_NUMBERS = "A number: the rank that a chunk comes from. Σ: the sum of all ranks' chunks."


def collectives_explorer(world_size: int = 4) -> GridExplorer:
    """Return an explorer of seven collectives: what each rank had before, and has after.

    It runs them in so many real ranks, rank 0 being the root. From Python:
    ``explorer.collective.value = "all_gather"``. Errors are those of seen_collectives.
    """
    panels = seen_collectives(world_size)
    table = pd.DataFrame({"collective": list(SEVEN), "what it does": list(SEVEN.values())})

    grids = [GridStep(panel, 1, name) for name, panel in panels.items()]
    figure = partial(panel_figure, in_lines(grids), note=f"Left before, right after. {_NUMBERS}")
    printed_alt = f"Seven collectives on {world_size} ranks, before and after: {listed(SEVEN)}."

    def view(_: None, collective: str) -> GridView:
        alt = f"{collective}, before and after. {SEVEN[collective]}"
        return GridView([panels[collective]], alt, table, figure, _NUMBERS, printed_alt=printed_alt, opens_at=1)

    buttons = ToggleButtons(options=list(SEVEN), description="collective")
    return GridExplorer(view, {"collective": buttons}, with_table=False)
