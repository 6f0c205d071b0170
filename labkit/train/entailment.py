"""Textual entailment as BERT sees it, from text to batches, and who got how many right.

A sequence is: ``[CLS]`` sentence1 ``[SEP]`` sentence2 ``[SEP]`` ``[PAD]`` … Token types tell the
two sentences apart, and the class is read off the first position (Devlin et al. 2018).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from labkit import data, models
from labkit.train.trainer import Batch

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MARKS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PAD_ID = 0  # marks come first in a trained vocabulary, in this order
NO_LOSS = -100  # the label that cross_entropy passes over
PRETRAINED = "google-bert/bert-base-cased"  # the assignment's

Row = dict[str, Any]


# --- text to token numbers ------------------------------------------------------------------------


def train_tokenizer(rows: Sequence[Row], vocab_size: int) -> PreTrainedTokenizerBase:
    """Return a WordPiece tokenizer as BERT's, cased, for both sentences of ``rows``.

    Its vocabulary has at most ``vocab_size`` tokens: the five marks, every character, alone and
    within a word, and then whole words, the most frequent first. Other words are spelled. The same
    rows give the same tokenizer (tokenizers' own trainer breaks ties as they come). Raises
    ValueError for fewer tokens than marks and characters.
    """
    from transformers import BertTokenizer

    def tokenizer(tokens: Sequence[str]) -> BertTokenizer:
        return BertTokenizer(vocab={token: i for i, token in enumerate(tokens)}, do_lower_case=False)

    empty = tokenizer(MARKS).backend_tokenizer
    words: Counter[str] = Counter()
    for row in rows:
        for side in ("sentence1", "sentence2"):
            text = empty.normalizer.normalize_str(row[side])
            words.update(word for word, _ in empty.pre_tokenizer.pre_tokenize_str(text))
    characters = sorted(set("".join(words)))
    vocabulary = [*MARKS, *characters, *(f"##{character}" for character in characters)]
    if vocab_size < len(vocabulary):
        minimum = f"{len(vocabulary)}: marks, and every character"
        raise ValueError(f"vocab_size is {vocab_size}, expected at least {minimum}")
    by_frequency = sorted(words, key=lambda word: (-words[word], word))
    whole = [word for word in by_frequency if len(word) > 1]
    vocabulary += whole[: vocab_size - len(vocabulary)]
    return tokenizer(vocabulary)


@dataclass(frozen=True)
class SentencePair:
    """A pair of sentences as token numbers, which sentence each belongs to, and its label."""

    input_ids: list[int]
    token_type_ids: list[int]
    label: int

    def __len__(self) -> int:
        return len(self.input_ids)


def encode(rows: Sequence[Row], tokenizer: PreTrainedTokenizerBase, max_length: int) -> list[SentencePair]:
    """Return each row's tokens with their marks, at most ``max_length``.

    Of a pair that is too long, the longer sentence loses its end first. Raises ValueError where
    ``max_length`` has no room for three marks and a token of each sentence.
    """
    if max_length < 5:
        minimum = "5: three marks, and a token of each sentence"
        raise ValueError(f"max_length is {max_length}, expected at least {minimum}")
    if not rows:
        return []
    first, second = ([row[side] for row in rows] for side in ("sentence1", "sentence2"))
    tokens = tokenizer(first, second, truncation="longest_first", max_length=max_length)
    kinds = tokens.get("token_type_ids") or [[0] * len(ids) for ids in tokens["input_ids"]]
    labels = (int(row["label"]) for row in rows)
    return [SentencePair(*each) for each in zip(tokens["input_ids"], kinds, labels, strict=True)]


# --- token numbers to batches ---------------------------------------------------------------------


def collate(examples: Sequence[SentencePair], length: int | None = None) -> Batch:
    """Return a batch of examples, padded to ``length`` tokens, or to the longest: (B, T) int64.

    Its labels are of (B,), and its targets are the rows that count in the loss.

    Of no examples it is a row that counts in no loss: a rank for which none is left still takes
    part in forward and backward, and in what is agreed there. Raises ValueError for an example of
    more tokens than ``length``.
    """
    longest = max(map(len, examples), default=1)
    n_rows, length = max(len(examples), 1), length or longest
    if longest > length:
        raise ValueError(f"length is {length}, but an example has {longest} tokens")
    input_ids, mask, kinds = (torch.full((n_rows, length), value) for value in (PAD_ID, 0, 0))
    labels = torch.full((n_rows,), NO_LOSS)
    mask[:, 0] = 1  # of a row without tokens too, or attention would have nothing to look at
    for row, example in enumerate(examples):
        n = len(example)
        input_ids[row, :n], mask[row, :n] = torch.tensor(example.input_ids), 1
        kinds[row, :n], labels[row] = torch.tensor(example.token_type_ids), example.label
    others = {"attention_mask": mask, "token_type_ids": kinds}
    return Batch(input_ids, labels, len(examples), sum(map(len, examples)), others)


def logits(model: torch.nn.Module, batch: Batch) -> torch.Tensor:
    """Return the model's logits, (B, classes), float32."""
    return model(input_ids=batch.inputs, **batch.others).logits.float()


def summed_loss(model: torch.nn.Module, batch: Batch) -> torch.Tensor:
    """Return the cross-entropy of the batch's rows, summed, in nats. A scalar.

    A sum, so that it adds up over ranks; divided by ``batch.n_targets`` it is the loss per row.
    """
    return F.cross_entropy(logits(model, batch), batch.labels, ignore_index=NO_LOSS, reduction="sum")


def count_correct(model: torch.nn.Module, batch: Batch) -> int:
    """Return how many of the batch's rows the model puts into the class of their label."""
    return int((logits(model, batch).argmax(1) == batch.labels).sum())


# --- all of it, ready for training ----------------------------------------------------------------


@dataclass(frozen=True)
class EntailmentCorpus:
    """The data of a training run.

    ``source`` says where the rows are from. ``model`` is the pretrained model that the tokenizer
    belongs to, a folder or a name, or "" where the tokenizer was trained on the rows.
    """

    source: str
    model: str
    tokenizer: PreTrainedTokenizerBase = field(repr=False)
    train: list[SentencePair] = field(repr=False)
    validation: list[SentencePair] = field(repr=False)

    @property
    def vocab_size(self) -> int:
        return len(self.tokenizer)


def load_corpus(
    source: str = "auto",
    model: str = "auto",
    vocab_size: int = 2000,
    max_length: int = 128,
    limit: int | None = None,
    limit_eval: int | None = None,
) -> EntailmentCorpus:
    """Load RTE's two labelled splits and encode them with the tokenizer of a model.

    ``source`` is as :func:`labkit.data.rte` takes it. ``model`` is a pretrained BERT, a folder or a
    name on the hub; "" has a tokenizer trained on the training rows; ``"auto"`` is the assignment's
    bert-base-cased where it can be had, else "", and a printed line says so. ``limit`` takes that
    many training rows from the front, ``limit_eval`` that many of validation. A pair of more than
    ``max_length`` tokens is cut.

    Raises what :func:`labkit.data.rte` and :func:`labkit.models.pretrained_bert_tokenizer` raise.
    """
    train = data.rte("train", source)
    validation = data.rte("validation", train.source)
    parts = {"train": train[:limit], "validation": validation[:limit_eval]}
    for split, whole in (("train", train), ("validation", validation)):
        if len(parts[split]) < len(whole):
            print(f"{split}: the first {len(parts[split]):,} of {len(whole):,} rows are used")
    model, tokenizer = _tokenizer(model, parts["train"], vocab_size)
    examples = {split: encode(rows, tokenizer, max_length) for split, rows in parts.items()}
    return EntailmentCorpus(train.source, model, tokenizer, examples["train"], examples["validation"])


def _tokenizer(model: str, rows: Sequence[Row], vocab_size: int) -> tuple[str, PreTrainedTokenizerBase]:
    """Return the pretrained model to use, "" for none, and the tokenizer that belongs to it."""
    if model == "auto":
        try:
            return PRETRAINED, models.pretrained_bert_tokenizer(PRETRAINED)
        except OSError:  # not downloaded, and no hub: ConnectionError is one too
            print(f"model: {PRETRAINED} cannot be had here, so it is a small BERT with new weights")
            model = ""
    if model:
        return model, models.pretrained_bert_tokenizer(model)
    tokenizer = train_tokenizer(rows, vocab_size)
    print(f"tokenizer: {len(tokenizer):,} WordPiece tokens, made from {len(rows):,} rows")
    return "", tokenizer
