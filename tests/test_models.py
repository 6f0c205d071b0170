"""GPT-2 and BERT are the published ones in every size, equal on all ranks; a trained one comes from
a folder or fails quickly.

A GPT-2 on several devices, or in stages, is the same model in other places.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers  # whose models are imported where they are used: that takes seconds
from safetensors.torch import load_file, save_file

from labkit import models


@pytest.mark.parametrize(
    ("size", "parameters"),  # of OpenAI's checkpoints, as the hub's model cards and safetensors headers have them
    [("gpt2", 124_439_808), ("gpt2-medium", 354_823_168), ("gpt2-large", 774_030_080), ("gpt2-xl", 1_557_611_200)],
)
def test_the_named_sizes_have_openais_parameter_counts(size: str, parameters: int) -> None:
    with torch.device("meta"):
        assert models.parameter_count(transformers.GPT2LMHeadModel(models.gpt2_config(size))) == parameters


@pytest.mark.parametrize(
    ("size", "millions"),  # Turc et al. 2019, table 1, and Devlin et al. 2018: the encoder with its pooler
    [("tiny", 4.4), ("mini", 11.3), ("small", 29.1), ("medium", 41.7), ("base", 110.1)],
)
def test_the_berts_have_googles_parameter_counts(size: str, millions: float) -> None:
    with torch.device("meta"):
        encoder = models.bert(size).bert
    assert models.parameter_count(encoder) / 1e6 == pytest.approx(millions, rel=0.015)


@pytest.fixture
def small_bert(tmp_path: Path) -> Path:
    """The folder of a BERT that has not learned to tell classes apart."""
    models.bert("tiny", vocab_size=100).bert.save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize("kind", ["gpt2", "the new layer on a trained bert"])
def test_weights_depend_on_the_seed_alone_and_torchs_random_state_stays_as_it_was(kind: str, small_bert: Path) -> None:
    make: Callable[[int], Any] = {
        "gpt2": lambda seed: models.gpt2("nano", seed=seed, vocab_size=300),
        "the new layer on a trained bert": lambda seed: models.pretrained_bert(small_bert, seed=seed).classifier,
    }[kind]
    torch.manual_seed(7)
    undisturbed = torch.rand(3)
    torch.manual_seed(7)
    one = make(1)
    assert torch.equal(torch.rand(3), undisturbed)
    torch.manual_seed(8)  # another rank, in another state
    same, other = make(1), make(2)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), same.parameters(), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_training_mode_is_deterministic_since_dropout_is_off_unless_asked_for() -> None:
    tokens = torch.arange(20)[None]
    for model in (models.gpt2("nano", vocab_size=300), models.bert("tiny", vocab_size=300)):
        assert torch.equal(model.train()(tokens).logits, model(tokens).logits)
    assert model(tokens).logits.shape == (1, 2)
    noisy = models.gpt2("nano", vocab_size=300, resid_pdrop=0.5).train()
    assert not torch.equal(noisy(tokens).logits, noisy(tokens).logits)


# --- trained ones ---------------------------------------------------------------------------------


def test_a_saved_classifier_comes_back_and_dropout_can_be_turned_off(tmp_path: Path) -> None:
    model = models.bert("tiny", seed=3, vocab_size=100, hidden_dropout_prob=0.1)
    model.save_pretrained(tmp_path)
    tokens = torch.arange(10)[None]
    back = models.pretrained_bert(tmp_path, hidden_dropout_prob=0.0)
    # Only close: BERT takes another path through attention in train mode.
    torch.testing.assert_close(back.train()(tokens).logits, model.eval()(tokens).logits)
    assert models.pretrained_bert(tmp_path, num_labels=2).config.hidden_dropout_prob == 0.1


@pytest.mark.parametrize(
    ("load", "name"), [(models.pretrained_gpt2, "nobody/no-model"), (models.pretrained_bert, None)]
)
def test_a_model_that_is_nowhere_is_refused_by_name(load: Any, name: str, tmp_path: Path, monkeypatch: Any) -> None:
    with pytest.raises(FileNotFoundError, match=r"has no config\.json"):
        load(tmp_path)
    for variable in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    called = name or "google-bert/bert-base-cased"
    with pytest.raises(ConnectionError, match=f"the model {called} is on the Hugging Face hub"):
        load(*([name] if name else []))


def test_a_folder_of_another_architecture_is_refused_before_its_weights_are_read(tmp_path: Path) -> None:
    models.gpt2_config("nano").save_pretrained(tmp_path)  # a config without weights
    with pytest.raises(ValueError, match="holds a model of type 'gpt2', expected 'bert'"):
        models.pretrained_bert(tmp_path)


def test_a_folder_whose_weights_are_not_berts_is_refused_not_filled_with_new_ones(small_bert: Path) -> None:
    stored = load_file(small_bert / "model.safetensors")
    kept = {name: tensor for name, tensor in stored.items() if "layer.1" not in name}
    save_file(kept, small_bert / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"lacks 16 of BERT's weights, such as bert\.encoder\.layer\.1\."):
        models.pretrained_bert(small_bert)


# --- on several devices ---------------------------------------------------------------------------


def small_gpt2(n_layer: int = 5) -> transformers.GPT2LMHeadModel:
    return models.gpt2("nano", seed=4, vocab_size=50, n_layer=n_layer, n_positions=16)


def devices_of_blocks(gpt2: transformers.GPT2LMHeadModel) -> list[str]:
    return [str(block.device) for block in gpt2.transformer.h]


@pytest.mark.parametrize(
    ("n_layer", "n_devices", "expected"),
    [(4, 2, "0011"), (5, 2, "00011"), (5, 3, "00112"), (3, 3, "012"), (3, 1, "000"), (7, 4, "0011223")],
)
def test_neighbouring_blocks_are_shared_out_evenly(n_layer: int, n_devices: int, expected: str) -> None:
    gpt2 = small_gpt2(n_layer)
    before = list(map(id, gpt2.parameters()))
    assert models.parallelize(gpt2, [f"cpu:{number}" for number in range(n_devices)]) is gpt2
    assert devices_of_blocks(gpt2) == [f"cpu:{number}" for number in expected]
    assert list(map(id, gpt2.parameters())) == before  # so an optimizer made before has them


@pytest.mark.parametrize("devices", [["cpu:0", "cpu:1"], ["cpu", "cpu"], ["meta", "meta"]], ids=str)
def test_the_tied_weight_stays_one_parameter(devices: list[str]) -> None:
    gpt2 = models.parallelize(small_gpt2(), devices)
    assert gpt2.lm_head.weight is gpt2.transformer.wte.weight
    untied = models.parallelize(models.gpt2("nano", vocab_size=50, tie_word_embeddings=False), devices)
    assert untied.lm_head.weight is not untied.transformer.wte.weight


def test_a_state_dict_has_the_names_of_the_unplaced_model_and_goes_into_either(tmp_path: Path) -> None:
    plain, placed = small_gpt2(), models.parallelize(models.gpt2(small_gpt2().config, seed=5), ["cpu:0", "cpu:1"])
    tokens = torch.arange(8).view(2, 4)
    other = placed(tokens).logits
    assert list(placed.state_dict()) == list(plain.state_dict())
    placed.save_pretrained(tmp_path)
    torch.testing.assert_close(models.pretrained_gpt2(tmp_path)(tokens).logits, other)
    placed.load_state_dict(plain.state_dict())
    assert torch.equal(placed(tokens).logits, plain(tokens).logits)
    with pytest.raises(RuntimeError, match=r"Unexpected key\(s\).*attn\.c_attn\.nothing"):
        placed.load_state_dict(plain.state_dict() | {"transformer.h.1.attn.c_attn.nothing": torch.ones(1)})


# --- what is refused ------------------------------------------------------------------------------


def placed_on(devices: object) -> Callable[[], Any]:
    return lambda: models.parallelize(small_gpt2(), devices)


NO_GPU = [(placed_on(["cpu:0", "cuda:1"]), ValueError, "'cuda:1', and there is no GPU here")]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: models.gpt2("small"), ValueError, "size is 'small', expected one of nano, mini, gpt2"),
        (lambda: models.bert("huge"), ValueError, "size is 'huge', expected one of tiny, mini, small, medium, base"),
        (lambda: models.gpt2(transformers.GPT2Config(), n_layer=2), TypeError, "a GPT2Config and the settings n_layer"),
        (lambda: models.parallelize(small_gpt2().transformer, ["cpu"]), TypeError, "is a GPT2Model, expected a GPT2LM"),
        (placed_on([]), ValueError, "there are 0 devices, expected at least one"),
        (placed_on(["cpu"] * 6), ValueError, "6 devices for 5 blocks, expected 1 to 5"),
        (
            placed_on("cpu:0"),
            TypeError,
            r"devices is 'cpu:0', expected a list of devices, such as \['cpu:0', 'cpu:1'\]",
        ),
        *([] if torch.cuda.is_available() else NO_GPU),
        (lambda: models.stages(small_gpt2().transformer, 1), TypeError, "is a GPT2Model, expected a GPT2LMHeadModel"),
        (lambda: models.stages(small_gpt2(), 0), ValueError, "n_stages is 0, expected a whole number, 1 or more"),
        (lambda: models.stages(small_gpt2(), 6), ValueError, "6 stages for 5 blocks, expected 1 to 5"),
    ],
)
def test_what_cannot_be_made_is_refused(call: Callable[[], Any], error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        call()
