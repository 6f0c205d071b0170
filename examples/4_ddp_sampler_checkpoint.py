"""Train a small network on handwritten digits: DDP, with a sampler and checkpoints.

torchrun --standalone --nproc-per-node 2 examples/4_ddp_sampler_checkpoint.py

With `--checkpoint FILE` it saves itself after each epoch, and goes on from FILE where there is one.
"""

import argparse
import gc
import os
from pathlib import Path

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

BATCH_SIZE, SEED = 64, 0


def digits():
    """Return 1797 images, each a row of 8 × 8 numbers from 0 to 1, and the digit each one shows."""
    images, labels = load_digits(return_X_y=True)
    return TensorDataset(torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels))


def report(epoch, step, loss):
    dist.all_reduce(loss)  # the sum over all ranks, on each of them
    if dist.get_rank() == 0:  # or every line would come once from each rank
        print(f"epoch {epoch + 1}, step {step}, loss {loss / dist.get_world_size():.4f}", flush=True)


def train(device, epochs, checkpoint):
    world_size = dist.get_world_size()
    if BATCH_SIZE % world_size:
        raise SystemExit(f"{BATCH_SIZE} rows cannot be shared out equally to {world_size} ranks: take 2, 4 or 8 ranks")
    torch.manual_seed(SEED)
    dataset = digits()
    sampler = DistributedSampler(dataset, seed=SEED)  # rank r of W takes every W-th row, from row r on
    loader = DataLoader(dataset, BATCH_SIZE // world_size, sampler=sampler, drop_last=True)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
    model = DistributedDataParallel(model)  # gives every rank a copy of rank 0's weights
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    first = 0
    if checkpoint and checkpoint.exists():
        saved = torch.load(checkpoint, map_location="cpu")  # every rank, as DDP copies the weights alone
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["epochs"]
    for epoch in range(first, epochs):
        sampler.set_epoch(epoch)  # without it, every epoch has the order of the first
        for step, (images, labels) in enumerate(loader, start=1):
            loss = cross_entropy(model(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()  # averages the gradients meanwhile, bucket by bucket
            optimizer.step()
            if step % 7 == 0:  # four times an epoch
                report(epoch, step, loss.detach())
        if checkpoint and dist.get_rank() == 0:  # all ranks have the same, so one of them writes
            saved = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "epochs": epoch + 1}
            checkpoint.parent.mkdir(parents=True, exist_ok=True)
            unfinished = checkpoint.with_name(checkpoint.name + ".part")
            torch.save(saved, unfinished)
            unfinished.replace(checkpoint)  # so a run that is killed meanwhile leaves no half checkpoint


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--checkpoint", type=Path)
    options = parser.parse_args()
    if "LOCAL_RANK" not in os.environ:  # torchrun tells each rank where it stands
        raise SystemExit(f"This needs to be started by torchrun:\n{__doc__}")
    device, backend = torch.device("cpu"), "gloo"
    if torch.cuda.is_available() and torch.accelerator.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
        device, backend = torch.device("cuda", int(os.environ["LOCAL_RANK"])), "nccl"
        torch.cuda.set_device(device)
    dist.init_process_group(backend)
    train(device, options.epochs, options.checkpoint)
    gc.collect()  # the DDP model, which train() left: ending the group under one may hang for ever
    dist.destroy_process_group()
