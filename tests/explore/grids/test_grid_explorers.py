"""labkit.explore.grids.widget: collectives and placement, used from Python."""

import matplotlib.pyplot as plt
import pytest
from to_do import task

from labkit.draw.picture import drawn_data
from labkit.explore import collectives_explorer, placement_explorer
from labkit.explore.grids import placement_map
from labkit.explore.grids.collectives_seen import SEVEN


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def collectives():
    return collectives_explorer(2)


def labels(timeline):
    return timeline.scene["panels"][0]["labels"].split("\n")


@pytest.mark.parametrize("name", SEVEN)
def test_each_collective_can_be_chosen(collectives, name):
    collectives.collective.value = name
    (panel,) = collectives.timeline.scene["panels"]
    assert panel["title"] == name
    assert collectives.timeline.scene["alt"].endswith(SEVEN[name])


def test_what_there_is_after_stands_beside_what_there_was_before(collectives):
    collectives.collective.value = "all_gather"
    (panel,) = collectives.timeline._panels
    assert sorted(zip(panel.bars["left"] // 1, panel.bars["label"], panel.bars["appear"], strict=True)) == [
        (0, "0", 0),
        (1, "1", 0),
        (3, "0", 1),
        (3, "0", 1),
        (4, "1", 1),
        (4, "1", 1),
    ]
    assert [label.text for label in panel.columns] == [
        "chunk 0 before",
        "chunk 1 before",
        "chunk 0 after",
        "chunk 1 after",
    ]


def test_on_paper_all_seven_are_shown_before_and_after(collectives):
    form = collectives.static_form()
    assert drawn_data(form.figure)["panel"].nunique() == 14
    assert form.table["collective"].tolist() == list(SEVEN)
    assert "on 2 ranks" in form.alt


def test_placement_shows_the_four_settings_of_a_model():
    explorer = placement_explorer("1.3B")
    assert "GPT-3 1.3B" in explorer.timeline.scene["alt"]
    before = labels(explorer.timeline)
    explorer.model.value = "13B"
    assert "GPT-3 13B" in explorer.timeline.scene["alt"] and labels(explorer.timeline) != before
    form = explorer.static_form()
    assert drawn_data(form.figure)["grid"].unique().tolist() == [
        "one process",
        "data parallel",
        "pipeline",
        "both, 2 × 2",
    ]
    assert form.table["setting"].tolist() == ["one process", "data parallel", "pipeline", "both, 2 × 2"]


def test_an_unknown_model_is_refused():
    with pytest.raises(ValueError, match="expected one of 125M"):
        placement_explorer("2B")


@task("pipe.5")
def test_a_button_trains_a_small_model_and_shows_what_its_ranks_kept():
    explorer = placement_explorer()
    explorer.run.begin()
    explorer.run.wait()
    assert explorer.timeline.said.endswith("ranks with the same stage have the same weights.")
    assert explorer.model.value == "a small model" and "a small model" in explorer.timeline.scene["alt"]
    assert explorer.table()["weights"].tolist() == ["1 MiB", "1 MiB", "514 KiB", "514 KiB"]
    explorer.model.value = "1.3B"
    assert "GPT-3 1.3B" in explorer.timeline.scene["alt"]


def test_why_it_cannot_train_is_said(monkeypatch):
    def not_yet():
        raise NotImplementedError("TODO pipe.5: labkit/pipe.py, line 42.")

    monkeypatch.setattr(placement_map, "kept_in_ranks", not_yet)
    explorer = placement_explorer()
    assert explorer.record() == "TODO pipe.5: labkit/pipe.py, line 42."
    assert explorer.model.value == "1.3B"
