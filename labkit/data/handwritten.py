"""Handwritten digits: scikit-learn's small ones, MNIST, or any pictures in MNIST's form."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.base import hub

if TYPE_CHECKING:
    import torch

SPLITS = ("train", "test")
MNIST = "ylecun/mnist"
_N_SHIPPED_TRAIN = 1500


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

    ``source`` is ``"auto"`` (see :mod:`labkit.data`), ``"shipped"``, ``"hub"``, a folder, or a data
    set's name on the hub. A folder is one that ``datasets.load_dataset`` reads, or has one as
    ``mnist/`` below it, with the columns ``image`` and ``label``: MNIST's Parquet files, or
    ``train/0/*.png`` to ``test/9/*.png``. ``LABKIT_DATA`` may name a folder of other data alone:
    without an ``mnist/`` in it, ``"auto"`` goes on to the hub.

    Shipped are scikit-learn's, 8×8: the first 1,500 are for training, the last 297 for testing.

    Raises ValueError for an unknown split, other columns, pictures of several sizes, labels outside
    0 to 9 or an empty data set, and FileNotFoundError for a source that is not there.
    """
    if split not in SPLITS:
        raise ValueError(f"split is {split!r}, expected 'train' or 'test'")
    found, described = _digits(split, os.fspath(source))
    if not len(found):
        raise ValueError(f"{described}: the {split} split is empty, expected at least one picture")
    height, width = found.images.shape[-2:]
    print(f"digits, {split}: {len(found):,} pictures of {height}×{width} from {described}")
    return found


def _digits(split: str, source: str) -> tuple[Digits, str]:
    """Return the digits and a description of their source, for the printed line."""
    if source == "auto":
        return _digits_auto(split)
    if source == "shipped":
        return _shipped(split)
    if source == "hub":
        return _load_dataset(MNIST, split), f"the hub: {MNIST}"
    if (folder := Path(source)).is_dir():
        below = folder / "mnist"
        return _load_dataset(str(below if below.is_dir() else folder), split), f"the folder {source}"
    if re.fullmatch(r"[\w.-]+/[\w.-]+", source) and not source.startswith("."):
        return _load_dataset(source, split), f"the hub: {source}"
    raise FileNotFoundError(
        f"source is {source!r}, which is not a folder; expected 'auto', 'shipped', 'hub', a folder, or owner/name on the hub"
    )


def _digits_auto(split: str) -> tuple[Digits, str]:
    if named := os.environ.get("LABKIT_DATA"):
        if not Path(named).is_dir():
            raise FileNotFoundError(f"LABKIT_DATA is {named!r}, which is not a folder; correct it or unset it")
        if (folder := Path(named) / "mnist").is_dir():
            return _load_dataset(str(folder), split), f"LABKIT_DATA: {folder}"
    if hub.reachable():
        try:
            return _load_dataset(MNIST, split), f"the hub: {MNIST}"
        except Exception as error:
            print(f"digits: the hub answers, but {error}")
    return _shipped(split)


def _shipped(split: str) -> tuple[Digits, str]:
    import torch
    from sklearn.datasets import load_digits

    # As they were collected, one writer after the other: few hands, if any, are in both parts.
    bunch = load_digits()
    part = slice(_N_SHIPPED_TRAIN) if split == "train" else slice(_N_SHIPPED_TRAIN, None)
    images = torch.from_numpy(bunch.images[part]).float()[:, None] / 16  # ink is counted from 0 to 16
    return Digits(images, torch.from_numpy(bunch.target[part]).long(), "shipped"), "scikit-learn, which ships them"


def _load_dataset(name_or_folder: str, split: str) -> Digits:
    if not Path(name_or_folder).is_dir():
        hub.require(f"the data set {name_or_folder}")
    import numpy as np
    import torch
    from datasets import Image, load_dataset

    rows: Any = load_dataset(name_or_folder, split=split)
    columns = rows.column_names or []
    if not {"image", "label"} <= set(columns):
        raise ValueError(f"{name_or_folder} has the columns {', '.join(columns)}; expected 'image' and 'label'")
    rows = rows.cast_column("image", Image(mode="L"))
    pictures = [np.asarray(image) for image in rows["image"]]
    if len(shapes := {picture.shape for picture in pictures}) > 1:
        raise ValueError(f"{name_or_folder} has pictures of several sizes: {sorted(shapes)}; expected one")
    labels = torch.tensor(rows["label"][:], dtype=torch.int64)
    if not ((labels >= 0) & (labels <= 9)).all():
        raise ValueError(f"{name_or_folder} has labels from {labels.min()} to {labels.max()}; expected 0 to 9")
    images = torch.from_numpy(np.stack(pictures))[:, None].float() / 255 if pictures else torch.empty(0, 1, 0, 0)
    return Digits(images, labels, name_or_folder)
