"""From text to BLEU: batches by hand, the loss by plain torch, greedy decoding token by token."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from labkit import models
from labkit.train import translation
from labkit.train.translation import EOS_DE_ID, EOS_EN_ID, NO_LOSS, PAD_ID, Example

if TYPE_CHECKING:  # it takes seconds to import
    from transformers import GPT2LMHeadModel


@pytest.fixture(scope="module")
def model() -> GPT2LMHeadModel:
    """Large random weights: its greedy choices vary, and some of them are <eos_en>."""
    return models.gpt2("nano", seed=5, vocab_size=12, n_positions=40, initializer_range=0.6).eval()


def random_examples(n: int, seed: int = 0) -> list[Example]:
    draw = torch.Generator().manual_seed(seed)

    def tokens(mark: int) -> list[int]:
        length = int(torch.randint(1, 9, (1,), generator=draw))
        return [*torch.randint(3, 12, (length,), generator=draw).tolist(), mark]

    return [Example(tokens(EOS_DE_ID), tokens(EOS_EN_ID)) for _ in range(n)]


def test_a_batch_is_shifted_padded_and_labelled_on_target_tokens_only() -> None:
    batch = translation.collate([Example([5, 6, 1], [7, 8, 2]), Example([9, 1], [4, 2])])
    assert batch.inputs.tolist() == [[5, 6, 1, 7, 8], [9, 1, 4, PAD_ID, PAD_ID]]
    assert batch.labels.tolist() == [[NO_LOSS, NO_LOSS, 7, 8, 2], [NO_LOSS, 4, 2, NO_LOSS, NO_LOSS]]
    assert (len(batch), batch.n_tokens, batch.n_targets) == (2, 10, 5)


def loss_by_hand(model: GPT2LMHeadModel, examples: list[Example], first: int = 0) -> float:
    """Minus the log-probability of each target token, one example at a time, without padding.
    ``first`` tokens less."""
    total = 0.0
    for example in examples:
        tokens = example.source + example.target
        log_p = model(torch.tensor([tokens])).logits[0].log_softmax(-1)
        for place in range(len(example.source) - first, len(tokens)):
            total -= log_p[place - 1, tokens[place]].item()
    return total


def test_the_loss_is_that_of_the_target_tokens_alone(model: GPT2LMHeadModel) -> None:
    examples = random_examples(20)
    loss = translation.target_loss(model, translation.collate(examples)).item()
    assert loss == pytest.approx(loss_by_hand(model, examples), rel=1e-5)
    assert loss != pytest.approx(loss_by_hand(model, examples, first=1), rel=1e-2)  # with <eos_de>, it is another


def one_by_one(model: GPT2LMHeadModel, prompt: list[int], room: int) -> list[int]:
    """The most likely token after all before it, at most ``room`` times: no cache, no padding."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + room:
        tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
        if tokens[-1] == EOS_EN_ID:
            return tokens[len(prompt) : -1]
    return tokens[len(prompt) :]


@torch.no_grad()
def test_each_translation_is_what_the_model_writes_token_by_token(model: GPT2LMHeadModel) -> None:
    prompts = [example.source for example in random_examples(40, seed=1)]
    ours = translation.generate(model, prompts, max_length=24, batch_size=7)
    by_length = sorted(prompts, key=len)
    for prompt, translated in zip(prompts, ours, strict=True):
        longest = max(map(len, by_length[(i := by_length.index(prompt)) - i % 7 : i - i % 7 + 7]))
        assert translated == one_by_one(model, prompt, 24 - longest)
    assert any(len(translated) < 24 - max(map(len, prompts)) for translated in ours)  # some end by themselves
    assert len({tuple(translated) for translated in ours}) > 5


def test_what_is_left_out_is_counted_aloud(capsys: pytest.CaptureFixture[str]) -> None:
    corpus = translation.load_corpus("shipped", vocab_size=600, max_length=40, limit=500, limit_eval=50)
    out = capsys.readouterr().out
    assert "train: the first 500 of 4,000 pairs are used" in out
    assert "test: the first 50 of 400 pairs are used" in out
    assert f"train: {500 - len(corpus.train)} of 500 pairs have more than 40 tokens: left out" in out
    assert 0 < len(corpus.train) < 500 and max(map(len, corpus.train)) <= 40
    assert "of 50 sources have more than 20 tokens: cut, to leave room to translate" in out
    assert len(corpus.test) == len(corpus.references) == 50  # a test sentence is never left out
    assert all(len(example.source) <= 20 and example.source[-1] == EOS_DE_ID for example in corpus.test)


def test_a_max_length_that_nothing_keeps_to_is_refused() -> None:
    with pytest.raises(ValueError, match=r"train: none of 100 examples has at most 5 tokens; raise max_length \(the"):
        translation.load_corpus("shipped", vocab_size=300, max_length=5, limit=100)
