"""The digits task: two ranks train what one process would, however they were started, and the
command refuses what cannot be."""

from __future__ import annotations

import re

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.utils.data import DataLoader, DistributedSampler
from train_commands import by_torchrun, ended, free_port, terminal, without_torchrun

from labkit import models, train
from labkit.data import Digits, digits
from labkit.launch import launch
from labkit.train import digits_task
from labkit.train.digits_task import DigitsConfig, train_digits

SMALL = DigitsConfig("shipped", epochs=2, batch_size=50)


def pictures(n: int = 200) -> tuple[Digits, Digits]:
    train, test = digits("train", "shipped"), digits("test", "shipped")
    return Digits(train.images[:n], train.labels[:n], "shipped"), test


def in_one_process(
    config: DigitsConfig, n_ranks: int, data: tuple[Digits, Digits]
) -> tuple[list[float], torch.nn.Module]:
    """Take each rank's share of a batch one after the other, as its batch norm sees it alone, and
    add up the gradients by hand. Gives the losses and the model."""
    model = models.convnet(8, seed=config.seed).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=config.learning_rate, momentum=0.9)
    losses = []
    for epoch in range(1, config.epochs + 1):
        loaders = []
        for rank in range(n_ranks):
            sampler = DistributedSampler(data[0], n_ranks, rank, seed=config.seed)
            sampler.set_epoch(epoch)
            loaders.append(DataLoader(data[0], config.batch_size // n_ranks, sampler=sampler))
        for shares in zip(*loaders, strict=True):
            mean = torch.stack([F.cross_entropy(model(images), labels) for images, labels in shares]).mean()
            optimizer.zero_grad()
            mean.backward()
            optimizer.step()
            losses.append(mean.item())
    return losses, model


def test_two_ranks_train_what_one_process_does_that_adds_up_the_gradients_of_their_shares(capfd):
    data = pictures()
    first, second = launch(train_digits, SMALL, data, backend="gloo").values
    assert first.losses == second.losses and len(first.losses) == 8
    assert first.losses == pytest.approx(in_one_process(SMALL, 2, data)[0], rel=1e-3)
    # What would be wrong: batch norm over the whole batch is another training.
    alone = launch(train_digits, SMALL, data, backend="gloo", world_size=1).values[0]
    assert first.losses != pytest.approx(alone.losses, rel=1e-2)
    assert alone.losses == pytest.approx(in_one_process(SMALL, 1, data)[0], rel=1e-3)
    said = capfd.readouterr().out
    assert re.search(r"Hello from rank 1 of 2: gloo, cpu, process \d+ on ", said)
    assert f"Epoch [1/2], Step [4/4], Loss: {first.losses[3]:.4f}" in said


def test_every_rank_judges_with_the_statistics_of_rank_0():
    def judged(model: torch.nn.Module, test: Digits) -> float:
        if dist.get_rank() == 1:
            model.get_submodule("1").running_var.fill_(1e6)
        return digits_task._accuracy(model, test, torch.device("cpu"))

    data = pictures(500)
    model, test = in_one_process(SMALL, 1, data)[1].eval(), data[1]
    expected = (model(test.images).argmax(dim=1) == test.labels).float().mean().item()
    assert expected > 0.5
    first, second = launch(judged, model, test, backend="gloo").values
    assert first == second == pytest.approx(expected, abs=1.01 / len(test))  # other batches: one picture may tip over


def test_it_learns_to_read_and_all_ranks_judge_the_same_model():
    first, second = launch(train_digits, DigitsConfig("shipped", epochs=5), backend="gloo").values
    assert first.accuracy == second.accuracy > 0.85
    assert first.losses[-1] < 0.1 < 2 < first.losses[0]  # ln 10 is 2.3


# --- the command ----------------------------------------------------------------------------------


FLAGS = ["digits", "--source", "shipped", "--epochs", "2"]


def progress(text: str) -> tuple[list[str], list[float]]:
    """The printed lines of training: their words, and the number at the end of each."""
    found = re.findall(r"(Epoch \[\d/2\], Step \[\d+/15\], Loss:|Accuracy on 297 test pictures:) (\d\.\d{4})", text)
    return [words for words, _ in found], [float(number) for _, number in found]


@pytest.mark.slow
def test_in_two_terminals_by_torchrun_and_on_own_processes_it_prints_the_same_losses(monkeypatch, capfd):
    without_torchrun(monkeypatch)
    train.main([*FLAGS, "-w", "2", "-g", "-1"])
    own = capfd.readouterr().out
    where = ["--master_addr", "127.0.0.1", "--master_port", str(free_port())]
    terminals = [terminal(*FLAGS, "-w", "2", "-g", "-1", *where, "-nr", str(n)) for n in (1, 0)]
    said = [out for status, out, _ in ended(terminals) if status == 0]
    done = by_torchrun(*FLAGS, "-g", "-1")
    words, numbers = progress(own)
    assert len(words) == 7 and words[0] == "Epoch [1/2], Step [5/15], Loss:"
    for text in (*said, done.stdout):
        assert progress(text) == (words, pytest.approx(numbers, abs=4e-3))
    for rank, process, text in zip((1, 0), terminals, said, strict=True):
        assert f"rank {rank} of 2, process {process.pid} on " in text  # it waits
        assert f"Hello from rank {rank} of 2: gloo, cpu, process {process.pid} on " in text


def test_ranks_that_do_not_meet_say_why_in_a_line(monkeypatch):
    without_torchrun(monkeypatch)
    flags = ["-w", "2", "-nr", "1", "--timeout-s", "0.1", "--master-port", str(free_port())]
    with pytest.raises(SystemExit, match=r"rank 1 found no rank 0 at 127\.0\.0\.1:"):
        train.main([*FLAGS, *flags])
