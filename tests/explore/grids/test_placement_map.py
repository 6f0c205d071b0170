"""labkit.explore.grids.placement_map: which rank keeps which part of a model."""

import pytest
from to_do import task

from labkit import todo
from labkit.cost import memory
from labkit.draw.cell_figure import GridStep
from labkit.explore.grids.placement_map import (
    SETTINGS,
    agree,
    kept_in_ranks,
    kept_of_size,
    placement_panel,
    placement_table,
    stage_parameters,
)

SIZES = {size.name: size for size in memory.GPT3_SIZES}
TABLE = memory.memory_table().set_index("model")
TABLE["optimizer state"] = TABLE.master + TABLE.moments


def in_gib(model):
    table = placement_table(kept_of_size(model))
    numbers = table.columns[2:]
    return table.assign(**{name: table[name] / memory.GIB for name in numbers})


@pytest.mark.parametrize("model", SIZES)
def test_two_stages_in_one_process_are_the_whole_model(model):
    size = SIZES[model]
    assert sum(stage_parameters(size, tied=True)) == memory.parameters(size.layers, size.width)
    copy = sum(stage_parameters(size, tied=False)) - sum(stage_parameters(size, tied=True))
    assert copy == memory.VOCABULARY * size.width


@pytest.mark.parametrize("model", SIZES)
def test_one_process_and_a_rank_of_data_parallel_keep_what_the_memory_table_says(model):
    expected = TABLE.loc[model, ["weights", "gradients", "optimizer state"]].tolist()
    for row in in_gib(model).iloc[:2].itertuples(index=False):
        assert list(row[2:5]) == pytest.approx(expected)
        assert row[5] == pytest.approx(sum(expected))
        assert row[6] == pytest.approx(row.ranks * row[5])


def test_a_pipeline_rank_keeps_little_more_than_half_and_two_pipelines_twice_as_much_together():
    table = in_gib("13B").set_index("setting")
    one, pipeline, both = (table.loc[name] for name in ("one process", "pipeline", "both, 2 × 2"))
    assert 0.5 < pipeline["fullest rank"] / one["fullest rank"] < 0.53
    assert both["fullest rank"] == pipeline["fullest rank"]
    assert both["all ranks"] == pytest.approx(2 * pipeline["all ranks"])


def test_the_grid_has_each_stage_where_its_ranks_are():
    panel = placement_panel(kept_of_size("1.3B"), "GPT-3 1.3B")
    for step, setting in enumerate(SETTINGS):
        cells = GridStep(panel, step, "").cells(6)
        assert set(zip(cells["rank"], cells["column"] // 3, strict=True)) == {
            (rank, stage) for rank, stages in enumerate(setting.stages) for stage in stages
        }
        assert cells["name"].tolist() == ["weights", "gradients", "optimizer state"] * (len(cells) // 3)
    assert "Rank 2 has its own until they are averaged" in GridStep(panel, 3, "").cells(6)["sentence"].iloc[1]


def test_the_labels_are_gib():
    cells = GridStep(placement_panel(kept_of_size("1.3B"), "GPT-3 1.3B"), 0, "").cells(6)
    assert sum(map(float, cells["label"])) == pytest.approx(
        TABLE.loc["1.3B", ["weights", "gradients", "optimizer state"]].sum(), 0.01
    )


def test_an_unknown_size_is_refused_with_those_there_are():
    with pytest.raises(ValueError, match="model is '2B', expected one of 125M"):
        kept_of_size("2B")


# --- in real ranks --------------------------------------------------------------------------------


@task("pipe.5")
def test_real_ranks_keep_what_the_map_says():
    """A small model in 32-bit numbers: Adam keeps two moments, and a count for each tensor."""
    seen, on_map = kept_in_ranks(), kept_of_size()
    assert [each[:4] for each in seen] == [each[:4] for each in on_map]
    n, n_tensors = 2 * (256 * 256 + 256), 4
    sizes = {"weights": 4 * n, "gradients": 4 * n, "optimizer state": 8 * n + 4 * n_tensors}
    assert all(each.parameters == n and each.n_bytes == sizes[each.name] for each in seen)
    cells = GridStep(placement_panel(seen, "a small model"), 3, "").cells(6)
    assert all("has the same, bit by bit." in sentence for sentence in cells["sentence"])


@task("pipe.5")
def test_the_same_step_gives_the_same_weights_alone_and_in_a_pipeline():
    digests = {(each.setting, each.stage): each.digest for each in kept_in_ranks() if each.name == "weights"}
    for stage in (0, 1):
        assert digests[0, stage] == digests[2, stage]
        assert digests[1, stage] == digests[3, stage] != digests[0, stage]


def test_ranks_that_differ_in_one_stage_do_not_agree():
    same = [each._replace(digest=f"{each.setting} {each.stage}") for each in kept_of_size()]
    assert agree(same)
    assert not agree([same[0], same[1], *same[2:-3], same[-3]._replace(digest="other")])


def test_while_a_task_is_to_do_no_rank_is_started(monkeypatch):
    monkeypatch.setattr(todo, "missing", lambda name: f"TODO {name}: line 42" if name == "pipe.5" else None)
    monkeypatch.setattr("labkit.launch.launch", None)
    with pytest.raises(NotImplementedError, match=r"^TODO pipe.5: line 42. Once written"):
        kept_in_ranks()
