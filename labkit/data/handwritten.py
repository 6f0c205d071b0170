"""Handwritten digits: scikit-learn's small ones, MNIST, or any pictures in MNIST's form."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.data.sources import check_columns, labkit_data, load_table

if TYPE_CHECKING:
    import torch

_N_SHIPPED_TRAIN = 1500
_MNIST = "ylecun/mnist"  # on the hub


@dataclass(frozen=True)
class Digits:
    """N handwritten digits, a map-style data set: ``digits[i]`` is a picture and its number.

    ``images`` are (N, 1, H, W) float32 from 0 (paper) to 1 (ink), ``labels`` (N,) int64 from 0 to
    9. ``source`` says where they are from: :func:`digits` takes it as its own.

        image, label = digits("train")[0]           # a tensor (1, 8, 8), an int
        DataLoader(digits("train"), batch_size=100) # batches (100, 1, 8, 8) and (100,)
    """

    images: torch.Tensor
    labels: torch.Tensor
    source: str

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.images[index], int(self.labels[index])


def digits(split: str, source: str | os.PathLike[str] = "auto") -> Digits:
    """Return the handwritten digits of a split: ``"train"`` or ``"test"``. MNIST has no validation.

    ``source`` is ``"auto"`` (the folder ``LABKIT_DATA`` if it has an ``mnist/``, else what ships),
    ``"shipped"``, ``"hub"``, a data set's name on the hub, or a folder. A folder is one that
    ``datasets.load_dataset`` reads, or has one as ``mnist/`` below it, with the columns ``image``
    and ``label``: MNIST's Parquet files, or ``train/0/*.png`` to ``test/9/*.png``.

    Shipped are scikit-learn's, 8×8: the first 1,500 are for training, the last 297 for testing.

    Raises ValueError for an unknown split, other columns, pictures of several sizes or labels
    outside 0 to 9, and FileNotFoundError for a source that is not there.
    """
    if split not in ("train", "test"):
        raise ValueError(f"split is {split!r}, expected 'train' or 'test'")
    source = os.fspath(source)
    if source == "auto":
        named = labkit_data() or ""
        source = named if Path(named, "mnist").is_dir() else "shipped"
    if source == "shipped":
        found, where = _shipped(split), "scikit-learn, which ships them"
    else:
        below = Path(source, "mnist")
        source = _MNIST if source == "hub" else str(below) if below.is_dir() else source
        expected = f"expected MNIST's {split}-….parquet, or pictures as {split}/0/….png to {split}/9/….png"
        where, table = load_table(source, split, "picture", expected)
        found = _from_table(table, source)
    print(f"digits, {split}: {len(found):,} pictures from {where}")
    return found


def _shipped(split: str) -> Digits:
    import torch
    from sklearn.datasets import load_digits

    # Not shuffled: neighbours are often by one writer, whose hand would then be in both parts.
    bunch = load_digits()
    part = slice(_N_SHIPPED_TRAIN) if split == "train" else slice(_N_SHIPPED_TRAIN, None)
    images = torch.from_numpy(bunch.images[part]).float()[:, None] / 16  # ink is counted from 0 to 16
    return Digits(images, torch.from_numpy(bunch.target[part]).long(), "shipped")


def _from_table(table: Any, name: str) -> Digits:
    import numpy as np
    import torch
    from datasets import Image

    check_columns(table, name, ("image", "label"))
    pictures = [np.asarray(picture) for picture in table.cast_column("image", Image(mode="L"))["image"]]
    if len(shapes := {picture.shape for picture in pictures}) != 1:
        raise ValueError(f"{name} has pictures of {len(shapes)} sizes: {sorted(shapes)}; expected one")
    labels = torch.tensor(table["label"][:], dtype=torch.int64)
    if not ((labels >= 0) & (labels <= 9)).all():
        raise ValueError(f"{name} has labels from {labels.min()} to {labels.max()}; expected 0 to 9")
    images = torch.from_numpy(np.stack(pictures))[:, None].float() / 255
    return Digits(images, labels, name)
