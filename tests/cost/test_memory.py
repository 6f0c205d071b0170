"""The arithmetic of memory, against transformers' own models and the published names."""

import pytest

from labkit.cost import memory


@pytest.mark.parametrize(
    "layers, width, published",
    [(12, 768, 124_439_808), (24, 1024, 354_823_168), (48, 1600, 1_557_611_200)],
)
def test_parameters_are_as_many_as_the_published_gpt2s_have(layers, width, published):
    """gpt2, gpt2-medium and gpt2-xl, counted with transformers' ``model.num_parameters()``."""
    assert memory.parameters(layers, width, context=1024) == published


def test_activations_agree_with_the_paper_that_gave_the_formula():
    """Korthikanti et al.: 175B, sequence 2048, batch 1 keeps 275 GB without attention's 5as/h.

    That is 80/34 of it.
    """
    linear, attention = 34, 5 * 96 * 2048 / 12288
    assert attention == 80
    assert memory.activation_bytes(96, 12288, 96, flash_attention=False) == pytest.approx(
        96 * 2048 * 12288 * (linear + attention)
    )


def without_activations(plan, size=memory.GPT3_SIZES[3]):
    return memory.gib_per_device(size, plan).drop(["activations", "total"]).sum()


def test_the_three_stages_of_zero_follow_the_example_of_the_paper():
    """ZeRO, figure 1: 7.5 billion parameters on 64 GPUs take 120 GB each, 31.4, 16.6 and 1.9 GB."""
    each = [without_activations(memory.Plan(data=64, zero_stage=stage)) for stage in range(4)]
    assert [120 * gib / each[0] for gib in each] == pytest.approx([120, 31.4, 16.6, 1.88], rel=0.003)


def test_recomputing_and_sharing_out_layers_leave_of_activations_what_the_paper_says():
    """Korthikanti et al., sections 4 and 5: 34 + 5as/h bytes a number, 10 + 24/t + 5as/(ht) on t
    devices, 2 if all is recomputed. 1F1B keeps as many micro-batches as there are stages."""
    size = memory.GPT3_SIZES[-1]

    def per_number(**plan):
        kept = memory.gib_per_device(size, memory.Plan(**plan))["activations"]
        return kept * 2**30 / (size.layers * 2048 * size.width)

    assert per_number(recompute="nothing") == pytest.approx(34 + 80)
    assert per_number(recompute="nothing", tensor=8) == pytest.approx(10 + 3 + 10)
    assert per_number(recompute="all", tensor=8) == pytest.approx(2)
    assert per_number(pipeline=8, micro_batches=64) == pytest.approx(34)
    assert per_number(pipeline=8, micro_batches=64, schedule="GPipe") == pytest.approx(8 * 34)
    assert per_number(sequences=3, precision="float32") == pytest.approx(6 * 34)


def test_tensor_and_pipeline_leave_a_share_of_the_parameters_and_more():
    size = memory.GPT3_SIZES[-1]
    whole = without_activations(memory.Plan(), size)
    for plan in (memory.Plan(tensor=8), memory.Plan(pipeline=8), memory.Plan(tensor=8, pipeline=8)):
        assert 1 <= without_activations(plan, size) * plan.devices / whole < 1.05


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"data": 0}, "data"),
        ({"zero_stage": 4}, "zero_stage is 4, expected one of 0, 1, 2, 3"),
        ({"schedule": "1f1b"}, "schedule is '1f1b', expected one of 1F1B, GPipe"),
        ({"recompute": "everything"}, "expected one of nothing, attention, all"),
        ({"precision": "bf16"}, "expected one of mixed, float32"),
    ],
)
def test_a_plan_that_nobody_can_carry_out_is_refused(fields, says):
    with pytest.raises(ValueError, match=says):
        memory.Plan(**fields)
