"""Show seven collectives, and where a model's parts live, as grids to step through."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import ipywidgets
import numpy as np
import pandas as pd

from labkit.base.texts import listed
from labkit.cost.memory import GPT3_SIZES
from labkit.draw.cells import cell_grids
from labkit.explore.explorer import Explorer, RunButtons, table_html
from labkit.explore.grids.cells import Grid, panel
from labkit.explore.grids.collectives_seen import SEVEN, seen_collectives
from labkit.explore.grids.placement_map import (
    KINDS,
    SETTINGS,
    Kept,
    agree,
    kept_in_ranks,
    kept_of_size,
    placement,
    placement_table,
)
from labkit.explore.grids.rings import in_units
from labkit.explore.static_fallback import StaticForm
from labkit.explore.timeline import Timeline

SMALL = "a small model"
_NUMBERS = "A number: the rank that a chunk comes from. Σ: the sum of all ranks' chunks."


def collectives_explorer(world_size: int = 4) -> CollectivesExplorer:
    """Return an explorer of seven collectives: what each rank had before, and has after.

    It runs them in so many real ranks, rank 0 being the root. From Python:
    ``explorer.collective.value = "all_gather"``. Errors are those of seen_collectives.
    """
    return CollectivesExplorer(seen_collectives(world_size))


class CollectivesExplorer(Explorer):
    """What :func:`collectives_explorer` returns: ``collective`` chooses one of ``grids``."""

    def __init__(self, grids: dict[str, Grid]):
        self.grids = grids
        self.collective = ipywidgets.ToggleButtons(options=list(grids), description="collective")
        timeline = Timeline()
        super().__init__([self.collective, timeline], timeline)
        self.collective.observe(self.guarded(self.refresh), "value")
        self.refresh()

    def refresh(self) -> None:
        """Show the chosen collective."""
        name = self.collective.value
        shown = panel(side_by_side(self.grids[name]))
        self.timeline.show([shown], alt=f"{name}, before and after. {SEVEN[name]}", note=_NUMBERS)

    def table(self) -> pd.DataFrame:
        """Return what each of them does."""
        return pd.DataFrame({"collective": list(SEVEN), "what it does": list(SEVEN.values())})

    def static_form(self) -> StaticForm:
        """Return all of them, before and after, and the table."""
        places = [
            part for name, grid in self.grids.items() for part in (grid.at(0, title=name), grid.at(1, title="→ after"))
        ]
        n = next(iter(self.grids.values())).n_ranks
        figure = cell_grids(
            places,
            across=6 if n <= 5 else 4,
            cell_in=0.28 if n > 3 else 0.4,  # room for the longest name
            note=_NUMBERS,
        )
        return StaticForm(figure, f"Seven collectives on {n} ranks, before and after: {_listed(SEVEN)}.", self.table())


def side_by_side(grid: Grid) -> Grid:
    """Return a grid of two steps with what it has after to the right of what it has before.

    The first step shows one half, the second both.
    """
    n, cells = len(grid.columns), grid.cells
    after = cells["appear"] == 1
    moved = cells.assign(column=cells["column"] + np.where(after, n + 1, 0), vanish=2)
    names = [f"{chunk} {when}" for when in grid.steps for chunk in grid.columns]
    return replace(grid, cells=moved, columns=[*names[:n], "", *names[n:]])


def placement_explorer(model: str = "1.3B") -> PlacementExplorer:
    """Return an explorer of where weights, gradients and optimizer state live, in four settings.

    ``model`` is a size of GPT-3. **Train a small one** takes a step in each setting in four real
    ranks, and shows what they kept. From Python: ``explorer.model.value = "13B"``. Raises
    ValueError for an unknown size.
    """
    kept_of_size(model)
    return PlacementExplorer(model)


class PlacementExplorer(Explorer):
    """What :func:`placement_explorer` returns: ``model`` chooses what is placed, ``run`` trains."""

    def __init__(self, model: str):
        self.seen: list[Kept] = []
        self.model = ipywidgets.Dropdown(options=[size.name for size in GPT3_SIZES], value=model, description="GPT-3")
        self.run = RunButtons("Train a small one", self.train, self.say)
        self.metrics = ipywidgets.HTML()
        timeline = Timeline()
        super().__init__([ipywidgets.HBox([self.model, self.run]), timeline, self.metrics], timeline)
        self.model.observe(self.guarded(self.refresh), "value")
        self.refresh()

    def grid(self) -> Grid:
        """Return the four settings of the chosen model, a step each."""
        if self.model.value == SMALL:
            return placement(self.seen, SMALL, "32-bit numbers, as seen in four real ranks")
        facts = "weights and gradients in 16 bits, Adam's state in 32"
        return placement(kept_of_size(self.model.value), f"GPT-3 {self.model.value}", facts)

    def refresh(self) -> None:
        """Show the chosen model."""
        self.timeline.show([panel(self.grid())], alt=self._alt())
        self.metrics.value = table_html(self.table())

    def table(self) -> pd.DataFrame:
        """Return a row per setting: bytes in the fullest rank, and in all ranks together."""
        table = placement_table(self.seen if self.model.value == SMALL else kept_of_size(self.model.value))
        numbers = [*KINDS, "fullest rank", "all ranks"]
        return table.assign(**{name: [in_units(each) for each in table[name]] for name in numbers})

    def train(self) -> str:
        """Train a small model for a step in each setting, show what the ranks kept, and say so."""
        try:
            self.seen = kept_in_ranks()
        except NotImplementedError as error:
            return str(error)
        if SMALL not in self.model.options:
            self.model.options = [*self.model.options, SMALL]
        self.model.value = SMALL
        self.refresh()
        verdict = "the same weights" if agree(self.seen) else "different weights: point at a cell to see where"
        return f"Four real ranks took a step in each setting. After it, ranks with the same stage have {verdict}."

    def static_form(self) -> StaticForm:
        """Return the four settings beside each other, and the table."""
        grid = self.grid()
        places = [grid.at(step) for step in range(len(SETTINGS))]
        figure = cell_grids(places, across=2, cell_in=0.62, note=f"{grid.title}: {grid.facts}.")
        return StaticForm(figure, self._alt(), self.table())

    def _alt(self) -> str:
        settings = _listed([setting.name for setting in SETTINGS])
        what = SMALL if self.model.value == SMALL else f"GPT-3 {self.model.value}"
        return f"Which rank keeps which part of {what}, in bytes: {settings}. Only stages make it less."


def _listed(names: Sequence[str] | dict[str, str]) -> str:
    return listed(names)
