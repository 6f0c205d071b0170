"""labkit.explore.placement_map: which rank keeps which part of a model."""

import pytest

from labkit.cost import memory
from labkit.explore.placement_map import SETTINGS, placement, placement_table, stage_parameters

SIZES = {size.name: size for size in memory.GPT3_SIZES}
TABLE = memory.memory_table().set_index("model")


@pytest.mark.parametrize("model", SIZES)
def test_two_stages_in_one_process_are_the_whole_model(model):
    size = SIZES[model]
    assert sum(stage_parameters(size, tied=True)) == memory.parameters(size.layers, size.width)
    copy = sum(stage_parameters(size, tied=False)) - sum(stage_parameters(size, tied=True))
    assert copy == memory.VOCABULARY * size.width


@pytest.mark.parametrize("model", SIZES)
def test_one_process_and_a_rank_of_data_parallel_keep_what_the_memory_table_says(model):
    expected = TABLE.loc[model, ["weights", "gradients", "Adam"]].tolist()
    for row in placement_table(model).iloc[:2].itertuples(index=False):
        assert list(row[2:5]) == pytest.approx(expected)
        assert row[5] == pytest.approx(sum(expected))
        assert row[6] == pytest.approx(row.ranks * row[5])


def test_a_pipeline_rank_keeps_little_more_than_half_and_two_pipelines_twice_as_much_together():
    table = placement_table("13B").set_index("setting")
    one, pipeline, both = (table.loc[name] for name in ("one process", "pipeline", "both, 2 × 2"))
    assert 0.5 < pipeline["fullest rank"] / one["fullest rank"] < 0.53
    assert both["fullest rank"] == pipeline["fullest rank"]
    assert both["all ranks"] == pytest.approx(2 * pipeline["all ranks"])


def test_the_grid_has_each_stage_where_its_ranks_are():
    grid = placement("1.3B")
    for step, setting in enumerate(SETTINGS):
        cells = grid.at(step).cells
        assert set(zip(cells["rank"], cells["column"] // 3, strict=True)) == {
            (rank, stage) for rank, stages in enumerate(setting.stages) for stage in stages
        }
        assert cells["name"].tolist() == ["weights", "gradients", "optimizer state"] * (len(cells) // 3)
    assert "Rank 2 has its own until they are averaged" in grid.at(3).cells["sentence"].iloc[1]


def test_the_labels_are_gib():
    cells = placement("1.3B").at(0).cells
    assert sum(map(float, cells["label"])) == pytest.approx(
        TABLE.loc["1.3B", ["weights", "gradients", "Adam"]].sum(), 0.01
    )


def test_an_unknown_size_is_refused_with_those_there_are():
    for function in (placement, placement_table):
        with pytest.raises(ValueError, match="model is '2B', expected one of 125M"):
            function("2B")
