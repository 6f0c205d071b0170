"""Train a small network on handwritten digits: Accelerate.

accelerate launch --multi_gpu --num_processes 2 --main_process_port 0 examples/5_accelerate.py

With `--checkpoint FILE` it saves itself after each epoch, and goes on from FILE where there is one.
"""

import argparse
import os
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

BATCH_SIZE, SEED = 64, 0


def digits():
    """Return 1797 images, each a row of 8 × 8 numbers from 0 to 1, and the digit each one shows."""
    images, labels = load_digits(return_X_y=True)
    return TensorDataset(torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels))


def report(accelerator, epoch, step, loss):
    loss = accelerator.reduce(loss, "mean")
    accelerator.print(f"epoch {epoch + 1}, step {step}, loss {loss:.4f}", flush=True)  # on rank 0 alone


def train(accelerator, epochs, checkpoint):
    torch.manual_seed(SEED)
    dataset = digits()
    loader = DataLoader(dataset, BATCH_SIZE, shuffle=True, drop_last=True)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    # Makes the model DDP, and has the loader give each rank its part of a batch.
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    first = 0
    if checkpoint and checkpoint.exists():
        saved = torch.load(checkpoint, map_location="cpu")
        accelerator.unwrap_model(model).load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["epochs"]
    for epoch in range(first, epochs):
        loader.set_epoch(epoch)  # it counts epochs by itself, but not those before the checkpoint
        for step, (images, labels) in enumerate(loader, start=1):
            loss = cross_entropy(model(images), labels)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            if step % 7 == 0:  # four times an epoch
                report(accelerator, epoch, step, loss.detach())
        if checkpoint and accelerator.is_main_process:
            weights = accelerator.unwrap_model(model).state_dict()
            saved = {"model": weights, "optimizer": optimizer.state_dict(), "epochs": epoch + 1}
            checkpoint.parent.mkdir(parents=True, exist_ok=True)
            unfinished = checkpoint.with_name(checkpoint.name + ".part")
            torch.save(saved, unfinished)
            unfinished.replace(checkpoint)  # so a run that is killed meanwhile leaves no half checkpoint


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--checkpoint", type=Path)
    options = parser.parse_args()
    n_gpus = torch.accelerator.device_count() if torch.cuda.is_available() else 0
    on_gpus = n_gpus >= int(os.environ.get("LOCAL_WORLD_SIZE", 1))  # a GPU for each rank here
    # BATCH_SIZE is for all ranks together, and the order is that of DistributedSampler.
    loading = DataLoaderConfiguration(split_batches=True, use_seedable_sampler=True, data_seed=SEED)
    accelerator = Accelerator(cpu=not on_gpus, dataloader_config=loading)
    train(accelerator, options.epochs, options.checkpoint)
    accelerator.free_memory()  # lets go of the DDP model: ending the group under one may hang for ever
    accelerator.end_training()
