"""The digits that ship are scikit-learn's, each in one split, in tensors for a DataLoader."""

import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader

from labkit import data


def test_the_shipped_digits_are_all_of_scikit_learns_each_in_one_split(capsys):
    train, test = (data.digits(split, "shipped") for split in ("train", "test"))
    assert (len(train), len(test)) == (1500, 297)
    images = torch.cat([train.images, test.images])
    assert torch.equal(images.flatten(1), torch.tensor(load_digits().data / 16, dtype=torch.float32))
    assert torch.cat([train.labels, test.labels]).tolist() == load_digits().target.tolist()
    assert len(images.flatten(1).unique(dim=0)) == 1797  # no picture occurs twice, so none is in both
    assert "digits, train: 1,500 pictures from scikit-learn, which ships them\n" in capsys.readouterr().out
    for counts in (train.labels.bincount(), test.labels.bincount()):
        assert len(counts) == 10 and counts.max() < 1.3 * counts.min()


def test_a_data_loader_makes_batches_of_them():
    digits = data.digits("test", "shipped")
    image, label = digits[0]
    assert (image.shape, image.dtype, type(label)) == ((1, 8, 8), torch.float32, int)
    batches = [(images.shape, labels.shape, labels.dtype) for images, labels in DataLoader(digits, batch_size=100)]
    assert batches[0] == ((100, 1, 8, 8), (100,), torch.int64) and batches[-1][1] == (97,)
