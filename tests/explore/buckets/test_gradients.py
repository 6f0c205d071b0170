"""The models of the bucket explorer: their file is what the script writes, of the real classes."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from labkit.explore.buckets import gradients
from labkit.explore.buckets.gradients import MODELS, predicted_gradients


@pytest.fixture(scope="module")
def script() -> Any:
    path = Path(__file__).parents[3] / "data" / "make_gradients.py"
    spec = importlib.util.spec_from_file_location("make_gradients", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_script_makes_the_committed_file_byte_for_byte(script):
    assert tuple(script.MODELS) == MODELS
    assert script.as_json() == Path(gradients.__file__).with_name("gradients.json").read_text(encoding="utf-8")


@pytest.mark.parametrize(("model", "n"), [("gpt2", 124_439_808), ("bert", 109_483_778), ("convnet", 61_100_840)])
def test_a_model_has_as_many_parameters_as_published(model, n):
    assert predicted_gradients(model).n_bytes == 4 * n


def test_in_gpt2_the_token_embedding_is_ready_last_and_the_last_norm_first_after_the_output_layer():
    gpt2 = predicted_gradients("gpt2")
    order = gpt2.order()
    assert gpt2.names[order[-1]] == "transformer.wte.weight"
    assert gpt2.names[order[0]] == "transformer.ln_f.bias"
    output_layer = 4 * 1024 * 768 * 50257 * 8 / 50e12
    assert gpt2.ready_s[order[0]] == pytest.approx(output_layer, rel=1e-3)
