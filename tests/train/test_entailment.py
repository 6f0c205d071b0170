"""From sentence pairs to counted answers: tokens by hand and by transformers' own tokenizer, the
loss by transformers' own, and a small BERT that learns what ships."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from labkit import models
from labkit.train import entailment
from labkit.train.entailment import NO_LOSS, PAD_ID, SentencePair

if TYPE_CHECKING:  # it takes seconds to import
    from transformers import BertForSequenceClassification

ROWS = [
    {"sentence1": "The dog chased the cat.", "sentence2": "The cat was chased.", "label": 0},
    {"sentence1": "The dog slept.", "sentence2": "The cat slept.", "label": 1},
    {"sentence1": "Äpfel, 12 of them!", "sentence2": "Some fruit.", "label": 0},
]
EXAMPLES = [SentencePair([2, 5, 6, 3, 7, 3], [0, 0, 0, 0, 1, 1], 1), SentencePair([2, 8, 3, 9, 3], [0, 0, 0, 1, 1], 0)]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return entailment.train_tokenizer(ROWS, 60)


@pytest.fixture
def model() -> BertForSequenceClassification:
    """Large random weights: its answers vary."""
    return models.bert("tiny", seed=5, vocab_size=40, initializer_range=0.5).eval()


def test_a_vocabulary_without_room_for_the_characters_is_refused() -> None:
    rows = [{"sentence1": "ab", "sentence2": "Ba c"}]  # five marks, and four characters alone and within a word
    assert len(entailment.train_tokenizer(rows, 13)) == 13
    with pytest.raises(ValueError, match="vocab_size is 12, expected at least 13"):
        entailment.train_tokenizer(rows, 12)


def test_an_example_is_both_sentences_with_their_marks_and_types(tokenizer: Any) -> None:
    example = entailment.encode(ROWS, tokenizer, 128)[1]
    first, second = (tokenizer.encode(ROWS[1][side], add_special_tokens=False) for side in ("sentence1", "sentence2"))
    assert example.input_ids == [2, *first, 3, *second, 3]
    assert example.token_type_ids == [0] * (len(first) + 2) + [1] * (len(second) + 1)
    assert example.label == 1


def test_a_pair_that_is_too_long_loses_the_end_of_its_longer_sentence() -> None:
    tokenizer = entailment.train_tokenizer([{"sentence1": "a b c d e f g h", "sentence2": "x y"}], 40)
    rows = [{"sentence1": "a b c d e f g h", "sentence2": "x y", "label": 0}]
    (example,) = entailment.encode(rows, tokenizer, 8)
    assert tokenizer.decode(example.input_ids) == "[CLS] a b c [SEP] x y [SEP]"
    assert len(entailment.encode(rows, tokenizer, 128)[0]) == 13  # the one call did not shorten the next
    with pytest.raises(ValueError, match="max_length is 4, expected at least 5"):
        entailment.encode(rows, tokenizer, 4)


def test_a_batch_is_padded_to_the_longest_or_to_a_length() -> None:
    batch = entailment.collate(EXAMPLES)
    assert batch.inputs.tolist() == [[2, 5, 6, 3, 7, 3], [2, 8, 3, 9, 3, PAD_ID]]
    assert batch.others["attention_mask"].tolist() == [[1] * 6, [1] * 5 + [0]]
    assert batch.others["token_type_ids"].tolist() == [[0, 0, 0, 0, 1, 1], [0, 0, 0, 1, 1, 0]]
    assert batch.labels.tolist() == [1, 0]
    assert (len(batch), batch.n_targets, batch.n_tokens) == (2, 2, 11)
    assert entailment.collate(EXAMPLES, length=9).inputs.shape == (2, 9)
    with pytest.raises(ValueError, match="length is 5, but an example has 6 tokens"):
        entailment.collate(EXAMPLES, length=5)


def test_the_loss_is_transformers_own_summed_and_padding_changes_nothing(model: BertForSequenceClassification) -> None:
    expected = sum(
        model(
            input_ids=torch.tensor([e.input_ids]),
            token_type_ids=torch.tensor([e.token_type_ids]),
            labels=torch.tensor([e.label]),
        ).loss
        for e in EXAMPLES
    )
    for length in (None, 12):
        loss = entailment.summed_loss(model, entailment.collate(EXAMPLES, length))
        torch.testing.assert_close(loss, expected, rtol=1e-4, atol=0)


def test_no_examples_are_a_row_that_gives_a_gradient_of_zeros(model: BertForSequenceClassification) -> None:
    batch = entailment.collate([], length=7)
    assert (batch.inputs.shape, batch.labels.tolist()) == ((1, 7), [NO_LOSS])
    assert (batch.n_targets, batch.n_tokens) == (0, 0)
    loss = entailment.summed_loss(model, batch)
    loss.backward()
    assert loss == 0
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())
    assert entailment.count_correct(model, batch) == 0


def test_a_corpus_of_what_ships_says_what_it_used(capsys: pytest.CaptureFixture[str]) -> None:
    corpus = entailment.load_corpus("shipped", "", vocab_size=300, limit=200, limit_eval=50)
    assert (corpus.source, corpus.model, len(corpus.train), len(corpus.validation)) == ("shipped", "", 200, 50)
    assert corpus.vocab_size <= 300
    assert max(token for example in corpus.train for token in example.input_ids) < corpus.vocab_size
    printed = capsys.readouterr().out
    assert "train: the first 200 of 2,028 rows are used" in printed
    assert "validation: the first 50 of 300 rows are used" in printed
    assert f"tokenizer: {corpus.vocab_size} WordPiece tokens, made from 200 rows" in printed


def test_where_bert_base_cannot_be_had_auto_is_a_small_bert_and_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(models.hub, "offline", lambda: False)
    monkeypatch.setattr(models.hub, "reachable", lambda *_: False)
    monkeypatch.setattr(entailment, "PRETRAINED", "nobody/no-such-model")
    assert entailment.load_corpus("shipped", "auto", limit=20, limit_eval=5).model == ""
    assert "nobody/no-such-model cannot be had here, so it is a small BERT" in capsys.readouterr().out
    with pytest.raises(ConnectionError, match="the model nobody/no-such-model is on the Hugging Face hub"):
        entailment.load_corpus("shipped", "nobody/no-such-model")
