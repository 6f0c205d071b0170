"""The lecture's script trains in two terminals what one process trains that takes the shares one
after the other."""

from __future__ import annotations

import gzip
import re
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler
from warm_python import Program

from labkit.base.rendezvous import free_port

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "digits_by_hand.py"
LINE = re.compile(r"Epoch \[(\d)/2\], Step \[(\d+)/15\], Loss: (\d\.\d{4})")


def start(rank: int, port: int) -> Program:
    command = [SCRIPT, "-w", "2", "-nr", str(rank), "-g", "-1", "--epochs", "2"]
    command += ["--master_addr", "127.0.0.1", "--master_port", str(port)]
    return Program(*command, OMP_NUM_THREADS="1")


def in_one_process() -> tuple[dict[tuple[int, int], list[float]], float]:
    """Each rank's losses by epoch and step, and the accuracy: the two shares of a batch one after
    the other, as batch norm sees them alone, with the mean of their losses as the loss."""
    script = runpy.run_path(str(SCRIPT))
    dataset, test = script["digits"]()
    torch.manual_seed(0)
    model = script["ConvNet"]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = {}
    for epoch in (1, 2):
        samplers = [DistributedSampler(dataset, 2, rank, seed=0) for rank in range(2)]
        for sampler in samplers:
            sampler.set_epoch(epoch)
        loaders = [DataLoader(dataset, 50, sampler=sampler) for sampler in samplers]
        for step, shares in enumerate(zip(*loaders, strict=True), start=1):
            both = [cross_entropy(model(images), labels) for images, labels in shares]
            optimizer.zero_grad()
            torch.stack(both).mean().backward()
            optimizer.step()
            losses[epoch, step] = [loss.item() for loss in both]
    correct = model.eval()(test.tensors[0]).argmax(dim=1) == test.tensors[1]
    return losses, correct.float().mean().item()


@pytest.fixture(autouse=True)
def _no_data(monkeypatch) -> None:
    monkeypatch.delenv("LABKIT_DATA", raising=False)


def test_mnist_s_own_files_are_read_from_labkit_data(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "mnist").mkdir()
    for part, numbers in {"train": (7, 0, 9), "t10k": (2,)}.items():
        images = np.stack([np.full((28, 28), 25 * number, dtype=np.uint8) for number in numbers])
        images[:, 0, 1] = 255  # the first row, the second column
        files = {"images-idx3": b"\0\0\b\x03" + 12 * b"\1" + images.tobytes(), "labels-idx1": bytes([0, 0, 8, 1])}
        files["labels-idx1"] += 4 * b"\1" + bytes(numbers)
        for name, content in files.items():
            (tmp_path / "mnist" / f"{part}-{name}-ubyte.gz").write_bytes(gzip.compress(content))
    monkeypatch.setenv("LABKIT_DATA", str(tmp_path))
    train, test = runpy.run_path(str(SCRIPT))["digits"]()
    images, labels = train.tensors
    assert (images.shape, labels.tolist(), len(test)) == ((3, 1, 28, 28), [7, 0, 9], 1)
    assert images[0, 0, 5, 5] == 175 / 255 and images[1, 0, 0].tolist() == [0, 1, *26 * [0]]


@pytest.mark.slow
def test_two_terminals_train_what_one_process_trains_that_adds_up_their_gradients() -> None:
    port = free_port()
    both = [each.ended() for each in [start(rank, port) for rank in (0, 1)]]
    expected, accuracy = in_one_process()
    for rank, done in enumerate(both):
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(f"Hello from rank {rank} of 2, process ")
        printed = {(int(line[0]), int(line[1])): float(line[2]) for line in LINE.findall(done.stdout)}
        assert printed.keys() == {(epoch, step) for epoch in (1, 2) for step in (5, 10, 15)}
        for at, loss in printed.items():
            assert loss == pytest.approx(expected[at][rank], abs=4e-3)
    found = re.search(r"Accuracy on 297 test images: (\d\.\d{4})", both[0].stdout)
    assert found and float(found[1]) == pytest.approx(accuracy, abs=0.05) and accuracy > 0.8
    assert "Accuracy" not in both[1].stdout
