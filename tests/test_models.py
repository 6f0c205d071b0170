"""GPT-2 and BERT are the published ones in every size, equal on all ranks; a trained one comes from a folder or fails quickly."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from labkit import models


@pytest.mark.parametrize(
    ("size", "parameters"),  # of OpenAI's checkpoints, as the hub's model cards and safetensors headers have them
    [
        ("gpt2", 124_439_808),
        ("gpt2-medium", 354_823_168),
        ("gpt2-large", 774_030_080),
        ("gpt2-xl", 1_557_611_200),
    ],
)
def test_the_named_sizes_have_openais_parameter_counts(size: str, parameters: int) -> None:
    with torch.device("meta"):
        assert models.parameter_count(GPT2LMHeadModel(models.gpt2_config(size))) == parameters


def test_equal_seeds_give_equal_weights_and_leave_torchs_random_state_alone() -> None:
    torch.manual_seed(7)
    undisturbed = torch.rand(3)
    torch.manual_seed(7)
    one = models.gpt2("nano", seed=1, vocab_size=300)
    assert torch.equal(torch.rand(3), undisturbed)
    torch.manual_seed(8)  # another rank, in another state
    same, other = models.gpt2("nano", seed=1, vocab_size=300), models.gpt2("nano", seed=2, vocab_size=300)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), same.parameters(), strict=True))
    assert not torch.equal(one.transformer.wte.weight, other.transformer.wte.weight)


def test_training_mode_is_deterministic_since_dropout_is_off_unless_asked_for() -> None:
    tokens = torch.arange(20)[None]
    model = models.gpt2("nano", vocab_size=300).train()
    assert torch.equal(model(tokens).logits, model(tokens).logits)
    noisy = models.gpt2("nano", vocab_size=300, resid_pdrop=0.5).train()
    assert not torch.equal(noisy(tokens).logits, noisy(tokens).logits)


def test_any_gpt2_config_will_do() -> None:
    config = GPT2Config(vocab_size=300, n_embd=24, n_layer=1, n_head=3, n_positions=16)
    model = models.gpt2(config)
    assert model.config.n_embd == 24
    assert model(torch.zeros(2, 16, dtype=torch.int64)).logits.shape == (2, 16, 300)
    with pytest.raises(TypeError, match="a GPT2Config and the settings n_layer"):
        models.gpt2(config, n_layer=2)


def test_an_unknown_size_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="size is 'small', expected one of nano, mini, gpt2"):
        models.gpt2("small")


def test_a_saved_model_comes_back_from_its_folder(tmp_path: Path) -> None:
    model = models.gpt2("nano", seed=3, vocab_size=300)
    model.save_pretrained(tmp_path)
    tokens = torch.arange(10)[None]
    assert torch.equal(models.pretrained_gpt2(tmp_path)(tokens).logits, model.eval()(tokens).logits)


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"has no config\.json"):
        models.pretrained_gpt2(tmp_path)


def test_a_model_on_a_hub_that_does_not_answer_is_named_in_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ConnectionError, match="the model nobody/no-such-model is on the Hugging Face hub"):
        models.pretrained_gpt2("nobody/no-such-model")


def test_importing_models_loads_neither_torch_nor_transformers() -> None:
    code = "import sys, labkit.models; print([m for m in ('torch', 'transformers', 'datasets') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("size", "millions"),  # Turc et al. 2019, table 1, and Devlin et al. 2018: the encoder with its pooler
    [("tiny", 4.4), ("mini", 11.3), ("small", 29.1), ("medium", 41.7), ("base", 110.1)],
)
def test_the_berts_have_googles_parameter_counts(size: str, millions: float) -> None:
    with torch.device("meta"):
        encoder = models.bert(size).bert
    assert models.parameter_count(encoder) / 1e6 == pytest.approx(millions, rel=0.015)


def test_a_bert_depends_on_its_seed_alone_has_no_dropout_and_tells_two_classes_apart() -> None:
    torch.manual_seed(5)
    one = models.bert("tiny", seed=1, vocab_size=300).train()
    torch.manual_seed(6)
    same, other = models.bert("tiny", seed=1, vocab_size=300), models.bert("tiny", seed=2, vocab_size=300)
    tokens = torch.arange(24).view(2, 12)
    assert one(tokens).logits.shape == (2, 2)
    assert torch.equal(one(tokens).logits, same.train()(tokens).logits)
    assert not torch.equal(one(tokens).logits, other(tokens).logits)


def test_an_unknown_bert_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="size is 'huge', expected one of tiny, mini, small, medium, base"):
        models.bert("huge")
