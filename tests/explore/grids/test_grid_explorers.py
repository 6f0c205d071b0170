"""labkit.explore.grids.widget: the explorers of grids, used from Python."""

import pytest

from labkit.explore import collectives_explorer, ring_explorer
from labkit.explore.grids import widget
from labkit.explore.grids.collectives import SEVEN
from labkit.explore.grids.ring_recording import YOURS, RingError
from labkit.explore.grids.rings import simulate_ring
from labkit.todo import TodoError


def titles(explorer):
    return [panel["title"] for panel in explorer.timeline.scene["panels"]]


def printed(explorer):
    """Return the scene that stands for an explorer in print."""
    form = explorer.static_form()
    assert form.table.equals(explorer.table())
    return form.scene()


@pytest.fixture
def ring():
    return ring_explorer()


def test_each_control_changes_the_picture_and_its_numbers(ring):
    assert titles(ring) == ["ring", "parameter server"] and "4 ranks by 4 chunks" in ring.timeline.scene["alt"]
    steps = ring.timeline.scene["steps"]
    assert len(steps) == 7 and steps[0].startswith("ring: before step 1 of 6: reduce-scatter")
    assert "parameter server: after step 3 of 6: " in steps[3] and ring.timeline.scene["opens_at"] == 0
    table = ring.table().set_index("algorithm")
    assert list(table.index) == ["ring", "parameter server", "naive ring"]
    assert table.loc["ring"].tolist() == [6, "245.8 µs", "1.5 MiB", "6 MiB", "1 ×"]
    assert table.loc["parameter server"].tolist() == [6, "543.3 µs", "3 MiB", "6 MiB", "2 ×"]
    ring.ranks = 8
    assert "8 ranks by 8 chunks" in ring.timeline.scene["alt"]
    ring.compare_with = "ring"
    assert titles(ring) == ["ring"], "what is chosen twice is shown once"
    ring.compare_with, ring.algorithm = "nothing", "naive ring"
    assert titles(ring) == ["naive ring"]
    ring.timeline._receive(None, {"control": "size", "text": "64 KiB"}, [])
    assert "112 KiB" in ring.timeline.scene["numbers"]  # 2 · 7/8 · 64


def test_on_paper_a_ring_has_come_halfway(ring):
    scene = printed(ring)
    assert [panel["title"] for panel in scene["panels"]] == ["ring", "parameter server"]
    assert "ring: after step 3 of 6: all-gather" in scene["steps"][scene["opens_at"]]


def test_a_recorded_ring_stands_beside_the_ideal_one_as_long_as_it_has_as_many_ranks(ring, monkeypatch):
    monkeypatch.setattr(widget, "record_ring", lambda n: simulate_ring("naive ring", n)._replace(name=YOURS))
    ring.algorithm = "naive ring"
    verdict = ring.record()
    assert verdict.startswith("Every rank ends up with the whole sum.") and ring.record() == verdict
    assert titles(ring) == ["naive ring", "yours"] and ring.table()["algorithm"].tolist()[-1] == "yours"
    ring.ranks = 3
    assert titles(ring) == ["naive ring"]
    assert ring.timeline.narration == "Your own ring has not run on 3 ranks yet."
    assert "yours" not in ring.table()["algorithm"].tolist()


@pytest.mark.parametrize("error", [RingError("it hangs"), TodoError("dp.5", "labkit/dp.py, line 7")])
def test_a_ring_that_fails_leaves_no_earlier_ring_in_the_picture(ring, monkeypatch, error):
    monkeypatch.setattr(widget, "record_ring", lambda n: simulate_ring("ring", n)._replace(name=YOURS))
    ring.record()

    def fail(n):
        raise error

    monkeypatch.setattr(widget, "record_ring", fail)
    ring.runner.begin()
    ring.runner.wait()
    assert titles(ring) == ["ring"] and "yours" not in ring.table()["algorithm"].tolist()
    assert "it hangs" in ring.timeline.narration or "fill in dp.5" in ring.runner.refusal.value


def test_of_each_collective_after_stands_beside_before_and_on_paper_are_all_seven():
    explorer = collectives_explorer(2)
    for name in SEVEN:
        explorer.collective = name
        assert titles(explorer) == [name] and explorer.timeline.scene["alt"].endswith(SEVEN[name])
    explorer.collective = "all_gather"
    (panel,) = explorer.timeline.scene["panels"]
    assert explorer.timeline.scene["opens_at"] == 1
    assert explorer.timeline.scene["steps"][1] == f"After all_gather: {SEVEN['all_gather']}"
    assert [text for _, text, _ in panel["columns"]] == ["chunk 0", "chunk 1"] * 2
    assert [panel["title"] for panel in printed(explorer)["panels"]] == list(SEVEN)
