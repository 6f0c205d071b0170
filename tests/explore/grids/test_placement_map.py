"""labkit.explore.grids.placement_map: which rank keeps which part of a model."""

import pytest
from to_do import task

from labkit.cost import memory
from labkit.explore.grids.placement_map import (
    KINDS,
    SETTINGS,
    agree,
    kept_of_size,
    placement_panel,
    placement_table,
)
from labkit.explore.grids.widget import kept_in_ranks

SIZES = {size.name: size for size in memory.GPT3_SIZES}


@pytest.mark.parametrize("model", SIZES)
def test_data_parallel_saves_nothing_and_a_pipeline_half_but_for_its_copy_of_the_output_layer(model):
    whole = memory.parameters(SIZES[model].layers, SIZES[model].width)
    copy = memory.VOCABULARY * SIZES[model].width
    table = placement_table(kept_of_size(model)).set_index("setting")
    expected = [whole * n_bytes for n_bytes in KINDS.values()]
    for setting, ranks in (("one process", 1), ("data parallel", 2)):
        assert table.loc[setting].tolist() == pytest.approx([ranks, *expected, sum(expected), ranks * sum(expected)])
    pipeline, both = table.loc["pipeline"], table.loc["both, 2 × 2"]
    assert pipeline["all ranks"] == pytest.approx((whole + copy) * sum(KINDS.values()))
    assert pipeline["all ranks"] / 2 <= pipeline["fullest rank"] < 0.75 * sum(expected)
    assert both["fullest rank"] == pipeline["fullest rank"] and both["all ranks"] == 2 * pipeline["all ranks"]


def test_a_bar_is_as_long_as_its_bytes_and_a_line_shows_whose_device_is_too_small():
    kept = kept_of_size("1.3B")
    panel, table = placement_panel(kept, "GPT-3 1.3B", device="T4"), placement_table(kept)
    bars = panel.bars.assign(row=panel.bars["top"], n_bytes=panel.bars["right"] - panel.bars["left"])
    assert sorted(bars["n_bytes"]) == pytest.approx(sorted(each.n_bytes for each in kept))
    ends = bars.groupby("row")["right"].max().tolist()
    n_ranks = [len(setting.stages) for setting in SETTINGS]
    fullest = [max(ends[sum(n_ranks[:k]) :][:n]) for k, n in enumerate(n_ranks)]
    assert fullest == pytest.approx(table["fullest rank"].tolist())
    (line,) = panel.marks
    assert [most > line.x for most in fullest] == [True, True, False, False] and "T4, 16 GiB" in line.text


def test_bars_of_one_part_light_up_together_and_say_who_else_has_them():
    panel = placement_panel(kept_of_size("1.3B"), "GPT-3 1.3B")
    of_one = panel.bars[panel.bars["same"] == panel.bars["same"][0]]
    assert set(of_one["name"]) == {"weights"} and len(of_one) == 1 + 2 + 1 + 2
    said = [panel.explain(bar) for bar in of_one.index]
    assert [words.rpartition(". ")[2] for words in said[:2]] == ["No other rank has them.", "Rank 1 has the same."]
    assert said[-1].startswith("Both, 2 × 2, rank 2, stage 0: 1.33 GiB of weights, 2 bytes for each of")
    (gradients,) = [panel.explain(bar) for bar in panel.bars.index[-2:-1]]
    assert gradients.endswith("Rank 1 has its own until they are averaged, and then the same.")


# --- in real ranks --------------------------------------------------------------------------------


@task("pipe.5")
def test_real_ranks_keep_what_the_map_says_and_learn_the_same_alone_and_in_a_pipeline():
    """A small model in 32-bit numbers: Adam keeps two moments, and a count for each tensor."""
    seen = kept_in_ranks()
    assert [each[:4] for each in seen] == [each[:4] for each in kept_of_size()]
    n, n_tensors = 2 * (256 * 256 + 256), 4
    sizes = {"weights": 4 * n, "gradients": 4 * n, "optimizer state": 8 * n + 4 * n_tensors}
    assert all(each.parameters == n and each.n_bytes == sizes[each.name] for each in seen)
    assert "has the same, bit by bit." in placement_panel(seen, "a small model").explain(len(seen) - 1)
    digests = {(each.setting, each.stage): each.digest for each in seen if each.name == "weights"}
    for stage in (0, 1):
        assert digests[0, stage] == digests[2, stage]
        assert digests[1, stage] == digests[3, stage] != digests[0, stage]


def test_ranks_that_differ_in_one_stage_do_not_agree():
    same = [each._replace(digest=f"{each.setting} {each.stage}") for each in kept_of_size()]
    assert agree(same)
    assert not agree([*same[:-3], same[-3]._replace(digest="other")])
