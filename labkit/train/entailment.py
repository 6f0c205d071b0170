"""Stand-in, until the branch data is merged."""

from __future__ import annotations
from dataclasses import dataclass
from typing import Any
import torch
import torch.nn.functional as F

NO_LOSS = -100


@dataclass(frozen=True)
class Example:
    input_ids: list[int]
    token_type_ids: list[int]
    label: int

    def __len__(self):
        return len(self.input_ids)


@dataclass
class Batch:
    input_ids: torch.Tensor
    attention_mask: torch.Tensor
    token_type_ids: torch.Tensor
    labels: torch.Tensor
    n_targets: int
    n_tokens: int

    def __len__(self):
        return len(self.input_ids)

    def to(self, device):
        return Batch(
            self.input_ids.to(device),
            self.attention_mask.to(device),
            self.token_type_ids.to(device),
            self.labels.to(device),
            self.n_targets,
            self.n_tokens,
        )


@dataclass(frozen=True)
class Corpus:
    source: str
    tokenizer: str
    vocab_size: int
    train: list[Example]
    validation: list[Example]


def collate(examples, length=None):
    n = max(1, len(examples))
    length = length or max(map(len, examples))
    ids, mask, types = (
        torch.zeros(n, length, dtype=torch.int64),
        torch.zeros(n, length, dtype=torch.int64),
        torch.zeros(n, length, dtype=torch.int64),
    )
    labels = torch.full((n,), NO_LOSS)
    mask[:, 0] = 1
    for r, e in enumerate(examples):
        k = len(e)
        ids[r, :k] = torch.tensor(e.input_ids)
        mask[r, :k] = 1
        types[r, :k] = torch.tensor(e.token_type_ids)
        labels[r] = e.label
    return Batch(ids, mask, types, labels, len(examples), sum(map(len, examples)))


def logits(model, batch):
    return model(
        input_ids=batch.input_ids, attention_mask=batch.attention_mask, token_type_ids=batch.token_type_ids
    ).logits


def summed_loss(model, batch):
    return F.cross_entropy(logits(model, batch).float(), batch.labels, ignore_index=NO_LOSS, reduction="sum")


def count_correct(model, batch):
    return int((logits(model, batch).argmax(1) == batch.labels).sum())


def load_corpus(source="auto", model="", vocab_size=300, max_length=128, limit=None, limit_eval=None):
    g = torch.Generator().manual_seed(0)

    def rows(n):
        out = []
        for i in range(n):
            k = int(torch.randint(6, 20, (1,), generator=g))
            ids = torch.randint(5, vocab_size, (k,), generator=g).tolist()
            out.append(Example([2, *ids, 3], [0] * (k // 2) + [1] * (k + 2 - k // 2), int(ids[0] % 2)))
        return out

    return Corpus("random", "", vocab_size, rows(limit or 500), rows(limit_eval or 50))
