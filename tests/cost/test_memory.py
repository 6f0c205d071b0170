"""The arithmetic of memory, against transformers' own models and the published names."""

import pytest

from labkit.cost.memory import GPT3_SIZES, Size, activation_bytes, memory_table, parameters, token_table


@pytest.mark.parametrize("layers, width", [(2, 64), (12, 768), (3, 128)])
def test_parameters_are_as_many_as_transformers_gpt2_has(layers, width):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=layers, n_embd=width, n_head=2, vocab_size=50257, n_positions=2048)
    with torch.device("meta"):
        model = transformers.GPT2LMHeadModel(config)
    assert parameters(layers, width) == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("size", GPT3_SIZES, ids=lambda size: size.name)
def test_each_size_has_about_as_many_parameters_as_its_name_says(size: Size):
    scale = {"M": 1e6, "B": 1e9}[size.name[-1]]
    assert parameters(size.layers, size.width) == pytest.approx(float(size.name[:-1]) * scale, rel=0.06)


def test_the_largest_model_takes_16_bytes_a_parameter_and_its_activations():
    row = memory_table().set_index("model").loc["175B"]
    states = row.weights + row.gradients + row.Adam
    assert states * 2**30 == pytest.approx(16 * 175e9, rel=0.01)
    assert row.total == pytest.approx(states + row.activations)


def test_activations_agree_with_the_paper_that_gave_the_formula():
    """Korthikanti et al.: 175B, sequence 2048, batch 1 keeps 275 GB without attention's 5as/h.

    That is 80/34 of it.
    """
    linear, attention = 34, 5 * 96 * 2048 / 12288
    assert attention == 80
    assert activation_bytes(96, 12288, 96) == pytest.approx(96 * 2048 * 12288 * (linear + attention))


def test_activations_grow_with_the_square_of_the_context_once_attention_dominates():
    short, long = (activation_bytes(1, 64, 64, context=context) for context in (10_000, 20_000))
    assert long / short == pytest.approx(4, rel=0.01)


def test_every_size_sees_300_billion_tokens():
    table = token_table()
    assert (table.batch_tokens * table.steps).round(-9).eq(300e9).all()
