"""Train a ConvNet on handwritten digits: one process a terminal, averaged by DDP.

python examples/digits_by_hand.py -w 2 -nr 0 --epochs 2 --master_addr 127.0.0.1 --master_port 8888
python examples/digits_by_hand.py -w 2 -nr 1 --epochs 2 --master_addr 127.0.0.1 --master_port 8888

Each waits until the other one has been started. The digits are MNIST's if the folder LABKIT_DATA
has its four files in mnist/, such as train-images-idx3-ubyte.gz; otherwise scikit-learn's.
"""

import argparse
import gc
import gzip
import os
from pathlib import Path

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy, interpolate
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

BATCH_SIZE, N_TRAIN, SEED = 100, 1500, 0  # the batch is that of all ranks together


class ConvNet(nn.Module):
    """Two blocks of convolution, batch norm, ReLU and pooling, and a linear layer on top."""

    def __init__(self):
        super().__init__()
        self.block1 = nn.Sequential(nn.Conv2d(1, 16, 5, padding=2), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2))
        self.block2 = nn.Sequential(nn.Conv2d(16, 32, 5, padding=2), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2))
        self.linear = nn.Linear(32 * 7 * 7, 10)

    def forward(self, images):  # (N, 1, 28, 28) to (N, 10)
        return self.linear(self.block2(self.block1(images)).flatten(1))


def mnist(folder, part):
    """Return the images of "train" or "t10k", (N, 1, 28, 28) from 0 to 1, with their digits."""
    images = gzip.decompress((folder / f"{part}-images-idx3-ubyte.gz").read_bytes())
    labels = gzip.decompress((folder / f"{part}-labels-idx1-ubyte.gz").read_bytes())
    images = torch.frombuffer(bytearray(images), dtype=torch.uint8, offset=16).view(-1, 1, 28, 28)
    return TensorDataset(images / 255, torch.frombuffer(bytearray(labels), dtype=torch.uint8, offset=8).long())


def digits():
    """Return MNIST to train on and to test, or 1500 and 297 smaller images, enlarged."""
    folder = Path(os.environ.get("LABKIT_DATA", ""), "mnist")
    if folder.is_dir():
        return mnist(folder, "train"), mnist(folder, "t10k")
    images, labels = load_digits(return_X_y=True)
    images = interpolate(torch.tensor(images / 16, dtype=torch.float32).view(-1, 1, 8, 8), size=28)
    labels = torch.tensor(labels)
    return TensorDataset(images[:N_TRAIN], labels[:N_TRAIN]), TensorDataset(images[N_TRAIN:], labels[N_TRAIN:])


def train(device, epochs):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(SEED)
    dataset, test = digits()
    model = DistributedDataParallel(ConvNet().to(device))  # gives every rank rank 0's weights
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    sampler = DistributedSampler(dataset, seed=SEED)  # knows rank and world size from the group
    loader = DataLoader(dataset, batch_size=BATCH_SIZE // world_size, sampler=sampler)
    for epoch in range(1, epochs + 1):
        sampler.set_epoch(epoch)  # or every epoch would have the order of the first
        model.train()
        for step, (images, labels) in enumerate(loader, start=1):
            loss = cross_entropy(model(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()  # averages the gradients meanwhile
            optimizer.step()
            if step % (len(loader) // 3) == 0:  # this rank's own loss
                print(f"Epoch [{epoch}/{epochs}], Step [{step}/{len(loader)}], Loss: {loss.item():.4f}", flush=True)
    if rank == 0:
        model.eval()
        with torch.no_grad():
            right = [model.module(x.to(device)).argmax(dim=1).cpu() == y for x, y in DataLoader(test, batch_size=1000)]
        print(f"Accuracy on {len(test)} test images: {torch.cat(right).float().mean():.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train a ConvNet on handwritten digits, as one rank.")
    parser.add_argument("-w", "--world_size", type=int, default=2, help="processes in all (%(default)s)")
    parser.add_argument("-nr", "--rank", type=int, required=True, help="which of them this is, from 0 on")
    parser.add_argument("-g", "--gpu", type=int, default=-1, help="its GPU; -1 is the CPU (%(default)s)")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--master_addr", default="127.0.0.1", help="rank 0's machine (%(default)s)")
    parser.add_argument("--master_port", default="8888", help="where rank 0 listens (%(default)s)")
    args = parser.parse_args()
    if not 0 <= args.rank < args.world_size or BATCH_SIZE % args.world_size:
        parser.error(f"-w must share out {BATCH_SIZE} images equally, and -nr is one of 0 to {args.world_size - 1}")
    device = torch.device("cpu" if args.gpu < 0 else f"cuda:{args.gpu}")
    os.environ.update(MASTER_ADDR=args.master_addr, MASTER_PORT=args.master_port)
    dist.init_process_group("gloo", rank=args.rank, world_size=args.world_size)  # waits for the others
    print(f"Hello from rank {args.rank} of {args.world_size}, process {os.getpid()}", flush=True)
    train(device, args.epochs)
    gc.collect()  # the DDP model, which train() left: ending the group under one may hang for ever
    dist.destroy_process_group()
