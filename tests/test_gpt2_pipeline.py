"""GPT-2 in all three modes, and in stages, has the single device's loss and gradients, and writes
the same translations."""

from __future__ import annotations

import copy
import threading
import warnings
from typing import TYPE_CHECKING

import pytest
import torch
import torch.nn.functional as F

from labkit import models
from labkit.parallel.pipe.gpt2 import PipedBlocks
from labkit.pipe import prepare_pipeline_parallel
from labkit.trace import record
from labkit.train.translation import EOS_DE_ID, Example, collate, generate, target_loss

if TYPE_CHECKING:  # it takes seconds to import
    from transformers import GPT2LMHeadModel

VOCABULARY, ROWS = 40, 7


@pytest.fixture(autouse=True)
def _no_warning():
    """In training, a warning says that the Pipe is not used."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="this GPT-2 was given")
        yield


def single(**settings: object) -> GPT2LMHeadModel:
    settings = {"vocab_size": VOCABULARY, "n_layer": 5, "n_embd": 16, "n_positions": 32} | settings
    return models.gpt2("nano", seed=2, **settings).double()


def model_parallel(n_devices: int = 2, **settings: object) -> GPT2LMHeadModel:
    return models.parallelize(single(**settings), [f"cpu:{number}" for number in range(n_devices)])


def pipeline_parallel(n_devices: int = 2, split_size: int = 3, **settings: object) -> GPT2LMHeadModel:
    return prepare_pipeline_parallel(model_parallel(n_devices, **settings), split_size)


def examples() -> list[Example]:
    """Sentence pairs of different lengths."""
    drawn = torch.Generator().manual_seed(0)
    lengths = torch.randint(2, 7, (ROWS, 2), generator=drawn).tolist()
    return [Example(*(torch.randint(3, VOCABULARY, (n,), generator=drawn).tolist() for n in row)) for row in lengths]


BATCH = collate(examples())
PROMPTS = [[*example.source, EOS_DE_ID] for example in examples()]


def loss_and_gradients(gpt2: GPT2LMHeadModel) -> dict[str, torch.Tensor]:
    gpt2.zero_grad()
    loss = target_loss(gpt2, BATCH) / BATCH.n_targets
    loss.backward()
    gradients = {name.replace(".module.", "."): weight.grad for name, weight in gpt2.named_parameters()}
    assert all(gradient is not None and gradient.any() for gradient in gradients.values())
    return {"loss": loss.detach()} | {name: gradient.clone() for name, gradient in gradients.items()}


def check_equal(found: object, expected: object) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


# --- loss and gradients ---------------------------------------------------------------------------


@pytest.mark.parametrize("n_devices, split_size, n_micro", [(1, 3, 3), (3, 2, 4), (2, 100, 1)])
def test_pipeline_parallel_has_the_single_devices_loss_and_gradients(n_devices, split_size, n_micro):
    with record() as recording:
        check_equal(loss_and_gradients(pipeline_parallel(n_devices, split_size)), loss_and_gradients(single()))
    tasks = [(j, i) for j in range(n_devices) for i in range(n_micro)]
    for _, spans in recording.events.groupby("name"):  # forward and backward, through the partitions
        assert sorted(zip(spans.stage, spans.micro_batch, strict=True)) == tasks


# --- where there is nothing to pipeline -----------------------------------------------------------


@pytest.mark.parametrize(
    "prepared", [model_parallel, pipeline_parallel, lambda: copy.deepcopy(pipeline_parallel())], ids=range(3)
)
def test_generation_with_padding_and_a_cache_writes_what_a_single_device_writes(prepared):
    expected = generate(single(), PROMPTS, max_length=20, batch_size=4)
    assert len(set(map(tuple, expected))) > 1
    gpt2 = prepared()
    assert generate(gpt2, PROMPTS, max_length=20, batch_size=4) == expected
    gpt2.train()
    check_equal(loss_and_gradients(gpt2), loss_and_gradients(single()))


@pytest.mark.parametrize(
    ("options", "given"),
    [
        ({}, "a cache"),  # as GPT2Config has it, unless told otherwise
        ({"use_cache": False, "attention_mask": torch.tensor([[0, 1, 1], [1, 1, 1]])}, "an attention mask"),
        ({"use_cache": False, "output_hidden_states": True}, "output_hidden_states"),
    ],
    ids=str,
)
def test_with_more_than_hidden_states_training_warns_that_the_blocks_run_one_after_the_other(options, given):
    tokens, gpt2 = torch.arange(6).view(2, 3), pipeline_parallel()
    with pytest.warns(UserWarning, match=f"given {given}.*, so its blocks run one after .* with use_cache=False"):
        found = gpt2(tokens, **options)
    check_equal(found.logits, single()(tokens, **options).logits)


def test_an_attention_that_needs_a_mask_is_refused_by_name_and_may_be_changed():
    gpt2 = model_parallel()
    gpt2.set_attn_implementation("eager")
    check_equal(loss_and_gradients(gpt2), loss_and_gradients(single()))
    with pytest.raises(ValueError, match=r"'eager', which needs a mask .* gpt2\.set_attn_implementation"):
        prepare_pipeline_parallel(gpt2, 2)
    gpt2.set_attn_implementation("sdpa")
    check_equal(loss_and_gradients(prepare_pipeline_parallel(gpt2, 2)), loss_and_gradients(single()))


# --- one mode after another -----------------------------------------------------------------------


def test_preparing_again_and_placing_again_end_the_threads_of_before():
    gpt2 = pipeline_parallel(2, split_size=7)
    three = ["cpu:0", "cpu:1", "cpu:2"]
    for again, n_micro in (
        (lambda: prepare_pipeline_parallel(gpt2, 2), 4),
        (lambda: models.parallelize(gpt2, three), 0),
    ):
        workers = gpt2.transformer.h.pipe._workers
        assert again() is gpt2 and not any(worker.is_alive() for worker in workers)
        with record() as recording:
            check_equal(loss_and_gradients(gpt2), loss_and_gradients(single()))
        assert recording.events.micro_batch.nunique() == n_micro
    assert len(prepare_pipeline_parallel(gpt2, 2).transformer.h.pipe.partitions) == 3


@pytest.mark.parametrize(
    ("make", "split_size", "error", "message"),
    [
        (single, 2, ValueError, r"on no devices yet: call models\.parallelize\(gpt2, devices\) first"),
        (lambda: torch.nn.Linear(2, 2), 2, TypeError, "the model is a Linear, expected a GPT2LMHeadModel"),
        (pipeline_parallel, 0, ValueError, "split_size is 0, expected a whole number, 1 or more"),
        (pipeline_parallel, None, TypeError, "split_size is None, expected a whole number, 1 or more"),
    ],
)
def test_what_cannot_be_prepared_is_refused_and_an_earlier_pipe_goes_on(make, split_size, error, message):
    gpt2, threads = make(), threading.active_count()
    with pytest.raises(error, match=message):
        prepare_pipeline_parallel(gpt2, split_size)
    assert threading.active_count() == threads
    if make is pipeline_parallel:
        assert isinstance(gpt2.transformer.h, PipedBlocks)
        loss_and_gradients(gpt2)


# --- in stages ------------------------------------------------------------------------------------


def mean_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Over rows, each of which counts as much, so that it is the mean of its micro-batches."""
    tokens = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
    return tokens.view(labels.shape).mean(1).mean()


def expected_in_stages() -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    gpt2 = single()
    loss = mean_loss(gpt2(BATCH.inputs, use_cache=False).logits, BATCH.labels)
    loss.backward()
    return loss.detach(), {name: parameter.grad for name, parameter in gpt2.named_parameters()}


@pytest.mark.parametrize("n_stages", [1, 2, 5])
def test_copies_of_the_tied_weight_have_gradients_that_add_up_to_the_single_devices(n_stages):
    stages = [copy.deepcopy(stage) for stage in models.stages(single(), n_stages)]  # each as on a rank of its own
    loss = mean_loss(torch.nn.Sequential(*stages)(BATCH.inputs), BATCH.labels)
    loss.backward()
    tied = {id(stage.tied_weight): stage.tied_weight.grad for stage in (stages[0], stages[-1])}
    assert len(tied) == min(n_stages, 2)
    found = {name: weight.grad for stage in stages for name, weight in stage.named_parameters()}
    found["transformer.wte.weight"] = sum(tied.values())
    found.pop("lm_head.weight", None)
    check_equal((loss.detach(), found), expected_in_stages())
