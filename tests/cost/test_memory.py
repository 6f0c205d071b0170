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


# --- where it fits --------------------------------------------------------------------------------


def test_ddp_fits_no_more_on_eight_gpus_than_on_one_and_sharding_does():
    fits = memory.fit_table()
    assert fits["8 × H100, DDP"].equals(fits["H100"])
    assert not fits.loc["6.7B", "8 × H100, DDP"]
    assert fits.loc[["6.7B", "13B"], "8 × H100, sharded"].all()
    assert not fits.loc["175B"].any()


def test_sharding_follows_the_example_of_the_paper():
    """ZeRO, figure 1: 7.5 billion parameters on 64 GPUs take 120 GB each by DDP, 1.9 GB sharded."""
    activations = memory.memory_table().set_index("model").activations
    copy, part = (memory.gib_per_gpu(64, sharded) - activations for sharded in (False, True))
    assert (copy / part).to_list() == pytest.approx([120 / 1.875] * len(memory.GPT3_SIZES))


# --- how long it takes ----------------------------------------------------------------------------


def test_flops_are_those_that_the_gpt3_paper_states():
    """Brown et al. 2020, table D.1: 3.14e23 FLOPs for 175B, 1.2e22 for 6.7B."""
    flops = memory.training_table().set_index("model").FLOPs
    assert flops["175B"] == pytest.approx(3.14e23, rel=0.01)
    assert flops["6.7B"] == pytest.approx(1.2e22, rel=0.01)


def test_days_agree_with_those_that_megatron_states_for_gpt3():
    """Narayanan et al. 2021, section 5.2: 34 days at 140 TFLOP/s, with the forward pass done twice.

    That is 8 FLOPs for a parameter and token instead of 6.
    """
    days = memory.training_s(175e9, 1024, memory.GPUS["A100"], utilisation=140e12 / 312e12) / memory.DAY_S
    assert days * 8 / 6 == pytest.approx(34, rel=0.01)


# --- where its halves are -------------------------------------------------------------------------


@pytest.mark.parametrize("size", memory.GPT3_SIZES, ids=lambda size: size.name)
def test_data_parallel_saves_nothing_and_a_pipeline_half_but_for_its_copy_of_the_output_layer(size):
    whole, copy = memory.parameters(size.layers, size.width), memory.VOCABULARY * size.width
    gib = memory.placement_table(size.name).groupby("placement")["GiB"].sum()
    everything = 16 * whole / 2**30
    assert gib["one process"] == gib["data parallel"] == pytest.approx(everything)
    assert gib["pipeline"] == gib["both, 2 × 2"]
    half = (whole + copy) / 2 * 16 / 2**30
    assert half <= gib["pipeline"] < 0.75 * everything


def test_a_size_that_gpt3_did_not_come_in_is_refused_with_those_that_it_did():
    with pytest.raises(ValueError, match="'2B', expected one of 125M"):
        memory.placement_table("2B")
