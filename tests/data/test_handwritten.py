"""Digits are the published ones, in tensors that a DataLoader takes; MNIST's forms are read, and
what is none of them is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader

from labkit import data
from labkit.base import hub


@pytest.fixture(autouse=True)
def no_source_from_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As on a machine without a network and without LABKIT_DATA, unless a test says otherwise."""
    monkeypatch.delenv("LABKIT_DATA", raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets-cache")


def picture(number: int, side: int = 28) -> Image.Image:
    """A white square on black, as bright as its number."""
    return Image.fromarray(np.full((side, side), 25 * number, dtype=np.uint8))


def write_parquet(folder: Path, split: str, numbers: list[int], **columns: list[object]) -> Path:
    """Write pictures as ylecun/mnist has them, and return the folder."""
    import datasets

    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(num_classes=10)})
    rows = datasets.Dataset.from_dict({"image": [picture(n) for n in numbers], "label": numbers}, features=features)
    rows.to_parquet(folder / "mnist" / f"{split}-00000-of-00001.parquet")
    return folder


# --- the digits that ship -------------------------------------------------------------------------


def test_the_shipped_digits_are_all_of_scikit_learns_each_in_one_split(capsys: pytest.CaptureFixture[str]) -> None:
    train, test = (data.digits(split, "shipped") for split in ("train", "test"))
    assert (len(train), len(test)) == (1500, 297)
    images = torch.cat([train.images, test.images])
    assert torch.equal(images.flatten(1), torch.tensor(load_digits().data / 16, dtype=torch.float32))
    assert torch.cat([train.labels, test.labels]).tolist() == load_digits().target.tolist()
    assert len(images.flatten(1).unique(dim=0)) == 1797  # no picture occurs twice, so none is in both
    assert "digits, train: 1,500 pictures from scikit-learn, which ships them\n" in capsys.readouterr().out


def test_each_split_has_all_ten_digits_about_equally_often() -> None:
    for split in ("train", "test"):
        counts = data.digits(split, "shipped").labels.bincount()
        assert len(counts) == 10
        assert counts.max() < 1.3 * counts.min()


def test_a_data_loader_makes_batches_of_them() -> None:
    digits = data.digits("test", "shipped")
    image, label = digits[0]
    assert (image.shape, image.dtype, type(label)) == ((1, 8, 8), torch.float32, int)
    assert (digits.images.min(), digits.images.max()) == (0, 1)
    images, labels = next(iter(DataLoader(digits, batch_size=100)))
    assert (images.shape, labels.shape, labels.dtype) == ((100, 1, 8, 8), (100,), torch.int64)
    assert sum(len(labels) for _, labels in DataLoader(digits, batch_size=100)) == 297


def test_importing_the_data_sets_loads_neither_torch_nor_scikit_learn() -> None:
    code = "import sys, labkit.data; print([m for m in ('torch', 'numpy', 'sklearn', 'datasets') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# --- where the pictures come from -----------------------------------------------------------------


def test_mnist_in_labkit_data_is_taken_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LABKIT_DATA", str(write_parquet(tmp_path, "test", [7, 0])))
    monkeypatch.setattr(hub, "reachable", lambda: pytest.fail("the hub was asked although LABKIT_DATA has MNIST"))
    digits = data.digits("test")
    assert digits.labels.tolist() == [7, 0]
    assert digits.images.shape == (2, 1, 28, 28)
    assert digits[0][0].unique().tolist() == pytest.approx([175 / 255])
    assert f"digits, test: 2 pictures from LABKIT_DATA: {tmp_path}\n" in capsys.readouterr().out


def test_a_labkit_data_folder_of_other_data_leaves_the_digits_that_ship(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LABKIT_DATA", str(tmp_path))
    assert data.digits("test").source == "shipped"
    monkeypatch.setenv("LABKIT_DATA", str(tmp_path / "typo"))
    with pytest.raises(FileNotFoundError, match=r"LABKIT_DATA is .*typo.*not a folder; correct it or unset it"):
        data.digits("test")


@pytest.mark.parametrize("named", ["", "mnist"])
def test_a_named_folder_is_read_as_it_is_or_with_mnist_below_it(named: str, tmp_path: Path) -> None:
    folder = write_parquet(tmp_path, "train", [1, 2, 3]) / named
    digits = data.digits("train", folder)
    assert digits.labels.tolist() == [1, 2, 3]
    assert data.digits("train", digits.source).labels.tolist() == [1, 2, 3]


def test_a_folder_of_picture_files_is_read_and_colour_is_made_grey(tmp_path: Path) -> None:
    for split in ("train", "test"):
        for number in range(10):
            path = tmp_path / split / str(number) / "one.png"
            path.parent.mkdir(parents=True)
            picture(number).convert("RGB").save(path)
    digits = data.digits("test", tmp_path)
    assert digits.images.shape == (10, 1, 28, 28)
    assert {int(label): round(float(image.mean()) * 255) for image, label in digits} == {n: 25 * n for n in range(10)}


def test_the_hub_is_asked_for_mnist_and_a_failure_leaves_the_digits_that_ship(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import datasets

    real, asked = datasets.load_dataset, []
    folder = write_parquet(tmp_path, "train", [4]) / "mnist"

    def load_dataset(name: str, split: str) -> object:
        asked.append(name)
        if len(asked) > 1:
            raise ConnectionError("gone")
        return real(str(folder), split=split)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(hub, "reachable", lambda: True)
    assert data.digits("train").source == "ylecun/mnist"
    assert data.digits("train").source == "shipped"
    assert asked == ["ylecun/mnist", "ylecun/mnist"]
    assert (
        "digits: the hub answers, but none of these could be loaded: ylecun/mnist: ConnectionError: gone"
        in capsys.readouterr().out
    )


# --- what cannot be read --------------------------------------------------------------------------


def test_an_unknown_split_is_refused() -> None:
    with pytest.raises(ValueError, match="split is 'validation', expected 'train' or 'test'"):
        data.digits("validation", "shipped")


def test_a_source_that_is_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="which is not a folder; expected 'auto', 'shipped', 'hub'"):
        data.digits("train", tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"no pictures of the train split; expected MNIST's train-….parquet"):
        data.digits("train", tmp_path)


def test_a_folder_without_the_split_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"mnist has no pictures of the train split"):
        data.digits("train", write_parquet(tmp_path, "test", [1]))


def test_an_empty_data_set_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="mnist has no pictures of the train split"):
        data.digits("train", write_parquet(tmp_path, "train", []))


def test_a_data_set_with_other_columns_is_refused(tmp_path: Path) -> None:
    import datasets

    datasets.Dataset.from_list([{"pixels": [0], "digit": 1}]).to_json(tmp_path / "train.jsonl")
    with pytest.raises(ValueError, match="has the columns pixels, digit; expected 'image' and 'label'"):
        data.digits("train", tmp_path)


def test_pictures_of_several_sizes_and_labels_beyond_nine_are_refused(tmp_path: Path) -> None:
    import datasets

    def write(name: str, sides: list[int], labels: list[int]) -> Path:
        rows = {"image": [picture(1, side) for side in sides], "label": labels}
        features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
        datasets.Dataset.from_dict(rows, features=features).to_parquet(tmp_path / name / "train.parquet")
        return tmp_path / name

    with pytest.raises(ValueError, match=r"pictures of several sizes: \[\(8, 8\), \(28, 28\)\]; expected one"):
        data.digits("train", write("sizes", [28, 8], [1, 2]))
    with pytest.raises(ValueError, match="has labels from 1 to 10; expected 0 to 9"):
        data.digits("train", write("labels", [28, 28], [1, 10]))
