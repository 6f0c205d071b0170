"""Translation as a language model sees it, from text to BLEU.

A sequence is: source ``<eos_de>`` target ``<eos_en>`` ``<pad>`` … As in the GPT-2 assignment of
CMU's course on LLM systems (11-868): one decoder reads the sentence in one language, there German,
then writes it in the other; only the target's tokens count in the loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from labkit import data
from labkit.train.trainer import Batch

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PAD, EOS_DE, EOS_EN = "<pad>", "<eos_de>", "<eos_en>"
PAD_ID, EOS_DE_ID, EOS_EN_ID = 0, 1, 2  # special tokens come first in a trained vocabulary, in this order
NO_LOSS = -100  # the label that cross_entropy passes over


# --- text to token numbers ------------------------------------------------------------------------


def train_tokenizer(pairs: Sequence[dict[str, str]], vocab_size: int) -> Tokenizer:
    """Return a byte-level BPE tokenizer trained on both sides of ``pairs``.

    Its one vocabulary has at most ``vocab_size`` tokens. 256 bytes and three marks are always in
    it, so no text is unknown to it. Raises ValueError for fewer than 259.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    marks = [PAD, EOS_DE, EOS_EN]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    if vocab_size < len(alphabet) + len(marks):
        minimum = f"{len(alphabet) + len(marks)}: {len(alphabet)} bytes and {len(marks)} marks"
        raise ValueError(f"vocab_size is {vocab_size}, expected at least {minimum}")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=marks, initial_alphabet=sorted(alphabet), show_progress=False
    )
    tokenizer.train_from_iterator((sentence for pair in pairs for sentence in pair.values()), trainer)
    return tokenizer


@dataclass(frozen=True)
class Example:
    """A sentence pair as token numbers, which end with ``<eos_de>`` and ``<eos_en>``."""

    source: list[int]
    target: list[int]

    def __len__(self) -> int:
        return len(self.source) + len(self.target)


def encode(pairs: Sequence[dict[str, str]], tokenizer: Tokenizer) -> list[Example]:
    """Return each pair's token numbers, with the mark that ends a sentence after either side."""
    sources, targets = (tokenizer.encode_batch(list(side)) for side in zip(*(p.values() for p in pairs), strict=True))
    return [
        Example([*one.ids, EOS_DE_ID], [*other.ids, EOS_EN_ID]) for one, other in zip(sources, targets, strict=True)
    ]


# --- token numbers to batches ---------------------------------------------------------------------


def collate(examples: Sequence[Example]) -> Batch:
    """Return a batch of examples, padded to the longest: inputs and labels of (B, T) int64.

    Label t is the input at t + 1, or NO_LOSS except where a target token is to be predicted. The
    first of them is predicted from ``<eos_de>``.
    """
    length = max(map(len, examples)) - 1  # the last token is a label only
    inputs = torch.full((len(examples), length), PAD_ID)
    labels = torch.full((len(examples), length), NO_LOSS)
    for row, example in enumerate(examples):
        tokens = torch.tensor(example.source + example.target)
        inputs[row, : len(tokens) - 1] = tokens[:-1]
        labels[row, len(example.source) - 1 : len(tokens) - 1] = tokens[len(example.source) :]
    return Batch(inputs, labels, sum(len(example.target) for example in examples), sum(map(len, examples)))


def target_loss(model: torch.nn.Module, batch: Batch) -> torch.Tensor:
    """Return the negative log-likelihood of the batch's target tokens, summed, in nats. A scalar.

    A sum, so that it adds up over batches and ranks; divided by ``batch.n_targets`` it is the loss
    per token.
    """
    # No attention mask: padding comes after the text, and a causal model never looks ahead.
    return summed_loss(model(input_ids=batch.inputs, use_cache=False).logits, batch.labels)


def summed_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the same, from logits (B, T, vocab) and labels (B, T)."""
    return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), ignore_index=NO_LOSS, reduction="sum")


# --- writing translations, and judging them -------------------------------------------------------


def generate(model: Any, prompts: Sequence[list[int]], max_length: int, batch_size: int = 64) -> list[list[int]]:
    """Return greedy translations of ``prompts``, sources that end with ``<eos_de>``.

    transformers' own ``generate`` writes them. A translation ends before ``<eos_en>``, or where the
    longest prompt of its batch and the translation have ``max_length`` tokens together. They come
    in the order of the prompts. Prompts of similar length share a batch.
    """
    from transformers import GenerationConfig

    model.eval()
    device = next(model.parameters()).device
    settings = GenerationConfig(
        max_length=max_length, do_sample=False, pad_token_id=PAD_ID, bos_token_id=EOS_DE_ID, eos_token_id=EOS_EN_ID
    )
    translations: list[list[int]] = [[] for _ in prompts]
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    for start in range(0, len(order), batch_size):
        members = order[start : start + batch_size]
        longest = len(prompts[members[-1]])
        if longest >= max_length:  # no room to write anything
            continue
        # Padding goes to the left, so that all prompts end in the same column.
        padding = [longest - len(prompts[i]) for i in members]
        rows = [[PAD_ID] * n + prompts[i] for n, i in zip(padding, members, strict=True)]
        inputs = torch.tensor(rows, device=device)
        mask = (torch.arange(longest) >= torch.tensor(padding)[:, None]).long().to(device)
        written = model.generate(inputs=inputs, attention_mask=mask, generation_config=settings)
        for i, row in zip(members, written[:, longest:].tolist(), strict=True):
            translations[i] = row[: row.index(EOS_EN_ID)] if EOS_EN_ID in row else row
    return translations


def bleu(translations: Sequence[str], references: Sequence[str]) -> float:
    """Return corpus BLEU, 0 to 100, by sacrebleu's default settings.

    Its reports sign these as ``13a``, ``exp``, mixed case. Raises ValueError for lists of different
    length or none at all.
    """
    from sacrebleu.metrics.bleu import BLEU

    if len(translations) != len(references) or not references:
        there = f"{len(translations)} translations and {len(references)} references"
        raise ValueError(f"{there}; expected as many, not none")
    return BLEU().corpus_score(list(translations), [list(references)]).score


# --- all of it, ready for training ----------------------------------------------------------------


@dataclass(frozen=True)
class Corpus:
    """The data of a training run. ``references`` are the English sentences of ``test``, as text.

    ``source`` says where the sentences are from. ``tokenizer`` is the trained tokenizer as JSON
    text, which travels to other processes; :meth:`decode` makes text of token numbers.
    """

    source: str
    tokenizer: str
    vocab_size: int
    train: list[Example]
    validation: list[Example]
    test: list[Example]
    references: list[str]

    def decode(self, translations: Sequence[list[int]]) -> list[str]:
        from tokenizers import Tokenizer

        return Tokenizer.from_str(self.tokenizer).decode_batch([list(tokens) for tokens in translations])


def load_corpus(
    source: str = "auto",
    vocab_size: int = 2000,
    max_length: int = 128,
    limit: int | None = None,
    limit_eval: int = 256,
    languages: Sequence[str] = data.GERMAN_ENGLISH,
) -> Corpus:
    """Load the three splits, train the tokenizer on the training sentences, and encode everything.

    ``limit`` takes that many training pairs from the front, ``limit_eval`` that many of validation
    and of test. An example of more than ``max_length`` tokens is left out of training and
    validation; a test sentence is never left out, but a source of more than half of ``max_length``
    is cut to that half. Printed lines count what was left out.
    """
    train = data.translation("train", source, languages)
    validation, test = (data.translation(split, train.source, languages) for split in ("validation", "test"))
    parts = {"train": train[:limit], "validation": validation[:limit_eval], "test": test[:limit_eval]}
    tokenizer = train_tokenizer(parts["train"], vocab_size)
    examples = {split: encode(pairs, tokenizer) for split, pairs in parts.items()}
    for split, whole in zip(parts, (train, validation, test), strict=True):
        if len(parts[split]) < len(whole):
            print(f"{split}: the first {len(parts[split]):,} of {len(whole):,} pairs are used")
    return Corpus(
        train.source,
        tokenizer.to_str(),
        tokenizer.get_vocab_size(),
        _short_enough(examples["train"], max_length, "train"),
        _short_enough(examples["validation"], max_length, "validation"),
        _cut_sources(examples["test"], max_length // 2),
        [pair[languages[1]] for pair in parts["test"]],
    )


def _short_enough(examples: list[Example], max_length: int, split: str) -> list[Example]:
    short = [example for example in examples if len(example) <= max_length]
    if not short:
        raise ValueError(
            f"{split}: none of {len(examples):,} examples has at most {max_length} tokens; raise max_length "
            f"(the shortest has {min(map(len, examples))})"
        )
    if len(short) < len(examples):
        which = f"{len(examples) - len(short):,} of {len(examples):,} pairs"
        print(f"{split}: {which} have more than {max_length} tokens: left out")
    return short


def _cut_sources(examples: list[Example], longest: int) -> list[Example]:
    cut = [example for example in examples if len(example.source) > longest]
    if cut:
        which = f"{len(cut):,} of {len(examples):,} sources"
        print(f"test: {which} have more than {longest} tokens: cut, to leave room to translate")

    def shortened(source: list[int]) -> list[int]:
        return source if len(source) <= longest else [*source[: longest - 1], EOS_DE_ID]

    return [Example(shortened(example.source), example.target) for example in examples]
