"""The digits are scikit-learn's, each in one split, or MNIST's as its own folder has them."""

import numpy as np
import pytest
import torch
from PIL import Image

from labkit import data


def write_pictures(folder, split="test", numbers=(7, 0), sides=(28, 28)):
    """Write a white square for each number, as bright as that, in the form of ylecun/mnist."""
    import datasets

    folder.mkdir()
    images = [
        Image.fromarray(np.full((side, side), 25 * number, dtype=np.uint8))
        for number, side in zip(numbers, sides, strict=True)
    ]
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    rows = datasets.Dataset.from_dict({"image": images, "label": list(numbers)}, features=features)
    rows.to_parquet(folder / f"{split}-00000-of-00001.parquet")


def test_the_shipped_digits_are_all_of_scikit_learns_each_in_one_split(capsys):
    from sklearn.datasets import load_digits  # a second, here alone

    train, test = (data.digits(split, "shipped") for split in ("train", "test"))
    assert (len(train), len(test)) == (1500, 297)
    images = torch.cat([train.images, test.images])
    assert torch.equal(images.flatten(1), torch.tensor(load_digits().data / 16, dtype=torch.float32))
    assert torch.cat([train.labels, test.labels]).tolist() == load_digits().target.tolist()
    assert len(images.flatten(1).unique(dim=0)) == 1797  # no picture occurs twice, so none is in both
    assert "digits, train: 1,500 pictures from scikit-learn, which ships them\n" in capsys.readouterr().out


def test_auto_takes_mnist_from_labkit_data_and_else_what_ships(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_DATA", str(tmp_path))
    assert data.digits("test").source == "shipped"  # a folder of other data
    write_pictures(tmp_path / "mnist")
    for found in (data.digits("test"), data.digits("test", tmp_path), data.digits("test", tmp_path / "mnist")):
        assert (found.labels.tolist(), found.source) == ([7, 0], str(tmp_path / "mnist"))
        assert found.images.shape == (2, 1, 28, 28)
        assert found[0][0].unique().tolist() == pytest.approx([175 / 255])


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"sides": (28, 8)}, r"pictures of 2 sizes: \[\(8, 8\), \(28, 28\)\]; expected one"),
        ({"numbers": (1, 10)}, "has labels from 1 to 10; expected 0 to 9"),
        ({"split": "validation"}, r"no pictures of the test split; expected MNIST's test-….parquet"),
    ],
)
def test_other_pictures_are_refused(changed, error, tmp_path):
    write_pictures(tmp_path / "mnist", **changed)
    with pytest.raises((ValueError, FileNotFoundError), match=error):
        data.digits("test", tmp_path)


def test_a_split_or_a_source_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(ValueError, match="split is 'validation', expected 'train' or 'test'"):
        data.digits("validation")
    with pytest.raises(FileNotFoundError, match=r"nowhere', which is not a folder; .* In a folder, expected MNIST's"):
        data.digits("train", tmp_path / "nowhere")
