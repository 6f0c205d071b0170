"""Show the ring in a notebook, step by step, beside other ways and beside the reader's own."""

from __future__ import annotations

from collections.abc import Sequence

import ipywidgets
import pandas as pd

from labkit.explore.explorer import Explorer, RunButtons, table_html
from labkit.explore.grids import rings
from labkit.explore.grids.cells import panel
from labkit.explore.grids.recorded_ring import YOURS, RingError, record_ring, verdict
from labkit.explore.grids.rings import MOST_RANKS, WAYS, Story
from labkit.explore.static_fallback import StaticForm
from labkit.explore.timeline import Timeline

SIZES = {"64 KiB": 2**16, "1 MiB": 2**20, "25 MiB": 25 * 2**20, "475 MiB (GPT-2's gradients)": 475 * 2**20}
NOTHING = "nothing"
_NOTE = "An arrow: what is sent next. A cell names the ranks whose parts are added up in it; Σ is the sum of all."
_NOTE_OF_MANY = "An arrow: what is sent next. A cell has the number of ranks whose parts are added up in it; Σ is all."
_DRAWN = {
    3: (5, 5, 5),
    5: (4, 8, 4),
    8: (3, 6, 3),
    MOST_RANKS: (2, 4, 2),
}  # for so many ranks: steps in a line; of either way


def ring_explorer(world_size: int = 4) -> RingExplorer:
    """Return an explorer of the ring all-reduce: which chunk goes where, and what is added.

    Step through it (``.`` and ``,``) or play it; beside it runs a parameter server, a naive ring,
    or your own ``ring_all_reduce`` as **Run mine** recorded it in real ranks. On the right stands
    what each rank has sent so far. From Python: ``explorer.ranks.value = 8``.

    Raises TypeError or ValueError for fewer than 2 or more than 16 ranks.
    """
    rings.check_ranks(world_size)
    return RingExplorer(world_size)


class RingExplorer(Explorer):
    """What :func:`ring_explorer` returns.

    Controls: ``ranks``, ``size``, ``way`` and ``beside``, each with a ``value``, and ``run``.
    ``table()`` compares all ways; ``stories()`` are those in the picture.
    """

    def __init__(self, world_size: int):
        self.recorded: Story | None = None
        self.ranks = ipywidgets.IntSlider(world_size, min=2, max=MOST_RANKS, description="ranks")
        self.size = ipywidgets.Dropdown(options=SIZES, value=SIZES["1 MiB"], description="tensor")
        self.way = ipywidgets.Dropdown(options=list(WAYS), description="way")
        self.beside = ipywidgets.Dropdown(options=[NOTHING, *WAYS], value="parameter server", description="beside it")
        self.run = RunButtons("Run mine", self.record, self.say)
        self.metrics = ipywidgets.HTML()
        controls = [ipywidgets.HBox([self.ranks, self.size]), ipywidgets.HBox([self.way, self.beside, self.run])]
        timeline = Timeline()
        super().__init__([*controls, timeline, self.metrics], timeline)
        for control in (self.ranks, self.size, self.way, self.beside):
            control.observe(self.guarded(self.refresh), "value")
        self.refresh()

    def stories(self) -> list[Story]:
        """Return what is shown: the chosen way, and the one beside it."""
        names = dict.fromkeys([self.way.value, self.beside.value])
        return [self._story(name) for name in names if name != NOTHING]

    def table(self) -> pd.DataFrame:
        """Return a row per way, the recorded one too: steps, and bytes of the busiest links."""
        n_bytes = self.size.value
        table = rings.bytes_table([self._story(name) for name in self._ways()], n_bytes)
        sums = {"busiest sends", "busiest receives", "all send"}
        texts = {name: [rings.in_units(each) for each in table[name]] for name in sums}
        return table.assign(**texts, **{"of the least": [f"{each:.3g} ×" for each in table["of the least"]]})

    def refresh(self) -> None:
        """Show what the controls say."""
        self._forget()
        stories, n_bytes = self.stories(), self.size.value
        panels = [panel(rings.grid(story), rings.sent_cells(story, n_bytes), "sent") for story in stories]
        self.timeline.show(panels, alt=_alt(stories), note=_note(self.ranks.value))
        self.metrics.value = table_html(self.table())

    def record(self) -> str:
        """Record the reader's own ring in so many real ranks, show it, and say what it did."""
        n = self.ranks.value
        try:
            story = record_ring(n)
        except RingError as error:
            return str(error)
        if n != self.ranks.value:
            return f"Recorded on {n} ranks, but the slider has been moved to {self.ranks.value} meanwhile."
        self.recorded = story
        self._offer([*WAYS, YOURS])
        if self.beside.value == YOURS:
            self.refresh()
        else:
            self.beside.value = YOURS
        return verdict(story)

    def static_form(self) -> StaticForm:
        """Return the steps as small pictures, the chosen way's first, and the table of all ways."""
        from labkit.draw.cells import CellGrid, cell_grids

        stories, n = self.stories(), self.ranks.value
        across, *most = next(drawn for ranks, drawn in _DRAWN.items() if n <= ranks)
        places: list[CellGrid | None] = []
        for story, n_drawn in zip(stories, most, strict=False):
            grid = rings.grid(story)
            places += [None] * (-len(places) % across)
            first, *others = _steps_to_draw(story, n_drawn)
            places += [grid.at(first, f"{story.name}: {grid.steps[first]}"), *map(grid.at, others)]
        figure = cell_grids(places, across=across, note=_note(n))
        return StaticForm(figure, _alt(stories), self.table())

    def _story(self, name: str) -> Story:
        if name == YOURS and self.recorded is not None:
            return self.recorded
        return rings.follow(name, self.ranks.value)

    def _ways(self) -> list[str]:
        return [*WAYS, YOURS] if self.recorded else list(WAYS)

    def _forget(self) -> None:
        """Forget a recorded ring of another number of ranks."""
        if self.recorded is not None and self.recorded.n != self.ranks.value:
            self.recorded = None
            self._offer(list(WAYS))

    def _offer(self, ways: Sequence[str]) -> None:
        for control, options in ((self.way, [*ways]), (self.beside, [NOTHING, *ways])):
            if list(control.options) != options:
                chosen = control.value if control.value in options else options[0]
                with control.hold_trait_notifications():
                    control.options, control.value = options, chosen


def _steps_to_draw(story: Story, most: int) -> list[int]:
    """Return the steps that tell most: all, or the first, those around half way, and the last."""
    last, half = story.n_steps, story.n_steps // 2
    if last < most:
        return list(range(last + 1))
    if most < 4:
        return [1, half, last][-most:]
    around = sorted(range(2, last), key=lambda step: abs(step - half))[: most - 3]
    return sorted({0, 1, *around, last})


def _note(n: int) -> str:
    return _NOTE if n <= rings.MOST_NAMED else _NOTE_OF_MANY


def _alt(stories: Sequence[Story]) -> str:
    ways = " and ".join(story.name for story in stories)
    facts = "; ".join(f"{story.n_steps} steps, {_busiest(story)}" for story in stories)
    return (
        f"Grids of {stories[0].n} ranks by {stories[0].n} chunks, step by step: {ways}. Each cell tells whose parts "
        f"are added up in it; in the end each should be the sum of all. {facts}."
    )


def _busiest(story: Story) -> str:
    return f"the busiest rank sends {story.bytes_sent[-1].max():.3g} times the tensor"
