"""labkit.explore.grids.widget: the ring explorer, used from Python."""

import matplotlib.pyplot as plt
import pytest
from to_do import task

from labkit.draw.picture import drawn_data
from labkit.explore import ring_explorer
from labkit.explore.grids import widget
from labkit.explore.grids.recorded_ring import YOURS, RingError
from labkit.explore.grids.ring_panel import ring_panel
from labkit.explore.grids.rings import simulate_ring


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


@pytest.fixture
def explorer():
    return ring_explorer()


def titles(explorer):
    return [panel["title"] for panel in explorer.timeline.scene["panels"]]


def test_it_opens_with_the_ring_and_a_parameter_server_beside_it(explorer):
    assert titles(explorer) == ["ring", "parameter server"]
    assert explorer.ranks.value == 4
    assert "4 ranks by 4 chunks" in explorer.timeline.scene["alt"]


def test_each_control_changes_the_picture(explorer):
    before = explorer.timeline.scene["version"]
    explorer.ranks.value = 8
    assert "8 ranks by 8 chunks" in explorer.timeline.scene["alt"] and explorer.timeline.scene["version"] > before
    explorer.beside.value = "nothing"
    assert titles(explorer) == ["ring"]
    explorer.way.value = "naive ring"
    assert titles(explorer) == ["naive ring"]
    explorer.size.value = 2**16
    assert "56 KiB" not in explorer.metrics.value and "112 KiB" in explorer.metrics.value  # 2 · 7/8 · 64


def test_the_same_way_twice_is_shown_once(explorer):
    explorer.beside.value = "ring"
    assert titles(explorer) == ["ring"]


@pytest.mark.parametrize("n", [2, 16])
def test_it_can_be_moved_to_either_end(explorer, n):
    explorer.ranks.value = n
    assert f"{n} ranks by {n} chunks" in explorer.timeline.scene["alt"]


@pytest.mark.parametrize("n", [1, 17, "4"])
def test_a_world_that_cannot_be_shown_is_refused(n):
    with pytest.raises((TypeError, ValueError), match="expected a whole number of ranks, 2 to 16"):
        ring_explorer(n)


def test_the_table_compares_all_ways(explorer):
    table = explorer.table().set_index("way")
    assert list(table.index) == ["ring", "parameter server", "naive ring"]
    assert table.loc["ring"].tolist() == [6, "1.5 MiB", "1.5 MiB", "6 MiB", "1 ×"]
    assert table.loc["parameter server"].tolist() == [6, "3 MiB", "3 MiB", "6 MiB", "2 ×"]


def test_the_last_column_says_what_each_rank_has_sent_so_far(explorer):
    bars = ring_panel(simulate_ring("parameter server", 4), 2**20).bars
    of_rank_0 = bars[(bars["left"] > 4) & (bars["top"] < 1)]
    assert of_rank_0["label"].tolist() == ["0 B", "1 MiB", "2 MiB", "3 MiB"]
    assert of_rank_0["appear"].tolist() == [0, 4, 5, 6]
    assert of_rank_0["name"].tolist() == ["bytes sent"] * 2 + ["more than the least"] * 2


@pytest.mark.parametrize("n", [2, 5, 8, pytest.param(16, marks=pytest.mark.slow)])
def test_on_paper_it_shows_both_ways_from_a_start_to_the_end(explorer, n):
    explorer.ranks.value = n
    form = explorer.static_form()
    shown = drawn_data(form.figure)["grid"].unique().tolist()
    assert shown[0] == "ring: before" and any(title.startswith("parameter server: ") for title in shown)
    assert "at the end" in shown and form.figure.get_figheight() < 16
    assert form.table.equals(explorer.table())


# --- the reader's own ring ------------------------------------------------------------------------


@pytest.fixture
def recording(monkeypatch):
    """What is recorded is told here, without ranks."""
    told = {}

    def record(n):
        if isinstance(told["trace"], Exception):
            raise told["trace"]
        return told["trace"]

    monkeypatch.setattr(widget, "record_ring", record)
    return told


def test_a_recorded_ring_stands_beside_the_ideal_one_and_in_the_table(explorer, recording):
    recording["trace"] = simulate_ring("naive ring", 4)._replace(name=YOURS)
    said = explorer.record()
    assert said.startswith("Every rank ends up with the whole sum.")
    assert titles(explorer) == ["ring", "yours"] and explorer.beside.value == "yours"
    assert explorer.table()["way"].tolist()[-1] == "yours" and "yours" in explorer.metrics.value
    assert explorer.record() == said


def test_it_is_forgotten_when_the_number_of_ranks_changes(explorer, recording):
    recording["trace"] = simulate_ring("ring", 4)._replace(name=YOURS)
    explorer.record()
    explorer.ranks.value = 5
    assert titles(explorer) == ["ring"] and "yours" not in explorer.beside.options + explorer.way.options
    assert "yours" not in explorer.table()["way"].tolist()


def test_why_it_cannot_be_recorded_is_said_and_the_explorer_lives_on(explorer, recording):
    recording["trace"] = RingError("TODO dp.5: labkit/dp.py, line 42.")
    assert explorer.record() == "TODO dp.5: labkit/dp.py, line 42."
    explorer.ranks.value = 3
    assert titles(explorer) == ["ring", "parameter server"]


@task("dp.5")
def test_its_button_records_the_readers_own_ring_in_real_ranks(explorer):
    explorer.ranks.value = 2
    explorer.run.begin()
    explorer.run.wait()
    assert titles(explorer) == ["ring", "yours"]
    assert explorer.timeline.said.startswith("Every rank ends up with the whole sum. Step by step it is the ring")
