"""Entailment as BERT sees it, from text to a count of right answers.

A sequence is: ``[CLS]`` sentence1 ``[SEP]`` sentence2 ``[SEP]`` ``[PAD]`` … Token types tell the
two sentences apart, and the class is read off the place of ``[CLS]`` (Devlin et al. 2018).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from labkit import data
from labkit.base import hub

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PAD, UNKNOWN, CLS, SEP = "[PAD]", "[UNK]", "[CLS]", "[SEP]"
MARKS = [PAD, UNKNOWN, CLS, SEP, "[MASK]"]  # a trained vocabulary begins with them, in this order
PAD_ID = 0
SIDES = ("sentence1", "sentence2")
N_MARKS_OF_A_PAIR = 3
NO_LOSS = -100  # the label that cross_entropy passes over


# --- text to token numbers ------------------------------------------------------------------------


def train_tokenizer(rows: Sequence[dict[str, Any]], vocab_size: int) -> Tokenizer:
    """Return a WordPiece tokenizer as BERT's uncased one, trained on both sentences of ``rows``.

    The same rows give the same tokenizer. Its vocabulary has at most ``vocab_size`` tokens, among
    them five marks and every character of the text, alone and inside a word. Raises ValueError
    where these alone are more.
    """
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

    def uncased(model: models.WordPiece) -> Tokenizer:
        tokenizer = Tokenizer(model)
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        return tokenizer

    learner = uncased(models.WordPiece(unk_token=UNKNOWN))
    characters = sorted(
        {c for row in rows for side in SIDES for c in learner.normalizer.normalize_str(row[side])} - {" "}
    )
    # The trainer numbers a word's inner characters in an order that changes from run to run, and
    # breaks ties by these numbers, unless it is given the characters as if they were marks.
    given = [*MARKS, *characters, *(f"##{character}" for character in characters)]
    if vocab_size < len(given):
        raise ValueError(
            f"vocab_size is {vocab_size}, expected at least {len(given)}: {len(MARKS)} marks and "
            f"{len(characters)} characters, alone and inside a word"
        )
    trainer = trainers.WordPieceTrainer(vocab_size=vocab_size, special_tokens=given, show_progress=False)
    learner.train_from_iterator((row[side] for row in rows for side in SIDES), trainer)
    tokenizer = uncased(models.WordPiece(learner.get_vocab(), unk_token=UNKNOWN))
    tokenizer.add_special_tokens(MARKS)
    sep, cls = ((mark, MARKS.index(mark)) for mark in (SEP, CLS))
    tokenizer.post_processor = processors.BertProcessing(sep, cls)
    return tokenizer


def pretrained_tokenizer(name_or_folder: str | os.PathLike[str]) -> Tokenizer:
    """Return the tokenizer of a trained BERT: from a folder, or by its name on the hub.

    Raises ValueError for one that is not BERT's, FileNotFoundError for a folder without one, and
    ConnectionError, within seconds, where the hub is needed and does not answer.
    """
    from transformers import BertTokenizer

    name = os.fspath(name_or_folder)

    def load(local_files_only: bool) -> Tokenizer:
        tokenizer = BertTokenizer.from_pretrained(name, local_files_only=local_files_only).backend_tokenizer
        if tokenizer.get_vocab_size() <= len(MARKS):  # what transformers makes of a place without one
            raise FileNotFoundError(f"{name} has no tokenizer: expected tokenizer.json or vocab.txt with its tokens")
        return tokenizer

    tokenizer = hub.local_first(name, load)
    if (pad := tokenizer.token_to_id(PAD)) != PAD_ID:
        raise ValueError(f"{name} has another tokenizer than BERT's: {PAD} is token {pad}, expected {PAD_ID}")
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


@dataclass(frozen=True)
class Example:
    """A pair of sentences as token numbers, with marks. The first sentence is of type 0."""

    input_ids: list[int]
    token_type_ids: list[int]
    label: int

    def __len__(self) -> int:
        return len(self.input_ids)


def encode(rows: Sequence[dict[str, Any]], tokenizer: Tokenizer, max_length: int) -> list[Example]:
    """Return each row's tokens, at most ``max_length``: of the longer sentence the end is cut.

    Raises ValueError where ``max_length`` leaves no room for a token of either sentence.
    """
    if max_length < N_MARKS_OF_A_PAIR + 2:
        raise ValueError(f"max_length is {max_length}, expected at least 5: three marks and a token of each sentence")
    tokenizer.enable_truncation(max_length, strategy="longest_first")
    encoded = tokenizer.encode_batch([(row["sentence1"], row["sentence2"]) for row in rows])
    tokenizer.no_truncation()
    return [Example(e.ids, e.type_ids, row["label"]) for e, row in zip(encoded, rows, strict=True)]


# --- token numbers to batches ---------------------------------------------------------------------


@dataclass
class Batch:
    """B examples, padded to T tokens: three of (B, T) int64, and ``labels`` (B,) int64.

    ``attention_mask`` is 1 at a token and 0 at padding. ``n_targets`` counts the labels that count
    in the loss, ``n_tokens`` the tokens without padding. A batch of no example has one row all the
    same, which counts nowhere.
    """

    input_ids: torch.Tensor
    attention_mask: torch.Tensor
    token_type_ids: torch.Tensor
    labels: torch.Tensor
    n_targets: int
    n_tokens: int

    def __len__(self) -> int:
        return self.n_targets

    def to(self, device: torch.device) -> Batch:
        return Batch(
            self.input_ids.to(device),
            self.attention_mask.to(device),
            self.token_type_ids.to(device),
            self.labels.to(device),
            self.n_targets,
            self.n_tokens,
        )


def collate(examples: Sequence[Example], length: int | None = None) -> Batch:
    """Return a batch of examples, padded to the longest, or to ``length`` tokens.

    No examples at all give a row of padding without a loss: a rank that has none left still takes
    part in forward and backward, and so in the averaging. Raises ValueError for an example of more
    than ``length``.
    """
    longest = max(map(len, examples), default=1)
    if length is not None and length < longest:
        raise ValueError(f"length is {length}, but an example has {longest} tokens; encode with that max_length")
    shape = max(len(examples), 1), length or longest
    input_ids, mask, types = torch.full(shape, PAD_ID), torch.zeros(shape).long(), torch.zeros(shape).long()
    labels = torch.full(shape[:1], NO_LOSS)
    for row, example in enumerate(examples):
        n = len(example)
        input_ids[row, :n], mask[row, :n] = torch.tensor(example.input_ids), 1
        types[row, :n], labels[row] = torch.tensor(example.token_type_ids), example.label
    if not examples:
        mask[0, 0] = 1  # attention to nothing at all would be 0 / 0
    return Batch(input_ids, mask, types, labels, len(examples), sum(map(len, examples)))


def logits(model: torch.nn.Module, batch: Batch) -> torch.Tensor:
    """Return the model's logits, (B, classes)."""
    return model(
        input_ids=batch.input_ids, attention_mask=batch.attention_mask, token_type_ids=batch.token_type_ids
    ).logits


def summed_loss(model: torch.nn.Module, batch: Batch) -> torch.Tensor:
    """Return the cross-entropy of the batch's rows, summed, in nats. A scalar.

    A sum, so that it adds up over batches and ranks; divided by ``batch.n_targets`` it is the loss
    per row.
    """
    return F.cross_entropy(logits(model, batch).float(), batch.labels, ignore_index=NO_LOSS, reduction="sum")


@torch.no_grad()
def count_correct(model: torch.nn.Module, batch: Batch) -> int:
    """Return how many rows the model puts into the right class, in the mode that it is in."""
    return int((logits(model, batch).argmax(1) == batch.labels).sum())


# --- all of it, ready for training ----------------------------------------------------------------


@dataclass(frozen=True)
class Corpus:
    """The data of a training run. ``source`` says where the rows are from.

    ``tokenizer`` is JSON text, which travels to other processes.
    """

    source: str
    tokenizer: str
    vocab_size: int
    train: list[Example]
    validation: list[Example]


def load_corpus(
    source: str = "auto",
    model: str = "",
    vocab_size: int = 2000,
    max_length: int = 128,
    limit: int | None = None,
    limit_eval: int | None = None,
) -> Corpus:
    """Load RTE's two splits and encode them.

    ``source`` is as :func:`labkit.data.rte` takes it. ``model`` is a pretrained model, a folder or
    a name on the hub, whose tokenizer is taken; without one, a tokenizer of at most ``vocab_size``
    tokens is trained on the training rows. ``limit`` takes that many training rows from the front,
    ``limit_eval`` that many of validation. Rows of more than ``max_length`` tokens are cut. Printed
    lines say what was used.
    """
    # The tokenizer first: what is wrong with it comes before the data are read.
    pretrained = pretrained_tokenizer(model) if model else None
    train = data.rte("train", source)
    validation = data.rte("validation", train.source)
    parts = {"train": train[:limit], "validation": validation[:limit_eval]}
    for split, whole in (("train", train), ("validation", validation)):
        if len(parts[split]) < len(whole):
            print(f"{split}: the first {len(parts[split]):,} of {len(whole):,} rows are used")
    tokenizer = pretrained or train_tokenizer(parts["train"], vocab_size)
    described = f"of {model}" if model else "trained on the training rows"
    print(f"tokenizer: {tokenizer.get_vocab_size():,} tokens, {described}")
    examples = {split: encode(rows, tokenizer, max_length) for split, rows in parts.items()}
    return Corpus(
        train.source, tokenizer.to_str(), tokenizer.get_vocab_size(), examples["train"], examples["validation"]
    )
