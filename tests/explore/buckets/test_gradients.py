"""The models of the bucket explorer: their parameters are those of the real classes, in order."""

from __future__ import annotations

import pytest
import torch

from labkit.explore.buckets import gradients, overlap_rank
from labkit.explore.buckets.gradients import MODELS, predicted_gradients


def on_meta(model: str, small: bool) -> torch.nn.Module:
    """Build the real class, without memory for its weights."""
    if model == "gpt2":
        from transformers import GPT2Config, GPT2LMHeadModel

        make = lambda: GPT2LMHeadModel(GPT2Config(**gradients.SMALL_GPT2 if small else {}))  # noqa: E731
    elif model == "bert":
        from transformers import BertConfig, BertForSequenceClassification

        make = lambda: BertForSequenceClassification(BertConfig(**gradients.SMALL_BERT if small else {}))  # noqa: E731
    else:
        make = lambda: getattr(overlap_rank, model)(gradients.SMALL if small else 1)  # noqa: E731
    with torch.device("meta"):
        return make()


@pytest.mark.parametrize("small", [False, True], ids=["whole", "small"])
@pytest.mark.parametrize("model", MODELS)
def test_names_and_sizes_are_those_of_the_real_class_in_its_order(model, small):
    named = list(on_meta(model, small).named_parameters())
    found = predicted_gradients(model, small)
    assert list(found.names) == [name for name, _ in named]
    assert list(found.sizes_bytes) == [parameter.nbytes for _, parameter in named]


@pytest.mark.parametrize("model", MODELS)
def test_the_small_model_has_the_same_parameters_and_about_a_64th_of_the_bytes(model):
    whole, small = predicted_gradients(model), predicted_gradients(model, small=True)
    assert whole.names == small.names
    assert 50 < whole.n_bytes / small.n_bytes < 80


def test_the_convnet_has_as_many_parameters_as_alexnet():
    assert predicted_gradients("convnet").n_bytes == 4 * 61_100_840


def test_in_gpt2_the_token_embedding_is_ready_last_and_the_last_norm_first_after_the_output_layer():
    gpt2 = predicted_gradients("gpt2")
    order = gpt2.order()
    assert gpt2.names[order[-1]] == "transformer.wte.weight"
    assert gpt2.names[order[0]] == "transformer.ln_f.bias"
    output_layer = 4 * 1024 * 768 * 50257 * 8 / 50e12
    assert gpt2.ready_s[order[0]] == pytest.approx(output_layer, rel=1e-3)


@pytest.mark.parametrize("model", MODELS)
def test_gradients_are_ready_from_the_last_parameter_to_the_first_at_ever_later_times(model):
    found = predicted_gradients(model)
    assert found.order() == list(reversed(range(len(found.names))))
    assert len(set(found.ready_s)) == len(found.ready_s)


def test_a_backward_pass_takes_twice_the_forward_flops_of_its_matrices():
    """6 · parameters · tokens for both passes is the field's rule; 4 of the 6 are backward's."""
    pieces = gradients.gpt2_pieces()
    matrices = sum(piece.flops for piece in pieces if piece.numel > 10_000 or "lm_head" in piece.name)
    parameters = sum(piece.numel for piece in pieces) - 1024 * 768  # positions are looked up, never multiplied
    assert matrices == pytest.approx(4 * parameters * 1024, rel=0.01)


def test_an_unknown_model_is_refused_with_those_there_are():
    with pytest.raises(ValueError, match=r"^model is 'gpt3', expected one of gpt2, bert, convnet, mlp$"):
        predicted_gradients("gpt3")


def test_a_backward_pass_of_another_length_stretches_all_times_alike():
    gpt2 = predicted_gradients("gpt2")
    longer = gpt2.lasting(2 * gpt2.backward_s)
    assert longer.ready_s == pytest.approx([2 * ready for ready in gpt2.ready_s])
