"""Train a small network on handwritten digits: FSDP2, which gives each rank a part of the model.

torchrun --standalone --nproc-per-node 2 examples/6_fsdp2.py

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
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

BATCH_SIZE, SEED = 64, 0
WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)  # a checkpoint has the whole model


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
    torch.manual_seed(SEED)  # each rank keeps its part of these weights, so they must be the same
    dataset = digits()
    sampler = DistributedSampler(dataset, seed=SEED)  # rank r of W takes every W-th row, from row r on
    loader = DataLoader(dataset, BATCH_SIZE // world_size, sampler=sampler, drop_last=True)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
    mesh = init_device_mesh(device.type, (world_size,))
    for part in (model[0], model[2], model):  # layers first: only one at a time is whole
        fully_shard(part, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    first = 0
    if checkpoint and checkpoint.exists():
        saved = torch.load(checkpoint, map_location="cpu")
        weights, momentum = saved["model"], saved["optimizer"]
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=momentum, options=WHOLE)
        first = saved["epochs"]
    for epoch in range(first, epochs):
        sampler.set_epoch(epoch)  # without it, every epoch has the order of the first
        for step, (images, labels) in enumerate(loader, start=1):
            loss = cross_entropy(model(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()  # leaves each rank the mean gradient of its part
            optimizer.step()
            if step % 7 == 0:  # four times an epoch
                report(epoch, step, loss.detach())
        if not checkpoint:
            continue
        weights, momentum = get_state_dict(model, optimizer, options=WHOLE)  # every rank gives its part
        if dist.get_rank() == 0:
            saved = {"model": weights, "optimizer": momentum, "epochs": epoch + 1}
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
    gc.collect()  # what train() left: ending the group under a model may hang for ever
    dist.destroy_process_group()
